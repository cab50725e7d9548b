//! The verbs of a job's way: taking, claiming, settling, and what operators ask for.
//! Invariant: each verb may be cut off at any of its awaits; what it changes, it changes between two of them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega::store::{
    ChangeError, ClaimBatch, ClaimedJob, JobFilter, JobStore, JobView, LaneView, NewEntry, Page, Paged, Settlement,
    StoreError, StoreHealth, Submitted, Swept, Ticket,
};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Claimed, Explanation, Next};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use tokio::sync::{Notify, oneshot};

use super::rest::not_simulated;
use super::writer::Command;
use super::{LEASE, LaneCell, Lease, SimStore, State, entry};
use crate::bug::Bug;
use crate::disk::{Change, Place, Record, Stopped};

#[async_trait]
impl JobStore for SimStore {
    async fn take(&self, entries: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        self.life.reach().await;
        let (now, plan) = (self.life.moment(), &self.life.world.plan);
        if plan.refuses(now) || plan.outage_until(now).is_some() {
            self.life.world.witness.lock().troubles.refused += 1;
            return Err(match plan.refuses(now) {
                true => StoreError::MemoryFull,
                false => StoreError::Unreachable { reason: "the connection is lost".into() },
            });
        }
        let (reply, durable) = oneshot::channel();
        self.push(Command::Take { entries, reply });
        let submitted = durable.await.map_err(|_| StoreError::Stopped { reason: "the process is gone".into() })?;
        self.life.reach().await;
        Ok(submitted)
    }

    async fn job_once(&self, _: &TenantName, _: &str) -> Result<Option<JobId>, StoreError> {
        Err(not_simulated("job_once"))
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        self.life.reach().await;
        self.life.wait_for_store().await;
        self.life.reach().await;
        let now = self.now();
        let mut state = self.shared.state.lock();
        let cell = state.lanes.get_mut(lane).ok_or_else(|| self.unknown_lane(lane))?;
        if self.has(Bug::BreakerNeverCloses) && cell.machine.breaker(now).is_some_and(|breaker| breaker.opened > 0) {
            cell.machine.pause();
        }
        let mut claims = cell.machine.claim(now, max);
        if self.has(Bug::SkipTenant) {
            self.put_back_one_tenant(now, &mut state, lane, &mut claims.jobs);
        }
        if self.has(Bug::CountHeldAsAttempt) && claims.jobs.is_empty() && claims.wake_at.is_some() {
            self.count_held(now, &mut state, lane);
        }
        let jobs: Vec<_> =
            claims.jobs.iter().filter_map(|claimed| self.hand_out(now, &mut state, lane, claimed)).collect();
        drop(state);
        self.life.world.witness.lock().claimed(now, self.node, lane, &jobs, &claims.expired);
        self.expire(&claims.expired.iter().map(|left| left.id).collect::<Vec<_>>());
        let late = if self.has(Bug::WakeTooLate) { Duration::from_hours(1) } else { Duration::ZERO };
        Ok(ClaimBatch { jobs, expired: claims.expired, wake_at: claims.wake_at.map(|at| at + late) })
    }

    async fn settle(&self, lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.life.reach().await;
        self.life.wait_for_store().await;
        self.life.reach().await;
        self.settle_now(lane, settlements);
        Ok(())
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.change(Vec::new(), None).await
    }

    async fn release(&self) -> Result<(), StoreError> {
        self.life.reach().await;
        self.give_back();
        if !self.is_lone() {
            // The others go on, and the gates are the store's.
            return self.flush().await;
        }
        let at = self.now();
        let starts = {
            let state = self.shared.state.lock();
            let kept = |(name, cell): (&LaneName, &LaneCell)| Some((name.clone(), cell.machine.starts(at)?));
            state.lanes.iter().filter_map(kept).collect()
        };
        self.change(vec![Change::Stopped(Stopped { at, starts })], None).await
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        let state = self.shared.state.lock();
        let wake = state.lanes.get(lane).and_then(|cell| cell.wakes.get(&self.node)).cloned();
        wake.ok_or_else(|| self.unknown_lane(lane))
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        self.cancel_job(id, reason).await
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        self.unblock_job(id).await
    }

    async fn job(&self, _: JobId) -> Result<Option<JobView>, StoreError> {
        Err(not_simulated("job"))
    }

    async fn ended(&self, _: JobId) -> Result<(), StoreError> {
        Err(not_simulated("ended"))
    }

    async fn jobs(&self, _: &JobFilter, _: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        Err(not_simulated("jobs"))
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        let now = self.now();
        Ok(self.shared.state.lock().lanes.values().find_map(|cell| cell.machine.explain(now, id)))
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        self.life.reach().await;
        let now = self.now();
        let (state, disk) = (self.shared.state.lock(), self.life.world.disk.lock());
        let view = |(name, cell): (&LaneName, &LaneCell)| {
            let blocked = |record: &&Record| record.job.lane == *name && matches!(record.place, Place::Blocked { .. });
            let dead = disk.dead.values().filter(|dead| dead.lane == *name && dead.status.is_open());
            LaneView {
                name: name.clone(),
                policy: cell.machine.policy().clone(),
                sizes: cell.machine.sizes(),
                blocked: disk.jobs.values().filter(blocked).count() as u32,
                dead_letters: dead.count() as u32,
                paused: cell.machine.is_paused(),
                hold: cell.machine.held_by(now),
                breaker: cell.machine.breaker(now),
                cadence: cell.machine.cadence(),
                oldest: cell.machine.oldest(),
            }
        };
        Ok(state.lanes.iter().map(view).collect())
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        self.pause_or_resume(lane, paused).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.life.reach().await;
        Ok(Swept::default())
    }

    fn health(&self) -> StoreHealth {
        StoreHealth {
            kind: "simulated",
            durability: "until the run ends",
            failure: None,
            refuses: None,
            unreadable: 0,
            memory: None,
            stale_settlements: 0,
            rejected_writes: 0,
        }
    }

    async fn failed(&self) -> String {
        std::future::pending().await
    }
}

impl SimStore {
    fn hand_out(&self, now: Time, state: &mut State, lane: &LaneName, claimed: &Claimed) -> Option<ClaimedJob> {
        let record = self.life.world.disk.lock().jobs.get(&claimed.id).cloned()?;
        state.leases_made += 1;
        let number = state.leases_made;
        let (life, until) = (self.life.clone(), now + LEASE);
        let (lane, ticket, id) = (lane.clone(), claimed.ticket, claimed.id);
        let lease = Lease { node: self.node, life, lane, ticket, id, until };
        state.leases.insert(number, lease);
        Some(ClaimedJob {
            ticket: Ticket::numbered(number),
            attempt: claimed.attempt,
            generation: claimed.generation,
            history: record.history,
            job: record.job,
            expires: claimed.expires,
            past_breaker: claimed.past_breaker && !self.has(Bug::PassUnsaid),
        })
    }

    fn expire(&self, ids: &[JobId]) {
        let mut changes = Vec::new();
        for &id in ids {
            self.drop_job(&self.life.world.disk.lock(), &mut changes, id, JobState::Dropped, "ttl_expired");
        }
        if !changes.is_empty() {
            self.push(Command::Change { changes, put_back: None, reply: None });
        }
    }

    /// A planted bug: while others have something to send, one tenant is passed over.
    fn put_back_one_tenant(&self, now: Time, state: &mut State, lane: &LaneName, jobs: &mut Vec<Claimed>) {
        let Some(cell) = state.lanes.get_mut(lane) else { return };
        let (skipped, kept): (Vec<_>, Vec<_>) = jobs.drain(..).partition(|job| job.tenant.as_str() == "t3");
        *jobs = kept;
        for claimed in skipped {
            cell.machine.settle(now, claimed.ticket, Next::Leave, Lesson::Nothing, Duration::ZERO);
            if let Some(record) = self.life.world.disk.lock().jobs.get(&claimed.id) {
                cell.machine.restore(now, &entry(record, self.life.world.bug));
            }
        }
    }

    /// A planted bug: a job that could not go has used up an attempt.
    fn count_held(&self, now: Time, state: &mut State, lane: &LaneName) {
        let disk = self.life.world.disk.lock();
        let Some(cell) = state.lanes.get_mut(lane) else { return };
        let held = disk.waiting().find(|record| record.job.lane == *lane && record.due <= now);
        if let Some(record) = held
            && cell.machine.remove(record.job.id).is_ok()
        {
            let mut waiting = entry(record, self.life.world.bug);
            waiting.attempt += 1;
            cell.machine.restore(now, &waiting);
        }
    }
}
