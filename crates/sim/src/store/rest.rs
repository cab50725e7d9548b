//! The other verbs: dead letters and replays, which the engine carries on by itself; endpoints that listen. What the
//! engine's way of a job never asks for answers that it is not simulated.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega::store::{
    ApiKey, Begun, ChangeError, ConnectorRegistry, Count, CountBy, DeadLetterCursor, DeadLetterFilter, DeadLetterStore,
    Endpoint, EndpointOrigin, EndpointRegistry, Feedback, MailRegistry, Once, Page, Paged, PutEndpointError, Registry,
    ReplayRun, ReplayStatus, RequestLog, StoreError, StoredConnector, Suppression, TenantSettings, TenantView,
};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;

use super::SimStore;
use crate::bug::Bug;
use crate::disk::{Change, Record};
use crate::plan::{START, is_listening};

/// The name of every endpoint there is.
pub const HOOK: &str = "hook";

/// How long a node leads after it last said so.
const LEAD: Duration = Duration::from_secs(1);

/// A verb that no run needs.
pub(super) fn not_simulated(doing: &'static str) -> StoreError {
    StoreError::Answer { doing, reason: "the simulated store does not do this".into() }
}

#[async_trait]
impl DeadLetterStore for SimStore {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.life.world.disk.lock().dead.get(&id).cloned())
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        self.life.reach().await;
        let disk = self.life.world.disk.lock();
        let place = |dead: &DeadLetter| (dead.moved_to_dlq_at, dead.job_id);
        let is_bent = |dead: &DeadLetter| self.has(Bug::ReplayDiscarded) && dead.status == DeadLetterStatus::Discarded;
        let fits = |dead: &&DeadLetter| {
            filter.status.is_none_or(|status| dead.status == status || is_bent(dead))
                && filter.before.is_none_or(|before| dead.moved_to_dlq_at < before)
                && page.after.is_none_or(|after| place(dead) > after)
        };
        let mut items: Vec<DeadLetter> = disk.dead.values().filter(fits).cloned().collect();
        items.sort_by_key(place);
        let has_more = items.len() > page.limit;
        items.truncate(page.limit);
        let next = items.last().map(place).filter(|_| has_more);
        Ok(Paged { items, next })
    }

    async fn dead_letter_counts(&self, _: CountBy, _: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        Err(not_simulated("dead_letter_counts"))
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        self.life.reach().await;
        let _one_at_a_time = self.only_one().await?;
        let mut dead = self.life.world.disk.lock().dead.get(&id).cloned().ok_or(ChangeError::Unknown)?;
        if !self.has(Bug::ReplayDiscarded) || dead.status != DeadLetterStatus::Discarded {
            dead.check_replay()?;
        }
        let now = self.now();
        dead.status = DeadLetterStatus::Replaying;
        dead.generation += u8::from(!self.has(Bug::ReplayUncounted));
        let ttl = self.life.world.plan.lanes.get(&dead.lane).and_then(|policy| policy.ttl);
        let job = dead.job_to_replay(now, ttl.map(|ttl| now + ttl));
        let record = Record { generation: dead.generation, due: now, ..Record::new(job) };
        self.life.world.witness.lock().troubles.replayed += 1;
        let changes = vec![Change::Dead(Box::new(dead)), Change::Job(Box::new(record.clone()))];
        Ok(self.change(changes, Some(record)).await?)
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        self.discard_letter(id, reason).await
    }
}

#[async_trait]
impl Registry for SimStore {
    async fn put_key(&self, _: ApiKey) -> Result<(), StoreError> {
        Err(not_simulated("put_key"))
    }

    async fn remove_key(&self, _: &str) -> Result<bool, StoreError> {
        Err(not_simulated("remove_key"))
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        Err(not_simulated("keys"))
    }

    fn key_by_hash(&self, _: &[u8; 32]) -> Option<Arc<ApiKey>> {
        None
    }

    async fn put_tenant(&self, _: TenantSettings) -> Result<(), StoreError> {
        Err(not_simulated("put_tenant"))
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        Err(not_simulated("tenants"))
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        self.life.reach().await;
        self.change(vec![Change::Replay(Box::new(replay))], None).await
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        Ok(self.life.world.disk.lock().replays.get(id).cloned())
    }

    async fn replay_runs(&self) -> Result<Vec<ReplayRun>, StoreError> {
        Ok(self.life.world.disk.lock().replays.values().cloned().collect())
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        self.life.reach().await;
        if !self.leads() {
            return Ok(Vec::new());
        }
        let disk = self.life.world.disk.lock();
        Ok(disk.replays.values().filter(|run| run.status == ReplayStatus::Running).cloned().collect())
    }
}

impl SimStore {
    /// Whether this node carries replays on: one does at a time, and the next when that one is gone.
    fn leads(&self) -> bool {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let is_free = state.leader.is_none_or(|(node, until)| node == self.node || until <= now);
        if is_free {
            state.leader = Some((self.node, now + LEAD));
        }
        is_free
    }
}

#[async_trait]
impl EndpointRegistry for SimStore {
    async fn put_endpoint(&self, _: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError> {
        Err(not_simulated("put_endpoint").into())
    }

    async fn remove_endpoint(&self, _: &TenantName, _: &str) -> Result<bool, StoreError> {
        Err(not_simulated("remove_endpoint"))
    }

    fn endpoint(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>> {
        self.endpoints_of(tenant).into_iter().find(|endpoint| endpoint.name == name)
    }

    fn endpoints_of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>> {
        if !is_listening(tenant) {
            return Vec::new();
        }
        let url = "https://listener.example.com/hook";
        let endpoint = Endpoint::new(tenant.clone(), HOOK, url, EndpointOrigin::Config, START);
        let throttle = self.life.world.plan.endpoint_rate;
        vec![Arc::new(Endpoint { throttle, version: 1, ..endpoint })]
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        Vec::new()
    }
}

#[async_trait]
impl MailRegistry for SimStore {
    async fn suppress(&self, _: Suppression) -> Result<(), StoreError> {
        Err(not_simulated("suppress"))
    }

    async fn unsuppress(&self, _: &TenantName, _: &str) -> Result<bool, StoreError> {
        Err(not_simulated("unsuppress"))
    }

    async fn suppressed(&self, _: &TenantName, _: &[&str]) -> Result<Vec<Option<Suppression>>, StoreError> {
        Err(not_simulated("suppressed"))
    }

    async fn suppressions(&self, _: &TenantName, _: Page<String>) -> Result<Paged<Suppression, String>, StoreError> {
        Err(not_simulated("suppressions"))
    }

    async fn note_feedback(&self, _: JobId, _: Feedback) -> Result<(), StoreError> {
        Err(not_simulated("note_feedback"))
    }

    async fn feedback(&self, _: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        Err(not_simulated("feedback"))
    }
}

#[async_trait]
impl ConnectorRegistry for SimStore {
    async fn put_connector(&self, _: StoredConnector) -> Result<(), StoreError> {
        Err(not_simulated("put_connector"))
    }

    async fn remove_connector(&self, _: &str) -> Result<bool, StoreError> {
        Err(not_simulated("remove_connector"))
    }

    fn connector(&self, _: &str) -> Option<Arc<StoredConnector>> {
        None
    }

    fn connectors(&self) -> Vec<Arc<StoredConnector>> {
        Vec::new()
    }
}

#[async_trait]
impl RequestLog for SimStore {
    async fn begin_request(&self, _: &TenantName, _: &Once, _: Time) -> Result<Begun, StoreError> {
        Err(not_simulated("begin_request"))
    }

    async fn end_request(&self, _: &TenantName, _: &Once, _: Option<Vec<u8>>) -> Result<(), StoreError> {
        Err(not_simulated("end_request"))
    }
}
