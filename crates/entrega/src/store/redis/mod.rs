//! A store that any number of nodes share: everything is in Redis, and any node may die at any time.
//! Invariant: a verb is one script per lane, so it happens whole or not at all; a settlement names the lease it was
//! made under, and an old lease changes nothing.
//! Never: decides by a node's own clock what is due; nodes may disagree, the server's clock does not.
//!
//! # Layout
//! - `lua/`: the rules, as scripts; `lua/lane/` is `core::lane` over again, `lua/moment.lua` stands before what belongs to
//!   no lane
//! - `link`: the connection, for ever; `script`: calling a script; `answer`: reading what it says
//! - `schema`: what is kept under which key
//! - `submits`: new jobs, gathered; `settlements`: ends of attempts, gathered; `turns`: these in one call, with a claim;
//!   `entry`: what a claim hands out; `ahead`: claims before they are needed; `leases`: renewed
//! - `jobs`, `changes`, `listing`, `dead`, `registry`, `mail`, `sweep`, `answers`, `gates`, `requests`: the verbs
//! - `news`: what other nodes say; `outbox`: jobs on their way to other lanes; `pulse`: how the server is

mod ahead;
mod answer;
mod answers;
mod changes;
mod dead;
mod entry;
mod gates;
mod jobs;
mod leases;
mod link;
mod listing;
mod mail;
mod news;
mod outbox;
mod pulse;
mod registry;
mod requests;
mod schema;
mod script;
mod settlements;
mod submits;
mod sweep;
mod turns;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::link::{BadUrl, check_url, without_password};
pub use self::pulse::{Pulse, Unfit, pulse};
pub use self::settlements::UNSETTLED_MAX;

use self::ahead::Ahead;
use self::link::Link;
use self::registry::Registered;
use self::schema::LaneKeys;
use self::settlements::Settlements;
use self::submits::Submits;
use self::turns::Turns;
use crate::chance;
use crate::clock::Clock;
use crate::store::StoreError;
use crate::store::waiters::Waiters;

/// How long a lease lasts beyond the longest attempt of its lane.
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// No lease is longer at first; longer attempts live on renewals.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// Whose clock says what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOf {
    /// The server's: the one clock that all nodes share.
    Server,
    /// The node's own, for tests that hold the time in their hands.
    Node,
}

/// How a Redis store is set up.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// `redis://`, `rediss://` or `redis+sentinel://`, with user, password and database number as usual.
    pub url: String,
    /// What every key begins with; stores with different prefixes share a server without meeting.
    pub prefix: String,
    /// The lanes there are.
    pub lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
    /// How long ended jobs are kept.
    pub retention: Duration,
    /// Where dead letters that leave are written down, one file a day.
    pub export_dir: Option<PathBuf>,
    /// Whether a server is used that may lose or evict what it was given.
    pub allow_unsafe: bool,
    /// Whose clock says what is due.
    pub time_of: TimeOf,
    /// How long a lease lasts; `None` for each lane's timeout and a margin.
    pub lease: Option<Duration>,
    /// Whether a busy lane claims jobs before it has a slot for them, so that no worker waits for the server.
    pub claim_ahead: bool,
}

/// Why a Redis store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// The address cannot be read.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// Nobody answers there.
    #[error("Redis at {address} cannot be used: {reason}")]
    Connect {
        /// Where, without the password.
        address: String,
        /// What came of it.
        reason: String,
    },
    /// It would lose jobs.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It answers in a way that is not understood.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store that nodes share.
pub struct RedisStore {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// One lane as this node knows it.
struct LaneCell {
    name: LaneName,
    policy: Arc<LanePolicy>,
    keys: LaneKeys,
    lease: Duration,
    wake: Arc<Notify>,
    submits: Submits,
    settlements: Settlements,
    turns: Turns,
    ahead: Ahead,
    /// Where the next sweep of ended jobs goes on.
    sweep_from: Mutex<JobId>,
}

struct Shared {
    options: RedisOptions,
    clock: Clock,
    link: Link,
    /// Names this process among the nodes.
    node: String,
    lanes: BTreeMap<LaneName, Arc<LaneCell>>,
    registered: RwLock<Registered>,
    /// Held while the registry is read and put down.
    refreshing: tokio::sync::Mutex<()>,
    waiters: Waiters,
    pulse: Mutex<Pulse>,
    /// Settlements that came after their lease had ended.
    stale: AtomicU64,
    /// Submissions that a full server refused.
    rejected: AtomicU64,
    unreadable: AtomicU64,
    outbox: Notify,
    stop: CancellationToken,
}

impl RedisStore {
    /// Connects, looks whether the server is fit to keep jobs, and joins the nodes.
    pub async fn open(options: RedisOptions, clock: Clock) -> Result<RedisStore, RedisOpenError> {
        let link = Link::open(&options.url, clock.clone()).await?;
        let pulse = pulse::take(&link).await?;
        match options.allow_unsafe {
            true => pulse.warn_if_unfit(),
            false => pulse.check()?,
        }
        let lanes = options.lanes.iter().map(|(name, policy)| {
            let ahead = Ahead::new(options.claim_ahead, policy);
            let cell = LaneCell {
                name: name.clone(),
                policy: policy.clone(),
                keys: LaneKeys::new(&options.prefix, name, policy, ahead.max),
                lease: options.lease.unwrap_or_else(|| (policy.timeout + LEASE_MARGIN).min(LEASE_MAX)),
                wake: Arc::new(Notify::new()),
                submits: Submits::default(),
                settlements: Settlements::default(),
                turns: Turns::default(),
                ahead,
                sweep_from: Mutex::new(JobId::MIN),
            };
            (name.clone(), Arc::new(cell))
        });
        let shared = Arc::new(Shared {
            lanes: lanes.collect(),
            node: format!("node_{:016x}", u64::from_le_bytes(chance::secret_bytes())),
            link,
            clock,
            options,
            registered: RwLock::default(),
            refreshing: tokio::sync::Mutex::default(),
            waiters: Waiters::default(),
            pulse: Mutex::new(pulse),
            stale: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            outbox: Notify::new(),
            stop: CancellationToken::new(),
        });
        shared.check_format().await?;
        shared.refresh_registry().await?;
        shared.apply_weights().await?;
        shared.apply_throttles().await?;
        let store = RedisStore { shared, tasks: TaskTracker::new() };
        store.start_tasks();
        Ok(store)
    }

    fn start_tasks(&self) {
        let shared = || self.shared.clone();
        self.spawn(link::keep(shared()));
        self.spawn(news::listen(shared()));
        self.spawn(pulse::watch(shared()));
        self.spawn(outbox::run(shared()));
        for lane in self.shared.lanes.values() {
            self.spawn(submits::run(shared(), lane.clone()));
            self.spawn(turns::run(shared(), lane.clone()));
            for _ in 0..ahead::CALLS {
                self.spawn(ahead::run(shared(), lane.clone()));
            }
            self.spawn(leases::run(shared(), lane.clone()));
        }
    }

    /// Runs a duty until the store is dropped.
    fn spawn(&self, duty: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = duty => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    fn lane(&self, name: &LaneName) -> Result<&Arc<LaneCell>, StoreError> {
        self.lanes.get(name).ok_or_else(|| StoreError::UnknownLane {
            lane: name.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    fn note_unreadable(&self, what: &str, error: &dyn std::fmt::Display) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        tracing::error!(record = what, errorReason = %error, "A record cannot be read; it is left as it is");
    }
}
