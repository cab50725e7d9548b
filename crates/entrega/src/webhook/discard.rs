//! Discarding what waits for an endpoint: the other way out for jobs that are blocked because nobody calls it.
//! Invariant: every job that ends here is `cancelled` with the reason, counted and logged; a call ends a bounded number
//! and says where the next one goes on.
//! Never: asks whether the endpoint is there; what waits for one that was removed could otherwise never end.

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::mask::mask_text;
use entrega_core::name::{LaneName, TenantName};

use super::WEBHOOK_LANE;
use crate::env::Env;
use crate::store::{ChangeError, JobFilter, JobView, Page, StoreError};

/// The most jobs that one call ends are those of so many pages.
const PAGE: usize = 50;
const PAGES_MAX: usize = 10;

/// What one call discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// How many jobs.
    pub count: usize,
    /// Where the next call goes on; `None` when all were looked at.
    pub next: Option<JobId>,
}

/// Ends jobs that wait for a tenant's endpoint, going on after `after`.
///
/// # Errors
/// The store cannot be read or written; what was ended before that stays so.
pub async fn discard_waiting(
    env: &Env,
    tenant: &TenantName,
    name: &str,
    reason: &str,
    after: Option<JobId>,
) -> Result<Discarded, StoreError> {
    let filter = JobFilter {
        lane: Some(LaneName::new(WEBHOOK_LANE).expect("a lane name")),
        tenant: Some(tenant.endpoint(name)),
        states: vec![JobState::Blocked],
    };
    let mut discarded = Discarded { count: 0, next: after };
    for _ in 0..PAGES_MAX {
        let page = env.store.jobs(&filter, Page { after: discarded.next, limit: PAGE }).await?;
        for job in page.items {
            discarded.count += usize::from(end(env, &job, reason).await?);
        }
        discarded.next = page.next;
        if discarded.next.is_none() {
            break;
        }
    }
    Ok(discarded)
}

/// Ends one; whether it was still there to be ended.
async fn end(env: &Env, job: &JobView, reason: &str) -> Result<bool, StoreError> {
    match env.store.cancel(job.job_id, reason).await {
        Ok(_) => {}
        // Its endpoint was enabled in the meantime, or somebody else discards as well.
        Err(ChangeError::Unknown | ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => return Ok(false),
        Err(ChangeError::Store(error)) => return Err(error),
    }
    env.metrics.dropped(&job.lane, "cancelled");
    tracing::warn!(lane = %job.lane, jobId = %job.job_id, companyId = %job.company_id,
        endpoint = job.endpoint.as_deref().unwrap_or_default(), errorReason = mask_text(reason), "Job discarded");
    Ok(true)
}
