//! Stores: where jobs are safe.
//! Invariant: what a verb answered `Ok` for is durable, and each verb is one atomic write.
//! Never: lets a type of its backend out; the rest of the program cannot tell the stores apart.
//!
//! # Layout
//! - [`JobStore`], [`DeadLetterStore`], [`Registry`], [`EndpointRegistry`], [`ConnectorRegistry`], [`MailRegistry`],
//!   [`AnswerCache`], [`GateKeeper`], [`IdempotencyLog`]: the verbs; [`Store`] is all of them
//! - `view`, `replay`, `node`, `call`, `idempotency`, `endpoint`, `connector`, `mail`: what the verbs take and give; `records`: what is kept of a job
//! - `local`: the store over a ledger, which one process has to itself or nodes share; `lease`: how long an owner may act
//! - `waiters`: callers who wait for the end of a job; `paging`, `export`: what both kinds of store do alike

mod call;
mod connector;
mod endpoint;
mod export;
mod idempotency;
mod lease;
pub mod local;
mod mail;
mod node;
mod paging;
mod records;
mod replay;
mod view;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::dead_letter::{BadDeadLetter, DeadLetter, NoReplay};
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::lane::{Explanation, Hold};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::sender::SenderRule;
use entrega_core::time::Time;
use entrega_ledger::LedgerError;
use tokio::sync::Notify;

pub use self::call::{CachedAnswer, GateName};
pub use self::connector::{ConnectorLimits, OnThrottleTimeout, StoredConnector};
pub use self::endpoint::{Endpoint, EndpointOrigin, EndpointState};
pub use self::export::readable;
pub use self::idempotency::{IDEMPOTENCY_KEY_RULE, IDEMPOTENCY_LASTS, Idempotency, RequestState, is_idempotency_key};
pub use self::lease::{Carried, Lease};
pub use self::mail::{FEEDBACK_FOR, FEEDBACK_MAX, Feedback, Suppression};
pub use self::node::{HandOver, NodeView, OwnedShard};
pub use self::replay::{
    BadFilter, BeginReplayError, DeadLetterCursor, DeadLetterFilter, FILTER_CODE_CHARS_MAX, FILTER_TEXT_CHARS_MAX,
    REPLAYS_KEPT_FOR, REPLAYS_KEPT_MAX, REPLAYS_RUNNING_MAX, ReplayRun, ReplayStatus,
};
use self::view::Held;
pub use self::view::*;

/// Everything a store does.
pub trait Store:
    JobStore
    + DeadLetterStore
    + Registry
    + EndpointRegistry
    + ConnectorRegistry
    + MailRegistry
    + AnswerCache
    + GateKeeper
    + IdempotencyLog
{
}
impl<S> Store for S where
    S: JobStore
        + DeadLetterStore
        + Registry
        + EndpointRegistry
        + ConnectorRegistry
        + MailRegistry
        + AnswerCache
        + GateKeeper
        + IdempotencyLog
{
}

/// The way of a job.
#[async_trait]
pub trait JobStore: Send + Sync + 'static {
    /// Takes new jobs in one durable write; one answer each, in order. Ids must be new: one that waits or runs in the
    /// same lane is refused, older ones are not looked for. What must happen once is remembered in the same write.
    async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError>;

    /// Takes new jobs, whether or not the same were taken before.
    async fn submit(&self, jobs: Vec<Job>) -> Result<Vec<Submitted>, StoreError> {
        self.take(jobs.into_iter().map(|job| NewEntry { job, idempotency: Vec::new(), answer: None }).collect()).await
    }

    /// The job that was taken under a key, while that is remembered.
    async fn job_by_key(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError>;

    /// Takes up to `max` jobs of a lane to attempt now.
    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError>;

    /// Undoes a claim whose attempt was cut off: the lease it was made under is over. The job waits with the number it had, and
    /// its start counts, for somebody may have been called; or whoever owns its lane now has it.
    fn give_back(&self, lane: &LaneName, ticket: Ticket);

    /// Ends attempts: state, dead letters and history in one write. Returns once the write is under way; it waits
    /// when too many are, so that a store that cannot write stops delivery.
    async fn settle(&self, lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError>;

    /// Waits until every settlement so far is durable.
    async fn flush(&self) -> Result<(), StoreError>;

    /// Gives back what was claimed and will not be settled, and keeps what the next start must know to go on: this
    /// process stops, and others need not wait for it.
    async fn release(&self) -> Result<(), StoreError>;

    /// Told whenever a lane may have something to claim.
    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError>;

    /// Ends a job that waits or is blocked.
    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError>;

    /// Puts a blocked job back in its queue with all its attempts.
    async fn unblock(&self, id: JobId) -> Result<(), ChangeError>;

    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError>;

    /// Resolves when nothing more happens to the job by itself: it has ended or is blocked. At once if it has or is, or
    /// if it is unknown.
    async fn ended(&self, id: JobId) -> Result<(), StoreError>;

    /// Jobs, newest first.
    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError>;

    /// Blocked jobs of a lane and whose they are, oldest first. A page may have fewer than its limit, and there is more while it
    /// says where.
    async fn blocked(
        &self,
        lane: &LaneName,
        page: Page<JobId>,
    ) -> Result<Paged<(JobId, TenantName), JobId>, StoreError>;

    /// Why a waiting job does not move.
    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError>;

    /// All lanes with their sizes.
    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError>;

    /// The nodes that share the store, as this one sees them; itself alone where nobody does.
    async fn nodes(&self) -> Result<Vec<NodeView>, StoreError>;

    /// Pauses or resumes a lane; holds over restarts.
    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError>;

    /// Forgets what has been kept long enough, at most a bounded number at a time; says what left.
    async fn sweep(&self) -> Result<Swept, StoreError>;

    /// Whether the store can be written, and how it keeps things.
    fn health(&self) -> StoreHealth;

    /// Resolves with the reason when the store has failed for good.
    async fn failed(&self) -> String;
}

/// Dead letters.
#[async_trait]
pub trait DeadLetterStore: Send + Sync + 'static {
    /// One entry.
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError>;

    /// Entries, newest first.
    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError>;

    /// How many are pending or being replayed, by one of their traits.
    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError>;

    /// Sends the job of an entry on its way again, under its old id.
    async fn replay(&self, id: JobId) -> Result<(), ChangeError>;

    /// Gives an entry up, with a reason.
    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError>;
}

/// What operators set up: keys, tenants, replays under way.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Keeps a key, unless its tenant has [`KEYS_MAX`] others.
    async fn put_key(&self, key: ApiKey) -> Result<(), PutKeyError>;
    /// Forgets a key; whether there was one.
    async fn remove_key(&self, id: &str) -> Result<bool, StoreError>;
    /// All keys, by id.
    async fn keys(&self, page: Page<String>) -> Result<Paged<ApiKey, String>, StoreError>;
    /// The key with this hash. Asked on every request: answers from memory.
    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>>;

    /// Sets a tenant's weight and quotas.
    async fn put_tenant(&self, tenant: TenantSettings) -> Result<(), StoreError>;
    /// What is set for a tenant. Asked on every request: answers from memory.
    fn tenant_settings(&self, tenant: &TenantName) -> TenantSettings;
    /// Binds a tenant to senders of mails; with none it is bound to nothing.
    async fn put_senders(&self, tenant: &TenantName, senders: Vec<SenderRule>) -> Result<(), StoreError>;
    /// Whom a tenant may write mails as; everybody if there are none. Asked for every mail: answers from memory.
    fn senders(&self, tenant: &TenantName) -> Arc<[SenderRule]>;
    /// The figures of all tenants, one row per tenant and lane.
    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError>;

    /// Keeps a replay that is to be carried out. Of the same tenant's the oldest that ended leave, where there are too many.
    async fn begin_replay(&self, replay: ReplayRun) -> Result<(), BeginReplayError>;
    /// Keeps the progress of a replay.
    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError>;
    /// One replay.
    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError>;
    /// The replays of a tenant, or all, newest first: those with the greatest ids.
    async fn replay_runs(
        &self,
        tenant: Option<&TenantName>,
        page: Page<String>,
    ) -> Result<Paged<ReplayRun, String>, StoreError>;
    /// The replays under way that this process carries on: of several nodes, one does. Asked often, so cheap.
    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError>;
}

/// Where the webhooks of each tenant go. Every event asks, so what is read is read from memory.
#[async_trait]
pub trait EndpointRegistry: Send + Sync + 'static {
    /// Keeps an endpoint, new or in the place of the one with its name and version; gives it as it is kept. Where it is
    /// refused because somebody was faster, [`EndpointRegistry::endpoint`] gives what is there now.
    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError>;
    /// Forgets an endpoint; whether there was one.
    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError>;
    /// One endpoint.
    fn endpoint(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>>;
    /// The endpoints of a tenant, by name.
    fn endpoints_of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>>;
    /// All endpoints, by tenant and name.
    fn endpoints(&self) -> Vec<Arc<Endpoint>>;
}

/// What is known of addresses, and of mails after they were sent. Addresses are the same whatever their case.
#[async_trait]
pub trait MailRegistry: Send + Sync + 'static {
    /// Writes to an address no more. One that is suppressed stays so since the first time; a complaint takes the place of
    /// a bounce.
    async fn suppress(&self, suppression: Suppression) -> Result<(), StoreError>;
    /// Writes to an address again; whether it was suppressed.
    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError>;
    /// Which of these addresses are suppressed, in order. Asked before every mail: one read.
    async fn suppressed(&self, tenant: &TenantName, addresses: &[&str])
    -> Result<Vec<Option<Suppression>>, StoreError>;
    /// The suppressed addresses of a tenant, in the order of their bytes.
    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError>;

    /// Keeps what came back about a mail: each notice once, at most [`FEEDBACK_MAX`], until [`FEEDBACK_FOR`] after the
    /// last.
    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError>;
    /// What came back about each of these mails, in the order it came.
    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError>;
}

/// The cache of upstreams' answers, and calls under way. Shared by whoever shares the store. Losing any of
/// it costs a call, so nothing here is durable.
#[async_trait]
pub trait AnswerCache: Send + Sync + 'static {
    /// The answer that is kept under a key.
    async fn cached(&self, key: &str) -> Result<Option<CachedAnswer>, StoreError>;
    /// Keeps an answer for so long, in the place of the one before it.
    async fn cache(&self, key: &str, answer: CachedAnswer, keep: Duration) -> Result<(), StoreError>;
    /// Begins the call whose answer is kept under a key: `false` while somebody else makes it. It counts as ended after
    /// `lasts`, for callers that are gone.
    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError>;
    /// Ends a call that this caller began.
    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError>;
}

/// Third-party APIs. Every call asks, so what is read is read from memory.
#[async_trait]
pub trait ConnectorRegistry: Send + Sync + 'static {
    /// Keeps a connector, in the place of the one with its name.
    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError>;
    /// Forgets a connector; whether there was one.
    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError>;
    /// One connector.
    fn connector(&self, id: &str) -> Option<Arc<StoredConnector>>;
    /// All connectors, by name.
    fn connectors(&self) -> Vec<Arc<StoredConnector>>;
}

/// Gates before destinations that are called without a queue: the throttle and the breaker of a policy, over whoever
/// shares the store.
#[async_trait]
pub trait GateKeeper: Send + Sync + 'static {
    /// Asks for a start, and counts it unless something holds it.
    async fn pass(&self, gate: &GateName) -> Result<Option<Hold>, StoreError>;
    /// Counts a start that waits for no turn any more. A destination that is down or asked for a pause holds it all the
    /// same.
    async fn pass_anyway(&self, gate: &GateName) -> Result<Option<Hold>, StoreError>;
    /// Tells what came of a call.
    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError>;
}

/// Requests that must happen once, with what they were answered.
#[async_trait]
pub trait IdempotencyLog: Send + Sync + 'static {
    /// Begins a request, durably, unless it was made before or is being made.
    async fn begin_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        runs_until: Time,
    ) -> Result<RequestState, StoreError>;
    /// Keeps what a request was answered, until it is forgotten; with nothing, it may be made again at once.
    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError>;
}

/// A verb that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store has failed, or is shutting down.
    #[error("the store takes no more writes: {reason}")]
    Stopped {
        /// What went wrong.
        reason: String,
    },
    /// Too little space is left; deliveries go on.
    #[error("the disk is nearly full: {free_mib} MiB free, {needed_mib} MiB needed before new work is taken")]
    DiskFull {
        /// What is free.
        free_mib: u64,
        /// What must be.
        needed_mib: u64,
    },
    /// No such lane.
    #[error("there is no lane '{lane}'; known lanes: {known}")]
    UnknownLane {
        /// What was asked for.
        lane: String,
        /// What there is.
        known: String,
    },
    /// The ledger or a record could not be read.
    #[error("the store could not be read")]
    Read(#[source] local::ReadError),
    /// Dead letters that leave could not be written down, so they stay.
    #[error("the export of dead letters {file} could not be written: {reason}")]
    Export {
        /// Which file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// A server that the store needs does not answer; it may soon.
    #[error("the store cannot be reached: {reason}; try again")]
    Unreachable {
        /// What was tried and what came of it.
        reason: String,
    },
    /// The store's memory is used up; deliveries go on and make room.
    #[error("the store's memory is full; new work is taken again when enough has been delivered")]
    MemoryFull,
    /// The store answered with something that this program does not understand.
    #[error("the store's answer to {doing} cannot be understood: {reason}")]
    Answer {
        /// What was asked.
        doing: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A settlement that could not be kept.
    #[error(transparent)]
    DeadLetter(#[from] BadDeadLetter),
}

impl From<local::ReadError> for StoreError {
    fn from(error: local::ReadError) -> StoreError {
        match error {
            local::ReadError::Ledger(LedgerError::Unclear { doing, reason }) => {
                StoreError::Unreachable { reason: format!("{doing} was not answered: {reason}") }
            }
            other => StoreError::Read(other),
        }
    }
}

/// A key that was not kept.
#[derive(Debug, thiserror::Error)]
pub enum PutKeyError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The tenant has as many as it may.
    #[error("this tenant has {KEYS_MAX} keys; remove those that are not used any more")]
    TooMany,
}

/// An endpoint that was not kept.
#[derive(Debug, thiserror::Error)]
pub enum PutEndpointError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The one with its name has another version than it.
    #[error("somebody else changed the endpoint in the meantime; read it and change it again")]
    Changed,
}

/// A change that was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing has this id.
    #[error("there is nothing with this id")]
    Unknown,
    /// It is not in a state for that.
    #[error("the job is {state}: {hint}")]
    WrongState {
        /// Where it stands.
        state: entrega_core::job::JobState,
        /// What can be done.
        hint: std::borrow::Cow<'static, str>,
    },
    /// A dead letter that does not come back.
    #[error("this dead letter cannot be replayed or discarded: {0}")]
    NoReplay(#[from] NoReplay),
}
