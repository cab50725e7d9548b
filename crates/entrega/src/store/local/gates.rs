//! Gates before destinations that are called without a queue, in this process's memory.
//! Invariant: a gate counts as used up when the store was opened, for nobody remembers the starts of the process before.
//! Never: waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::lane::Gate;
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::time::Time;
use parking_lot::Mutex;

use super::LocalStore;
use crate::store::{GateKeeper, GateName, Passing, StoreError};

/// A gate, and the policy that it was made for; none where that policy holds nothing.
type Made = (Arc<LanePolicy>, Option<Gate>);

/// All gates: as many as there are connectors.
pub(super) struct Gates {
    opened_at: Time,
    by_name: Mutex<HashMap<LaneName, Made>>,
}

impl Gates {
    pub(super) fn opened_at(now: Time) -> Gates {
        Gates { opened_at: now, by_name: Mutex::default() }
    }

    /// Does something with a gate. Whoever comes with another policy, as one does that waited while its connector was
    /// changed, finds what the gate knows.
    fn with<T>(&self, gate: &GateName, now: Time, act: impl FnOnce(&mut Gate) -> T) -> Option<T> {
        let mut by_name = self.by_name.lock();
        let is_same = |kept: &LanePolicy| kept.throttle == gate.policy.throttle && kept.breaker == gate.policy.breaker;
        match by_name.get_mut(&gate.name) {
            Some((policy, _)) if is_same(policy) => {}
            Some((policy, Some(made))) => {
                made.change(&gate.policy, Scope::Lane);
                *policy = gate.policy.clone();
            }
            // Of starts that nothing held nobody knows.
            known => {
                let spent_at = if known.is_none() { self.opened_at } else { now };
                let mut made = Gate::new(&gate.policy, Scope::Lane);
                made.iter_mut().for_each(|made| made.assume_spent(spent_at));
                by_name.insert(gate.name.clone(), (gate.policy.clone(), made));
            }
        }
        by_name.get_mut(&gate.name).and_then(|(_, gate)| gate.as_mut()).map(act)
    }

    fn pass(&self, gate: &GateName, now: Time, waits: bool) -> Passing {
        Passing::of(now, self.with(gate, now, |gate| gate.call(now, waits)).flatten())
    }
}

#[async_trait]
impl GateKeeper for LocalStore {
    async fn pass(&self, gate: &GateName) -> Result<Passing, StoreError> {
        Ok(self.shared.gates.pass(gate, self.shared.clock.now(), true))
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Passing, StoreError> {
        Ok(self.shared.gates.pass(gate, self.shared.clock.now(), false))
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        self.shared.gates.with(gate, now, |gate| gate.learn(now, JobId::MIN, lesson, took));
        Ok(())
    }
}
