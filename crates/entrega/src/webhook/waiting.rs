//! Waiting jobs: what waited for an endpoint that was paused, disabled or gone goes on when it is back.
//! Invariant: a job waits as long as its endpoint is not enabled; then endpoints take turns, so that nobody waits for what
//! another one has waiting.
//! Never: looks at, or releases, more than a bounded number of jobs at a time; the next turn goes on where this one ended.

use std::collections::{BTreeMap, VecDeque};

use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};

use super::WEBHOOK_LANE;
use crate::env::Env;
use crate::store::{ChangeError, EndpointState, LaneView, Page, StoreError};

/// Jobs of a page.
const PAGE: usize = 4_096;
/// Pages that are read in one turn.
const PAGES_MAX: usize = 4;
/// Jobs of one endpoint that are remembered; the rest is found again when these are gone.
const FOUND_MAX: usize = 512;
/// Jobs that are released in one turn.
const RELEASED_MAX: usize = 256;

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
    let mut waiting = Waiting::default();
    waiting.look_again();
    while waiting.is_at_work() {
        if let Err(error) = waiting.turn(&env, LaneScope::All).await {
            tracing::warn!(errorReason = %error, "Jobs that wait for an endpoint could not be looked at; it is tried again");
            return;
        }
    }
}

/// What may go on, and where the look for more of it stands.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By endpoint, oldest first.
    free: BTreeMap<TenantName, VecDeque<JobId>>,
    /// Whose turn was last.
    last: Option<TenantName>,
    is_looking: bool,
    after: Option<JobId>,
    /// Whether an endpoint has more than is remembered.
    is_cut: bool,
}

impl Waiting {
    /// Begins a look at all that wait, unless one is under way.
    pub(crate) fn look_again(&mut self) {
        self.is_looking = true;
    }

    fn is_at_work(&self) -> bool {
        self.is_looking || !self.free.is_empty()
    }

    /// Looks on and lets go on what may, a bounded number of both.
    pub(crate) async fn turn(&mut self, env: &Env, scope: LaneScope) -> Result<(), StoreError> {
        if !self.is_at_work() {
            return Ok(());
        }
        let Some(lane) = env.lanes.keys().find(|lane| lane.as_str() == WEBHOOK_LANE) else {
            *self = Waiting::default();
            return Ok(());
        };
        let lanes = env.store.lanes().await?;
        let is_ours = |view: &LaneView| scope == LaneScope::All || view.is_owned;
        if lanes.iter().find(|view| view.name == *lane).is_none_or(|view| view.blocked == 0 || !is_ours(view)) {
            *self = Waiting::default();
            return Ok(());
        }
        for _ in 0..PAGES_MAX {
            if self.is_looking {
                self.look_on(env, lane).await?;
            }
        }
        for _ in 0..RELEASED_MAX {
            let Some((endpoint, id)) = self.next() else { break };
            // It may have been disabled since it was found.
            if is_enabled(env, &endpoint) {
                release(env, id).await?;
            }
        }
        if self.free.is_empty() && std::mem::take(&mut self.is_cut) {
            self.look_again();
        }
        Ok(())
    }

    async fn look_on(&mut self, env: &Env, lane: &LaneName) -> Result<(), StoreError> {
        let page = env.store.blocked(lane, Page { after: self.after, limit: PAGE }).await?;
        for (id, endpoint) in page.items {
            if !is_enabled(env, &endpoint) {
                continue;
            }
            let found = self.free.entry(endpoint).or_default();
            match found.len() < FOUND_MAX {
                true => found.push_back(id),
                false => self.is_cut = true,
            }
        }
        self.after = page.next;
        self.is_looking = self.after.is_some();
        Ok(())
    }

    /// The oldest job of the endpoint whose turn it is.
    fn next(&mut self) -> Option<(TenantName, JobId)> {
        let after = self.last.take().and_then(|last| {
            let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.free.range(behind).next().map(|(endpoint, _)| endpoint.clone())
        });
        let endpoint = after.or_else(|| self.free.keys().next().cloned())?;
        let found = self.free.get_mut(&endpoint)?;
        let id = found.pop_front();
        if found.is_empty() {
            self.free.remove(&endpoint);
        }
        self.last = Some(endpoint.clone());
        id.map(|id| (endpoint, id))
    }
}

fn is_enabled(env: &Env, endpoint: &TenantName) -> bool {
    let name = endpoint.endpoint_name().unwrap_or_default();
    env.store.endpoint(&endpoint.company(), name).is_some_and(|endpoint| endpoint.state == EndpointState::Enabled)
}

async fn release(env: &Env, id: JobId) -> Result<(), StoreError> {
    match env.store.unblock(id).await {
        // Another node was faster.
        Ok(()) | Err(ChangeError::Unknown | ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => Ok(()),
        Err(ChangeError::Store(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 000 blocked webhooks of one tenant held up the one of another for 99 seconds.
    #[test]
    fn endpoints_take_turns_whatever_each_has_waiting() {
        let name = |tenant: &str| TenantName::new(tenant).unwrap().endpoint("default");
        let mut waiting = Waiting::default();
        waiting.free.insert(name("acme"), (0..5).map(|number| JobId::from_bytes([number; 16])).collect());
        waiting.free.insert(name("zeta"), VecDeque::from([JobId::from_bytes([9; 16])]));
        let order: Vec<_> = std::iter::from_fn(|| waiting.next()).map(|(_, id)| id.as_bytes()[0]).collect();
        assert_eq!(order, [0, 9, 1, 2, 3, 4]);
        assert!(!waiting.is_at_work());
    }
}
