//! A disk in memory that a test can stop, break and copy, under a local store that knows nothing of it.
//! Invariant: a batch is there whole or not at all, also in a copy made while the store writes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use entrega::store::local::{Batch, Disk, DiskError, HeapDisk, Key, LocalStore, Order, Table, Visit};
use entrega_core::id::JobId;
use parking_lot::{Condvar, Mutex};

use super::fixture::{Fixture, SECOND, Setup};
use super::worlds::open_over;

/// The disk; its clones share everything.
#[derive(Clone, Default)]
pub(crate) struct SharedDisk(Arc<Shared>);

#[derive(Default)]
struct Shared {
    heap: HeapDisk,
    gate: Mutex<Gate>,
    changed: Condvar,
    is_broken: AtomicBool,
}

#[derive(Default)]
struct Gate {
    is_shut: bool,
    /// Writes that still go through although it is shut.
    passes: usize,
    waiting: usize,
    /// Writes until all others fail, if they are to.
    fails_after: Option<usize>,
    /// Whether a write that fails is there all the same.
    keeps_failed: bool,
    /// The table whose next read is stopped.
    stops: Option<Table>,
    is_reader_stopped: bool,
}

impl SharedDisk {
    /// Lets no write through until [`SharedDisk::release`].
    pub(crate) fn hold(&self) {
        self.hold_after(0);
    }

    /// The same, after so many more writes.
    pub(crate) fn hold_after(&self, writes: usize) {
        let mut gate = self.0.gate.lock();
        (gate.is_shut, gate.passes) = (true, writes);
    }

    /// Waits until the writer stands before the shut gate.
    pub(crate) fn wait_for_writer(&self) {
        let mut gate = self.0.gate.lock();
        self.0.changed.wait_while(&mut gate, |gate| gate.waiting == 0);
    }

    /// Stops the next read of a table, and that one only, until [`SharedDisk::release`].
    pub(crate) fn stop_reader(&self, table: Table) {
        self.0.gate.lock().stops = Some(table);
    }

    /// Waits until somebody has been stopped; not for ever, for nothing says that the store must read.
    pub(crate) fn wait_for_reader(&self) {
        let mut gate = self.0.gate.lock();
        self.0.changed.wait_while_for(&mut gate, |gate| !gate.is_reader_stopped, 2 * SECOND);
    }

    /// Lets everything through again.
    pub(crate) fn release(&self) {
        let mut gate = self.0.gate.lock();
        (gate.is_shut, gate.stops, gate.is_reader_stopped) = (false, None, false);
        self.0.changed.notify_all();
    }

    /// Every write fails, after so many more; whether those that do are there all the same.
    pub(crate) fn fail_after(&self, writes: usize, is_kept: bool) {
        let mut gate = self.0.gate.lock();
        (gate.fails_after, gate.keeps_failed) = (Some(writes), is_kept);
    }

    /// Every write fails from now on.
    pub(crate) fn break_down(&self) {
        self.0.is_broken.store(true, Ordering::SeqCst);
    }

    /// What a crash at this moment leaves.
    pub(crate) fn copy(&self) -> SharedDisk {
        let copy = SharedDisk::default();
        let _no_write_between = self.0.gate.lock();
        let mut batch = Batch::default();
        for table in Table::ALL {
            for (key, value) in self.rows(table) {
                let id = <[u8; 16]>::try_from(key.as_slice()).ok().filter(|_| table != Table::Registry);
                let key = id.map_or_else(|| Key::Text(String::from_utf8(key).unwrap()), Key::Id);
                batch.put(table, key, value);
            }
        }
        copy.0.heap.commit(batch).unwrap();
        copy
    }

    /// All rows of a table.
    pub(crate) fn rows(&self, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut rows = Vec::new();
        let mut take = |key: &[u8], value: &[u8]| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        self.0.heap.scan(table, Order::UpFrom(&[]), &mut take).unwrap();
        rows
    }

    /// The jobs that have a row in a table.
    pub(crate) fn ids(&self, table: Table) -> Vec<JobId> {
        self.rows(table).into_iter().map(|(key, _)| JobId::from_bytes(key.try_into().unwrap())).collect()
    }

    pub(crate) fn open(&self, setup: &Setup) -> Arc<LocalStore> {
        open_over(self.clone(), setup)
    }

    /// A new disk and a scenario's world over it.
    pub(crate) fn world() -> (SharedDisk, Fixture) {
        let (disk, setup) = (SharedDisk::default(), Setup::new());
        let store = disk.open(&setup);
        (disk, Fixture::over(store, setup))
    }
}

impl Disk for SharedDisk {
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError> {
        let mut gate = self.0.gate.lock();
        if gate.stops == Some(table) {
            gate.stops = None;
            gate.is_reader_stopped = true;
            self.0.changed.notify_all();
            self.0.changed.wait_while(&mut gate, |gate| gate.is_reader_stopped);
        }
        drop(gate);
        self.0.heap.read(table, key, see)
    }

    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError> {
        self.0.heap.scan(table, order, visit)
    }

    fn commit(&self, batch: Batch) -> Result<(), DiskError> {
        let mut gate = self.0.gate.lock();
        gate.waiting += 1;
        self.0.changed.notify_all();
        self.0.changed.wait_while(&mut gate, |gate| gate.is_shut && gate.passes == 0);
        gate.waiting -= 1;
        gate.passes = gate.passes.saturating_sub(1);
        let fails = gate.fails_after == Some(0);
        gate.fails_after = gate.fails_after.map(|left| left.saturating_sub(1));
        if fails && gate.keeps_failed {
            self.0.heap.commit(batch)?;
        } else if !fails && !self.0.is_broken.load(Ordering::SeqCst) {
            return self.0.heap.commit(batch);
        }
        Err(DiskError::Io { doing: "writing", reason: "the cable was pulled".into() })
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn durability(&self) -> &'static str {
        "until the test ends"
    }
}
