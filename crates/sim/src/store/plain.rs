//! The other verbs: dead letters and replays with their planted bugs, and what passes as it is.

use std::sync::Arc;

use async_trait::async_trait;
use entrega::store::{
    ApiKey, BeginReplayError, ChangeError, ConnectorRegistry, Count, CountBy, DeadLetterCursor, DeadLetterFilter,
    DeadLetterStore, Endpoint, EndpointRegistry, Feedback, Idempotency, IdempotencyLog, MailRegistry, Page, Paged,
    PutEndpointError, PutKeyError, Registry, ReplayRun, RequestState, StoreError, StoredConnector, Suppression,
    TenantSettings, TenantView,
};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, NoReplay};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::sender::SenderRule;
use entrega_core::time::Time;

use super::{SOON, WatchedStore};
use crate::bug::Bug;

impl WatchedStore {
    /// A planted bug: how far a replay got is written before it got there, and then it is not answered.
    async fn write_progress_first(&self, reached: Option<&DeadLetter>) -> Result<(), StoreError> {
        let Some(dead) = reached.filter(|_| self.has(Bug::ProgressFirst)) else { return Ok(()) };
        for run in self.inner.replays_to_carry_on().await? {
            let cursor = Some((dead.moved_to_dlq_at, dead.job_id));
            self.inner.put_replay(ReplayRun { cursor, ..run }).await?;
        }
        Err(StoreError::Unreachable { reason: "the connection broke".into() })
    }
}

#[async_trait]
impl DeadLetterStore for WatchedStore {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        self.inner.dead_letter(id).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        self.life.reach().await;
        let listed = self.inner.dead_letters(filter, page).await?;
        self.write_progress_first(listed.items.last()).await?;
        Ok(listed)
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        self.inner.dead_letter_counts(by, tenant).await
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        self.life.reach().await;
        self.inner.replay(id).await?;
        self.life.world.witness.lock().troubles.replayed += 1;
        Ok(())
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        self.life.reach().await;
        if self.has(Bug::DiscardBeforeSync) {
            let (inner, life, reason) = (self.inner.clone(), self.life.clone(), reason.to_owned());
            tokio::spawn(async move {
                life.wait(SOON).await;
                life.reach().await;
                drop(inner.discard(id, &reason).await);
            });
            return Ok(());
        }
        let is_replaying = |error: &ChangeError| matches!(error, ChangeError::NoReplay(NoReplay::NotPending { status }) if *status == DeadLetterStatus::Replaying);
        match self.inner.discard(id, reason).await {
            Err(error) if is_replaying(&error) && self.has(Bug::DiscardReplaying) => Ok(()),
            other => other,
        }
    }
}

#[async_trait]
impl Registry for WatchedStore {
    async fn put_key(&self, key: ApiKey) -> Result<(), PutKeyError> {
        self.inner.put_key(key).await
    }

    async fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        self.inner.remove_key(id).await
    }

    async fn keys(&self, page: Page<String>) -> Result<Paged<ApiKey, String>, StoreError> {
        self.inner.keys(page).await
    }

    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.inner.key_by_hash(hash)
    }

    fn tenant_settings(&self, tenant: &TenantName) -> TenantSettings {
        self.inner.tenant_settings(tenant)
    }

    async fn put_senders(&self, tenant: &TenantName, senders: Vec<SenderRule>) -> Result<(), StoreError> {
        self.inner.put_senders(tenant, senders).await
    }

    fn senders(&self, tenant: &TenantName) -> Arc<[SenderRule]> {
        self.inner.senders(tenant)
    }

    async fn put_tenant(&self, tenant: TenantSettings) -> Result<(), StoreError> {
        self.inner.put_tenant(tenant).await
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        self.inner.tenants().await
    }

    async fn begin_replay(&self, replay: ReplayRun) -> Result<(), BeginReplayError> {
        self.life.reach().await;
        self.inner.begin_replay(replay).await
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        self.life.reach().await;
        self.inner.put_replay(replay).await
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        self.inner.replay_run(id).await
    }

    async fn replay_runs(
        &self,
        tenant: Option<&TenantName>,
        page: Page<String>,
    ) -> Result<Paged<ReplayRun, String>, StoreError> {
        self.inner.replay_runs(tenant, page).await
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        self.life.reach().await;
        self.inner.replays_to_carry_on().await
    }
}

#[async_trait]
impl EndpointRegistry for WatchedStore {
    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError> {
        self.inner.put_endpoint(endpoint).await
    }

    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError> {
        self.inner.remove_endpoint(tenant, name).await
    }

    fn endpoint(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>> {
        self.inner.endpoint(tenant, name)
    }

    fn endpoints_of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>> {
        self.inner.endpoints_of(tenant)
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.inner.endpoints()
    }
}

#[async_trait]
impl MailRegistry for WatchedStore {
    async fn suppress(&self, suppression: Suppression) -> Result<(), StoreError> {
        self.inner.suppress(suppression).await
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        self.inner.unsuppress(tenant, address).await
    }

    async fn suppressed(
        &self,
        tenant: &TenantName,
        addresses: &[&str],
    ) -> Result<Vec<Option<Suppression>>, StoreError> {
        self.inner.suppressed(tenant, addresses).await
    }

    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError> {
        self.inner.suppressions(tenant, page).await
    }

    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError> {
        self.inner.note_feedback(id, feedback).await
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        self.inner.feedback(ids).await
    }
}

#[async_trait]
impl ConnectorRegistry for WatchedStore {
    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError> {
        self.inner.put_connector(connector).await
    }

    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError> {
        self.inner.remove_connector(id).await
    }

    fn connector(&self, id: &str) -> Option<Arc<StoredConnector>> {
        self.inner.connector(id)
    }

    fn connectors(&self) -> Vec<Arc<StoredConnector>> {
        self.inner.connectors()
    }
}

#[async_trait]
impl IdempotencyLog for WatchedStore {
    async fn begin_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        runs_until: Time,
    ) -> Result<RequestState, StoreError> {
        self.inner.begin_request(tenant, request, runs_until).await
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        self.inner.end_request(tenant, request, answer).await
    }
}
