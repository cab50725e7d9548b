//! The real disk: fjall, a log-structured tree, in a directory that one process owns.
//! Invariant: a batch is in the journal and fdatasync'ed before `commit` returns.
//! Never: goes on after a failed sync; the engine poisons itself, and the store stops.

use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fjall::JournalRecoveryError::{ChecksumMismatch, InsufficientLength, TooManyItems};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::disk::{Batch, Disk, DiskError, Key, Order, Table, Visit};
use super::journal;

/// Blocks kept for reading. Payloads are read about once, soon after they were written.
const CACHE_BYTES: u64 = 16 << 20;
/// What each table gathers in memory before it is written out.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The journal is read again at start-up, so its size bounds the time that takes.
const JOURNAL_BYTES: u64 = 128 << 20;

/// Tables in a directory.
pub struct LsmDisk {
    path: PathBuf,
    db: Database,
    tables: Vec<Keyspace>,
}

impl LsmDisk {
    /// Opens or makes the directory, and takes its lock.
    pub fn open(path: &Path) -> Result<LsmDisk, DiskError> {
        let shown = path.display().to_string();
        let cannot = |reason: String| DiskError::Open { path: shown.clone(), reason };
        // What jobs carry is nobody else's business on this machine.
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|error| cannot(error.to_string()))?;
        let store = path.join("store");
        let open = || {
            let builder = Database::builder(&store).cache_size(CACHE_BYTES).max_journaling_size(JOURNAL_BYTES);
            builder.worker_threads(1).open()
        };
        let mut opened = open();
        if let Err(fjall::Error::JournalRecovery(ChecksumMismatch | InsufficientLength | TooManyItems)) = opened {
            journal::cut_torn_batch(&store)?;
            opened = open();
        }
        let db = opened.map_err(|error| match error {
            fjall::Error::Locked => DiskError::InUse { path: shown.clone() },
            other => cannot(other.to_string()),
        })?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let tables = Table::ALL.iter().map(|table| db.keyspace(table.name(), options));
        let tables = tables.collect::<Result<Vec<_>, _>>().map_err(|error| cannot(error.to_string()))?;
        Ok(LsmDisk { path: path.to_owned(), db, tables })
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }
}

fn io(doing: &'static str) -> impl Fn(fjall::Error) -> DiskError {
    move |error| DiskError::Io { doing, reason: error.to_string() }
}

impl From<&Key> for fjall::Slice {
    fn from(key: &Key) -> fjall::Slice {
        fjall::Slice::from(key.as_ref())
    }
}

impl Disk for LsmDisk {
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError> {
        let value = self.table(table).get(key).map_err(io("reading the store"))?;
        Ok(value.map(|value| see(&value)).is_some())
    }

    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError> {
        let table = self.table(table);
        let mut see = |guard: fjall::Guard| -> Result<ControlFlow<()>, DiskError> {
            let (key, value) = guard.into_inner().map_err(io("reading the store"))?;
            Ok(visit(&key, &value))
        };
        let mut rows: Box<dyn Iterator<Item = fjall::Guard>> = match order {
            Order::UpFrom(key) => Box::new(table.range(key..)),
            Order::DownFrom(Some(key)) => Box::new(table.range(..key).rev()),
            Order::DownFrom(None) => Box::new(table.iter().rev()),
        };
        for row in &mut rows {
            if see(row)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<(), DiskError> {
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), batch.ops.len())
            .durability(Some(PersistMode::SyncData));
        for op in batch.ops {
            let table = self.table(op.table);
            match op.value {
                Some(value) => writes.insert(table, &op.key, value),
                None => writes.remove(table, &op.key),
            }
        }
        writes.commit().map_err(io("writing the store"))
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn kind(&self) -> &'static str {
        "embedded"
    }

    fn durability(&self) -> &'static str {
        "every write is synced to disk before it is acknowledged"
    }
}
