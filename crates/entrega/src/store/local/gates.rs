//! Gates before destinations that are called without a queue: in this process's memory, or where nodes share the ledger in a
//! record of theirs.
//! Invariant: a gate in memory counts as used up when the store was opened, for nobody remembers the starts of the process
//! before. A shared one is changed by whoever read it last; of two who are as fast, one looks again.
//! Never: waits for a turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::lane::{Gate, GateMemory, Hold};
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::time::Time;
use parking_lot::Mutex;

use super::changes::Decided;
use super::records;
use super::tables::CALLS;
use super::{LocalStore, Shared};
use crate::store::{GateKeeper, GateName, StoreError};

/// A gate, and the policy that it was made for; none where that policy holds nothing.
type Made = (Arc<LanePolicy>, Option<Gate>);

/// All gates: as many as there are connectors.
pub(super) struct Gates {
    opened_at: Time,
    by_name: Mutex<HashMap<LaneName, Made>>,
    /// Callers of one node come to a shared gate one after the other.
    turns: Mutex<HashMap<LaneName, Arc<tokio::sync::Mutex<()>>>>,
}

impl Gates {
    pub(super) fn opened_at(now: Time) -> Gates {
        Gates { opened_at: now, by_name: Mutex::default(), turns: Mutex::default() }
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

    fn pass(&self, gate: &GateName, now: Time, waits: bool) -> Option<Hold> {
        self.with(gate, now, |gate| gate.call(now, waits)).flatten()
    }
}

impl Shared {
    async fn pass(&self, gate: &GateName, waits: bool) -> Result<Option<Hold>, StoreError> {
        if self.cluster.is_none() {
            return Ok(self.gates.pass(gate, self.clock.now(), waits));
        }
        self.with_shared(gate, |made, now| made.and_then(|made| made.call(now, waits))).await
    }

    /// Does something with the gate that all nodes share.
    async fn with_shared<T: Send>(
        &self,
        gate: &GateName,
        act: impl Fn(Option<&mut Gate>, Time) -> T + Send + Sync,
    ) -> Result<T, StoreError> {
        let turn = self.gates.turns.lock().entry(gate.name.clone()).or_default().clone();
        let _turn = turn.lock().await;
        let key = format!("gate/{}", gate.name);
        let decided = self.decide(CALLS, &key, |found| {
            let now = self.clock.now();
            let Some(mut made) = Gate::new(&gate.policy, Scope::Lane) else {
                return Ok(Decided::Leave(act(None, now)));
            };
            let memory = found.map(|bytes| records::decode::<GateMemory>(CALLS, bytes)).transpose();
            let memory = self.readable(&key, memory)?.flatten();
            memory.into_iter().for_each(|memory| made.resume_with(now, memory));
            let value = act(Some(&mut made), now);
            let bytes = records::encode(&made.memory(now));
            Ok(match found.is_some_and(|found| **found == *bytes) {
                true => Decided::Leave(value),
                false => Decided::put(CALLS, &key, bytes, value),
            })
        });
        decided.await
    }
}

#[async_trait]
impl GateKeeper for LocalStore {
    async fn pass(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        self.shared.pass(gate, true).await
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        self.shared.pass(gate, false).await
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        let learn = |made: &mut Gate, now| made.learn(now, JobId::MIN, lesson, took);
        if self.shared.cluster.is_none() {
            let now = self.shared.clock.now();
            self.shared.gates.with(gate, now, |gate| learn(gate, now));
            return Ok(());
        }
        self.shared.with_shared(gate, |made, now| made.into_iter().for_each(|made| learn(made, now))).await
    }
}
