//! Waiting jobs: what waited for an endpoint that was paused, disabled or gone goes on when it is back.
//! Invariant: a job waits as long as its endpoint is not enabled, and no longer than some seconds after.
//! Never: looks at more than a bounded number of jobs at a time; the next look goes on where this one ended.

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::name::LaneName;

use super::WEBHOOK_LANE;
use crate::env::Env;
use crate::store::{ChangeError, EndpointState, JobFilter, JobView, LaneView, Page, StoreError};

const PAGE: usize = 200;
const PAGES_MAX: usize = 20;

/// Of nodes that share a store, whose jobs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneScope {
    /// Those of lanes that this node owns; the other nodes look at theirs.
    Owned,
    /// All.
    All,
}

/// Lets jobs go on that waited for an endpoint which is enabled now, without waiting for the next turn.
pub(crate) async fn release_waiting(env: Env) {
    if let Err(error) = Waiting::default().look(&env, LaneScope::All).await {
        tracing::warn!(errorReason = %error, "Jobs that wait for an endpoint could not be looked at; it is tried again");
    }
}

/// Where the last look ended.
#[derive(Default)]
pub(crate) struct Waiting {
    after: Option<JobId>,
}

impl Waiting {
    /// Lets go on what may.
    pub(crate) async fn look(&mut self, env: &Env, scope: LaneScope) -> Result<(), StoreError> {
        let Some(lane) = env.lanes.keys().find(|lane| lane.as_str() == WEBHOOK_LANE) else { return Ok(()) };
        let lanes = env.store.lanes().await?;
        let is_ours = |view: &LaneView| scope == LaneScope::All || view.is_owned;
        if lanes.iter().find(|view| view.name == *lane).is_none_or(|view| view.blocked == 0 || !is_ours(view)) {
            self.after = None;
            return Ok(());
        }
        for _ in 0..PAGES_MAX {
            let page = self.page(env, lane).await?;
            for job in page {
                if is_free(env, &job) {
                    release(env, job.job_id).await?;
                }
            }
            if self.after.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn page(&mut self, env: &Env, lane: &LaneName) -> Result<Vec<JobView>, StoreError> {
        let filter = JobFilter { lane: Some(lane.clone()), tenant: None, states: vec![JobState::Blocked] };
        let paged = env.store.jobs(&filter, Page { after: self.after, limit: PAGE }).await?;
        self.after = paged.next;
        Ok(paged.items)
    }
}

fn is_free(env: &Env, job: &JobView) -> bool {
    let name = job.endpoint.as_deref().unwrap_or_default();
    let endpoint = env.store.endpoint(&job.company_id, name);
    endpoint.is_some_and(|endpoint| endpoint.state == EndpointState::Enabled)
}

async fn release(env: &Env, id: JobId) -> Result<(), StoreError> {
    match env.store.unblock(id).await {
        // Another node was faster.
        Ok(()) | Err(ChangeError::Unknown | ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => Ok(()),
        Err(ChangeError::Store(error)) => Err(error),
    }
}
