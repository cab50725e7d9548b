//! A ledger in memory that a test can stop, break and copy, under a store that knows nothing of it.
//! Invariant: a group is there whole or not at all, also in a copy made while the store writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use entrega::store::local::LocalStore;
use entrega::store::local::tables::TABLES;
use entrega_core::id::JobId;
use entrega_ledger::{Group, HeapLedger, LedgerDouble, LedgerError, Scan, Table, Unit};
use parking_lot::{Condvar, Mutex};

use super::fixture::{Fixture, SECOND, Setup};
use super::worlds::open_over;

/// The ledger; its clones share everything.
#[derive(Clone)]
pub(crate) struct TestLedger(Arc<Shared>);

impl Default for TestLedger {
    fn default() -> TestLedger {
        TestLedger::over(HeapLedger::new(&TABLES))
    }
}

struct Shared {
    heap: Arc<HeapLedger>,
    gate: Mutex<Gate>,
    changed: Condvar,
    is_broken: AtomicBool,
}

#[derive(Default)]
struct Gate {
    is_shut: bool,
    /// Writes so far.
    writes: usize,
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

impl TestLedger {
    fn over(heap: HeapLedger) -> TestLedger {
        let (gate, changed, is_broken) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        TestLedger(Arc::new(Shared { heap: Arc::new(heap), gate, changed, is_broken }))
    }

    /// Lets no write through until [`TestLedger::release`].
    pub(crate) fn hold(&self) {
        self.hold_after(0);
    }

    /// The same, after so many more writes.
    pub(crate) fn hold_after(&self, writes: usize) {
        let mut gate = self.0.gate.lock();
        (gate.is_shut, gate.passes) = (true, writes);
    }

    /// Lets one write through that waits.
    pub(crate) fn let_one_through(&self) {
        self.0.gate.lock().passes += 1;
        self.0.changed.notify_all();
    }

    /// Writes so far.
    pub(crate) fn writes(&self) -> usize {
        self.0.gate.lock().writes
    }

    /// Waits until the writer stands before the shut gate.
    pub(crate) fn wait_for_writer(&self) {
        let mut gate = self.0.gate.lock();
        self.0.changed.wait_while(&mut gate, |gate| gate.waiting == 0);
    }

    /// Stops the next read of a table, and that one only, until [`TestLedger::release`].
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
    pub(crate) fn copy(&self) -> TestLedger {
        TestLedger::over(self.0.heap.copy())
    }

    /// Changes it behind the store's back.
    pub(crate) fn change(&self, change: Unit) {
        self.0.heap.apply(&[Group { fences: Vec::new(), units: vec![change] }]).unwrap();
    }

    /// All rows of a table.
    pub(crate) fn rows(&self, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
        let rows = self.0.heap.rows(table, Scan::UpFrom(&[]), usize::MAX, usize::MAX);
        rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// The jobs that have a row in a table.
    pub(crate) fn ids(&self, table: Table) -> Vec<JobId> {
        let id = |key: &[u8]| JobId::from_bytes(*key.last_chunk().expect("a key ends with an id"));
        let mut ids: Vec<JobId> = self.rows(table).iter().map(|(key, _)| id(key)).collect();
        ids.sort();
        ids
    }

    pub(crate) async fn open(&self, setup: &Setup) -> Arc<LocalStore> {
        let (writing, reading) = (self.0.clone(), self.0.clone());
        let ledger = LedgerDouble::over(self.0.heap.clone())
            .before_write(move |groups| writing.before_write(groups))
            .before_read(move |table, _| {
                reading.before_read(table);
                Ok(())
            });
        open_over(ledger, setup).await
    }

    /// A new ledger and a scenario's world over it.
    pub(crate) async fn world() -> (TestLedger, Fixture) {
        let (ledger, setup) = (TestLedger::default(), Setup::new());
        let store = ledger.open(&setup).await;
        (ledger, Fixture::over(store, setup))
    }
}

impl Shared {
    /// Waits before the gate; then the write happens, or fails as it is told to.
    fn before_write(&self, groups: &[Group]) -> Result<(), LedgerError> {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut gate, |gate| gate.is_shut && gate.passes == 0);
        gate.waiting -= 1;
        gate.writes += 1;
        gate.passes = gate.passes.saturating_sub(1);
        let fails = gate.fails_after == Some(0);
        gate.fails_after = gate.fails_after.map(|left| left.saturating_sub(1));
        if fails && gate.keeps_failed {
            self.heap.apply(groups)?;
        } else if !fails && !self.is_broken.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(LedgerError::Broken { doing: "writing", reason: "the cable was pulled".into() })
    }

    fn before_read(&self, table: Table) {
        let mut gate = self.gate.lock();
        if gate.stops == Some(table) {
            gate.stops = None;
            gate.is_reader_stopped = true;
            self.changed.notify_all();
            self.changed.wait_while(&mut gate, |gate| gate.is_reader_stopped);
        }
    }
}
