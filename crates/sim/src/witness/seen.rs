//! What is known of one job, and which of its moves are legal.
//! Invariant: comes from the disk and from what is claimed; the store is not asked.

use entrega::store::ClaimedJob;
use entrega_core::decide::Attempts;
use entrega_core::job::{Attempt, JobState, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::FaultKind;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use crate::disk::{Place, Record};
use crate::witness::{Broken, By};

/// What is known of a job.
#[derive(Clone, Debug)]
pub struct Seen {
    pub lane: LaneName,
    pub tenant: TenantName,
    pub priority: Priority,
    pub due: Time,
    pub expires: Time,
    pub place: Place,
    pub generation: u8,
    /// Attempts settled in this generation, since it was last unblocked.
    pub settled: u32,
    /// All of this generation.
    pub history: usize,
    /// All there were.
    pub told: u32,
    /// Whether it stands in its lane: durable, the store was told so, and in nobody's hands.
    pub in_lane: bool,
    /// Since when.
    pub in_lane_at: Time,
    /// Whether it is about to be dropped while it waits.
    pub is_leaving: bool,
    /// How many try to cancel it just now.
    pub cancels: u32,
    /// Its record could not be read, and it is tried again after this.
    pub unread_until: Time,
    /// Whether it was claimed and neither settled nor taken over since.
    pub in_hands: bool,
}

impl Seen {
    /// Of a job that is durable now.
    pub fn new(record: &Record) -> Seen {
        Seen {
            lane: record.job.lane.clone(),
            tenant: record.job.tenant.clone(),
            priority: record.job.priority,
            due: record.due,
            expires: record.expires(),
            place: record.place.clone(),
            generation: record.generation,
            settled: record.attempt,
            history: record.history.len(),
            told: 0,
            in_lane: false,
            in_lane_at: Time::ZERO,
            is_leaving: false,
            cancels: 0,
            unread_until: Time::ZERO,
            in_hands: false,
        }
    }

    /// Whether a move of a job is legal, and whether an attempt was settled by it.
    pub fn moved(&self, record: &Record) -> Result<bool, Broken> {
        let (attempt, history) = (record.attempt, record.history.len());
        let is_same = (attempt, history, record.generation) == (self.settled, self.history, self.generation);
        match (&self.place, &record.place) {
            (_, Place::Waiting | Place::Blocked { .. } | Place::Ended { state: JobState::Dlq, .. })
                if record.generation < self.generation =>
            {
                Err(("attempts_bounded", "has forgotten that it was replayed".into()))
            }
            (Place::Ended { state: JobState::Dlq, .. }, Place::Waiting) => {
                match record.generation == self.generation + 1 {
                    true => Ok(false),
                    false => Err(("attempts_bounded", "is replayed without being counted".into())),
                }
            }
            (Place::Ended { state, .. }, Place::Ended { state: JobState::Cancelled, .. }) => {
                Err(("cancel_is_final", format!("was {state} and is cancelled")))
            }
            (_, Place::Ended { state: JobState::Cancelled, .. }) if self.in_hands => {
                Err(("cancel_is_final", "is cancelled while it is attempted".into()))
            }
            (Place::Ended { .. }, _) => Err(("no_double_settle", format!("ended before and is {:?}", record.place))),
            (Place::Blocked { .. }, Place::Waiting) if attempt == 0 && history == self.history => Ok(false),
            (Place::Blocked { .. }, Place::Waiting) => {
                Err(("attempts_bounded", format!("is unblocked with {attempt} attempts used up")))
            }
            (Place::Blocked { .. }, Place::Ended { state: JobState::Cancelled, .. }) => Ok(false),
            (_, Place::Ended { state: JobState::Dropped | JobState::Cancelled, .. }) if is_same => Ok(false),
            // A replay that was dropped on its way is a dead letter again.
            (_, Place::Ended { state: JobState::Dlq, .. }) if is_same && self.generation > 0 => Ok(false),
            _ if attempt == self.settled + 1 && history == self.history + 1 => Ok(true),
            // One line says that it waits for its destination, however often it looked.
            _ if attempt == self.settled + 1 && history == self.history && waits_on(&record.history) => Ok(true),
            _ if attempt <= self.settled => {
                Err(("no_double_settle", format!("is settled again as attempt {attempt} of {}", self.settled)))
            }
            _ => Err(("attempts_bounded", format!("has {attempt} attempts and {history} records of them"))),
        }
    }

    /// Whether a job may be attempted now.
    pub fn may_go(&self, now: Time, by: By, job: &ClaimedJob, policy: &LanePolicy) -> Result<(), Broken> {
        match () {
            _ if !self.in_lane => Err(("no_double_settle", "is in somebody's hands or ended".into())),
            _ if now < self.due => Err(("never_early", "is not due".into())),
            _ if by.asked_at >= self.expires => Err(("ttl_respected", "is past its time to live".into())),
            _ if Attempts::after(&job.history, job.attempt).counted > policy.retry.attempts => {
                Err(("attempts_bounded", format!("gets attempt {} of {}", job.attempt, policy.retry.attempts)))
            }
            _ if job.attempt != self.settled + 1 || job.history.len() != self.history => {
                Err(("attempts_bounded", format!("gets attempt {} after {} settled ones", job.attempt, self.settled)))
            }
            _ => Ok(()),
        }
    }
}

fn waits_on(history: &[Attempt]) -> bool {
    history.last().is_some_and(|last| !FaultKind::counts(&last.code))
}
