//! Turns at the server: settlements and claims of a lane, together in one call.
//! Invariant: a settlement is kept until the server has taken it; repeating one is safe, because the second finds its
//! lease gone. Nobody's attempt is forgotten by a call that failed or was given up.
//! Never: gives up; a server that is gone is asked again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::Left;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::answer::{Packed, Reader, micros};
use super::leases::Lease;
use super::script::{Call, Verb};
use super::submits::read_left;
use super::{LaneCell, Shared};
use crate::store::records::{self, Ended};
use crate::store::{ClaimBatch, ClaimedJob, Held, Settlement, StoreError, Ticket};

/// Jobs that were attempted and whose settlement may be on its way at once.
pub(super) const UNSETTLED_MAX: usize = 1024;
/// Settlements in one call, and the bytes of their records.
const CALL_SETTLEMENTS: usize = 500;
const CALL_BYTES: usize = 8 << 20;
/// How long settlements wait for a claim to go along with.
const GATHER: Duration = Duration::from_millis(2);
/// How long a call that failed waits before it is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// What becomes of a job, as the script numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Done = 1,
    Retry = 2,
    Blocked = 3,
    Dead = 4,
}

/// A settlement as the script takes it.
struct Sending {
    id: JobId,
    token: u64,
    becomes: Becomes,
    lesson: Lesson,
    took: Duration,
    /// When it is tried again, or when it died.
    at: Time,
    record: Vec<u8>,
    /// A code or a reason.
    text: Option<String>,
    expires: Time,
    /// Jobs for other lanes.
    causes: Option<Vec<u8>>,
    _permit: OwnedSemaphorePermit,
}

/// What a node has in hand of a lane.
pub(super) struct Turns {
    waiting: Mutex<VecDeque<Sending>>,
    some: Notify,
    permits: Arc<Semaphore>,
    pub(super) leases: Mutex<HashMap<JobId, Lease>>,
    /// Jobs that were claimed ahead, and jobs that expired meanwhile.
    ahead: Mutex<(VecDeque<ClaimedJob>, Vec<Left>)>,
    /// There is room for more of them.
    room: Notify,
    /// Jobs that calls under way would claim ahead.
    wanted: AtomicUsize,
    /// Claims whose answer was lost. What they took counts against the name they were made under until it is given
    /// back, so the next claim is made under another.
    lost_claims: AtomicU32,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            waiting: Mutex::default(),
            some: Notify::new(),
            permits: Arc::new(Semaphore::new(UNSETTLED_MAX)),
            leases: Mutex::default(),
            ahead: Mutex::default(),
            room: Notify::new(),
            wanted: AtomicUsize::new(0),
            lost_claims: AtomicU32::new(0),
        }
    }
}

/// Settlements that are being sent; they go back in line unless the server took them.
struct Batch<'a> {
    turns: &'a Turns,
    sent: Vec<Sending>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.sent.is_empty() {
            let mut waiting = self.turns.waiting.lock();
            self.sent.drain(..).rev().for_each(|sending| waiting.push_front(sending));
            self.turns.some.notify_one();
        }
    }
}

impl Turns {
    fn take(&self) -> Batch<'_> {
        let mut waiting = self.waiting.lock();
        let (mut count, mut bytes) = (0, 0);
        for sending in waiting.iter().take(CALL_SETTLEMENTS) {
            bytes += sending.record.len() + sending.causes.as_ref().map_or(0, Vec::len);
            if count > 0 && bytes > CALL_BYTES {
                break;
            }
            count += 1;
        }
        Batch { turns: self, sent: waiting.drain(..count).collect() }
    }

    /// Whether the settlement of a job is on its way.
    pub(super) fn is_settling(&self, id: JobId) -> bool {
        self.waiting.lock().iter().any(|sending| sending.id == id)
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Waits until everything handed in so far has been taken.
    pub(super) async fn drained(&self) {
        self.some.notify_one();
        // Closed never: the permits are all there when nothing is on its way.
        drop(self.permits.acquire_many(UNSETTLED_MAX as u32).await);
    }
}

/// Sends settlements that no claim took along.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.turns.some.notified().await;
        tokio::time::sleep(GATHER).await;
        while !lane.turns.is_empty() {
            if let Err(error) = shared.turn(&lane, 0).await {
                tracing::warn!(lane = %lane.name, errorReason = %error, "Settlements could not be written; they are kept and tried again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Claims ahead, so that a worker need not wait for the server. A quarter of what may lie there at a time, because a call
/// for few jobs costs nearly as much as one for many; two such calls are under way at once, so that the server has the
/// next when it has done one.
pub(super) async fn claim_ahead(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.turns.room.notified().await;
        while let Some(wanted) = lane.turns.want(&lane) {
            let batch = shared.turn(&lane, wanted).await;
            lane.turns.wanted.fetch_sub(wanted, Ordering::Relaxed);
            let Ok(batch) = batch else { break };
            let is_last = batch.jobs.len() < wanted;
            let mut ahead = lane.turns.ahead.lock();
            ahead.0.extend(batch.jobs);
            ahead.1.extend(batch.expired);
            drop(ahead);
            lane.wake.notify_one();
            if is_last {
                break;
            }
        }
    }
}

impl Turns {
    /// How many jobs to claim ahead now, if it is worth a call.
    fn want(&self, lane: &LaneCell) -> Option<usize> {
        let ahead = self.ahead.lock();
        let room = lane.ahead.saturating_sub(ahead.0.len() + self.wanted.load(Ordering::Relaxed));
        let wanted = lane.ahead / 4;
        (wanted > 0 && room >= wanted).then(|| {
            self.wanted.fetch_add(wanted, Ordering::Relaxed);
            wanted
        })
    }

    /// Takes what was claimed ahead, if anything was.
    fn take_ahead(&self, lane: &LaneCell, max: usize) -> Option<ClaimBatch> {
        let mut ahead = self.ahead.lock();
        let count = max.min(ahead.0.len());
        if count == 0 {
            return None;
        }
        let jobs = ahead.0.drain(..count).collect();
        let expired = std::mem::take(&mut ahead.1);
        if ahead.0.len() * 4 <= lane.ahead * 3 {
            self.room.notify_one();
        }
        Some(ClaimBatch { jobs, expired, wake_at: None })
    }

    /// Jobs that were claimed and that nobody attempts yet.
    pub(super) fn drop_ahead(&self) -> Vec<JobId> {
        self.ahead.lock().0.drain(..).map(|claimed| claimed.job.id).collect()
    }
}

impl Shared {
    /// Takes jobs to attempt: those claimed ahead, or else from the server, with some more to be ahead.
    pub(super) async fn claim(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        if let Some(batch) = lane.turns.take_ahead(lane, max) {
            return Ok(batch);
        }
        let mut batch = self.turn(lane, max.saturating_add(lane.ahead)).await?;
        let rest = batch.jobs.split_off(max.min(batch.jobs.len()));
        let mut ahead = lane.turns.ahead.lock();
        ahead.0.extend(rest);
        batch.expired.append(&mut ahead.1);
        Ok(batch)
    }

    /// Hands settlements in. Waits when too many are on their way.
    pub(super) async fn hand_in(&self, lane: &LaneCell, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        settlements.iter().try_for_each(Settlement::check)?;
        for settlement in &settlements {
            settlement.causes.iter().try_for_each(|job| self.lane(&job.lane).map(drop))?;
        }
        for settlement in settlements {
            if lane.turns.permits.available_permits() == 0 {
                // What is here must leave before the rest has room.
                lane.turns.some.notify_one();
            }
            let permit = lane.turns.permits.clone().acquire_owned().await;
            let permit = permit.map_err(|_| StoreError::Stopped { reason: "it is shutting down".into() })?;
            let sending = self.prepare(lane, settlement, permit).await;
            lane.turns.waiting.lock().push_back(sending);
        }
        lane.turns.some.notify_one();
        Ok(())
    }

    async fn prepare(&self, lane: &LaneCell, settlement: Settlement, permit: OwnedSemaphorePermit) -> Sending {
        let now = self.clock.now();
        let Settlement { ticket, job, generation, attempts, transition, lesson, took, answer, causes } = settlement;
        let Held::Lease(token) = ticket.0 else { panic!("a settlement with another store's ticket") };
        let mut sending = Sending {
            id: job.id,
            token,
            becomes: Becomes::Done,
            lesson,
            took,
            at: now,
            record: Vec::new(),
            text: None,
            expires: Time::NEVER,
            causes: (!causes.is_empty()).then(|| records::encode(&causes)),
            _permit: permit,
        };
        match transition {
            Transition::Done => {
                let end = Ended { attempts, answer, ..Ended::of(job, JobState::Done, now, generation) };
                sending.record = encode_end(&end);
            }
            Transition::Retry { at, .. } => {
                (sending.becomes, sending.at) = (Becomes::Retry, at);
                sending.record = records::encode(&attempts);
            }
            Transition::Blocked { failure } => {
                (sending.becomes, sending.text) = (Becomes::Blocked, Some(failure.reason));
                sending.record = records::encode(&attempts);
            }
            Transition::DeadLetter { failure } => {
                let code = failure.code.clone();
                let mut dead = records::dead_letter(job, generation, attempts, failure, &lane.policy.dead_letters, now);
                if generation > 0 {
                    self.carry_on(lane, &mut dead).await;
                }
                (sending.becomes, sending.text, sending.expires) = (Becomes::Dead, Some(code), dead.expires_at());
                sending.record = records::encode_json(&dead);
            }
        }
        sending
    }

    /// One call: what was handed in, and a claim of up to `max` jobs.
    pub(super) async fn turn(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        let line = self.link.ready().await?;
        // Nodes that were all cut off say first what they have in hand, before anybody takes it for abandoned.
        let claims_from = self.link.claims_from();
        let max = if claims_from.is_some() { 0 } else { max };
        let mut batch = lane.turns.take();
        let sent_at = self.clock.now();
        let lease = u64::try_from(lane.lease.as_micros()).unwrap_or(u64::MAX);
        let call = Call::new(self, lane, Verb::Turn).arg(self.node_of(lane)).arg(max).arg(lease);
        let ids: Vec<u8> = batch.sent.iter().flat_map(|sending| *sending.id.as_bytes()).collect();
        let call = batch.sent.iter().fold(call.arg(ids), carry);
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
        })
    }
}

impl Turns {
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

fn carry(call: Call, sending: &Sending) -> Call {
    let (lesson, pause) = match sending.lesson {
        Lesson::Up => (1, None),
        Lesson::Down => (2, None),
        Lesson::Slower(pause) => (3, pause),
        Lesson::Nothing => (4, None),
    };
    let micros_of = |length: Duration| length.as_secs_f64() * 1_000_000.0;
    let mut head = Vec::with_capacity(60);
    head.extend_from_slice(sending.id.as_bytes());
    head.extend_from_slice(&(sending.token as f64).to_be_bytes());
    head.extend_from_slice(&[sending.becomes as u8, lesson]);
    let numbers = [
        pause.map_or(-1.0, micros_of),
        micros_of(sending.took),
        micros(sending.at) as f64,
        micros(sending.expires) as f64,
    ];
    numbers.iter().for_each(|number| head.extend_from_slice(&number.to_be_bytes()));
    head.extend_from_slice(&[u8::from(sending.text.is_some()), u8::from(sending.causes.is_some())]);
    let call = call.arg(head).arg(&sending.record);
    let call = sending.text.iter().fold(call, |call, text| call.arg(text));
    sending.causes.iter().fold(call, |call, causes| call.arg(causes))
}

/// The end of a job, with what scripts look at in front.
pub(super) fn encode_end(end: &Ended) -> Vec<u8> {
    let body = records::encode_ended(end);
    let (state, tenant) = (end.state.as_str(), end.tenant.as_str());
    let mut bytes = Vec::with_capacity(body.len() + state.len() + tenant.len() + 11);
    bytes.push(END);
    bytes.extend_from_slice(&(micros(end.ended_at) as f64).to_be_bytes());
    for text in [state, tenant] {
        bytes.push(text.len() as u8);
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes.extend_from_slice(&body);
    bytes
}

/// What the record of an end begins with.
pub(super) const END: u8 = b'E';
