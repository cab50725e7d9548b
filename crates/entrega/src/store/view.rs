//! What the verbs of a store take and give.
//! Invariant: plain values; nothing here can touch a store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::body::Body;
use entrega_core::breaker::BreakerFigures;
use entrega_core::cadence::CadenceFigures;
use entrega_core::dead_letter::{BadDeadLetter, DeadLetter};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Priority};
use entrega_core::lane::{self, Hold, LaneSizes, Left, TenantFigures};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::{Answer, AnswerSource, Lesson};
use entrega_core::policy::LanePolicy;
use entrega_core::quota::{Quota, Quotas};
use entrega_core::time::Time;
use entrega_ledger::Memory;
use http::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};

use super::{Idempotency, Lease, StoreError};

/// A job to take.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The job.
    pub job: Job,
    /// Makes it one job however often it is handed in; a few at most. The first that is known decides, and if none is,
    /// all are remembered.
    pub idempotency: Vec<Idempotency>,
    /// Known already: the job is done as it is taken, without an attempt and without a place in its lane.
    pub answer: Option<KeptAnswer>,
}

/// What became of a new job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It is safe; another may have had to leave for it.
    Accepted {
        /// The job that was pushed out.
        pushed_out: Option<Left>,
    },
    /// The lane is full; nothing was kept.
    Full,
    /// Its tenant has all that it may have; nothing was kept.
    OverQuota(Quota),
    /// A job with its id waits or runs in its lane; that one stays as it is, and nothing was kept.
    Duplicate,
    /// It could not be written, although others beside it were.
    Unsaved(StoreError),
    /// It was taken before, under this id; nothing was kept.
    Repeated {
        /// The first one's.
        id: JobId,
    },
    /// Its key was used for another request; nothing was kept.
    OtherRequest,
}

/// What a claim gave.
#[derive(Debug, Default)]
pub struct ClaimBatch {
    /// To attempt now.
    pub jobs: Vec<ClaimedJob>,
    /// Dropped on their way out.
    pub expired: Vec<Left>,
    /// Dropped because more urgent ones came by way of another node.
    pub pushed_out: Vec<Left>,
    /// When to ask again if nothing happens before.
    pub wake_at: Option<Time>,
    /// Whether starts are counted in this lane: then these jobs are begun at once, for they were counted as begun now.
    pub counts_starts: bool,
}

/// Names an attempt in its settlement; what it holds is the store's own business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub(super) Held);

impl Ticket {
    /// That of a store of one's own, which knows attempts by a number.
    pub const fn numbered(number: u64) -> Ticket {
        Ticket(Held::Number(number))
    }

    /// The number it was made with, or that of its lease; a local store has none.
    pub const fn number(self) -> Option<u64> {
        match self.0 {
            Held::Number(number) => Some(number),
            Held::Place(..) => None,
        }
    }
}

/// How a store knows an attempt again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// By its place in the lane machine of this process, and the ownership that the machine belongs to.
    Place(u64, lane::Ticket),
    /// By a number that somebody who wraps a store gave it.
    Number(u64),
}

/// A job to attempt.
#[derive(Debug)]
pub struct ClaimedJob {
    /// For its settlement.
    pub ticket: Ticket,
    /// What to send.
    pub job: Job,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Replays so far.
    pub generation: u8,
    /// Earlier attempts.
    pub history: Vec<Attempt>,
    /// Dropped when waiting at this moment.
    pub expires: Time,
    /// Whether it was let past an open breaker: its destination is not to be called.
    pub past_breaker: bool,
    /// How long it may be attempted here.
    pub lease: Lease,
}

/// The end of an attempt.
#[derive(Debug)]
pub struct Settlement {
    /// From the claim.
    pub ticket: Ticket,
    /// From the claim.
    pub job: Job,
    /// From the claim.
    pub generation: u8,
    /// All attempts, this one last.
    pub attempts: Vec<Attempt>,
    /// What becomes of the job.
    pub transition: Transition,
    /// What the gates learn.
    pub lesson: Lesson,
    /// How long the attempt took.
    pub took: Duration,
    /// What is kept of the answer.
    pub answer: Option<KeptAnswer>,
    /// Jobs of other lanes that this causes. They are kept in the same write, get in even where a lane is full, and
    /// come once: their ids are known again.
    pub causes: Vec<Job>,
}

impl Settlement {
    /// Refuses what could not be kept, before anything has changed.
    pub(super) fn check(&self) -> Result<(), BadDeadLetter> {
        let job_id = self.job.id;
        match &self.transition {
            Transition::DeadLetter { failure } if failure.reason.trim().is_empty() => {
                Err(BadDeadLetter::NoReason { job_id })
            }
            Transition::DeadLetter { .. } if self.attempts.is_empty() => Err(BadDeadLetter::NoAttempt { job_id }),
            _ => Ok(()),
        }
    }
}

/// What is kept of a destination's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptAnswer {
    /// The status code.
    pub status: u16,
    /// Its content type.
    pub content_type: Option<String>,
    /// The body, up to the cap.
    pub body: Body,
    /// Whether the cap cut it off.
    pub truncated: bool,
    /// Said of an answer that had been given before.
    pub cache: Option<CacheMark>,
    /// Where it stays, of an answer that was another job's: the record of this one does not hold it again.
    #[serde(skip)]
    pub source: Option<AnswerSource>,
}

impl From<Answer> for KeptAnswer {
    fn from(answer: Answer) -> KeptAnswer {
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (status, truncated) = (answer.status.as_u16(), answer.truncated);
        KeptAnswer { status, content_type, body: Body(answer.body), truncated, cache: None, source: None }
    }
}

/// What is said of an answer that had been given before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheMark {
    /// How old it was when it was given again.
    pub age_seconds: u64,
    /// Whether it was older than its route likes, and had to do because the upstream gave none.
    pub stale: bool,
    /// Why the upstream gave none.
    pub motivo: Option<String>,
}

/// A job as shown to people.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    /// Its id.
    pub job_id: JobId,
    /// Its lane.
    pub lane: LaneName,
    /// The company id.
    pub company_id: TenantName,
    /// For which of their endpoints, if it is for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How urgent.
    pub priority: Priority,
    /// Where it stands.
    pub state: JobState,
    /// Why, where that needs saying.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it goes: method and URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Free words.
    pub labels: BTreeMap<String, String>,
    /// When it was accepted.
    pub accepted_at: Time,
    /// When it is next due, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Time>,
    /// When it would be dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// Replays so far.
    pub generation: u8,
    /// Every attempt, oldest first.
    pub attempts: Vec<Attempt>,
    /// The destination's answer, once delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<KeptAnswer>,
}

/// Which jobs.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Of this lane.
    pub lane: Option<LaneName>,
    /// Of this tenant.
    pub tenant: Option<TenantName>,
    /// In one of these states; in any if there are none.
    pub states: Vec<JobState>,
}

impl JobFilter {
    /// Whether a job that stands so is wanted.
    pub(super) fn wants(&self, state: JobState) -> bool {
        self.states.is_empty() || self.states.contains(&state)
    }
}

/// Where a page begins and how long it may be.
#[derive(Clone, Copy, Debug)]
pub struct Page<C> {
    /// After this one.
    pub after: Option<C>,
    /// At most so many.
    pub limit: usize,
}

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct Paged<T, C> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<C>,
}

impl<T, C> Paged<T, C> {
    /// The first rows of those that are at hand, and where the next page begins if there are more.
    pub(super) fn first_of(rows: impl Iterator<Item = T>, limit: usize, place: impl Fn(&T) -> C) -> Paged<T, C> {
        let mut items: Vec<T> = rows.take(limit.saturating_add(1)).collect();
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().map(place).filter(|_| has_more);
        Paged { items, next }
    }
}

/// A lane as shown to people.
#[derive(Clone, Debug)]
pub struct LaneView {
    /// Its name.
    pub name: LaneName,
    /// Its policy.
    pub policy: Arc<LanePolicy>,
    /// How many jobs are where.
    pub sizes: LaneSizes,
    /// Jobs that wait for an operator.
    pub blocked: u32,
    /// Dead letters that are pending or being replayed.
    pub dead_letters: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// What holds the whole lane.
    pub hold: Option<Hold>,
    /// How its breaker stands.
    pub breaker: Option<BreakerFigures>,
    /// How fast its cadence goes.
    pub cadence: Option<CadenceFigures>,
    /// Since when the oldest waiting job waits.
    pub oldest: Option<Time>,
    /// Whether this node owns it: its figures are of this moment, and this node's to report.
    pub is_owned: bool,
}

/// What a sweep took away.
#[derive(Debug, Default)]
pub struct Swept {
    /// Ended jobs no longer kept.
    pub jobs: usize,
    /// Dead letters past their TTL or the lane's cap, each with why.
    pub dead_letters: Vec<(DeadLetter, &'static str)>,
    /// Whether as much went as may at once, so that more of it may be due.
    pub has_more: bool,
}

/// How a store is.
#[derive(Clone, Debug)]
pub struct StoreHealth {
    /// `embedded`, `memory`, `redis`.
    pub kind: &'static str,
    /// What a 2xx means here.
    pub durability: &'static str,
    /// Why it takes no writes, if it does not.
    pub failure: Option<String>,
    /// Why it takes no new work, if it does not.
    pub refuses: Option<String>,
    /// Jobs whose record could not be read since the start.
    pub unreadable: u64,
    /// How full a server's memory is, where one keeps the jobs.
    pub memory: Option<MemoryUse>,
    /// Settlements since the start that came after another node had taken the job over.
    pub stale_settlements: u64,
    /// Submissions since the start that the store itself refused, because it was full.
    pub rejected_writes: u64,
    /// Nodes that share the store and have other policies than this one.
    pub policy_mismatches: u32,
    /// Lanes that this node took from owners that were gone.
    pub take_overs: u64,
}

/// How full a server's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// In use.
    pub used_bytes: u64,
    /// At most; 0 for no limit.
    pub max_bytes: u64,
    /// 0 well, 1 over 80 %, 2 over 90 %.
    pub level: u8,
}

impl MemoryUse {
    /// What a ledger says of its server.
    pub(super) fn of(memory: Memory) -> MemoryUse {
        MemoryUse { used_bytes: memory.used_bytes, max_bytes: memory.max_bytes, level: memory.level() }
    }
}

/// What dead letters are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CountBy {
    /// Failure code.
    Code,
    /// Tenant.
    Tenant,
    /// Lane.
    Lane,
    /// The hour they died.
    Hour,
}

/// One row of a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The lane.
    pub lane: LaneName,
    /// The trait's value.
    pub key: String,
    /// How many.
    pub count: u64,
}

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Make and cancel work, replay.
    Send,
    /// Look.
    Read,
    /// Scrape the metrics, which are of every tenant, and nothing else.
    Metrics,
    /// Everything, for every tenant.
    Admin,
}

/// Keys of one tenant.
pub const KEYS_MAX: usize = 200;

/// An API key; the key itself is kept nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Names it.
    pub id: String,
    /// SHA-256 of the key. The keys are 256 random bits, so nothing slower is needed.
    pub hash: [u8; 32],
    /// The tenant.
    pub tenant: TenantName,
    /// What it may do.
    pub scopes: Vec<KeyScope>,
    /// When it was made.
    pub created_at: Time,
}

/// What an operator set for a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantSettings {
    /// The tenant.
    pub tenant: TenantName,
    /// Its share of turns.
    pub weight: u32,
    /// What it may use up.
    #[serde(default)]
    pub quotas: Quotas,
}

impl TenantSettings {
    /// What holds for a tenant for whom nothing was set.
    pub fn new(tenant: TenantName) -> TenantSettings {
        TenantSettings { tenant, weight: 1, quotas: Quotas::default() }
    }
}

/// A tenant's figures in one lane.
#[derive(Clone, Debug)]
pub struct TenantView {
    /// The lane.
    pub lane: LaneName,
    /// The figures.
    pub figures: TenantFigures,
}
