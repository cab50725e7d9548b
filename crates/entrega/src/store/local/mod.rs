//! The store: lane machines in memory over a ledger.
//! Invariant: the memory is what the ledger would give after a restart, plus attempts under way and writes that are in
//! the writer's queue. A failed write ends the store, so the two never part.
//! Never: writes to claim. Whatever had not ended is queued again when its lane is loaded.
//!
//! # Layout
//! - `tables`, `records`: the schema; `reading`: records and rows of the ledger
//! - `recovery`: from the ledger to the machines, at start-up; `starts`: what throttles know of the last run
//! - `command`, `queue`, `writer`: group commit
//! - `jobs` (with `read_ahead`), `settlements`, `ends`, `listing`, `dead`, `registry`, `mail`, `sweep`, `answers`, `gates`,
//!   `requests`: the verbs

mod answers;
mod command;
mod dead;
mod ends;
mod gates;
mod jobs;
mod listing;
mod mail;
mod queue;
mod read_ahead;
mod reading;
mod records;
mod recovery;
mod registry;
mod requests;
mod settlements;
mod starts;
mod sweep;
pub mod tables;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::lane::Lane;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_ledger::{Key, Ledger, LedgerError, Owning, Shard, Token, Unit};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

pub use self::reading::ReadError;
pub use self::records::Record;

use self::answers::Answers;
use self::command::{Command, Then};
use self::dead::DeadIndex;
use self::gates::Gates;
use self::queue::{NotTaken, Queue};
use self::read_ahead::ReadAhead;
use self::registry::Registered;
use self::writer::Writer;
use crate::chance::secret_bytes;
use crate::clock::Clock;
use crate::store::StoreError;
use crate::store::waiters::Waiters;

/// New jobs that may wait for the writer at once, and so about the largest group.
const SUBMITS_WAITING_MAX: usize = 4096;
/// Jobs that were attempted and whose settlement may be on its way to the ledger at once. With the lane's concurrency it
/// bounds the attempts that a crash repeats.
pub const UNSETTLED_MAX: usize = 1024;
/// Commands of all kinds that the queue holds: more than the two limits above let in.
const COMMANDS_MAX: usize = SUBMITS_WAITING_MAX + UNSETTLED_MAX + 1024;

/// How a store is set up.
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
    /// Where the writer runs.
    pub writer: WriterOn,
    /// The number of this node: no other process over the same ledger has it.
    pub node: u64,
}

impl LocalOptions {
    /// For these lanes, and otherwise as a store in a directory is set up that checks no space and exports nothing.
    pub fn new(lanes: BTreeMap<LaneName, Arc<LanePolicy>>) -> LocalOptions {
        LocalOptions {
            lanes,
            retention: Duration::from_hours(24),
            free_bytes_min: 0,
            export_dir: None,
            writer: WriterOn::Thread,
            node: u64::from_le_bytes(secret_bytes()),
        }
    }
}

/// Where the writer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterOn {
    /// A thread of its own: the ledger's writes block.
    Thread,
    /// A task of the runtime that the store is opened in, as a simulation needs it.
    Task,
}

/// A store.
pub struct LocalStore {
    shared: Arc<Shared>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// One lane: its machine and the bell that wakes its dispatcher.
struct LaneCell {
    name: LaneName,
    /// Its name as the scope of its rows.
    scope: Arc<str>,
    policy: Arc<LanePolicy>,
    shard: Shard,
    token: Token,
    machine: Mutex<Lane>,
    read_ahead: Mutex<ReadAhead>,
    wake: Arc<Notify>,
    blocked: AtomicU32,
    /// Whether a first attempt may have a history.
    has_unblocked: AtomicBool,
}

struct Shared {
    clock: Clock,
    ledger: Arc<dyn Ledger>,
    options: LocalOptions,
    lanes: BTreeMap<LaneName, Arc<LaneCell>>,
    /// Every lane that ever had jobs here, configured or not.
    scopes: RwLock<Vec<Arc<str>>>,
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
    /// Submissions that found the ledger full.
    rejected: AtomicU64,
    /// Where the next sweep of ended jobs goes on.
    sweep_from: Mutex<JobId>,
}

impl LocalStore {
    /// Opens the store: owns every lane, reads the index, queues again whatever had not ended.
    pub async fn open(ledger: Arc<dyn Ledger>, clock: Clock, options: LocalOptions) -> Result<LocalStore, ReadError> {
        let (mut lanes, mut fences) = (BTreeMap::new(), BTreeMap::new());
        for (name, policy) in &options.lanes {
            let (lane, seq) = LaneCell::own(&*ledger, options.node, name, policy).await?;
            fences.insert(name.clone(), seq);
            lanes.insert(name.clone(), Arc::new(lane));
        }
        let opened_at = clock.now();
        let shared = Arc::new(Shared {
            lanes,
            clock,
            ledger,
            options,
            scopes: RwLock::default(),
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
        let house = own(&*shared.ledger, shared.options.node, &Shard::new(HOUSE)).await?;
        let mut writer = Writer::new(shared.clone(), fences, house);
        shared.recover(&mut writer).await?;
        let thread = match shared.options.writer {
            WriterOn::Thread => Some(writer.start_thread()?),
            WriterOn::Task => {
                tokio::spawn(writer.run());
                None
            }
        };
        Ok(LocalStore { shared, writer: Mutex::new(thread) })
    }

    /// Writes what is waiting, then takes nothing more. Called when dropped, too.
    pub fn close(&self) {
        // The writer may have failed and gone: then there is nobody left to stop.
        drop(self.shared.queue.push(Command::Stop));
        if let Some(writer) = self.writer.lock().take() {
            drop(writer.join());
        }
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// The shard of everything that is no lane's.
const HOUSE: &str = "house";

/// Takes a shard, with the number of the last group that was written under it.
async fn own(ledger: &dyn Ledger, node: u64, shard: &Shard) -> Result<(Token, u64), ReadError> {
    match ledger.own(shard, node, None).await? {
        Owning::Owned { token, seq } => Ok((token, seq)),
        Owning::Held { .. } => {
            let reason = format!("'{shard}' is owned by another process");
            Err(LedgerError::Bad { doing: "opening the store", reason }.into())
        }
    }
}

impl LaneCell {
    /// A lane of this node's, still empty; with the number of the last group that was written under it.
    async fn own(
        ledger: &dyn Ledger,
        node: u64,
        name: &LaneName,
        policy: &Arc<LanePolicy>,
    ) -> Result<(LaneCell, u64), ReadError> {
        let shard = Shard::new(&format!("lane/{name}"));
        let (token, seq) = own(ledger, node, &shard).await?;
        let lane = LaneCell {
            name: name.clone(),
            scope: name.as_str().into(),
            policy: policy.clone(),
            shard,
            token,
            machine: Mutex::new(Lane::new(policy.clone())),
            read_ahead: Mutex::default(),
            wake: Arc::new(Notify::new()),
            blocked: AtomicU32::new(0),
            has_unblocked: AtomicBool::new(false),
        };
        Ok((lane, seq))
    }

    /// The key of one of its jobs in the index.
    fn live_key(&self, id: JobId) -> Key {
        Key::Scoped(self.scope.clone(), *id.as_bytes())
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
        self.queue.push(command).map_err(|NotTaken| self.stopped())
    }

    /// Writes a change whose effect in memory has happened, and waits until it is durable.
    async fn change(&self, lane: Option<&Arc<LaneCell>>, change: Unit, ended: Vec<JobId>) -> Result<(), StoreError> {
        let (reply, durable) = oneshot::channel();
        self.send(Command::Change { lane: lane.cloned(), change, ended, then: None, reply })?;
        durable.await.map_err(|_| self.stopped())
    }

    /// Writes a change whose effect in memory comes with its durability: the writer makes it, so that it happens even
    /// if the caller has gone away.
    async fn change_then(
        &self,
        lane: Option<&Arc<LaneCell>>,
        change: Unit,
        then: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), StoreError> {
        let (reply, durable) = oneshot::channel();
        let then: Option<Then> = Some(Box::new(then));
        self.send(Command::Change { lane: lane.cloned(), change, ended: Vec::new(), then, reply })?;
        durable.await.map_err(|_| self.stopped())
    }

    /// Waits until the ledger has what memory knows; whoever reads, decides and writes begins with this.
    async fn settled(&self) -> Result<(), StoreError> {
        self.change(None, Unit::default(), Vec::new()).await
    }

    /// `None`, and a note, for a record that cannot be read; a ledger that cannot be read is an error.
    fn readable<T>(
        &self,
        what: &(dyn fmt::Display + Sync),
        loaded: Result<T, ReadError>,
    ) -> Result<Option<T>, ReadError> {
        match loaded {
            Ok(record) => Ok(Some(record)),
            Err(error @ ReadError::Record { .. }) => {
                self.note_unreadable(&what.to_string(), &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    fn note_unreadable(&self, what: &str, error: &ReadError) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        tracing::error!(record = what, errorReason = %error, "A record cannot be read; it is left as it is");
    }
}
