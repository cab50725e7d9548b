//! Claiming ahead: a busy lane has jobs in hand before a slot is free for them, so that no worker waits for the server.
//! Invariant: what lies here is leased like any job under way; it is given back when the lane is paused or the node
//! stops.
//! Never: serves a lane with gates; they judge the moment of every start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use entrega_core::id::JobId;
use entrega_core::lane::Left;
use entrega_core::policy::LanePolicy;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::turns::TurnError;
use super::{LaneCell, Shared};
use crate::store::{ClaimBatch, ClaimedJob};

/// Lanes with fewer slots do not claim ahead, and none claims more.
const SLOTS_MIN: u32 = 16;
const AHEAD_MAX: usize = 128;
/// Calls that claim ahead at once, for each lane.
pub(super) const CALLS: usize = 2;

/// What a lane has claimed ahead.
pub(super) struct Ahead {
    /// So many at most; 0 where nothing is claimed ahead.
    pub(super) max: usize,
    /// The jobs, and those that expired meanwhile.
    jobs: Mutex<(VecDeque<ClaimedJob>, Vec<Left>)>,
    /// There is room for more.
    room: Notify,
    /// Jobs that calls under way would bring.
    wanted: AtomicUsize,
}

impl Ahead {
    /// Twice as many as the lane has slots, unless every start is judged by a gate.
    pub(super) fn new(is_wanted: bool, policy: &LanePolicy) -> Ahead {
        let has_gate = policy.throttle.is_some() || policy.breaker.is_some() || policy.cadence.is_some();
        // An endpoint may get a throttle of its own at any time.
        let is_judged = has_gate || policy.calls_endpoints();
        let max = match is_judged || !is_wanted || policy.concurrency < SLOTS_MIN {
            true => 0,
            false => (2 * policy.concurrency as usize).min(AHEAD_MAX),
        };
        Ahead { max, jobs: Mutex::default(), room: Notify::new(), wanted: AtomicUsize::new(0) }
    }
}

/// Claims ahead, so that a worker need not wait for the server. A quarter of what may lie there at a time, because a call
/// for few jobs costs nearly as much as one for many; two such calls are under way at once, so that the server has the
/// next when it has done one.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.ahead.room.notified().await;
        while let Some(wanted) = lane.ahead.want() {
            let batch = shared.turn(&lane, wanted).await;
            lane.ahead.wanted.fetch_sub(wanted, Ordering::Relaxed);
            let Ok(batch) = batch else { break };
            let is_last = batch.jobs.len() < wanted;
            let mut ahead = lane.ahead.jobs.lock();
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

impl Ahead {
    /// How many jobs to claim ahead now, if it is worth a call.
    fn want(&self) -> Option<usize> {
        let ahead = self.jobs.lock();
        let room = self.max.saturating_sub(ahead.0.len() + self.wanted.load(Ordering::Relaxed));
        let wanted = self.max / 4;
        (wanted > 0 && room >= wanted).then(|| {
            self.wanted.fetch_add(wanted, Ordering::Relaxed);
            wanted
        })
    }

    /// Takes what was claimed ahead, if anything was.
    fn take(&self, max: usize) -> Option<ClaimBatch> {
        let mut ahead = self.jobs.lock();
        let count = max.min(ahead.0.len());
        if count == 0 {
            return None;
        }
        let jobs = ahead.0.drain(..count).collect();
        let expired = std::mem::take(&mut ahead.1);
        if ahead.0.len() * 4 <= self.max * 3 {
            self.room.notify_one();
        }
        Some(ClaimBatch { jobs, expired, wake_at: None })
    }

    /// Jobs that were claimed and that nobody attempts yet.
    pub(super) fn drop_all(&self) -> Vec<JobId> {
        self.jobs.lock().0.drain(..).map(|claimed| claimed.job.id).collect()
    }
}

impl Shared {
    /// Takes jobs to attempt: those claimed ahead, or else from the server, with some more to be ahead.
    pub(super) async fn claim(&self, lane: &LaneCell, max: usize) -> Result<ClaimBatch, TurnError> {
        if let Some(batch) = lane.ahead.take(max) {
            return Ok(batch);
        }
        let mut batch = self.turn(lane, max.saturating_add(lane.ahead.max)).await?;
        let rest = batch.jobs.split_off(max.min(batch.jobs.len()));
        let mut ahead = lane.ahead.jobs.lock();
        ahead.0.extend(rest);
        batch.expired.append(&mut ahead.1);
        Ok(batch)
    }
}
