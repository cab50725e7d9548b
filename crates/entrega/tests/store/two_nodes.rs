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
use entrega_core::lane::Explanation;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
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
    }
}

/// Passes verbs on to one of the two.
macro_rules! pass_on {
    ($to:ident: $(async fn $verb:ident($($arg:ident: $type:ty),*) -> $answer:ty;)+) => {
        $(async fn $verb(&self, $($arg: $type),*) -> $answer {
            self.$to.$verb($($arg),*).await
        })+
    };
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

    pass_on! { owner:
        async fn claim(lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError>;
        async fn settle(lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError>;
        async fn flush() -> Result<(), StoreError>;
        async fn release() -> Result<(), StoreError>;
        async fn job(id: JobId) -> Result<Option<JobView>, StoreError>;
        async fn jobs(filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError>;
        async fn lanes() -> Result<Vec<LaneView>, StoreError>;
        async fn nodes() -> Result<Vec<NodeView>, StoreError>;
        async fn set_paused(lane: &LaneName, paused: bool) -> Result<(), StoreError>;
        async fn sweep() -> Result<Swept, StoreError>;
    }

    pass_on! { other:
        async fn job_once(tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError>;
        async fn cancel(id: JobId, reason: &str) -> Result<JobView, ChangeError>;
        async fn unblock(id: JobId) -> Result<(), ChangeError>;
        async fn ended(id: JobId) -> Result<(), StoreError>;
        async fn explain(id: JobId) -> Result<Option<Explanation>, StoreError>;
    }
}

#[async_trait]
impl DeadLetterStore for TwoNodes {
    pass_on! { other:
        async fn dead_letter(id: JobId) -> Result<Option<DeadLetter>, StoreError>;
        async fn dead_letters(filter: &DeadLetterFilter, page: Page<DeadLetterCursor>)
            -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError>;
        async fn dead_letter_counts(by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError>;
        async fn replay(id: JobId) -> Result<(), ChangeError>;
        async fn discard(id: JobId, reason: &str) -> Result<(), ChangeError>;
    }
}

#[async_trait]
impl Registry for TwoNodes {
    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.owner.key_by_hash(hash)
    }

    pass_on! { owner:
        async fn put_key(key: ApiKey) -> Result<(), StoreError>;
        async fn remove_key(id: &str) -> Result<bool, StoreError>;
        async fn keys() -> Result<Vec<ApiKey>, StoreError>;
        async fn put_tenant(tenant: TenantSettings) -> Result<(), StoreError>;
        async fn put_replay(replay: ReplayRun) -> Result<(), StoreError>;
        async fn replay_run(id: &str) -> Result<Option<ReplayRun>, StoreError>;
        async fn replay_runs() -> Result<Vec<ReplayRun>, StoreError>;
        async fn replays_to_carry_on() -> Result<Vec<ReplayRun>, StoreError>;
    }

    pass_on! { other:
        async fn tenants() -> Result<Vec<TenantView>, StoreError>;
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

    pass_on! { owner:
        async fn put_endpoint(endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError>;
        async fn remove_endpoint(tenant: &TenantName, name: &str) -> Result<bool, StoreError>;
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

    pass_on! { owner:
        async fn put_connector(connector: StoredConnector) -> Result<(), StoreError>;
        async fn remove_connector(id: &str) -> Result<bool, StoreError>;
    }
}

#[async_trait]
impl MailRegistry for TwoNodes {
    pass_on! { other:
        async fn suppress(suppression: Suppression) -> Result<(), StoreError>;
        async fn unsuppress(tenant: &TenantName, address: &str) -> Result<bool, StoreError>;
        async fn suppressed(tenant: &TenantName, addresses: &[&str]) -> Result<Vec<Option<Suppression>>, StoreError>;
        async fn note_feedback(id: JobId, feedback: Feedback) -> Result<(), StoreError>;
    }

    pass_on! { owner:
        async fn suppressions(tenant: &TenantName, page: Page<String>) -> Result<Paged<Suppression, String>, StoreError>;
        async fn feedback(ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError>;
    }
}

#[async_trait]
impl AnswerCache for TwoNodes {
    pass_on! { other:
        async fn cached(key: &str) -> Result<Option<StoredAnswer>, StoreError>;
        async fn begin_call(key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError>;
    }

    pass_on! { owner:
        async fn cache(key: &str, answer: StoredAnswer, keep: Duration) -> Result<(), StoreError>;
        async fn end_call(key: &str, caller: JobId) -> Result<(), StoreError>;
    }
}

#[async_trait]
impl GateKeeper for TwoNodes {
    pass_on! { other:
        async fn pass(gate: &GateName) -> Result<Passing, StoreError>;
        async fn learn(gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError>;
    }

    pass_on! { owner:
        async fn pass_anyway(gate: &GateName) -> Result<Passing, StoreError>;
    }
}

#[async_trait]
impl RequestLog for TwoNodes {
    pass_on! { other:
        async fn begin_request(tenant: &TenantName, request: &Once, runs_until: Time) -> Result<Begun, StoreError>;
    }

    pass_on! { owner:
        async fn end_request(tenant: &TenantName, request: &Once, answer: Option<Vec<u8>>) -> Result<(), StoreError>;
    }
}
