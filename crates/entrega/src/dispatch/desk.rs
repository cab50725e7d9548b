//! The desk of a lane: where ended attempts are settled and new jobs are handed out.
//! Invariant: one at a time stands at the desk; an attempt that ended is settled by whoever is there, and nobody leaves
//! while one lies on it. At most `concurrency` attempts are under way.
//! Never: makes attempts.
//!
//! A worker whose attempt ended comes to the desk itself, and usually leaves with its next job in hand. Passing every
//! outcome to another task and every job back costs two wake-ups a job, which is more than all the rest of dispatch.

use std::sync::Arc;

use entrega_core::lane::Left;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::RunError;
use super::worker;
use crate::channel::Channel;
use crate::engine::Engine;
use crate::settle::Attempted;
use crate::store::ClaimedJob;

/// Rounds that a worker stays at the desk for others before it calls the lane's own task.
const ROUNDS_MAX: usize = 4;

/// Who works, and how it stands.
pub(super) struct Roster {
    /// Each worker's letter box.
    boxes: Vec<mpsc::Sender<ClaimedJob>>,
    idle: Vec<usize>,
    tasks: JoinSet<()>,
    running: usize,
    /// When to ask for jobs again if nothing happens before.
    pub(super) wake_at: Option<Time>,
    /// Whether the starts of the last batch were counted.
    counts_starts: bool,
    /// Settle, but start nothing more.
    pub(super) is_stopping: bool,
    failure: Option<RunError>,
}

/// The desk.
pub(super) struct Desk {
    pub(super) engine: Arc<Engine>,
    pub(super) channel: Arc<dyn Channel>,
    pub(super) policy: Arc<LanePolicy>,
    lane: LaneName,
    /// Wakes the lane's own task.
    pub(super) wake: Arc<Notify>,
    ended: parking_lot::Mutex<Vec<(usize, Option<Attempted>)>>,
    roster: tokio::sync::Mutex<Roster>,
}

impl Desk {
    pub(super) fn new(engine: &Arc<Engine>, lane: &LaneName) -> Result<Arc<Desk>, RunError> {
        let policy = engine.policy(lane)?;
        let no_channel = || RunError::NoChannel { lane: lane.to_string(), channel: policy.channel.clone() };
        let channel = engine.channels.get(&policy.channel).cloned().ok_or_else(no_channel)?;
        if policy.passes_when_open() && !channel.answers_alone() {
            return Err(RunError::CannotPass { lane: lane.to_string(), channel: policy.channel.clone() });
        }
        let roster = Roster {
            boxes: Vec::new(),
            idle: Vec::new(),
            tasks: JoinSet::new(),
            running: 0,
            wake_at: None,
            counts_starts: false,
            is_stopping: false,
            failure: None,
        };
        Ok(Arc::new(Desk {
            engine: engine.clone(),
            channel,
            lane: lane.clone(),
            wake: engine.store.wake(lane)?,
            policy,
            ended: parking_lot::Mutex::default(),
            roster: tokio::sync::Mutex::new(roster),
        }))
    }

    /// A worker's attempt ended, or was cut off. It goes on with the job it gets, or waits for one in its box.
    pub(super) async fn ended(self: &Arc<Self>, worker: usize, attempted: Option<Attempted>) -> Option<ClaimedJob> {
        self.ended.lock().push((worker, attempted));
        let mut mine = None;
        for _ in 0..ROUNDS_MAX {
            // Somebody is at the desk: what lies on it is seen before they leave.
            let Ok(mut roster) = self.roster.try_lock() else { return mine };
            let armed = roster.wake_at;
            self.round(&mut roster, Some(worker), &mut mine).await;
            let is_due = mine.is_some() && roster.counts_starts;
            let is_sooner = roster.wake_at.is_some_and(|at| armed.is_none_or(|armed| at < armed));
            if is_sooner || roster.is_stopping || roster.failure.is_some() {
                self.wake.notify_one();
            }
            drop(roster);
            if self.ended.lock().is_empty() {
                return mine;
            }
            // Another round may wait for the ledger, and this start was counted as made now.
            if is_due {
                break;
            }
        }
        self.wake.notify_one();
        mine
    }

    /// The lane's own task comes to the desk: something was submitted, resumed or is due.
    pub(super) async fn attend(self: &Arc<Self>, stop: bool) -> Result<Attended, RunError> {
        loop {
            let mut roster = self.roster.lock().await;
            roster.is_stopping |= stop;
            self.round(&mut roster, None, &mut None).await;
            if let Some(failure) = roster.failure.take() {
                return Err(failure);
            }
            let attended = Attended { wake_at: roster.wake_at, running: roster.running };
            drop(roster);
            // A worker that found the desk taken relies on whoever was there.
            if self.ended.lock().is_empty() {
                return Ok(attended);
            }
        }
    }

    /// Ends whatever is still under way; nobody settles it any more.
    pub(super) async fn dismiss(&self) {
        self.roster.lock().await.tasks.shutdown().await;
    }

    /// Settles what lies there and hands out what may go.
    async fn round(self: &Arc<Self>, roster: &mut Roster, me: Option<usize>, mine: &mut Option<ClaimedJob>) {
        if let Err(error) = self.settle_and_claim(roster, me, mine).await {
            roster.failure.get_or_insert(error);
            roster.is_stopping = true;
        }
    }

    async fn settle_and_claim(
        self: &Arc<Self>,
        roster: &mut Roster,
        me: Option<usize>,
        mine: &mut Option<ClaimedJob>,
    ) -> Result<(), RunError> {
        let ended = std::mem::take(&mut *self.ended.lock());
        roster.running -= ended.len();
        let mut settlements = Vec::with_capacity(ended.len());
        for (worker, attempted) in ended {
            roster.idle.push(worker);
            settlements.extend(attempted.map(|attempted| self.engine.settlement(&self.policy, attempted)));
        }
        if !settlements.is_empty() {
            self.engine.store.settle(&self.lane, settlements).await?;
        }
        let room = (self.policy.concurrency as usize).saturating_sub(roster.running);
        if room == 0 || roster.is_stopping {
            // Whoever ends an attempt asks again. The moment that the last claim gave may pass before that, and a lane
            // that sleeps until a moment which has passed does not sleep.
            roster.wake_at = None;
            return Ok(());
        }
        let batch = self.engine.store.claim(&self.lane, room).await?;
        batch.expired.iter().for_each(|left| self.report_dropped(left, "ttl_expired"));
        batch.pushed_out.iter().for_each(|left| self.report_dropped(left, "preempted"));
        roster.wake_at = batch.wake_at;
        roster.counts_starts = batch.counts_starts;
        for job in batch.jobs {
            roster.running += 1;
            self.hand_out(roster, job, me, mine);
        }
        Ok(())
    }

    /// An attempt was cut off because the lane may be somebody else's.
    pub(super) fn give_back(&self, claimed: &ClaimedJob) {
        tracing::warn!(lane = %self.lane, jobId = %claimed.job.id, attempt = claimed.attempt,
            "Attempt cut off: this node cannot show that the lane is still its own; the job is attempted again");
        self.engine.store.give_back(&self.lane, claimed.ticket);
    }

    /// Whoever stands here goes on by itself; another idle worker gets it by its box; a new one is hired if need be.
    fn hand_out(
        self: &Arc<Self>,
        roster: &mut Roster,
        job: ClaimedJob,
        me: Option<usize>,
        mine: &mut Option<ClaimedJob>,
    ) {
        if mine.is_none()
            && let Some(me) = me
            && let Some(place) = roster.idle.iter().rposition(|&worker| worker == me)
        {
            roster.idle.swap_remove(place);
            *mine = Some(job);
            return;
        }
        let worker = roster.idle.pop().unwrap_or_else(|| self.hire(roster));
        let given = roster.boxes[worker].try_send(job);
        assert!(given.is_ok(), "an idle worker has room for one job");
    }

    fn hire(self: &Arc<Self>, roster: &mut Roster) -> usize {
        let number = roster.boxes.len();
        assert!(number < self.policy.concurrency as usize, "more attempts than the lane's concurrency");
        let (sender, jobs) = mpsc::channel(1);
        roster.boxes.push(sender);
        roster.tasks.spawn(worker::work(Arc::downgrade(self), number, jobs));
        number
    }

    fn report_dropped(&self, left: &Left, reason: &'static str) {
        self.engine.metrics.dropped(&self.lane, reason);
        tracing::warn!(lane = %self.lane, jobId = %left.id, companyId = %left.tenant.company(), priority = left.priority.as_str(),
            errorReason = reason, "Job dropped");
    }
}

/// How a lane stands after its task was at the desk.
pub(super) struct Attended {
    /// When to come back if nothing happens before.
    pub(super) wake_at: Option<Time>,
    /// Attempts under way.
    pub(super) running: usize,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::time::Duration;

    use async_trait::async_trait;
    use entrega_core::job::{Body, Payload, Priority};
    use entrega_core::name::TenantName;
    use entrega_core::outcome::Outcome;
    use entrega_ledger::HeapLedger;

    use super::*;
    use crate::clock::Clock;
    use crate::intake::NewJob;
    use crate::store::local::tables::TABLES;
    use crate::store::local::{LocalOptions, LocalStore};

    struct Hanging;

    #[async_trait]
    impl Channel for Hanging {
        async fn attempt(&self, _: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
            std::future::pending().await
        }
    }

    async fn engine(clock: &Clock, lane: &LaneName, policy: LanePolicy) -> Arc<Engine> {
        let lanes: BTreeMap<_, _> = [(lane.clone(), Arc::new(policy))].into();
        let options = LocalOptions::new(lanes.clone());
        let hanging: Arc<dyn Channel> = Arc::new(Hanging);
        let ledger = Arc::new(HeapLedger::new(&TABLES));
        let store = Arc::new(LocalStore::open(ledger, clock.clone(), options).await.unwrap());
        let channels = HashMap::from([("hanging".to_owned(), hanging)]);
        Arc::new(Engine { channels, ..Engine::over(store, clock.clone(), lanes) })
    }

    /// With every slot taken, the lane's task kept the moment of its last claim. When a delayed job came due meanwhile,
    /// that moment had passed, and the task went round without a pause until an attempt ended.
    #[tokio::test]
    async fn a_full_lane_with_a_job_that_came_due_sleeps() {
        let (clock, lane) = (Clock::manual(Time::from_millis(1_000_000)), LaneName::new("http").unwrap());
        let policy = LanePolicy { channel: "hanging".into(), concurrency: 1, ..LanePolicy::http() };
        let engine = engine(&clock, &lane, policy).await;
        let delay = Duration::from_secs(1);
        let job = |delay| NewJob {
            lane: lane.clone(),
            priority: Priority::Normal,
            payload: Payload::Opaque(Body::default()),
            labels: BTreeMap::new(),
            ttl: None,
            delay,
            idempotency_key: None,
        };
        let tenant = TenantName::new("acme").unwrap();
        for taken in engine.submit(&tenant, vec![job(Duration::ZERO), job(delay)]).await {
            taken.unwrap();
        }
        let desk = Desk::new(&engine, &lane).unwrap();
        let first = desk.attend(false).await.unwrap();
        assert_eq!((first.running, first.wake_at), (1, Some(clock.now() + delay)));
        clock.advance(delay * 2);
        let second = desk.attend(false).await.unwrap();
        assert_eq!((second.running, second.wake_at), (1, None));
    }
}
