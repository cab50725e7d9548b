//! Turns at the server: settlements and claims of a lane, together in one call.
//! Invariant: a settlement is kept until the server has taken it; repeating one is safe, because the second finds its
//! lease gone. Nobody's attempt is forgotten by a call that failed or was given up.
//! Never: gives up; a server that is gone is asked again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::time::Time;
use parking_lot::Mutex;
use redis::{RedisError, Value};

use super::answer::{Packed, Reader};
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
        tokio::time::sleep(if lane.ahead.is_busy() { GATHER_BUSY } else { GATHER }).await;
        while !lane.settlements.is_empty() {
            if let Err(error) = shared.turn(&lane, 0).await {
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
        let ids: Vec<u8> = batch.sent.iter().flat_map(|sending| *sending.id.as_bytes()).collect();
        let call = batch.sent.iter().fold(call.arg(ids), |call, sending| sending.carry(call));
        let answer = call.make_on(self, line).await.inspect_err(|_| {
            lane.turns.lost_claims.fetch_add(u32::from(max > 0), Ordering::Relaxed);
        })?;
        let settled = std::mem::take(&mut batch.sent);
        lane.turns.let_go(&settled);
        let ended: Vec<_> =
            settled.iter().filter(|sending| sending.becomes != Becomes::Retry).map(|sending| sending.id).collect();
        if settled.iter().any(|sending| sending.causes.is_some()) {
            self.outbox.notify_one();
        }
        drop(settled);
        self.waiters.tell(&ended);
        let batch = self.read_turn(lane, answer, sent_at).await?;
        Ok(ClaimBatch { wake_at: claims_from.or(batch.wake_at), ..batch })
    }

    /// What this node is called in a lane.
    pub(super) fn node_of(&self, lane: &LaneCell) -> String {
        format!("{}.{}", self.node, lane.turns.lost_claims.load(Ordering::Relaxed))
    }

    async fn read_turn(&self, lane: &LaneCell, answer: Value, sent_at: Time) -> Result<ClaimBatch, StoreError> {
        let reader = Reader("a claim");
        let [server_now, come_back, stale, expired, jobs] = reader.fields(answer)?;
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
        let mut fields = reader.rows(jobs)?.into_iter();
        while let (Some(head), Some(record), Some(history)) = (fields.next(), fields.next(), fields.next()) {
            batch.jobs.extend(self.read_job(lane, [head, record, history], offset).await?);
        }
        let now = self.clock.now();
        let lease = |claimed: &ClaimedJob| match claimed.ticket.0 {
            Held::Lease(token) => Some((claimed.job.id, Lease { token, claimed_at: now, renewed_at: now })),
            Held::Place(_) => None,
        };
        lane.turns.leases.lock().extend(batch.jobs.iter().filter_map(lease));
        Ok(batch)
    }

    /// A job to attempt; `None` for one whose record cannot be read: it waits for an operator.
    async fn read_job(
        &self,
        lane: &LaneCell,
        [head, record, history]: [Value; 3],
        offset: Offset,
    ) -> Result<Option<ClaimedJob>, StoreError> {
        let reader = Reader("a claim");
        let head = reader.bytes(head)?.unwrap_or_default();
        let head = Head::read(&head).ok_or_else(|| reader.wrong("the head of a job is too short"))?;
        let record = reader.bytes(record)?;
        let job = record.as_deref().map(records::decode::<Job>).transpose();
        let history = reader.bytes(history)?.as_deref().map(records::decode).transpose();
        let (job, history) = match (job, history) {
            (Ok(Some(job)), Ok(history)) => (job, history.unwrap_or_default()),
            (Ok(None), _) => return self.set_aside(lane, head.id, head.token, "its record is missing").await,
            (Err(error), _) | (_, Err(error)) => {
                return self.set_aside(lane, head.id, head.token, &error.to_string()).await;
            }
        };
        Ok(Some(ClaimedJob {
            ticket: Ticket(Held::Lease(head.token)),
            job,
            attempt: head.attempt.into(),
            generation: head.generation,
            history,
            expires: offset.to_node(head.expires),
            past_breaker: head.past_breaker,
        }))
    }
}

/// What a claim says of a job beside what it carries.
struct Head {
    id: JobId,
    token: u64,
    attempt: u16,
    generation: u8,
    expires: Time,
    past_breaker: bool,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let mut fields = Packed(bytes);
        Some(Head {
            id: JobId::from_bytes(fields.take(16)?.try_into().ok()?),
            token: fields.number()? as u64,
            attempt: u16::from_be_bytes(fields.take(2)?.try_into().ok()?),
            generation: fields.take(1)?[0],
            expires: fields.moment()?,
            past_breaker: fields.take(1)?[0] == 1,
        })
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
            Some(lease) if claimed.ticket.0 == Held::Lease(lease.token) => {
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
            if leases.get(&sending.id).is_some_and(|lease| lease.token == sending.token) {
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
