//! A disk that is none: tables in memory, gone with the process.
//! Invariant: behaves as the real one in every way but durability; a batch is seen whole or not at all.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use parking_lot::RwLock;

use super::disk::{Batch, Disk, DiskError, Order, Table, Visit};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Tables in memory.
#[derive(Debug, Default)]
pub struct HeapDisk {
    tables: RwLock<[Rows; Table::ALL.len()]>,
}

impl Disk for HeapDisk {
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError> {
        // A visitor of a scan may read: it holds this lock already, and must not queue behind a writer for it.
        let tables = self.tables.read_recursive();
        Ok(tables[table as usize].get(key).map(|value| see(value)).is_some())
    }

    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError> {
        let tables = self.tables.read_recursive();
        let (range, is_up) = match order {
            Order::UpFrom(key) => ((Bound::Included(key), Bound::Unbounded), true),
            Order::DownFrom(Some(key)) => ((Bound::Unbounded, Bound::Excluded(key)), false),
            Order::DownFrom(None) => ((Bound::Unbounded, Bound::Unbounded), false),
        };
        let mut rows = tables[table as usize].range::<[u8], _>(range);
        while let Some((key, value)) = if is_up { rows.next() } else { rows.next_back() } {
            if visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<(), DiskError> {
        let mut tables = self.tables.write();
        for op in batch.ops {
            let rows = &mut tables[op.table as usize];
            match op.value {
                Some(value) => rows.insert(op.key.as_ref().to_vec(), value),
                None => rows.remove(op.key.as_ref()),
            };
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn durability(&self) -> &'static str {
        "none: everything is lost with the process"
    }
}
