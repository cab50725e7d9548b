//! The shipped store as the engine of a run reaches it: the witness sees what is claimed, settled and let through.
//! Invariant: unless a planted bug says otherwise, every verb is the shipped store's.
//! Never: keeps anything that the store should know.
//!
//! # Layout
//! Here: opening it, and the way of a job; `calls`: the proxy's answers and the gate before the API; `plain`: what passes
//! as it is.

mod calls;
mod plain;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega::events::Published;
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore, WriterOn};
use entrega::store::{
    ChangeError, ClaimBatch, Endpoint, EndpointOrigin, EndpointRegistry as _, JobFilter, JobStore, JobView, LaneView,
    Lease, NewEntry, NodeView, Page, Paged, Registry as _, Settlement, StoreError, StoreHealth, Submitted, Swept,
    TenantSettings, Ticket,
};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Explanation, Gate};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::payload::Payload;
use entrega_core::policy::{Destinations, LanePolicy, Scope};
use entrega_core::time::Time;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::bug::Bug;
use crate::ledger::SimLedger;
use crate::life::Life;
use crate::plan::{HOOK, START, listening};
use crate::witness::By;

/// What a planted bug does too late, it does after this.
const SOON: Duration = Duration::from_millis(20);
/// Longer than a run.
const RETENTION: Duration = Duration::from_hours(24);

/// The store, watched.
pub struct WatchedStore {
    life: Arc<Life>,
    inner: Arc<LocalStore>,
    /// What the witness calls the attempts that are under way, and what the store does.
    tickets: Mutex<BTreeMap<u64, Ticket>>,
    /// Lanes whose last claim gave nothing because something held it.
    held: Mutex<Vec<LaneName>>,
    /// Gates of a planted bug's own.
    gates: Mutex<BTreeMap<LaneName, Option<Gate>>>,
}

impl WatchedStore {
    /// Opens what the last life left; `None` if the ledger cannot be read.
    pub async fn open(life: &Arc<Life>, is_restart: bool) -> Option<Arc<WatchedStore>> {
        let world = &life.world;
        let ledger = SimLedger::reach(life);
        if is_restart {
            ledger.bend_between_lives();
        }
        match life.is_shared() {
            true => world.witness.lock().joined(life.clock.now(), &world.disk.lock()),
            false => world.witness.lock().reopened(life.clock.now(), &world.disk.lock()),
        }
        let lanes = world.plan.lanes.iter().map(|(name, policy)| (name.clone(), bent(policy, world.bug)));
        let options = LocalOptions {
            retention: RETENTION,
            free_bytes_min: 1,
            writer: WriterOn::Task,
            // Ownerships of a node are numbered from its own number on.
            node: world.next_process() << u32::BITS,
            cluster: world.plan.nodes.as_ref().map(|nodes| ClusterOptions { lease: nodes.lease, name: "node".into() }),
            ..LocalOptions::new(lanes.collect())
        };
        let opened = LocalStore::open(ledger.clone(), life.clock.clone(), options).await;
        let inner = opened.ok()?;
        let store = Arc::new(WatchedStore {
            life: life.clone(),
            inner: Arc::new(inner),
            tickets: Mutex::default(),
            held: Mutex::default(),
            gates: Mutex::default(),
        });
        store.set_up().await;
        ledger.opened();
        Some(store)
    }

    /// What somebody set up before the run began: endpoints of those who listen.
    async fn set_up(&self) {
        for tenant in listening() {
            if self.inner.endpoint(&tenant, HOOK).is_none() {
                let url = "https://listener.example.com/hook";
                let endpoint = Endpoint::new(tenant, HOOK, url, EndpointOrigin::Config, START);
                let throttle = self.life.world.plan.endpoint_rate;
                drop(self.inner.put_endpoint(Endpoint { throttle, ..endpoint }).await);
            }
        }
        if self.has(Bug::SkipTenant) {
            let favoured = TenantName::new("t1").expect("a tenant name");
            drop(self.inner.put_tenant(TenantSettings { weight: 100, ..TenantSettings::new(favoured) }).await);
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.life.world.has(bug)
    }

    /// What happened by this moment, the store must know when it is asked now. What other nodes do in the same instant, it
    /// may not.
    fn asked_at(&self) -> Time {
        let now = self.life.clock.now();
        if self.life.is_shared() { now - Duration::from_micros(1) } else { now }
    }

    fn number(&self, ticket: Ticket) -> Ticket {
        let number = self.life.world.next_ticket();
        self.tickets.lock().insert(number, ticket);
        Ticket::numbered(number)
    }

    /// What a planted bug makes of a settlement.
    fn bent_settlement(&self, settlement: &mut Settlement) {
        if let Transition::Retry { at, .. } = &mut settlement.transition {
            match self.life.world.bug {
                Some(Bug::LoseRetry) => *at = *at + Duration::from_hours(24),
                Some(Bug::RetryEarly) => *at = self.life.clock.now(),
                _ => {}
            }
        }
        for cause in settlement.causes.iter_mut().filter(|_| self.has(Bug::DoubleEventNumber)) {
            if let Ok(Published(mut event)) = cause.payload.read() {
                let text = String::from_utf8_lossy(&event.body.0);
                let text = text.replace("\"sequenceNumber\":2", "\"sequenceNumber\":1");
                event.body.0 = text.into_bytes().into();
                cause.payload = Payload::of(&Published(event));
            }
        }
    }
}

/// The policy that the store is given.
fn bent(policy: &Arc<LanePolicy>, bug: Option<Bug>) -> Arc<LanePolicy> {
    let mut policy = policy.clone();
    match bug {
        Some(Bug::ThrottleOffByOne) => {
            Arc::make_mut(&mut policy).throttle.iter_mut().for_each(|throttle| throttle.max_requests += 1);
        }
        Some(Bug::TenantConcurrencyIgnored) => Arc::make_mut(&mut policy).tenant_concurrency *= 4,
        Some(Bug::PriorityOverLane) => Arc::make_mut(&mut policy).priority_scope = Scope::Lane,
        Some(Bug::SlowBeyondSlots) => Arc::make_mut(&mut policy).destinations = Destinations::Many,
        Some(Bug::BreakerIgnored) => Arc::make_mut(&mut policy).breaker = None,
        Some(Bug::EndlessTurn) => Arc::make_mut(&mut policy).fairness.max_jobs_per_tenant_batch = u32::MAX,
        _ => {}
    }
    policy
}

#[async_trait]
impl JobStore for WatchedStore {
    async fn take(&self, mut entries: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        self.life.reach().await;
        let world = &self.life.world;
        for NewEntry { job, answer, .. } in &mut entries {
            world.disk.lock().handed_in.insert(job.id, job.clone());
            if let Some(answer) = answer {
                world.witness.lock().answered(job, answer);
            }
            match world.bug {
                Some(Bug::IgnoreTtl) => job.expires_at = None,
                Some(Bug::IgnorePriority) => job.priority = Default::default(),
                _ => {}
            }
        }
        let taken = self.inner.take(entries).await;
        world.witness.lock().troubles.refused += u32::from(taken.is_err());
        let taken = taken?;
        for submitted in &taken {
            if let Submitted::Accepted { pushed_out: Some(left) } = submitted {
                world.witness.lock().dropped(self.life.clock.now(), left.id);
            }
        }
        self.life.reach().await;
        Ok(taken)
    }

    async fn job_by_key(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError> {
        self.inner.job_by_key(tenant, key).await
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        self.life.reach().await;
        let asked_at = self.asked_at();
        let mut batch = self.inner.claim(lane, max).await?;
        let now = self.life.clock.now();
        let was_held = self.held.lock().contains(lane);
        for job in &mut batch.jobs {
            job.ticket = self.number(job.ticket);
            job.attempt += u32::from(self.has(Bug::CountHeldAsAttempt) && was_held);
            job.past_breaker &= !self.has(Bug::PassUnsaid);
            if self.has(Bug::LeaseUnlooked) {
                job.lease = Lease::forever();
            }
        }
        self.held.lock().retain(|held| held != lane);
        if batch.jobs.is_empty() && batch.wake_at.is_some() {
            self.held.lock().push(lane.clone());
        }
        let by = By { node: self.life.number(), asked_at };
        self.life.world.witness.lock().claimed(now, by, lane, &batch.jobs, &batch.expired);
        if self.has(Bug::BreakerNeverCloses) {
            let views = self.inner.lanes().await?;
            let has_opened = |view: &LaneView| view.breaker.as_ref().is_some_and(|breaker| breaker.opened > 0);
            if views.iter().any(|view| view.name == *lane && has_opened(view)) {
                self.inner.set_paused(lane, true).await?;
            }
        }
        let late = if self.has(Bug::WakeTooLate) { Duration::from_hours(1) } else { Duration::ZERO };
        Ok(ClaimBatch { wake_at: batch.wake_at.map(|at| at + late), ..batch })
    }

    async fn settle(&self, lane: &LaneName, mut settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.life.reach().await;
        let now = self.life.clock.now();
        for settlement in &mut settlements {
            let mut witness = self.life.world.witness.lock();
            let is_holder = witness.settling(now, settlement);
            match settlement.transition {
                _ if !is_holder => {}
                Transition::Retry { .. } => witness.will_learn(lane, settlement.job.id, settlement.lesson),
                _ => witness.learned(now, lane, settlement.lesson),
            }
            drop(witness);
            self.bent_settlement(settlement);
            let number = settlement.ticket.number().unwrap_or_default();
            settlement.ticket = self.tickets.lock().remove(&number).expect("a ticket that was handed out");
        }
        self.inner.settle(lane, settlements).await
    }

    fn give_back(&self, lane: &LaneName, ticket: Ticket) {
        let real = ticket.number().and_then(|number| self.tickets.lock().remove(&number));
        self.life.world.witness.lock().given_back(self.life.clock.now(), ticket);
        real.into_iter().for_each(|ticket| self.inner.give_back(lane, ticket));
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.inner.flush().await
    }

    async fn release(&self) -> Result<(), StoreError> {
        self.life.reach().await;
        let released = self.inner.release().await;
        *self.life.world.stopped_at.lock() = Some(self.life.clock.now());
        released
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        match self.has(Bug::ForgetToWake) {
            true => Ok(Arc::default()),
            false => self.inner.wake(lane),
        }
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        self.life.reach().await;
        let before = || async { self.inner.job(id).await.ok().flatten() };
        let pretend = |view: JobView| JobView { state: JobState::Cancelled, ..view };
        match self.life.world.bug {
            Some(Bug::CancelKeepsInLane) => return before().await.map(pretend).ok_or(ChangeError::Unknown),
            Some(Bug::ForgetReason) => return self.inner.cancel(id, "").await,
            Some(Bug::CancelBeforeSync) => {
                let (inner, life, reason) = (self.inner.clone(), self.life.clone(), reason.to_owned());
                tokio::spawn(async move {
                    life.wait(SOON).await;
                    life.reach().await;
                    drop(inner.cancel(id, &reason).await);
                });
                let view = before().await.ok_or(ChangeError::Unknown)?;
                return match view.state.may_become(JobState::Cancelled) {
                    true => Ok(pretend(view)),
                    false => Err(ChangeError::WrongState { state: view.state, hint: "it is too late".into() }),
                };
            }
            _ => {}
        }
        self.life.world.witness.lock().cancelling(id, true);
        let cancelled = self.inner.cancel(id, reason).await;
        match &cancelled {
            Ok(view) => self.life.world.witness.lock().left(self.life.clock.now(), view.job_id),
            Err(_) => self.life.world.witness.lock().cancelling(id, false),
        }
        match cancelled {
            Err(ChangeError::WrongState { state: JobState::Running, .. }) if self.has(Bug::CancelRunning) => {
                before().await.map(pretend).ok_or(ChangeError::Unknown)
            }
            other => other,
        }
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        self.life.reach().await;
        match self.has(Bug::UnblockUnheard) {
            true => Ok(()),
            false => self.inner.unblock(id).await,
        }
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError> {
        self.inner.job(id).await
    }

    async fn ended(&self, id: JobId) -> Result<(), StoreError> {
        self.inner.ended(id).await
    }

    async fn blocked(
        &self,
        lane: &LaneName,
        page: Page<JobId>,
    ) -> Result<Paged<(JobId, TenantName), JobId>, StoreError> {
        self.inner.blocked(lane, page).await
    }

    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        self.inner.jobs(filter, page).await
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        self.inner.explain(id).await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        self.life.reach().await;
        self.inner.lanes().await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        self.inner.nodes().await
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        self.life.reach().await;
        if !paused && self.has(Bug::ResumeUnheard) {
            return Ok(());
        }
        self.inner.set_paused(lane, paused).await?;
        match paused && self.has(Bug::PauseUnheard) {
            true => self.inner.set_paused(lane, false).await,
            false => Ok(()),
        }
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.life.reach().await;
        self.inner.sweep().await
    }

    fn health(&self) -> StoreHealth {
        self.inner.health()
    }

    async fn failed(&self) -> String {
        self.inner.failed().await
    }
}
