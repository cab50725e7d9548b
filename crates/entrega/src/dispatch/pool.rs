//! The worker pool of a lane: where ended attempts are settled and new jobs are handed out.
//! Invariant: one task at a time holds the pool; an attempt that ended is settled by whoever holds it, and nobody lets
//! go of it while one is left. At most as many attempts are under way as the lane has slots, and slow ones beside them.
//!
//! A worker whose attempt ended comes to the pool itself, and usually leaves with its next job. Passing every outcome
//! to another task and every job back costs two wake-ups a job, which is more than all the rest of dispatch.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use entrega_core::lane::{Left, attempts_max};
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Dispatch;
use super::RunError;
use super::attempt::attempt;
use crate::channel::Channel;
use crate::env::Env;
use crate::settle::{Attempted, Settler};
use crate::store::ClaimedJob;

/// Rounds that a worker settles for others before it calls the lane's own task.
const ROUNDS_MAX: usize = 4;

/// The state, and how the lane stands.
pub(super) struct PoolState {
    /// Where each worker gets its jobs.
    inboxes: Vec<mpsc::Sender<ClaimedJob>>,
    idle: Vec<usize>,
    tasks: JoinSet<()>,
    running: usize,
    /// When to ask for jobs again if nothing happens before.
    wake_at: Option<Time>,
    /// When the lane's own task asks at the latest. It comes in vain where that moment has moved on since: calling it each
    /// time would cost a wake-up a job.
    armed: Option<Time>,
    /// Whether the starts of the last batch were counted.
    counts_starts: bool,
    /// Settle, but start nothing more.
    pub(super) is_stopping: bool,
    failure: Option<RunError>,
}

/// The state of one lane.
pub(super) struct WorkerPool {
    pub(super) env: Env,
    settler: Settler,
    channel: Arc<dyn Channel>,
    policy: Arc<LanePolicy>,
    /// With slow ones.
    attempts_max: usize,
    lane: LaneName,
    /// Wakes the lane's own task.
    pub(super) wake: Arc<Notify>,
    ended: parking_lot::Mutex<Vec<(usize, Option<Attempted>)>>,
    state: tokio::sync::Mutex<PoolState>,
}

impl WorkerPool {
    pub(super) fn new(dispatch: &Dispatch, lane: &LaneName) -> Result<Arc<WorkerPool>, RunError> {
        let env = dispatch.env.clone();
        let policy = env.policy(lane)?;
        let no_channel = || RunError::NoChannel { lane: lane.to_string(), channel: policy.channel.clone() };
        let channel = dispatch.channels.get(&policy.channel).cloned().ok_or_else(no_channel)?;
        if policy.passes_when_open() && !channel.answers_alone() {
            return Err(RunError::CannotPass { lane: lane.to_string(), channel: policy.channel.clone() });
        }
        let state = PoolState {
            inboxes: Vec::new(),
            idle: Vec::new(),
            tasks: JoinSet::new(),
            running: 0,
            wake_at: None,
            armed: None,
            counts_starts: false,
            is_stopping: false,
            failure: None,
        };
        Ok(Arc::new(WorkerPool {
            settler: dispatch.settler.clone(),
            channel,
            lane: lane.clone(),
            wake: env.store.wake(lane)?,
            env,
            attempts_max: attempts_max(&policy) as usize,
            policy,
            ended: parking_lot::Mutex::default(),
            state: tokio::sync::Mutex::new(state),
        }))
    }

    /// A worker's attempt ended, or was cut off. It goes on with the job it gets, or waits for one.
    async fn ended(self: &Arc<Self>, worker: usize, attempted: Option<Attempted>) -> Option<ClaimedJob> {
        self.ended.lock().push((worker, attempted));
        let mut mine = None;
        for _ in 0..ROUNDS_MAX {
            // Whoever holds the pool sees what ended before letting go.
            let Ok(mut state) = self.state.try_lock() else { return mine };
            self.round(&mut state, Some(worker), &mut mine).await;
            let is_due = mine.is_some() && state.counts_starts;
            let is_sooner = state.wake_at.is_some_and(|at| state.armed.is_none_or(|armed| at < armed));
            if is_sooner || state.is_stopping || state.failure.is_some() {
                self.wake.notify_one();
            }
            drop(state);
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

    /// The lane's own task looks: something was submitted, resumed or is due.
    pub(super) async fn poll(self: &Arc<Self>, stop: bool) -> Result<Polled, RunError> {
        loop {
            let mut state = self.state.lock().await;
            state.is_stopping |= stop;
            self.round(&mut state, None, &mut None).await;
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            state.armed = state.wake_at;
            let polled = Polled { wake_at: state.wake_at, running: state.running };
            drop(state);
            // A worker that found the pool held relies on whoever held it.
            if self.ended.lock().is_empty() {
                return Ok(polled);
            }
        }
    }

    /// Ends whatever is still under way; nobody settles it any more.
    pub(super) async fn shut_down(&self) {
        self.state.lock().await.tasks.shutdown().await;
    }

    /// Settles what ended and hands out what may go.
    async fn round(self: &Arc<Self>, state: &mut PoolState, me: Option<usize>, mine: &mut Option<ClaimedJob>) {
        if let Err(error) = self.settle_and_claim(state, me, mine).await {
            state.failure.get_or_insert(error);
            state.is_stopping = true;
        }
    }

    async fn settle_and_claim(
        self: &Arc<Self>,
        state: &mut PoolState,
        me: Option<usize>,
        mine: &mut Option<ClaimedJob>,
    ) -> Result<(), RunError> {
        let ended = std::mem::take(&mut *self.ended.lock());
        state.running -= ended.len();
        let mut settlements = Vec::with_capacity(ended.len());
        for (worker, attempted) in ended {
            state.idle.push(worker);
            settlements.extend(attempted.map(|attempted| self.settler.settlement(&self.policy, attempted)));
        }
        if !settlements.is_empty() {
            self.env.store.settle(&self.lane, settlements).await?;
        }
        loop {
            let room = self.attempts_max.saturating_sub(state.running);
            if room == 0 || state.is_stopping {
                // Whoever ends an attempt asks again. The moment that the last claim gave may pass before that, and a
                // lane that sleeps until a moment which has passed does not sleep.
                state.wake_at = None;
                return Ok(());
            }
            // As many as there are slots are read at once; nobody waits for the records of hundreds.
            let max = room.min(self.policy.concurrency as usize);
            let batch = self.env.store.claim(&self.lane, max).await?;
            batch.expired.iter().for_each(|left| self.report_dropped(left, "ttl_expired"));
            batch.pushed_out.iter().for_each(|left| self.report_dropped(left, "preempted"));
            state.wake_at = batch.wake_at;
            state.counts_starts = batch.counts_starts;
            let is_all = batch.jobs.len() < max;
            for job in batch.jobs {
                state.running += 1;
                self.hand_out(state, job, me, mine);
            }
            // A start that was counted as made now waits for no other claim.
            if mine.is_some() && state.counts_starts && !is_all {
                self.wake.notify_one();
                return Ok(());
            }
            if is_all {
                return Ok(());
            }
        }
    }

    /// An attempt was cut off because the lane may be somebody else's.
    fn give_back(&self, claimed: &ClaimedJob) {
        tracing::warn!(lane = %self.lane, jobId = %claimed.job.id, attempt = claimed.attempt,
            "Attempt cut off: this node cannot show that the lane is still its own; the job is attempted again");
        self.env.store.give_back(&self.lane, claimed.ticket);
    }

    /// Whoever asks goes on by itself; otherwise an idle worker gets it, or a new one.
    fn hand_out(
        self: &Arc<Self>,
        state: &mut PoolState,
        job: ClaimedJob,
        me: Option<usize>,
        mine: &mut Option<ClaimedJob>,
    ) {
        if mine.is_none()
            && let Some(me) = me
            && let Some(place) = state.idle.iter().rposition(|&worker| worker == me)
        {
            state.idle.swap_remove(place);
            *mine = Some(job);
            return;
        }
        let worker = state.idle.pop().unwrap_or_else(|| self.spawn(state));
        let given = state.inboxes[worker].try_send(job);
        assert!(given.is_ok(), "an idle worker has room for one job");
    }

    fn spawn(self: &Arc<Self>, state: &mut PoolState) -> usize {
        let number = state.inboxes.len();
        assert!(number < self.attempts_max, "more attempts than the lane may have");
        let (sender, jobs) = mpsc::channel(1);
        state.inboxes.push(sender);
        state.tasks.spawn(work(Arc::downgrade(self), number, jobs));
        number
    }

    fn report_dropped(&self, left: &Left, reason: &'static str) {
        self.env.metrics.dropped(&self.lane, reason);
        tracing::warn!(lane = %self.lane, jobId = %left.id, companyId = %left.tenant.company(), priority = left.priority.as_str(),
            errorReason = reason, "Job dropped");
    }
}

/// A worker: a task that makes attempts, one at a time. It works until the pool is gone: the pool owns its state, not they the pool.
async fn work(pool: Weak<WorkerPool>, number: usize, mut jobs: mpsc::Receiver<ClaimedJob>) {
    let (mut next, mut alarm) = (None, pin!(sleep(Duration::ZERO)));
    loop {
        let job = match next.take() {
            Some(job) => job,
            None => match jobs.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let Some(pool) = pool.upgrade() else { return };
        let WorkerPool { env, channel, policy, .. } = &*pool;
        let attempted = attempt(&env.clock, &**channel, policy.timeout, alarm.as_mut(), job).await;
        let attempted = attempted.inspect_err(|claimed| pool.give_back(claimed)).ok();
        next = pool.ended(number, attempted).await;
    }
}

/// How a lane stands after its task looked.
pub(super) struct Polled {
    /// When to look again if nothing happens before.
    pub(super) wake_at: Option<Time>,
    /// Attempts under way.
    pub(super) running: usize,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use async_trait::async_trait;
    use entrega_call::AddressFilter;
    use entrega_core::name::TenantName;
    use entrega_core::outcome::Outcome;
    use entrega_ledger::HeapLedger;

    use super::*;
    use crate::content::Opaque;
    use crate::intake::Intake;
    use crate::product::Products;
    use crate::store::local::tables::TABLES;
    use crate::store::local::{LocalOptions, LocalStore};
    use crate::submission::NewJob;
    use entrega_call::Clock;

    struct Hanging;

    #[async_trait]
    impl Channel for Hanging {
        async fn attempt(&self, _: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
            std::future::pending().await
        }
    }

    async fn dispatch(clock: &Clock, lane: &LaneName, policy: LanePolicy) -> Dispatch {
        let lanes: BTreeMap<_, _> = [(lane.clone(), Arc::new(policy))].into();
        let options = LocalOptions::new(lanes.clone());
        let hanging: Arc<dyn Channel> = Arc::new(Hanging);
        let ledger = Arc::new(HeapLedger::new(&TABLES));
        let store = Arc::new(LocalStore::open(ledger, clock.clone(), options).await.unwrap());
        let channels = Arc::new(HashMap::from([("hanging".to_owned(), hanging)]));
        let env = Env::new(store, clock.clone(), lanes);
        Dispatch { settler: Settler::new(env.clone(), Products(&[])), env, channels }
    }

    /// With every slot taken, the lane's task kept the moment of its last claim. When a delayed job came due meanwhile,
    /// that moment had passed, and the task went round without a pause until an attempt ended.
    #[tokio::test]
    async fn a_full_lane_with_a_job_that_came_due_sleeps() {
        let (clock, lane) = (Clock::manual(Time::from_millis(1_000_000)), LaneName::new("http").unwrap());
        let policy = LanePolicy { channel: "hanging".into(), concurrency: 1, ..LanePolicy::events() };
        let dispatch = dispatch(&clock, &lane, policy).await;
        let delay = Duration::from_secs(1);
        let job = |delay| NewJob { delay, ..NewJob::new(lane.clone(), Opaque::default()) };
        let tenant = TenantName::new("acme").unwrap();
        let intake = Intake::new(dispatch.env.clone(), Products(&[]), AddressFilter::default());
        for taken in intake.submit(&tenant, vec![job(Duration::ZERO), job(delay)]).await {
            taken.unwrap();
        }
        let pool = WorkerPool::new(&dispatch, &lane).unwrap();
        let first = pool.poll(false).await.unwrap();
        assert_eq!((first.running, first.wake_at), (1, None), "whoever ends an attempt asks again");
        clock.advance(delay * 2);
        let second = pool.poll(false).await.unwrap();
        assert_eq!((second.running, second.wake_at), (1, None));
    }
}
