//! What another node shows of a lane: whether it has room for one job more.
//! Invariant: what this node left for the lane since counts, so that it never fills one up between two looks.

use entrega_core::policy::{LanePolicy, OnFull};

/// What was shown of a lane, and what this node left for it since.
#[derive(Debug, Default)]
pub(super) struct Published {
    waiting: u32,
    handed: u32,
}

impl Published {
    /// Whether another job may be left for the lane; it counts at once. A lane that pushes out is left more than it holds:
    /// which job has to go, its owner says.
    pub(super) fn take_in(&mut self, policy: &LanePolicy) -> bool {
        let most = match policy.on_full {
            OnFull::Refuse => u64::from(policy.capacity),
            OnFull::Preempt => u64::from(policy.capacity) * 2,
        };
        let has_room = u64::from(self.waiting) + u64::from(self.handed) < most;
        self.handed += u32::from(has_room);
        has_room
    }

    pub(super) fn show(&mut self, waiting: u32) {
        *self = Published { waiting, handed: 0 };
    }
}
