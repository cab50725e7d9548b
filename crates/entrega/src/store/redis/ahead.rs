//! Claiming ahead: a busy lane has jobs in hand before a slot is free for them, so that no worker waits for the server.
//! Invariant: what lies here is leased like any job under way; it is given back when the lane is paused or the node
//! stops. No more lies here than the lane attempts in a moment: whatever comes later and is more urgent waits for that.
//! Never: serves a lane with gates; they judge the moment of every start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::lane::Left;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::turns::TurnError;
use super::{LaneCell, Shared};
use crate::store::{ClaimBatch, ClaimedJob};

/// Lanes with fewer slots do not claim ahead, and none claims more.
const SLOTS_MIN: u32 = 16;
const AHEAD_MAX: usize = 256;
/// Calls that claim ahead at once, for each lane.
pub(super) const CALLS: usize = 2;
/// For how long ahead a lane claims, at the pace of its last attempts.
const HORIZON: Duration = Duration::from_millis(25);
/// How long a pace is measured.
const MEASURED: Duration = Duration::from_millis(5);

/// What a lane has claimed ahead.
pub(super) struct Ahead {
    /// So many at most; 0 where nothing is claimed ahead.
    pub(super) max: usize,
    stock: Mutex<Stock>,
    /// There is room for more.
    room: Notify,
}

#[derive(Default)]
struct Stock {
    jobs: VecDeque<ClaimedJob>,
    /// Those that expired meanwhile.
    expired: Vec<Left>,
    /// Jobs that calls under way would bring.
    wanted: usize,
    pace: Pace,
}

/// How many jobs a lane takes.
#[derive(Default)]
struct Pace {
    since: Time,
    taken: usize,
    /// In [`HORIZON`], when it was last measured.
    in_horizon: usize,
}

impl Pace {
    fn take(&mut self, count: usize, now: Time) {
        let passed = now.since(self.since);
        if passed >= MEASURED {
            let in_horizon = self.taken as f64 * HORIZON.as_secs_f64() / passed.as_secs_f64();
            *self = Pace { since: now, taken: 0, in_horizon: in_horizon as usize };
        }
        self.taken += count;
    }
}

impl Ahead {
    /// Four times as many as the lane has slots, unless every start is judged by a gate.
    pub(super) fn new(is_wanted: bool, policy: &LanePolicy) -> Ahead {
        let has_gate = policy.throttle.is_some() || policy.breaker.is_some() || policy.cadence.is_some();
        // An endpoint may get a throttle of its own at any time.
        let is_judged = has_gate || policy.calls_endpoints();
        let max = match is_judged || !is_wanted || policy.concurrency < SLOTS_MIN {
            true => 0,
            false => (4 * policy.concurrency as usize).min(AHEAD_MAX),
        };
        Ahead { max, stock: Mutex::default(), room: Notify::new() }
    }

    /// How many jobs one call claims: a call for few costs nearly as much as one for many.
    fn at_once(&self) -> usize {
        self.max / 4
    }

    /// How many jobs to claim ahead now, if it is worth a call.
    fn want(&self) -> Option<usize> {
        let mut stock = self.stock.lock();
        let most = self.max.min(stock.pace.in_horizon);
        let wanted = self.at_once();
        let is_worth_it = wanted > 0 && stock.jobs.len() + stock.wanted + wanted <= most;
        stock.wanted += if is_worth_it { wanted } else { 0 };
        is_worth_it.then_some(wanted)
    }

    /// Puts down what a call brought that wanted so many, if it did; whether the lane has no more for now.
    fn put(&self, wanted: usize, batch: Option<ClaimBatch>) -> bool {
        let mut stock = self.stock.lock();
        stock.wanted -= wanted;
        let Some(batch) = batch else { return true };
        let is_last = batch.jobs.len() < wanted;
        stock.jobs.extend(batch.jobs);
        stock.expired.extend(batch.expired);
        is_last
    }

    /// Takes what was claimed ahead. Nothing if something is on its way, which wakes the lane. If neither is the case,
    /// gives how many more than `max` may be claimed.
    fn take(&self, max: usize, now: Time) -> Result<ClaimBatch, usize> {
        let mut stock = self.stock.lock();
        let count = max.min(stock.jobs.len());
        if count == 0 && stock.wanted == 0 {
            return Err(self.max.min(stock.pace.in_horizon));
        }
        stock.pace.take(count, now);
        let jobs = stock.jobs.drain(..count).collect();
        let expired = std::mem::take(&mut stock.expired);
        if stock.jobs.len() + self.at_once() <= self.max {
            self.room.notify_one();
        }
        Ok(ClaimBatch { jobs, expired, wake_at: None })
    }

    /// Puts down what was claimed beyond what the lane has slots for; what expired meanwhile goes along.
    fn keep(&self, batch: &mut ClaimBatch, max: usize, now: Time) {
        let rest = batch.jobs.split_off(max.min(batch.jobs.len()));
        let mut stock = self.stock.lock();
        stock.pace.take(batch.jobs.len(), now);
        stock.jobs.extend(rest);
        batch.expired.append(&mut stock.expired);
    }

    /// Whether the lane claims all the time.
    pub(super) fn is_busy(&self) -> bool {
        let stock = self.stock.lock();
        stock.wanted > 0 || !stock.jobs.is_empty()
    }

    /// Jobs that were claimed and that nobody attempts yet.
    pub(super) fn drop_all(&self) -> Vec<JobId> {
        self.stock.lock().jobs.drain(..).map(|claimed| claimed.job.id).collect()
    }
}

/// Claims ahead, so that a worker need not wait for the server. Two such calls are under way at once, so that the server
/// has the next when it has done one.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.ahead.room.notified().await;
        while let Some(wanted) = lane.ahead.want() {
            let batch = shared.turn(&lane, wanted).await;
            let is_last = lane.ahead.put(wanted, batch.ok());
            // Also if it brought nothing: whoever relied on it asks the server then.
            lane.wake.notify_one();
            if is_last {
                break;
            }
        }
    }
}

impl Shared {
    /// Takes jobs to attempt: those claimed ahead, or else from the server, with some more to be ahead.
    pub(super) async fn claim(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        let more = match lane.ahead.take(max, self.clock.now()) {
            Ok(batch) => return Ok(batch),
            Err(more) => more,
        };
        let mut batch = self.turn(lane, max.saturating_add(more)).await?;
        lane.ahead.keep(&mut batch, max, self.clock.now());
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced(jobs: usize, each: Duration) -> Ahead {
        let ahead = Ahead::new(true, &LanePolicy { throttle: None, breaker: None, ..LanePolicy::http() });
        let mut now = Time::from_millis(1_000);
        for _ in 0..jobs {
            now = now + each;
            ahead.stock.lock().pace.take(1, now);
        }
        ahead
    }

    /// A job that is more urgent than what lies here would wait for all of it.
    #[test]
    fn a_lane_of_slow_attempts_claims_nothing_ahead() {
        for each in [Duration::from_millis(1), Duration::from_millis(100)] {
            assert_eq!(paced(100, each).want(), None, "{each:?}");
        }
        assert_eq!(paced(1_000, Duration::from_micros(50)).want(), Some(64));
    }

    #[test]
    fn no_more_is_wanted_than_the_lane_attempts_in_a_moment() {
        // 25 ms hold 125 jobs.
        let ahead = paced(1_000, Duration::from_micros(200));
        assert_eq!((ahead.want(), ahead.want()), (Some(64), None));
        assert!(ahead.is_busy());
        assert!(ahead.put(64, None));
        assert!(!ahead.is_busy());
        assert_eq!(ahead.take(8, Time::from_millis(1_300)).err(), Some(125), "nothing is here, nothing comes");
    }
}
