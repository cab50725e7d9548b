//! The verbs of a job's way: submit, claim, settle, and an operator's cancel and unblock.
//! Invariant: the machine decides, then the records follow in the writer's order. What another node owns, that node is
//! asked to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState};
use entrega_core::lane::{Claimed, Claims, Explanation, Next, NotRemoved};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use entrega_ledger::{LedgerError, Unit};
use tokio::sync::Notify;

use super::cluster::Cluster;
use super::command::{Change, Command, Then};
use super::ends::Pending;
use super::lanes::OwnedLane;
use super::order::{Answered, Order, Receipt};
use super::read_ahead;
use super::reading::{ASK_AGAIN_AFTER, ReadError, patiently};
use super::records::{self, Live, id_key};
use super::settlements::place;
use super::starts::FRESH;
use super::tables::{HISTORY, JOBS, LIVE};
use super::{LocalStore, Shared, UNSETTLED_MAX, UNSETTLED_SHARED_MAX};
use crate::store::{
    ChangeError, ClaimBatch, ClaimedJob, Held, JobFilter, JobStore, JobView, LaneView, MemoryUse, NewEntry, NodeView,
    Page, Paged, Settlement, StoreError, StoreHealth, Submitted, Swept, Ticket,
};

#[async_trait]
impl JobStore for LocalStore {
    async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        self.shared.bounded(self.shared.take(jobs)).await
    }

    async fn job_by_key(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError> {
        Ok(self.shared.taken_under(&records::submission_key(tenant, key)).await?)
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        let entry = self.shared.lane(lane)?;
        if self.shared.is_failed() {
            return Err(self.shared.stopped());
        }
        match entry.owned() {
            Some(lane) => {
                let mut batch = self.shared.claim(&lane, max).await;
                if let Ok(batch) = &mut batch {
                    batch.pushed_out = std::mem::take(&mut *lane.pushed_out.lock());
                }
                if self.shared.cluster.is_some() {
                    self.shared.prefetch(&lane);
                }
                batch
            }
            // Whoever takes it over wakes its dispatcher.
            None => Ok(ClaimBatch::default()),
        }
    }

    fn give_back(&self, lane: &LaneName, ticket: Ticket) {
        let (ownership, ticket) = place(ticket);
        if let Some(lane) = self.shared.owned(lane).filter(|lane| lane.hold.number() == ownership) {
            let now = self.shared.clock.now();
            lane.machine.lock().cut_off(now, ticket, now);
            lane.wake.notify_one();
        }
    }

    async fn settle(&self, lane: &LaneName, mut settlements: Vec<Settlement>) -> Result<(), StoreError> {
        let at_once = if self.shared.cluster.is_some() { UNSETTLED_SHARED_MAX } else { UNSETTLED_MAX };
        while !settlements.is_empty() {
            let rest = settlements.split_off(settlements.len().min(at_once));
            self.shared.settle(lane, settlements).await?;
            settlements = rest;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.shared.bounded(self.shared.settled()).await
    }

    async fn release(&self) -> Result<(), StoreError> {
        // Where nobody else can have what was claimed, it is queued again at the next start.
        self.shared.bounded(self.shared.keep_starts()).await?;
        self.shared.bounded(self.shared.release_all()).await
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        self.shared.lane(lane).map(|lane| lane.wake.clone())
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        let shared = &self.shared;
        let view = shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
        if view.state.is_end() && view.state != JobState::Dlq {
            return Err(ChangeError::WrongState { state: view.state, hint: HAS_ENDED.into() });
        }
        let lane = shared.lane(&view.lane)?;
        match lane.acting() {
            Some(owned) => Shared::vouched(&owned, shared.bounded(shared.cancel_here(&owned, id, reason, None)).await)?,
            None => shared.order(lane, Order::Cancel { id, reason: reason.to_owned() }).await?.done()?,
        }
        shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let view = shared.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
        let lane = shared.lane(&view.lane)?;
        match lane.acting() {
            Some(owned) => Shared::vouched(&owned, shared.bounded(shared.unblock_here(&owned, id, None)).await),
            None => shared.order(lane, Order::Unblock { id }).await?.done(),
        }
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError> {
        Ok(self.shared.view(id).await?)
    }

    async fn ended(&self, id: JobId) -> Result<(), StoreError> {
        loop {
            let end = self.shared.waiters.wait(id);
            let rests = |state: JobState| state.is_end() || state == JobState::Blocked;
            let is_waiting =
                async || Ok::<_, StoreError>(self.shared.view(id).await?.is_some_and(|view| !rests(view.state)));
            if !is_waiting().await? {
                return Ok(());
            }
            if self.shared.is_failed() {
                return Err(self.shared.stopped());
            }
            match &self.shared.cluster {
                None => {
                    end.notified().await;
                    return match self.shared.is_failed() && is_waiting().await? {
                        true => Err(self.shared.stopped()),
                        false => Ok(()),
                    };
                }
                // Another node may end it, and whoever took it may be told, or not.
                Some(_) => drop(tokio::time::timeout(LOOK_AGAIN_AFTER, end.notified()).await),
            }
        }
    }

    async fn blocked(
        &self,
        lane: &LaneName,
        page: Page<JobId>,
    ) -> Result<Paged<(JobId, TenantName), JobId>, StoreError> {
        Ok(self.shared.blocked(lane, page).await?)
    }

    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        Ok(self.shared.list(filter, page).await?)
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        let shared = &self.shared;
        let Some(live) = shared.find_live(id).await? else { return Ok(None) };
        let lane = shared.lane(&live.lane)?;
        match lane.acting() {
            Some(owned) => Ok(owned.machine.lock().explain(shared.clock.now(), id)),
            None if live.blocked.is_some() => Ok(None),
            None => match shared.order(lane, Order::Explain { id }).await? {
                Answered::Explained(explained) => Ok(explained),
                _ => Ok(None),
            },
        }
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        self.shared.lane_views().await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        Ok(self.shared.node_views())
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        self.shared.bounded(self.shared.set_paused(lane, paused)).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.shared.sweep().await
    }

    fn health(&self) -> StoreHealth {
        let shared = &self.shared;
        let ledger = shared.ledger.health();
        let is_out_of_memory = ledger.memory.and_then(|memory| memory.ratio()).is_some_and(|ratio| ratio >= 1.0);
        let is_full = shared.is_full.load(Ordering::Relaxed) || is_out_of_memory;
        StoreHealth {
            kind: ledger.kind,
            durability: ledger.durability,
            failure: shared.failure.borrow().clone().or(ledger.trouble),
            refuses: is_full.then(|| shared.no_room().to_string()),
            unreadable: shared.unreadable.load(Ordering::Relaxed) + ledger.damaged,
            memory: ledger.memory.map(MemoryUse::of),
            stale_settlements: shared.stale.load(Ordering::Relaxed),
            rejected_writes: shared.rejected.load(Ordering::Relaxed),
            policy_mismatches: shared.policy_mismatches(),
            take_overs: shared.cluster.as_ref().map_or(0, Cluster::take_overs),
        }
    }

    async fn failed(&self) -> String {
        let mut failure = self.shared.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the store is gone".into(),
        }
    }
}

/// A caller of a shared ledger that does not answer is told so after this.
const PATIENCE: Duration = Duration::from_secs(8);
/// How often a job is looked at whose end nobody here is told of.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);
const HAS_ENDED: &str = "it has ended";

/// The earlier attempts of jobs.
type Histories = HashMap<JobId, Vec<Attempt>>;

impl Shared {
    /// Gives up on a ledger that others share and that does not answer; whether it happened is then not known.
    pub(super) async fn bounded<T, E: From<StoreError>>(
        &self,
        verb: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        if self.cluster.is_none() {
            return verb.await;
        }
        let reason = || "it has not answered for some seconds, and whether this happened is not known".to_owned();
        let patient = tokio::time::timeout(PATIENCE, verb).await;
        patient.unwrap_or_else(|_| Err(StoreError::Unreachable { reason: reason() }.into()))
    }

    async fn claim(&self, lane: &Arc<OwnedLane>, max: usize) -> Result<ClaimBatch, StoreError> {
        let (claims, decided_at) = loop {
            let now = self.clock.now();
            let is_unsure = self.cluster.as_ref().is_some_and(|cluster| cluster.is_unsure(now));
            if lane.hold.lease.is_over() || is_unsure {
                return Ok(ClaimBatch { wake_at: Some(now + ASK_AGAIN_AFTER), ..ClaimBatch::default() });
            }
            {
                let mut machine = lane.machine.lock();
                if lane.is_leaving.load(Ordering::SeqCst) {
                    return Ok(ClaimBatch { wake_at: Some(now + ASK_AGAIN_AFTER), ..ClaimBatch::default() });
                }
                if self.cluster.is_some() || !self.is_released.load(Ordering::SeqCst) {
                    break (machine.claim(now, max), now);
                }
            }
            self.forget_starts().await?;
        };
        if !claims.expired.is_empty() {
            let expired = claims.expired.iter().map(|left| left.id).collect();
            self.send(Command::Expire { lane: lane.clone(), expired })?;
        }
        let counts_starts = !claims.jobs.is_empty() && lane.machine.lock().counts_starts();
        if self.cluster.is_some() && counts_starts {
            // Whoever owns the lane next must know of them.
            match self.write_starts(lane, decided_at).await {
                Ok(()) => {}
                Err(error @ StoreError::Stopped { .. }) => return Err(error),
                // The lane has moved, and its memory with it, or is about to; nothing was begun.
                Err(_) => return Ok(self.begin_nothing(lane, claims)),
            }
        }
        let jobs = self.load_all(lane, &claims.jobs).await?;
        let jobs = self.start_now(lane, &claims.jobs, jobs, decided_at);
        Ok(ClaimBatch {
            jobs,
            expired: claims.expired,
            wake_at: claims.wake_at,
            counts_starts,
            ..ClaimBatch::default()
        })
    }

    /// Puts back what was claimed.
    fn begin_nothing(&self, lane: &OwnedLane, claims: Claims) -> ClaimBatch {
        let now = self.clock.now();
        let mut machine = lane.machine.lock();
        for claimed in claims.jobs.iter().rev() {
            machine.give_back(now, claimed.ticket, now);
        }
        ClaimBatch { expired: claims.expired, wake_at: Some(now + ASK_AGAIN_AFTER), ..ClaimBatch::default() }
    }

    /// What was claimed, with its records.
    async fn load_all(&self, lane: &Arc<OwnedLane>, claimed: &[Claimed]) -> Result<Vec<ClaimedJob>, StoreError> {
        let mut jobs = Vec::with_capacity(claimed.len());
        let mut histories = match self.cluster.is_some() {
            true => self.read_together(lane, claimed).await,
            false => Histories::new(),
        };
        for claimed in claimed {
            let ahead = lane.read_ahead.lock().take(claimed.id);
            let history = if has_history(lane, claimed) { histories.remove(&claimed.id) } else { Some(Vec::new()) };
            if let (Some(job), Some(history)) = (ahead, history) {
                jobs.push(claimed_job(lane, claimed, job, history));
                continue;
            }
            match self.load_claimed(lane, claimed).await {
                Ok(job) => jobs.push(job),
                Err(ReadError::Ledger(LedgerError::Unclear { .. })) => {
                    let now = self.clock.now();
                    lane.machine.lock().give_back(now, claimed.ticket, now + READ_AGAIN_AFTER);
                    lane.wake.notify_one();
                }
                Err(error) => self.set_aside(lane, claimed, &error).await?,
            }
        }
        Ok(jobs)
    }

    /// Reads the records of all that was claimed together, where a call costs more than a look-up; gives the histories.
    /// Whatever was not read is read by itself.
    async fn read_together(&self, lane: &Arc<OwnedLane>, claimed: &[Claimed]) -> Histories {
        let missing: Vec<JobId> = {
            let ahead = lane.read_ahead.lock();
            claimed.iter().map(|claimed| claimed.id).filter(|id| !ahead.has(*id)).collect()
        };
        if !missing.is_empty() {
            let found = self.read_ids(JOBS, &missing).await.unwrap_or_default();
            let mut ahead = lane.read_ahead.lock();
            for bytes in found.iter().flatten().filter(|bytes| !records::is_ended(bytes)) {
                records::decode_job(bytes).into_iter().for_each(|job| ahead.keep(job));
            }
        }
        let again: Vec<JobId> =
            claimed.iter().filter(|claimed| has_history(lane, claimed)).map(|claimed| claimed.id).collect();
        if again.is_empty() {
            return Histories::new();
        }
        let found = self.read_ids(HISTORY, &again).await.unwrap_or_default();
        let history = |bytes: Option<Bytes>| bytes.map_or(Ok(Vec::new()), |bytes| records::decode(HISTORY, &bytes));
        again.into_iter().zip(found).filter_map(|(id, bytes)| Some((id, history(bytes).ok()?))).collect()
    }

    /// Counts starts from now on, when they are made. Where reading took so long that gates may have shut since they were
    /// let through, they wait again, and their records at hand.
    fn start_now(
        &self,
        lane: &OwnedLane,
        claimed: &[Claimed],
        jobs: Vec<ClaimedJob>,
        decided_at: Time,
    ) -> Vec<ClaimedJob> {
        let now = self.clock.now();
        if now.since(decided_at) <= FRESH {
            if now > decided_at {
                lane.machine.lock().restamp(claimed, decided_at, now);
            }
            return jobs;
        }
        for job in jobs.into_iter().rev() {
            lane.machine.lock().give_back(now, place(job.ticket).1, now);
            if job.history.is_empty() {
                lane.read_ahead.lock().keep(job.job);
            }
        }
        lane.wake.notify_one();
        Vec::new()
    }

    /// Ends a job of a lane of this node's that waits or is blocked.
    pub(super) async fn cancel_here(
        &self,
        lane: &Arc<OwnedLane>,
        id: JobId,
        reason: &str,
        receipt: Option<&Receipt>,
    ) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        self.settled().await?;
        let view = self.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
        let wrong = |hint: &'static str| Err(ChangeError::WrongState { state: view.state, hint: hint.into() });
        if !view.state.may_become(JobState::Cancelled) {
            return match view.state {
                JobState::Running => wrong("an attempt is under way; try again when it has ended"),
                _ => wrong(HAS_ENDED),
            };
        }
        // Of a blocked job the machine has let go; only its record is left.
        let was_blocked = view.state == JobState::Blocked;
        if !was_blocked && let Err(NotRemoved::Running | NotRemoved::Unknown) = lane.machine.lock().remove(id) {
            return wrong("it is being attempted or has just ended");
        }
        let dropped = self.dropped(lane, &[id], JobState::Cancelled, reason, &Pending::new()).await;
        let end = dropped.map_err(StoreError::from)?;
        let cancelled = lane.clone();
        let then: Then = Box::new(move |_| {
            cancelled.blocked.fetch_sub(was_blocked.into(), Ordering::Relaxed);
        });
        Ok(self.change_ordered(lane, id, end, Some(then), receipt).await?)
    }

    /// Puts a blocked job of a lane of this node's back in its queue.
    pub(super) async fn unblock_here(
        &self,
        lane: &Arc<OwnedLane>,
        id: JobId,
        receipt: Option<&Receipt>,
    ) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        self.settled().await?;
        let live = self.find_live(id).await.map_err(StoreError::from)?;
        let live = live.filter(|live| live.blocked.is_some());
        let Some(live) = live else {
            let view = self.view(id).await.map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
            let hint = "only a blocked job can be unblocked".into();
            return Err(ChangeError::WrongState { state: view.state, hint });
        };
        let now = self.clock.now();
        let expires = lane.policy.expires_unblocked(now, live.expires);
        let live = Live { blocked: None, attempt: 0, due: now, expires, unblocked: true, ..live };
        let mut unit = Unit::default();
        unit.put(LIVE, lane.live_key(id), records::encode(&live));
        let job = self.readable(&id, records::load_job(&*self.ledger, id).await).map_err(StoreError::from)?;
        if let Some(job) = job.flatten() {
            // A retry writes its index entry from the job.
            let job = Job { expires_at: expires.finite(), ..job };
            unit.put(JOBS, id_key(id), records::encode_job(&job));
        }
        let unblocked = lane.clone();
        let then: Then = Box::new(move |shared: &Shared| {
            unblocked.blocked.fetch_sub(1, Ordering::Relaxed);
            unblocked.has_unblocked.store(true, Ordering::Relaxed);
            unblocked.put_back(shared, id, &live);
        });
        Ok(self.change_ordered(lane, id, unit, Some(then), receipt).await?)
    }
}

/// Whether there may be earlier attempts to read.
fn has_history(lane: &OwnedLane, claimed: &Claimed) -> bool {
    claimed.attempt > 1 || lane.has_unblocked.load(Ordering::Relaxed)
}

fn claimed_job(lane: &OwnedLane, claimed: &Claimed, job: Job, history: Vec<Attempt>) -> ClaimedJob {
    ClaimedJob {
        ticket: Ticket(Held::Place(lane.hold.number(), claimed.ticket)),
        lease: lane.hold.lease.clone(),
        job,
        attempt: claimed.attempt,
        generation: claimed.generation,
        history,
        expires: claimed.expires,
        past_breaker: claimed.past_breaker,
    }
}

/// How long a job waits whose record could not be read just now.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl Shared {
    async fn load_claimed(&self, lane: &OwnedLane, claimed: &Claimed) -> Result<ClaimedJob, ReadError> {
        let missing = || ReadError::Record { table: JOBS.name, reason: "there is no record".into() };
        // Neighbours of a retry were claimed long ago: reading ahead pays for first attempts only.
        let job = match claimed.attempt {
            1 if self.cluster.is_none() => read_ahead::read(&lane.read_ahead, &*self.ledger, claimed.id).await?,
            _ => records::load_job(&*self.ledger, claimed.id).await?,
        };
        let job = job.ok_or_else(missing)?;
        let history = match has_history(lane, claimed) {
            true => records::load_history(&*self.ledger, claimed.id).await?,
            false => Vec::new(),
        };
        Ok(claimed_job(lane, claimed, job, history))
    }

    /// A job whose record cannot be read is blocked with the reason: nothing of it is thrown away.
    async fn set_aside(&self, lane: &Arc<OwnedLane>, claimed: &Claimed, error: &ReadError) -> Result<(), StoreError> {
        self.note_unreadable(&claimed.id.to_string(), error);
        let now = self.clock.now();
        lane.machine.lock().settle(now, claimed.ticket, Next::Leave, Lesson::Nothing, Duration::ZERO);
        lane.block(1);
        let live_key = lane.live_key(claimed.id);
        let live = patiently(|| records::load_live(&*self.ledger, live_key.clone())).await?;
        let Some(live) = live else { return Ok(()) };
        let mut unit = Unit::default();
        unit.put(LIVE, live_key, records::encode(&Live { blocked: Some(error.to_string()), ..live }));
        self.send(Command::Change { change: Change::of(lane, unit, vec![claimed.id], None), reply: None })
    }
}
