//! The store: lane machines in memory over a ledger.
//! Invariant: the memory of a lane is what the ledger would give its next owner, plus attempts under way and writes that
//! are in the writer's queue. Whoever owns a lane no more throws that memory away; a failed write ends the store.
//! Never: writes to claim, but where starts are counted and others may own the lane next. Whatever had not ended is queued
//! again when its lane is loaded.
//!
//! # Layout
//! - `tables`, `records`: the schema; `reading`: records and rows of the ledger; `hold`: one ownership of a shard; `lanes`:
//!   lanes, and those that this node owns
//! - `owners` and `cluster`: which lanes this node owns, over a shared ledger, and what it knows of others;
//!   `placement`, `nodes`: who should own what; `recovery`: from the ledger to a machine; `starts`: what throttles know of the last owner
//! - `command`, `queue`, `draft`, `writer`: group commit; `room`: what new work may take of the disk
//! - `submits`, `jobs` (with `read_ahead` and `prefetch`), `settlements`, `ends`, `listing`, `dead` (with `dead_index`), `registry`, `tenants`, `mail`, `sweep`,
//!   `answers`, `gates`, `idempotency`: the verbs; `changes`: read, decide, write
//! - `salvage`: a new store from what can be read of a damaged one
//! - `inbox`, `order`, `orders`, `figures`, `published`, `signals`: what nodes leave, ask, show and tell one another

mod answers;
mod changes;
mod cluster;
mod command;
mod dead;
mod dead_index;
mod draft;
mod ends;
mod figures;
mod gates;

mod hold;
mod idempotency;
mod inbox;
mod jobs;
mod lanes;
mod listing;
mod mail;
mod nodes;
mod order;
mod orders;
mod owners;
mod pauses;
mod placement;
mod prefetch;
mod published;
mod queue;
mod read_ahead;
mod reading;
mod records;
mod recovery;
mod registry;
mod replays;
mod room;
mod salvage;
mod settlements;
mod signals;
mod stamp;
mod starts;
mod submits;
mod sweep;
pub mod tables;
mod tenants;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::name::LaneName;
use entrega_core::payload::Payload;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use entrega_ledger::{Ledger, Shard};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

pub use self::dead::dead_letter_rows;
pub use self::reading::ReadError;
pub use self::records::Record;
pub use self::salvage::{SalvageReport, salvage_store, scrub_store};
pub use self::stamp::newest_moment;
pub use entrega_ledger::{LedgerError, Scrubbed};

use self::answers::Answers;
use self::cluster::Cluster;
use self::command::Command;
use self::gates::Gates;
use self::hold::{Hold, own_alone};
use self::lanes::{LaneEntry, OwnedLane};
use self::orders::Asked;
use self::queue::{NotTaken, Queue};
use self::read_ahead::WrittenRoom;
use self::registry::Registered;
use self::sweep::SweepFrom;
use self::writer::Writer;
use crate::chance::secret_bytes;
use crate::store::StoreError;
use crate::store::waiters::Waiters;
use entrega_call::Clock;

/// New jobs that may wait for the writer at once, and so about the largest group.
const SUBMITS_WAITING_MAX: usize = 4096;
/// Jobs that were attempted and whose settlement may be on its way to the ledger at once. With the lane's concurrency it
/// bounds the attempts that a crash repeats.
pub const UNSETTLED_MAX: usize = 1024;
/// The same where nodes share the ledger: an answer takes a few milliseconds there, and no disk has to turn.
pub const UNSETTLED_SHARED_MAX: usize = 512;
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
    /// How what a job carries is written there.
    pub show: fn(&Payload) -> serde_json::Value,
    /// Where the writer runs.
    pub writer: WriterOn,
    /// The number of this node: no other process over the same ledger has it.
    pub node: u64,
    /// How nodes share the ledger; `None` where this process has it to itself.
    pub cluster: Option<ClusterOptions>,
}

/// How nodes share a ledger.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How long an owner is waited for that shows no sign of life.
    pub lease: Duration,
    /// What people call this node.
    pub name: String,
}

impl ClusterOptions {
    /// The usual lease.
    pub const LEASE: Duration = Duration::from_secs(6);
}

impl LocalOptions {
    /// For these lanes, and otherwise as a store in a directory is set up that checks no space and exports nothing.
    pub fn new(lanes: BTreeMap<LaneName, Arc<LanePolicy>>) -> LocalOptions {
        LocalOptions {
            lanes,
            retention: Duration::from_hours(24),
            free_bytes_min: 0,
            export_dir: None,
            show: |payload| serde_json::json!(payload),
            writer: WriterOn::Thread,
            node: u64::from_le_bytes(secret_bytes()),
            cluster: None,
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

struct Shared {
    clock: Clock,
    ledger: Arc<dyn Ledger>,
    options: LocalOptions,
    lanes: BTreeMap<LaneName, Arc<LaneEntry>>,
    /// Every lane that ever had jobs here, configured or not.
    scopes: RwLock<Vec<Arc<str>>>,
    /// What everything is written under that is no lane's.
    node: RwLock<Arc<Hold>>,
    /// The right to sweep and to carry replays on.
    house: RwLock<Option<Arc<Hold>>>,
    /// What this node needs to share its ledger with others.
    cluster: Option<Cluster>,
    registered: RwLock<Registered>,
    waiters: Waiters,
    answers: Answers,
    gates: Gates,
    /// Orders of this node that others carry out.
    asked: Asked,
    /// For what new jobs carry, as long as nobody has claimed them.
    written_room: WrittenRoom,
    queue: Queue,
    submit_permits: Arc<Semaphore>,
    settle_permits: Arc<Semaphore>,
    /// Operators' changes, one at a time: each reads, decides and writes.
    changes: tokio::sync::Mutex<()>,
    /// What operators set up is put, or read again, by one at a time.
    registering: tokio::sync::Mutex<()>,
    failure: watch::Sender<Option<String>>,
    is_full: AtomicBool,
    /// Whether there was nothing in the ledger when the store was opened.
    was_empty: AtomicBool,
    /// Whether the last starts are written down, so that nothing may be started before they are forgotten; where nodes share
    /// the ledger this one then owns nothing any more.
    is_released: AtomicBool,
    unreadable: AtomicU64,
    /// Submissions that found the ledger full.
    rejected: AtomicU64,
    /// Settlements of attempts that were made under an ownership that was over.
    stale: AtomicU64,
    /// Where the next sweep of ended jobs goes on.
    sweep_from: Mutex<SweepFrom>,
    /// When the moment was last written down.
    stamped_at: Mutex<Option<Time>>,
    /// Ends whatever runs for the store.
    stop: CancellationToken,
}

impl LocalStore {
    /// Opens the store: takes every lane that is free, reads its index, queues again whatever had not ended.
    pub async fn open(ledger: Arc<dyn Ledger>, clock: Clock, options: LocalOptions) -> Result<LocalStore, ReadError> {
        let opened_at = clock.now();
        let is_alone = options.cluster.is_none();
        // A late copy of what an earlier process wrote must find that it is none of ours any more.
        let node = if is_alone { "node".to_owned() } else { format!("node/{:016x}", options.node) };
        let node = own_alone(&*ledger, options.node, Shard::new(&node), opened_at).await?;
        let shared = Arc::new(Shared {
            lanes: options.lanes.iter().map(|(name, policy)| (name.clone(), LaneEntry::new(name, policy))).collect(),
            node: RwLock::new(Arc::new(node)),
            house: RwLock::default(),
            cluster: options.cluster.as_ref().map(|cluster| Cluster::new(cluster, opened_at)),
            clock,
            ledger,
            options,
            scopes: RwLock::default(),
            registered: RwLock::default(),
            waiters: Waiters::default(),
            answers: Answers::default(),
            gates: Gates::opened_at(opened_at),
            asked: Asked::default(),
            written_room: WrittenRoom::new(!is_alone),
            queue: Queue::new(COMMANDS_MAX),
            submit_permits: Arc::new(Semaphore::new(SUBMITS_WAITING_MAX)),
            settle_permits: Arc::new(Semaphore::new(if is_alone { UNSETTLED_MAX } else { UNSETTLED_SHARED_MAX })),
            changes: tokio::sync::Mutex::new(()),
            registering: tokio::sync::Mutex::new(()),
            failure: watch::Sender::new(None),
            is_full: AtomicBool::new(false),
            was_empty: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            unreadable: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            sweep_from: Mutex::new(SweepFrom::FIRST),
            stamped_at: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let thread = match (shared.options.writer, is_alone) {
            (WriterOn::Thread, true) => Some(Writer::new(shared.clone()).start_thread()?),
            _ => {
                tokio::spawn(Writer::new(shared.clone()).run());
                None
            }
        };
        let store = LocalStore { shared: shared.clone(), writer: Mutex::new(thread) };
        // Boxed: the futures of whoever opens a store would be deep and large with these in them.
        Box::pin(shared.recover()).await?;
        match is_alone {
            true => Box::pin(shared.own_everything()).await?,
            false => Box::pin(shared.join_nodes()).await?,
        }
        Ok(store)
    }

    /// Writes what is waiting, then takes nothing more. Called when dropped, too.
    pub fn close(&self) {
        self.shared.stop.cancel();
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

impl Shared {
    fn lane(&self, name: &LaneName) -> Result<&Arc<LaneEntry>, StoreError> {
        self.lanes.get(name).ok_or_else(|| StoreError::UnknownLane {
            lane: name.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    /// A lane, if this node owns it.
    fn owned(&self, name: &LaneName) -> Option<Arc<OwnedLane>> {
        self.lanes.get(name).and_then(|lane| lane.owned())
    }

    /// The lanes that this node owns.
    fn all_owned(&self) -> impl Iterator<Item = Arc<OwnedLane>> {
        self.lanes.values().filter_map(|lane| lane.owned())
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
        self.waiters.notify_all();
    }

    fn stopped(&self) -> StoreError {
        let reason = self.failure.borrow().clone().unwrap_or_else(|| "it is shutting down".into());
        StoreError::Stopped { reason }
    }

    fn send(&self, command: Command) -> Result<(), StoreError> {
        self.queue.push(command).map_err(|NotTaken| self.stopped())
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
