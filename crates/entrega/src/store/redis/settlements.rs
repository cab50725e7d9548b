//! Settlements on their way: from the end of an attempt to what a script takes.
//! Invariant: a settlement is kept until the server has taken it; one that was being sent in vain goes back in line.
//! Never: sends; a turn takes them along.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::answer::micros;
use super::script::Call;
use super::turns::Turns;
use super::{LaneCell, Shared, schema};
use crate::store::records::{self, Ended};
use crate::store::{Held, Settlement, StoreError};

/// Jobs of a lane that a node attempted and whose settlement may be on its way at once.
pub const UNSETTLED_MAX: usize = 1024;
/// Settlements in one call, and the bytes of their records.
const CALL_SETTLEMENTS: usize = 500;
const CALL_BYTES: usize = 8 << 20;
/// What the record of an end begins with.
pub(super) const END: u8 = b'E';

/// What becomes of a job, as the script numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
    Done = 1,
    Retry = 2,
    Blocked = 3,
    Dead = 4,
}

/// A settlement as the script takes it.
pub(super) struct Sending {
    pub(super) id: JobId,
    pub(super) token: u64,
    pub(super) becomes: Becomes,
    /// Delivered, with nothing that follows from it and no gate that learns from it: most are.
    is_plain: bool,
    lesson: Lesson,
    took: Duration,
    /// When it is tried again, or when it died.
    at: Time,
    record: Vec<u8>,
    /// A code or a reason.
    text: Option<String>,
    expires: Time,
    /// Jobs for other lanes.
    pub(super) causes: Option<Vec<u8>>,
    handed_in: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The settlements of a lane that wait to be sent.
pub(super) struct Settlements {
    waiting: Mutex<VecDeque<Sending>>,
    /// There are some.
    pub(super) some: Notify,
    permits: Arc<Semaphore>,
}

impl Default for Settlements {
    fn default() -> Settlements {
        Settlements { waiting: Mutex::default(), some: Notify::new(), permits: Arc::new(Semaphore::new(UNSETTLED_MAX)) }
    }
}

/// Settlements that are being sent; they go back in line unless the server took them.
pub(super) struct Batch<'a> {
    settlements: &'a Settlements,
    pub(super) sent: Vec<Sending>,
}

impl Batch<'_> {
    /// Adds them to a call: first those that are only to be counted, with what each was handed out with.
    pub(super) fn carry(&self, call: Call, turns: &Turns) -> Call {
        let leases = turns.leases.lock();
        let (mut plain, mut others) = (Vec::with_capacity(self.sent.len()), Vec::new());
        for sending in &self.sent {
            let entry = leases.get(&sending.id).map(|lease| &lease.entry);
            match entry.filter(|entry| sending.is_plain && entry.is_plain() && entry.token() == sending.token) {
                Some(entry) => plain.push((sending, entry)),
                None => others.push(sending),
            }
        }
        plain.sort_unstable_by(|(_, one), (_, other)| one.in_common().cmp(&other.in_common()));
        let mut alike = Vec::new();
        for some in plain.chunk_by(|(_, one), (_, other)| one.in_common() == other.in_common()) {
            let (ending, priority) = some[0].1.in_common();
            alike.extend_from_slice(&(some.len() as u16).to_be_bytes());
            alike.push(priority);
            alike.extend_from_slice(ending);
        }
        let call = plain.iter().fold(call.arg(alike), |call, (sending, _)| call.arg(sending.id.as_bytes()));
        let call = plain.iter().fold(call, |call, (_, entry)| call.arg(entry.bytes()));
        let call = plain.iter().fold(call, |call, (sending, _)| call.arg(sending.id.as_bytes()).arg(&sending.record));
        let ids: Vec<u8> = others.iter().flat_map(|sending| *sending.id.as_bytes()).collect();
        others.iter().fold(call.arg(ids), |call, sending| sending.carry(call))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.sent.is_empty() {
            let mut waiting = self.settlements.waiting.lock();
            self.sent.drain(..).rev().for_each(|sending| waiting.push_front(sending));
            self.settlements.some.notify_one();
        }
    }
}

impl Settlements {
    pub(super) fn take(&self) -> Batch<'_> {
        let mut waiting = self.waiting.lock();
        let (mut count, mut bytes) = (0, 0);
        for sending in waiting.iter().take(CALL_SETTLEMENTS) {
            bytes += sending.record.len() + sending.causes.as_ref().map_or(0, Vec::len);
            if count > 0 && bytes > CALL_BYTES {
                break;
            }
            count += 1;
        }
        Batch { settlements: self, sent: waiting.drain(..count).collect() }
    }

    /// Whether the settlement of a job is on its way.
    pub(super) fn is_settling(&self, id: JobId) -> bool {
        self.waiting.lock().iter().any(|sending| sending.id == id)
    }

    /// When the first of them was handed in, if there is one.
    pub(super) fn first_handed_in(&self) -> Option<Instant> {
        self.waiting.lock().front().map(|sending| sending.handed_in)
    }

    /// Waits until everything handed in so far has been taken.
    pub(super) async fn drained(&self) {
        self.some.notify_one();
        // Closed never: the permits are all there when nothing is on its way.
        drop(self.permits.acquire_many(UNSETTLED_MAX as u32).await);
    }
}

impl Shared {
    /// Hands settlements in. Waits when too many are on their way.
    pub(super) async fn hand_in(&self, lane: &LaneCell, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        settlements.iter().try_for_each(Settlement::check)?;
        for settlement in &settlements {
            settlement.causes.iter().try_for_each(|job| self.lane(&job.lane).map(drop))?;
        }
        for settlement in settlements {
            if lane.settlements.permits.available_permits() == 0 {
                // What is here must leave before the rest has room.
                lane.settlements.some.notify_one();
            }
            let permit = lane.settlements.permits.clone().acquire_owned().await;
            let permit = permit.map_err(|_| StoreError::Stopped { reason: "it is shutting down".into() })?;
            let sending = self.prepare(lane, settlement, permit).await;
            lane.settlements.waiting.lock().push_back(sending);
        }
        lane.settlements.some.notify_one();
        Ok(())
    }

    async fn prepare(&self, lane: &LaneCell, settlement: Settlement, permit: OwnedSemaphorePermit) -> Sending {
        let now = self.clock.now();
        let Settlement { ticket, job, generation, attempts, transition, lesson, took, answer, causes } = settlement;
        let Held::Lease(token) = ticket.0 else { panic!("a settlement with another store's ticket") };
        let is_done = matches!(transition, Transition::Done);
        let mut sending = Sending {
            id: job.id,
            token,
            becomes: Becomes::Done,
            is_plain: is_done && causes.is_empty() && !lane.policy.has_gates(),
            lesson,
            took,
            at: now,
            record: Vec::new(),
            text: None,
            expires: Time::NEVER,
            causes: (!causes.is_empty()).then(|| records::encode(&causes)),
            handed_in: self.clock.instant(now),
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
}

impl Sending {
    /// Adds it to a call.
    fn carry(&self, call: Call) -> Call {
        let (lesson, pause) = match self.lesson {
            Lesson::Up => (1, None),
            Lesson::Down => (2, None),
            Lesson::Slower(pause) => (3, pause),
            Lesson::Nothing => (4, None),
            Lesson::Apart => (5, None),
            Lesson::Unused => (6, None),
        };
        let mut head = Vec::with_capacity(60);
        head.extend_from_slice(self.id.as_bytes());
        head.extend_from_slice(&(self.token as f64).to_be_bytes());
        head.extend_from_slice(&[self.becomes as u8, lesson]);
        let numbers = [
            pause.map_or(-1.0, schema::micros),
            schema::micros(self.took),
            micros(self.at) as f64,
            micros(self.expires) as f64,
        ];
        numbers.iter().for_each(|number| head.extend_from_slice(&number.to_be_bytes()));
        head.extend_from_slice(&[u8::from(self.text.is_some()), u8::from(self.causes.is_some())]);
        let call = call.arg(head).arg(&self.record);
        let call = self.text.iter().fold(call, |call, text| call.arg(text));
        self.causes.iter().fold(call, |call, causes| call.arg(causes))
    }
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
