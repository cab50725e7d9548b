//! A local store: one process owns the data. The lane machines are in memory, the records on a [`Disk`].
//! Invariant: the memory is what the disk would give after a restart, plus attempts under way and writes that are in
//! the writer's queue. A failed write ends the store, so the two never part.
//! Never: writes to claim. Whatever had not ended is queued again at start-up.
//!
//! # Layout
//! - `disk`, `heap`, `lsm`: what a disk is, in memory and for real; `journal`: what a power cut leaves of the latter
//! - `records`: the schema
//! - `recovery`: from the disk to the machines, at start-up; `starts`: what throttles know of the last run
//! - `queue`, `writer`: group commit
//! - `jobs` (with `ahead`), `settlements`, `listing`, `dead`, `registry`, `mail`, `sweep`, `answers`, `gates`, `requests`: the verbs

mod ahead;
mod answers;
mod dead;
mod disk;
mod gates;
mod heap;
mod jobs;
mod journal;
mod listing;
mod lsm;
mod mail;
mod queue;
mod records;
mod recovery;
mod registry;
mod requests;
mod settlements;
mod starts;
mod sweep;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::Lane;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

pub use self::disk::{Batch, Disk, DiskError, Key, Op, Order, Table, Visit};
pub use self::heap::HeapDisk;
pub use self::lsm::LsmDisk;

use self::ahead::Ahead;
use self::answers::Answers;
use self::dead::DeadIndex;
use self::gates::Gates;
use self::queue::Queue;
use self::records::{Ended, id_key};
use self::registry::Registered;
use self::writer::{Command, Writer};
use crate::clock::Clock;
use crate::store::StoreError;
use crate::store::waiters::Waiters;

/// New jobs that may wait for the writer at once, and so about the largest batch.
const SUBMITS_WAITING_MAX: usize = 4096;
/// Jobs that were attempted and whose settlement may be on its way to the disk at once. With the lane's concurrency it
/// bounds the attempts that a crash repeats.
pub const UNSETTLED_MAX: usize = 1024;
/// Commands of all kinds that the queue holds: more than the two limits above let in.
const COMMANDS_MAX: usize = SUBMITS_WAITING_MAX + UNSETTLED_MAX + 1024;

/// How a local store is set up.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The lanes there are.
    pub lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
    /// How long ended jobs are kept.
    pub retention: Duration,
    /// New work is refused when less is free.
    pub free_bytes_min: u64,
    /// Where dead letters that leave are written down, one file a day.
    pub export_dir: Option<PathBuf>,
}

/// A store that one process owns.
pub struct LocalStore {
    shared: Arc<Shared>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// One lane: its machine and the bell that wakes its dispatcher.
struct LaneCell {
    name: LaneName,
    policy: Arc<LanePolicy>,
    machine: Mutex<Lane>,
    ahead: Mutex<Ahead>,
    wake: Arc<Notify>,
    blocked: AtomicU32,
    /// Whether a first attempt may have a history.
    has_unblocked: AtomicBool,
}

struct Shared {
    clock: Clock,
    disk: Box<dyn Disk>,
    options: LocalOptions,
    lanes: BTreeMap<LaneName, Arc<LaneCell>>,
    dead: Mutex<DeadIndex>,
    registered: RwLock<Registered>,
    waiters: Waiters,
    answers: Answers,
    gates: Gates,
    queue: Queue,
    submit_permits: Arc<Semaphore>,
    settle_permits: Arc<Semaphore>,
    /// Operators' changes, one at a time: each reads, decides and writes.
    changes: tokio::sync::Mutex<()>,
    failure: watch::Sender<Option<String>>,
    is_full: AtomicBool,
    /// Whether the last starts are written down, so that nothing may be started before they are forgotten.
    is_released: AtomicBool,
    unreadable: AtomicU64,
    /// Submissions that found the disk full.
    rejected: AtomicU64,
    /// Where the next sweep of ended jobs goes on.
    sweep_from: Mutex<JobId>,
}

impl LocalStore {
    /// Opens the store: reads the index, queues again whatever had not ended.
    pub fn open(disk: Box<dyn Disk>, clock: Clock, options: LocalOptions) -> Result<LocalStore, DiskError> {
        let lanes = options.lanes.iter().map(|(name, policy)| {
            let cell = LaneCell {
                name: name.clone(),
                policy: policy.clone(),
                machine: Mutex::new(Lane::new(policy.clone())),
                ahead: Mutex::default(),
                wake: Arc::new(Notify::new()),
                blocked: AtomicU32::new(0),
                has_unblocked: AtomicBool::new(false),
            };
            (name.clone(), Arc::new(cell))
        });
        let opened_at = clock.now();
        let shared = Arc::new(Shared {
            lanes: lanes.collect(),
            clock,
            disk,
            options,
            dead: Mutex::default(),
            registered: RwLock::default(),
            waiters: Waiters::default(),
            answers: Answers::default(),
            gates: Gates::opened_at(opened_at),
            queue: Queue::new(COMMANDS_MAX),
            submit_permits: Arc::new(Semaphore::new(SUBMITS_WAITING_MAX)),
            settle_permits: Arc::new(Semaphore::new(UNSETTLED_MAX)),
            changes: tokio::sync::Mutex::new(()),
            failure: watch::Sender::new(None),
            is_full: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            unreadable: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            sweep_from: Mutex::new(JobId::MIN),
        });
        shared.recover()?;
        let writer = Writer { shared: shared.clone() };
        let writer = std::thread::Builder::new().name("store-writer".into()).spawn(move || writer.run());
        let writer =
            writer.map_err(|error| DiskError::Io { doing: "starting the writer", reason: error.to_string() })?;
        Ok(LocalStore { shared, writer: Mutex::new(Some(writer)) })
    }

    /// Writes what is waiting, then takes nothing more. Called when dropped, too.
    pub fn close(&self) {
        if let Some(writer) = self.writer.lock().take() {
            // The writer may have failed and gone: then there is nobody left to stop.
            drop(self.shared.queue.push(Command::Stop));
            drop(writer.join());
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lane(&self, name: &LaneName) -> Result<&Arc<LaneCell>, StoreError> {
        self.lanes.get(name).ok_or_else(|| StoreError::UnknownLane {
            lane: name.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    fn fail(&self, reason: String) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert(reason);
            is_first
        });
        // Whoever waits for room waits in vain.
        self.submit_permits.close();
        self.settle_permits.close();
        self.queue.close();
        self.waiters.tell_all();
    }

    fn stopped(&self) -> StoreError {
        let reason = self.failure.borrow().clone().unwrap_or_else(|| "it is shutting down".into());
        StoreError::Stopped { reason }
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        self.queue.push(command).map_err(|_| self.stopped())
    }

    /// Writes a change whose effect in memory has happened, and waits until it is durable.
    async fn change(&self, batch: Batch, ended: Vec<JobId>) -> Result<(), StoreError> {
        let (reply, durable) = oneshot::channel();
        self.send(Command::Change { batch, ended, then: None, reply })?;
        durable.await.map_err(|_| self.stopped())
    }

    /// Writes a change whose effect in memory comes with its durability: the writer makes it, so that it happens even
    /// if the caller has gone away.
    async fn change_then(&self, batch: Batch, then: impl FnOnce(&Shared) + Send + 'static) -> Result<(), StoreError> {
        let (reply, durable) = oneshot::channel();
        self.send(Command::Change { batch, ended: Vec::new(), then: Some(Box::new(then)), reply })?;
        durable.await.map_err(|_| self.stopped())
    }

    /// Waits until the disk has what memory knows; whoever reads, decides and writes begins with this.
    async fn settled(&self) -> Result<(), StoreError> {
        self.change(Batch::default(), Vec::new()).await
    }

    /// Writes the end of a job that was not delivered: dropped or cancelled. A dead letter on its way back stays one.
    fn drop_job(&self, batch: &mut Batch, id: JobId, state: JobState, reason: &str) -> Result<(), DiskError> {
        if self.dead.lock().contains(id) {
            return self.return_to_dead(batch, id, reason);
        }
        // It may have come in this very batch.
        let in_batch = batch.ops.iter().rev().find(|op| op.table == Table::Jobs && op.key.as_ref() == id.as_bytes());
        let job = match in_batch.and_then(|op| op.value.as_deref()) {
            Some(bytes) => records::decode(Table::Jobs, bytes).map(Some),
            None => records::load_job(&*self.disk, id),
        };
        let mut end = match self.readable(&id, job)? {
            Some(Some(job)) => Ended::of(job, state, self.clock.now(), 0),
            Some(None) => return Ok(()),
            None => match records::load_live(&*self.disk, id)? {
                Some(live) => records::end_of_unreadable(id, live, state, self.clock.now()),
                None => return Ok(()),
            },
        };
        end.reason = Some(reason.to_owned());
        let history = self.readable(&id, records::load_history(&*self.disk, id))?;
        let had_history = history.as_ref().is_none_or(|history| !history.is_empty());
        end.attempts = history.unwrap_or_default();
        leave_index(batch, id, had_history);
        batch.put(Table::Jobs, id_key(id), records::encode_ended(&end));
        Ok(())
    }

    /// `None`, and a note, for a record that cannot be read; a disk that cannot be read is an error.
    fn readable<T>(&self, what: &dyn fmt::Display, loaded: Result<T, DiskError>) -> Result<Option<T>, DiskError> {
        match loaded {
            Ok(record) => Ok(Some(record)),
            Err(error @ DiskError::Record { .. }) => {
                self.note_unreadable(&what.to_string(), &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    fn note_unreadable(&self, what: &str, error: &DiskError) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        tracing::error!(record = what, errorReason = %error, "A record cannot be read; it is left as it is");
    }
}

/// Takes a job off the index of jobs that have not ended. What it carried is overwritten or removed by the caller.
fn leave_index(batch: &mut Batch, id: JobId, had_history: bool) {
    batch.remove(Table::Live, id_key(id));
    if had_history {
        batch.remove(Table::History, id_key(id));
    }
}
