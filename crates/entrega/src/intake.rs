//! Intake: from what a caller wants to a job that is safe.
//! Invariant: whatever gets past here can be stored, shown and sent; a refusal names the field and the way out.
//! Never: answers before the store has said that the job is durable.

use std::time::Duration;

use entrega_call::AddressFilter;
use entrega_core::id::JobId;
use entrega_core::job::{Earlier, Job};
use entrega_core::name::{LaneName, TenantName};

use crate::chance::Chance;
use crate::env::Env;
use crate::product::Products;
use crate::refusal::Refusal;
use crate::store::{Idempotency, KeptAnswer, NewEntry, StoreError, Submitted};
use crate::submission::{NewJob, Taken};

/// When a caller who met a full lane should try again.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(1);

/// Where jobs come in.
#[derive(Clone)]
pub struct Intake {
    env: Env,
    products: Products,
    filter: AddressFilter,
}

impl Intake {
    /// For jobs of these products that go where `filter` lets them.
    pub fn new(env: Env, products: Products, filter: AddressFilter) -> Intake {
        Intake { env, products, filter }
    }

    /// Takes jobs for a tenant in one durable write. Each gets its own answer: a bad one does not harm the others.
    pub async fn submit(&self, tenant: &TenantName, new: Vec<NewJob>) -> Vec<Result<JobId, Refusal>> {
        let taken = self.submit_once(tenant, new.into_iter().map(|new_job| (new_job, Vec::new())).collect()).await;
        taken.into_iter().map(|taken| taken.map(|taken| taken.id)).collect()
    }

    /// The same, where each job may have keys that make it one job however often it is handed in: the first that is
    /// known decides.
    pub async fn submit_once(
        &self,
        tenant: &TenantName,
        new: Vec<(NewJob, Vec<Idempotency>)>,
    ) -> Vec<Result<Taken, Refusal>> {
        self.submit_answered(
            tenant,
            new.into_iter().map(|(new_job, idempotency)| (new_job, idempotency, None)).collect(),
        )
        .await
    }

    /// The same, where the answer of a job may be known already: it is done as it is taken.
    pub(crate) async fn submit_answered(
        &self,
        tenant: &TenantName,
        new: Vec<(NewJob, Vec<Idempotency>, Option<KeptAnswer>)>,
    ) -> Vec<Result<Taken, Refusal>> {
        let started = self.env.clock.now();
        let mut answers: Vec<Option<Result<Taken, Refusal>>> = Vec::with_capacity(new.len());
        let mut jobs = Vec::with_capacity(new.len());
        for (new_job, idempotency, answer) in new {
            match self.build_job(tenant, new_job) {
                Ok(job) => {
                    jobs.push(NewEntry { job, idempotency, answer });
                    answers.push(None);
                }
                Err(refusal) => answers.push(Some(Err(refusal))),
            }
        }
        let ids: Vec<_> = jobs.iter().map(|entry| (entry.job.id, entry.job.lane.clone())).collect();
        let stored = match jobs.is_empty() {
            true => Ok(Vec::new()),
            false => self.env.store.take(jobs).await,
        };
        let outcomes = self.outcomes(tenant, ids, stored);
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.env.metrics.intake(self.env.clock.now().since(started), accepted);
        let mut outcomes = outcomes.into_iter();
        answers.into_iter().map(|answer| answer.or_else(|| outcomes.next()).expect("one answer per job")).collect()
    }

    /// Checks what a caller wants and makes it a job.
    fn build_job(&self, tenant: &TenantName, new_job: NewJob) -> Result<Job, Refusal> {
        let policy = self.env.policy(&new_job.lane)?;
        new_job.check()?;
        let (of_lane, of_job) = (self.products.find(&policy.channel), self.products.find(new_job.content.kind()));
        if let Some(product) = of_lane.filter(|product| product.name != new_job.content.kind()) {
            return Err(Refusal::invalid(
                "lane",
                format!("'{}' {}", new_job.lane, (product.submit_hint)(&new_job.lane)),
            ));
        }
        new_job.content.check(&self.filter)?;
        let now = self.env.clock.now();
        let due_at = now + new_job.delay;
        let new_id = of_job.map_or(Chance::job_id as fn(&_, _) -> _, |product| product.job_id);
        Ok(Job {
            id: new_id(&self.env.chance, now),
            expires_at: new_job.ttl.or(policy.ttl).map(|ttl| due_at + ttl),
            lane: new_job.lane,
            tenant: tenant.clone(),
            priority: new_job.priority,
            payload: new_job.content.payload(),
            destination: new_job.content.destination(),
            earlier: Earlier::default(),
            labels: new_job.labels,
            idempotency_key: new_job.idempotency_key,
            accepted_at: now,
            due_at,
        })
    }

    /// Takes a job that the gateway made itself.
    pub async fn submit_internal(&self, job: Job) -> Result<(), Refusal> {
        let (tenant, ids) = (job.tenant.clone(), vec![(job.id, job.lane.clone())]);
        let stored = self.env.store.submit(vec![job]).await;
        self.outcomes(&tenant, ids, stored).into_iter().try_for_each(|taken| taken.map(drop))
    }

    fn outcomes(
        &self,
        tenant: &TenantName,
        ids: Vec<(JobId, LaneName)>,
        stored: Result<Vec<Submitted>, StoreError>,
    ) -> Vec<Result<Taken, Refusal>> {
        let stored = match stored {
            Ok(stored) => stored,
            // One failed write refuses every job in it with the same reason.
            Err(error) => return ids.iter().map(|_| Err(Refusal::Store(error.clone()))).collect(),
        };
        let outcomes = ids.into_iter().zip(stored).map(|((id, lane), submitted)| match submitted {
            Submitted::Accepted { pushed_out } => {
                if let Some(left) = pushed_out {
                    self.env.metrics.dropped(&lane, "preempted");
                    tracing::warn!(lane = %lane, jobId = %left.id, companyId = %left.tenant,
                        priority = left.priority.as_str(), errorReason = "preempted", "Job dropped");
                }
                Ok(Taken { id, is_repeat: false })
            }
            Submitted::Repeated { id } => Ok(Taken { id, is_repeat: true }),
            Submitted::OtherRequest => Err(Refusal::KeyReused),
            Submitted::Full => {
                self.env.metrics.refused(&lane);
                let capacity = self.env.policy(&lane).map_or(0, |policy| policy.capacity);
                Err(Refusal::Full { lane, capacity, retry_after: RETRY_WHEN_FULL })
            }
            Submitted::OverQuota(quota) => {
                self.env.metrics.refused(&lane);
                Err(Refusal::OverQuota { quota, tenant: tenant.company(), retry_after: RETRY_WHEN_FULL })
            }
            Submitted::Duplicate => Err(Refusal::IdTaken { id }),
            Submitted::Unsaved(error) => Err(Refusal::Store(error)),
        });
        outcomes.collect()
    }
}
