//! Endpoints: what waited for one that was paused, disabled or gone goes on when it is back.
//! Invariant: a job waits as long as its endpoint is not enabled, and no longer than some seconds after.
//! Never: looks at more than a bounded number of jobs at a time; the next look goes on where this one ended.

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::name::LaneName;

use crate::engine::Engine;
use crate::events::WEBHOOK_LANE;
use crate::store::{ChangeError, EndpointState, JobFilter, JobView, LaneView, Page, StoreError};

const PAGE: usize = 200;
const PAGES_MAX: usize = 20;

/// Of nodes that share a store, whose jobs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of lanes that this node owns; the other nodes look at theirs.
    Ours,
    /// All.
    Anybodys,
}

/// Where the last look ended.
#[derive(Default)]
pub(super) struct Waiting {
    after: Option<JobId>,
}

impl Waiting {
    /// Lets go on what may.
    pub(super) async fn look(&mut self, engine: &Engine, whose: Whose) -> Result<(), StoreError> {
        let Some(lane) = engine.lanes.keys().find(|lane| lane.as_str() == WEBHOOK_LANE) else { return Ok(()) };
        let lanes = engine.store.lanes().await?;
        let is_ours = |view: &LaneView| whose == Whose::Anybodys || view.is_owned;
        if lanes.iter().find(|view| view.name == *lane).is_none_or(|view| view.blocked == 0 || !is_ours(view)) {
            self.after = None;
            return Ok(());
        }
        for _ in 0..PAGES_MAX {
            let page = self.page(engine, lane).await?;
            for job in page {
                if is_free(engine, &job) {
                    release(engine, job.job_id).await?;
                }
            }
            if self.after.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn page(&mut self, engine: &Engine, lane: &LaneName) -> Result<Vec<JobView>, StoreError> {
        let filter = JobFilter { lane: Some(lane.clone()), tenant: None, states: vec![JobState::Blocked] };
        let paged = engine.store.jobs(&filter, Page { after: self.after, limit: PAGE }).await?;
        self.after = paged.next;
        Ok(paged.items)
    }
}

fn is_free(engine: &Engine, job: &JobView) -> bool {
    let name = job.endpoint.as_deref().unwrap_or_default();
    let endpoint = engine.store.endpoint(&job.company_id, name);
    endpoint.is_some_and(|endpoint| endpoint.state == EndpointState::Enabled)
}

async fn release(engine: &Engine, id: JobId) -> Result<(), StoreError> {
    match engine.store.unblock(id).await {
        // Another node was faster.
        Ok(()) | Err(ChangeError::Unknown | ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => Ok(()),
        Err(ChangeError::Store(error)) => Err(error),
    }
}
