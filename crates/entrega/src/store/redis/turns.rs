//! Turns at the server: settlements and claims of a lane, together in one call.
//! Invariant: a settlement is kept until the server has taken it; repeating one is safe, because the second finds its
//! lease gone. Nobody's attempt is forgotten by a call that failed or was given up.
//! Never: gives up; a server that is gone is asked again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job};
use entrega_core::time::Time;
use parking_lot::Mutex;
use redis::{RedisError, Value};

use super::answer::Reader;
use super::entry::{self, Entry};
use super::leases::Lease;
use super::script::{Call, Verb};
use super::settlements::{Becomes, Sending};
use super::submits::read_left;
use super::{LaneCell, Shared};
use crate::store::{ClaimBatch, ClaimedJob, Held, StoreError, Ticket, records};

/// How long settlements wait for a claim to go along with; longer in a lane that claims all the time.
const GATHER: Duration = Duration::from_millis(2);
const GATHER_BUSY: Duration = Duration::from_millis(10);
/// How long a call that failed waits before it is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a node has in hand of a lane.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) leases: Mutex<HashMap<JobId, Lease>>,
    /// Claims whose answer was lost. What they took counts against the name they were made under until it is given
    /// back, so the next claim is made under another.
    lost_claims: AtomicU32,
}

/// Sends settlements that no claim took along.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.settlements.some.notified().await;
        while let Some(handed_in) = lane.settlements.first_handed_in() {
            let wait = shared.clock.until(handed_in + if lane.ahead.is_busy() { GATHER_BUSY } else { GATHER });
            if wait > Duration::ZERO {
                tokio::time::sleep(wait).await;
            } else if let Err(error) = shared.turn(&lane, 0).await {
                tracing::warn!(lane = %lane.name, errorReason = %error, "Settlements could not be written; they are kept and tried again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Shared {
    /// One call: what was handed in, and a claim of up to `max` jobs.
    pub(super) async fn turn(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        let line = self.link.ready().await?;
        // Nodes that were all cut off say first what they have in hand, before anybody takes it for abandoned.
        let claims_from = self.link.claims_from();
        let max = if claims_from.is_some() { 0 } else { max };
        let mut batch = lane.settlements.take();
        let sent_at = self.clock.now();
        let lease = u64::try_from(lane.lease.as_micros()).unwrap_or(u64::MAX);
        let call = Call::new(self, lane, Verb::Turn).arg(self.node_of(lane)).arg(max).arg(lease);
        let lost = |_: &RedisError| {
            lane.turns.lost_claims.fetch_add(u32::from(max > 0), Ordering::Relaxed);
        };
        let answer = batch.carry(call, &lane.turns).make_on(self, line).await.inspect_err(lost)?;
        let settled = std::mem::take(&mut batch.sent);
        lane.turns.let_go(&settled);
        let ended: Vec<_> =
            settled.iter().filter(|sending| sending.becomes != Becomes::Retry).map(|sending| sending.id).collect();
        if settled.iter().any(|sending| sending.causes.is_some()) {
            self.outbox.notify_one();
        }
        drop(settled);
        self.waiters.tell(&ended);
        let batch = self.read_turn(lane, answer, sent_at).await.inspect_err(|_| {
            lane.turns.lost_claims.fetch_add(1, Ordering::Relaxed);
        })?;
        Ok(ClaimBatch { wake_at: claims_from.or(batch.wake_at), ..batch })
    }

    /// What this node is called in a lane.
    pub(super) fn node_of(&self, lane: &LaneCell) -> String {
        format!("{}.{}", self.node, lane.turns.lost_claims.load(Ordering::Relaxed))
    }

    async fn read_turn(&self, lane: &LaneCell, answer: Value, sent_at: Time) -> Result<ClaimBatch, TurnError> {
        let reader = Reader("a claim");
        let [server_now, come_back, stale, expired, jobs, carried] = reader.fields(answer)?;
        let offset = Offset { server: reader.number(&server_now)?, node: sent_at.as_micros() };
        for id in reader.ids(stale)? {
            self.stale.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(lane = %lane.name, jobId = %id, "A settlement came after its lease had ended; another node has the job");
        }
        let expired = reader.rows(expired)?.into_iter().map(|row| read_left(reader, row));
        let expired = expired.collect::<Result<Vec<_>, _>>()?;
        self.waiters.tell(&expired.iter().map(|left| left.id).collect::<Vec<_>>());
        let mut batch = ClaimBatch { jobs: Vec::new(), expired, wake_at: None };
        batch.wake_at = reader.moment(&come_back)?.map(|at| offset.to_node(at));
        let heads = entry::read_all(reader.bytes(jobs)?.unwrap_or_default().into());
        let heads = heads.ok_or_else(|| reader.wrong("the entry of a job is cut off"))?;
        let carried = self.carried(lane, &heads, reader.rows(carried)?).await?;
        let (now, mut leases) = (self.clock.now(), Vec::with_capacity(heads.len()));
        batch.jobs.reserve(heads.len());
        for ((id, entry), carried) in heads.into_iter().zip(carried) {
            match carried.read() {
                Ok((job, history)) => {
                    batch.jobs.push(claimed(&entry, job, history, offset));
                    leases.push((id, Lease { entry, claimed_at: now, renewed_at: now }));
                }
                // It waits for an operator.
                Err(reason) => self.set_aside(lane, id, entry.token(), &reason).await,
            }
        }
        lane.turns.leases.lock().extend(leases);
        Ok(batch)
    }

    /// What claimed jobs carry: it came along if they are few, and is asked for otherwise.
    async fn carried(
        &self,
        lane: &LaneCell,
        heads: &[Head],
        came_along: Vec<Value>,
    ) -> Result<Vec<Carried>, TurnError> {
        let reader = Reader("what claimed jobs carry");
        let [records, histories] = match <[Value; 2]>::try_from(came_along) {
            Ok(came_along) => came_along,
            Err(_) if heads.is_empty() => return Ok(Vec::new()),
            Err(_) => [self.values(lane, "jobs", heads).await?, self.histories(lane, heads).await?],
        };
        let (records, mut histories) = (reader.rows(records)?, reader.rows(histories)?);
        if records.len() != heads.len() {
            return Err(reader.wrong(format!("{} records of {} jobs", records.len(), heads.len())).into());
        }
        histories.resize(heads.len(), Value::Nil);
        let read = |(record, history)| Ok(Carried { record: reader.bytes(record)?, history: reader.bytes(history)? });
        Ok(records.into_iter().zip(histories).map(read).collect::<Result<_, StoreError>>()?)
    }

    /// Most jobs have none.
    async fn histories(&self, lane: &LaneCell, heads: &[Head]) -> Result<Value, RedisError> {
        match heads.iter().any(|(_, entry)| entry.has_history()) {
            true => self.values(lane, "history", heads).await,
            false => Ok(Value::Array(Vec::new())),
        }
    }

    async fn values(&self, lane: &LaneCell, hash: &str, heads: &[Head]) -> Result<Value, RedisError> {
        let mut command = redis::cmd("HMGET");
        command.arg(lane.keys.key(hash));
        for (id, _) in heads {
            command.arg(id.as_bytes());
        }
        self.link.call(&command).await
    }
}

/// What belongs to a job beside its entry.
struct Carried {
    record: Option<Vec<u8>>,
    history: Option<Vec<u8>>,
}

impl Carried {
    /// The job and its failed attempts, or why they cannot be read.
    fn read(self) -> Result<(Job, Vec<Attempt>), String> {
        let record = self.record.ok_or("its record is missing")?;
        let job = records::decode(&record).map_err(|error| error.to_string())?;
        let history = self.history.as_deref().map(records::decode).transpose().map_err(|error| error.to_string())?;
        Ok((job, history.unwrap_or_default()))
    }
}

/// What a claim says of a job; what it carries is asked for.
type Head = (JobId, Entry);

fn claimed(entry: &Entry, job: Job, history: Vec<Attempt>, offset: Offset) -> ClaimedJob {
    ClaimedJob {
        ticket: Ticket(Held::Lease(entry.token())),
        job,
        attempt: entry.attempt().into(),
        generation: entry.generation(),
        history,
        expires: offset.to_node(entry.expires()),
        past_breaker: entry.is_past_breaker(),
    }
}

impl Turns {
    /// These lie ready, and nobody is at them yet: their leases are renewed however long that takes.
    pub(super) fn lay_down(&self, jobs: &[ClaimedJob]) {
        let mut leases = self.leases.lock();
        for claimed in jobs {
            if let Some(lease) = leases.get_mut(&claimed.job.id) {
                lease.claimed_at = Time::NEVER;
            }
        }
    }

    /// These are attempted now; without those whose lease was lost meanwhile, which others have.
    pub(super) fn pick_up(&self, mut jobs: Vec<ClaimedJob>, now: Time) -> Vec<ClaimedJob> {
        let mut leases = self.leases.lock();
        jobs.retain(|claimed| match leases.get_mut(&claimed.job.id) {
            Some(lease) if claimed.ticket.0 == Held::Lease(lease.token()) => {
                lease.claimed_at = now;
                true
            }
            _ => false,
        });
        jobs
    }

    fn let_go(&self, settled: &[Sending]) {
        let mut leases = self.leases.lock();
        for sending in settled {
            if leases.get(&sending.id).is_some_and(|lease| lease.token() == sending.token) {
                leases.remove(&sending.id);
            }
        }
    }
}

/// A call that brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnError {
    #[error(transparent)]
    Server(#[from] RedisError),
    #[error(transparent)]
    Answer(#[from] StoreError),
}

/// The server's clock beside this node's.
#[derive(Clone, Copy)]
struct Offset {
    server: u64,
    node: u64,
}

impl Offset {
    fn to_node(self, at: Time) -> Time {
        match at.finite() {
            None => Time::NEVER,
            Some(at) => Time::from_micros((at.as_micros() + self.node).saturating_sub(self.server)),
        }
    }
}
