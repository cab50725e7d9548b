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
const AHEAD_MAX: usize = 384;
/// Calls that claim ahead at once, for each lane.
pub(super) const CALLS: usize = 2;
/// For how long ahead a lane claims, at the pace of its last attempts.
const HORIZON: Duration = Duration::from_millis(25);
/// When to ask again after a call that failed.
const SOON: Duration = Duration::from_millis(200);
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
    /// When the lane has something by itself, as the last call said.
    wake_at: Option<Time>,
    /// How often everything was given back. What a call brings that began before is given back as well.
    epoch: u64,
    pace: Pace,
}

/// A call that claims ahead.
struct Asked {
    wanted: usize,
    epoch: u64,
}

/// What lies here for a lane.
struct Found {
    batch: ClaimBatch,
    /// Slots are left, and nothing is on its way: the server is asked for them, and for this many more.
    more: Option<usize>,
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
    /// Six times as many as the lane has slots, unless every start is judged by a gate.
    pub(super) fn new(is_wanted: bool, policy: &LanePolicy) -> Ahead {
        let max = match policy.has_gates() || !is_wanted || policy.concurrency < SLOTS_MIN {
            true => 0,
            false => (6 * policy.concurrency as usize).min(AHEAD_MAX),
        };
        Ahead { max, stock: Mutex::default(), room: Notify::new() }
    }

    /// How many jobs one call claims of `most`: a third, so that the rest lasts until it answers. A call for few costs
    /// nearly as much as one for many.
    fn at_once(&self, most: usize) -> usize {
        (most / 3).max(self.max / 6)
    }

    /// How many jobs to claim ahead now, if it is worth a call.
    fn want(&self) -> Option<Asked> {
        let mut stock = self.stock.lock();
        let most = self.max.min(stock.pace.in_horizon);
        let wanted = self.at_once(most);
        let is_worth_it = wanted > 0 && stock.jobs.len() + stock.wanted + wanted <= most;
        is_worth_it.then(|| {
            stock.wanted += wanted;
            Asked { wanted, epoch: stock.epoch }
        })
    }

    /// Puts down what a call brought, if it did. Gives what must go back, and whether the lane has no more for now.
    fn put(&self, asked: &Asked, batch: Option<ClaimBatch>) -> (Vec<ClaimedJob>, bool) {
        let mut stock = self.stock.lock();
        stock.wanted -= asked.wanted;
        let Some(batch) = batch else { return (Vec::new(), true) };
        stock.expired.extend(batch.expired);
        if stock.epoch != asked.epoch {
            return (batch.jobs, true);
        }
        stock.wake_at = batch.wake_at;
        let is_last = batch.jobs.len() < asked.wanted;
        stock.jobs.extend(batch.jobs);
        (Vec::new(), is_last)
    }

    /// Takes what was claimed ahead. What is still on its way wakes the lane.
    fn take(&self, max: usize, now: Time) -> Found {
        let mut stock = self.stock.lock();
        let count = max.min(stock.jobs.len());
        stock.pace.take(count, now);
        let jobs = stock.jobs.drain(..count).collect();
        let expired = std::mem::take(&mut stock.expired);
        if stock.jobs.len() + self.at_once(self.max) <= self.max {
            self.room.notify_one();
        }
        let more = (count < max && stock.wanted == 0).then(|| self.max.min(stock.pace.in_horizon));
        Found { batch: ClaimBatch { jobs, expired, wake_at: stock.wake_at.filter(|at| *at > now) }, more }
    }

    /// Puts down what was claimed beyond what the lane has slots for.
    fn keep(&self, rest: Vec<ClaimedJob>, taken: usize, wake_at: Option<Time>, now: Time) {
        let mut stock = self.stock.lock();
        stock.pace.take(taken, now);
        stock.jobs.extend(rest);
        stock.wake_at = wake_at;
    }

    /// Whether the lane claims all the time.
    pub(super) fn is_busy(&self) -> bool {
        let stock = self.stock.lock();
        stock.wanted > 0 || !stock.jobs.is_empty()
    }

    /// Jobs that were claimed and that nobody attempts yet.
    pub(super) fn drop_all(&self) -> Vec<JobId> {
        let mut stock = self.stock.lock();
        stock.epoch += 1;
        stock.jobs.drain(..).map(|claimed| claimed.job.id).collect()
    }
}

/// Claims ahead, so that a worker need not wait for the server. Two such calls are under way at once, so that the server
/// has the next when it has done one.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.ahead.room.notified().await;
        while let Some(asked) = lane.ahead.want() {
            let batch = shared.turn(&lane, asked.wanted).await.ok();
            batch.iter().for_each(|batch| lane.turns.lay_down(&batch.jobs));
            let (stray, is_last) = lane.ahead.put(&asked, batch);
            shared.give_back_or_log(&lane, &stray).await;
            // Also if it brought nothing: whoever relied on it asks the server then.
            lane.wake.notify_one();
            if is_last {
                break;
            }
        }
    }
}

impl Shared {
    /// Takes jobs to attempt: those claimed ahead, and from the server what is missing, with some more to be ahead.
    pub(super) async fn claim(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        let now = self.clock.now();
        let Found { mut batch, more } = lane.ahead.take(max, now);
        let laid_down = batch.jobs.len();
        batch.jobs = lane.turns.pick_up(batch.jobs, now);
        if batch.jobs.len() < laid_down {
            // Others have the rest; there may be something else for these slots.
            batch.wake_at = Some(now);
        }
        let Some(more) = more else { return Ok(batch) };
        let missing = max - laid_down;
        let mut fresh = match self.turn(lane, missing.saturating_add(more)).await {
            Ok(fresh) => fresh,
            Err(error) if laid_down == 0 => return Err(error),
            // Asked again soon: nothing that is in hand may be forgotten for it.
            Err(_) => return Ok(ClaimBatch { wake_at: Some(now + SOON), ..batch }),
        };
        let rest = fresh.jobs.split_off(missing.min(fresh.jobs.len()));
        lane.turns.lay_down(&rest);
        lane.ahead.keep(rest, fresh.jobs.len(), fresh.wake_at, self.clock.now());
        batch.jobs.append(&mut fresh.jobs);
        batch.expired.append(&mut fresh.expired);
        Ok(ClaimBatch { wake_at: fresh.wake_at, ..batch })
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

    fn wanted(ahead: &Ahead) -> Option<usize> {
        ahead.want().map(|asked| asked.wanted)
    }

    /// A job that is more urgent than what lies here would wait for all of it.
    #[test]
    fn a_lane_of_slow_attempts_claims_nothing_ahead() {
        for each in [Duration::from_millis(1), Duration::from_millis(100)] {
            assert_eq!(wanted(&paced(100, each)), None, "{each:?}");
        }
        assert_eq!(wanted(&paced(1_000, Duration::from_micros(50))), Some(128));
    }

    #[test]
    fn no_more_is_wanted_than_the_lane_attempts_in_a_moment() {
        // 25 ms hold 125 jobs.
        let ahead = paced(1_000, Duration::from_micros(200));
        let asked = ahead.want().unwrap();
        assert_eq!((asked.wanted, wanted(&ahead)), (64, None));
        assert!(ahead.is_busy());
        let now = Time::from_millis(1_200);
        assert_eq!(ahead.take(8, now).more, None, "something is on its way");
        assert!(ahead.put(&asked, None).1);
        assert!(!ahead.is_busy());
        assert_eq!(ahead.take(8, now).more, Some(125), "nothing is here, and nothing comes");
        assert_eq!(ahead.take(8, now + Duration::from_hours(1)).more, Some(0), "the pace was long ago");
    }

    /// A retry that came due while only slow jobs were in hand waited for one of them.
    #[test]
    fn what_the_server_said_of_the_next_moment_is_not_forgotten() {
        let ahead = paced(1_000, Duration::from_micros(50));
        let (asked, now) = (ahead.want().unwrap(), Time::from_millis(1_100));
        let due = now + Duration::from_secs(1);
        let (stray, _) = ahead.put(&asked, Some(ClaimBatch { wake_at: Some(due), ..ClaimBatch::default() }));
        assert!(stray.is_empty());
        assert_eq!(ahead.take(8, now).batch.wake_at, Some(due));
    }

    #[test]
    fn what_comes_after_everything_was_given_back_goes_back_too() {
        let ahead = paced(1_000, Duration::from_micros(50));
        let asked = ahead.want().unwrap();
        assert!(ahead.drop_all().is_empty());
        let (_, is_last) = ahead.put(&asked, Some(ClaimBatch::default()));
        assert!(is_last);
        assert_eq!(ahead.stock.lock().epoch, asked.epoch + 1);
    }
}
