//! Two nodes as one store: one owns every lane, the other is asked.
//! Invariant: whatever can be asked of any node is asked of the one that owns nothing; claims, settlements and what only an
//! owner knows of this moment are the owner's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega::store::local::LocalStore;
use entrega::store::*;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::lane::{Explanation, Hold};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::sender::SenderRule;
use entrega_core::time::Time;
use tokio::sync::Notify;

/// How long the owner may take to see what was left for it.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Two nodes.
pub(crate) struct TwoNodes {
    pub(crate) owner: Arc<LocalStore>,
    pub(crate) other: Arc<LocalStore>,
}

impl TwoNodes {
    /// Waits until the owner has what was left for it.
    async fn seen(&self, id: JobId) {
        let seen = async {
            while self.other.job(id).await.unwrap().is_some_and(|view| !view.state.is_end())
                && self.owner.explain(id).await.unwrap().is_none()
            {
                // reason: the owner hears of it by a signal over a real server.
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(SEEN_WITHIN, seen).await.expect("the owner sees what was left for it");
        // It is in the machine; once this is written it can be claimed.
        self.owner.flush().await.unwrap();
    }
}

#[async_trait]
impl JobStore for TwoNodes {
    async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        let ids: Vec<JobId> = jobs.iter().map(|entry| entry.job.id).collect();
        let taken = self.other.take(jobs).await?;
        for (id, taken) in ids.into_iter().zip(&taken) {
            if matches!(taken, Submitted::Accepted { .. }) {
                self.seen(id).await;
            }
        }
        Ok(taken)
    }

    fn give_back(&self, lane: &LaneName, ticket: Ticket) {
        self.owner.give_back(lane, ticket);
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        self.owner.wake(lane)
    }

    fn health(&self) -> StoreHealth {
        self.owner.health()
    }

    async fn failed(&self) -> String {
        self.owner.failed().await
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        self.owner.claim(lane, max).await
    }

    async fn settle(&self, lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.owner.settle(lane, settlements).await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.owner.flush().await
    }

    async fn release(&self) -> Result<(), StoreError> {
        self.owner.release().await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError> {
        self.owner.job(id).await
    }

    async fn blocked(
        &self,
        lane: &LaneName,
        page: Page<JobId>,
    ) -> Result<Paged<(JobId, TenantName), JobId>, StoreError> {
        self.owner.blocked(lane, page).await
    }

    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        self.owner.jobs(filter, page).await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        self.owner.lanes().await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>, StoreError> {
        self.owner.nodes().await
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        self.owner.set_paused(lane, paused).await
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.owner.sweep().await
    }

    async fn job_by_key(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError> {
        self.other.job_by_key(tenant, key).await
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        self.other.cancel(id, reason).await
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        self.other.unblock(id).await
    }

    async fn ended(&self, id: JobId) -> Result<(), StoreError> {
        self.other.ended(id).await
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        self.other.explain(id).await
    }
}

#[async_trait]
impl DeadLetterStore for TwoNodes {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        self.other.dead_letter(id).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        self.other.dead_letters(filter, page).await
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        self.other.dead_letter_counts(by, tenant).await
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        self.other.replay(id).await
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        self.other.discard(id, reason).await
    }
}

#[async_trait]
impl Registry for TwoNodes {
    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.owner.key_by_hash(hash)
    }

    async fn put_key(&self, key: ApiKey) -> Result<(), PutKeyError> {
        self.owner.put_key(key).await
    }

    async fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        self.owner.remove_key(id).await
    }

    async fn keys(&self, page: Page<String>) -> Result<Paged<ApiKey, String>, StoreError> {
        self.owner.keys(page).await
    }

    async fn put_senders(&self, tenant: &TenantName, senders: Vec<SenderRule>) -> Result<(), StoreError> {
        self.owner.put_senders(tenant, senders).await
    }

    fn senders(&self, tenant: &TenantName) -> Arc<[SenderRule]> {
        self.owner.senders(tenant)
    }

    fn tenant_settings(&self, tenant: &TenantName) -> TenantSettings {
        self.owner.tenant_settings(tenant)
    }

    async fn put_tenant(&self, tenant: TenantSettings) -> Result<(), StoreError> {
        self.owner.put_tenant(tenant).await
    }

    async fn begin_replay(&self, replay: ReplayRun) -> Result<(), BeginReplayError> {
        self.owner.begin_replay(replay).await
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        self.owner.put_replay(replay).await
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        self.owner.replay_run(id).await
    }

    async fn replay_runs(
        &self,
        tenant: Option<&TenantName>,
        page: Page<String>,
    ) -> Result<Paged<ReplayRun, String>, StoreError> {
        self.owner.replay_runs(tenant, page).await
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        self.owner.replays_to_carry_on().await
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        self.other.tenants().await
    }
}

#[async_trait]
impl EndpointRegistry for TwoNodes {
    fn endpoint(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>> {
        self.owner.endpoint(tenant, name)
    }

    fn endpoints_of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>> {
        self.owner.endpoints_of(tenant)
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.owner.endpoints()
    }

    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError> {
        self.owner.put_endpoint(endpoint).await
    }

    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError> {
        self.owner.remove_endpoint(tenant, name).await
    }
}

#[async_trait]
impl ConnectorRegistry for TwoNodes {
    fn connector(&self, id: &str) -> Option<Arc<StoredConnector>> {
        self.owner.connector(id)
    }

    fn connectors(&self) -> Vec<Arc<StoredConnector>> {
        self.owner.connectors()
    }

    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError> {
        self.owner.put_connector(connector).await
    }

    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError> {
        self.owner.remove_connector(id).await
    }
}

#[async_trait]
impl MailRegistry for TwoNodes {
    async fn suppress(&self, suppression: Suppression) -> Result<(), StoreError> {
        self.other.suppress(suppression).await
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        self.other.unsuppress(tenant, address).await
    }

    async fn suppressed(
        &self,
        tenant: &TenantName,
        addresses: &[&str],
    ) -> Result<Vec<Option<Suppression>>, StoreError> {
        self.other.suppressed(tenant, addresses).await
    }

    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError> {
        self.other.note_feedback(id, feedback).await
    }

    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError> {
        self.owner.suppressions(tenant, page).await
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        self.owner.feedback(ids).await
    }
}

#[async_trait]
impl AnswerCache for TwoNodes {
    async fn cached(&self, key: &str) -> Result<Option<CachedAnswer>, StoreError> {
        self.other.cached(key).await
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        self.other.begin_call(key, caller, lasts).await
    }

    async fn cache(&self, key: &str, answer: CachedAnswer, keep: Duration) -> Result<(), StoreError> {
        self.owner.cache(key, answer, keep).await
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        self.owner.end_call(key, caller).await
    }
}

#[async_trait]
impl GateKeeper for TwoNodes {
    async fn pass(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        self.other.pass(gate).await
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        self.other.learn(gate, lesson, took).await
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        self.owner.pass_anyway(gate).await
    }
}

#[async_trait]
impl IdempotencyLog for TwoNodes {
    async fn begin_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        runs_until: Time,
    ) -> Result<RequestState, StoreError> {
        self.other.begin_request(tenant, request, runs_until).await
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        self.owner.end_request(tenant, request, answer).await
    }
}
