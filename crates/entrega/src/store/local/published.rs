//! What another node shows of a lane: whether it has room for one job more, and for whose.
//! Invariant: what this node left for the lane since counts, so that it never fills one up between two looks.

use std::collections::HashSet;

use entrega_core::name::TenantName;
use entrega_core::policy::{LanePolicy, OnFull};
use entrega_core::quota::Quota;

use crate::store::Submitted;

/// What was shown of a lane, and what this node left for it since.
#[derive(Debug, Default)]
pub(super) struct Published {
    waiting: u32,
    handed: u32,
    /// Tenants that have all the places they may have.
    without_places: HashSet<TenantName>,
}

impl Published {
    /// Whether another job may be left for the lane, or why not; it counts at once. A lane that pushes out is left more than
    /// it holds: which job has to go, its owner says.
    pub(super) fn take_in(&mut self, policy: &LanePolicy, tenant: &TenantName) -> Result<(), Submitted> {
        let most = match policy.on_full {
            OnFull::Refuse => u64::from(policy.capacity),
            OnFull::Preempt => u64::from(policy.capacity) * 2,
        };
        if !self.without_places.is_empty() && self.without_places.contains(&tenant.company()) {
            return Err(Submitted::OverQuota(Quota::Places));
        }
        if u64::from(self.waiting) + u64::from(self.handed) >= most {
            return Err(Submitted::Full);
        }
        self.handed += 1;
        Ok(())
    }

    pub(super) fn show(&mut self, waiting: u32, without_places: Vec<TenantName>) {
        *self = Published { waiting, handed: 0, without_places: without_places.into_iter().collect() };
    }
}
