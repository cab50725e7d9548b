//! The gate before the API: one for all nodes, in the store's memory.
//! Invariant: counts as used up when the store is opened; decides between two awaits, at the moment of the answer.

use std::time::Duration;

use async_trait::async_trait;
use entrega::store::{GateKeeper, GateName, Passing, StoreError};
use entrega_core::id::JobId;
use entrega_core::lane::{Gate, GateKind};
use entrega_core::outcome::Lesson;
use entrega_core::policy::Scope;

use super::{SimStore, State, bent};
use crate::bug::Bug;
use crate::passes::Pass;

impl SimStore {
    /// Gets through to the gate: while the store is out of reach, some are told so and others wait.
    async fn come_to_gate(&self) -> Result<(), StoreError> {
        let life = &self.life;
        let is_patient = life.world.rng.lock().bool();
        if !is_patient {
            self.get_through().await?;
        }
        life.reach().await;
        life.wait_for_store().await;
        life.wait(life.latency()).await;
        life.reach().await;
        Ok(())
    }

    /// Does something with a gate; nothing where it holds nothing.
    fn at_gate<T>(&self, gate: &GateName, act: impl FnOnce(&mut Gate) -> T) -> Option<T> {
        let mut state = self.shared.state.lock();
        let node = if self.has(Bug::GatePerNode) { self.node } else { 0 };
        let State { gates, opened_at, .. } = &mut *state;
        let made = gates.entry((gate.name.clone(), node)).or_insert_with(|| {
            let is_bent = self.has(Bug::GateOffByOne).then_some(Bug::ThrottleOffByOne);
            let mut made = Gate::new(&bent(&gate.policy, is_bent, 1), Scope::Lane);
            if !self.has(Bug::GateForgotten) {
                made.iter_mut().for_each(|made| made.assume_spent(*opened_at));
            }
            made
        });
        made.as_mut().map(act)
    }
}

#[async_trait]
impl GateKeeper for SimStore {
    async fn pass(&self, gate: &GateName) -> Result<Passing, StoreError> {
        self.come_to_gate().await?;
        let now = self.now();
        let hold = self.at_gate(gate, |gate| {
            let hold = gate.call(now, true);
            if self.has(Bug::GateNeverOpens) && hold.is_some_and(|hold| hold.gate == GateKind::Breaker) {
                gate.learn(now, JobId::MIN, Lesson::Slower(Some(Duration::from_hours(1))), Duration::ZERO);
            }
            hold
        });
        let passing = Passing::of(now, hold.flatten());
        if passing == Passing::Through {
            self.life.world.witness.lock().passed(now, self.node, gate, Pass::Turn);
        }
        Ok(passing)
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Passing, StoreError> {
        let mut going = Going { store: self, gate, pass: Some(Pass::Uncounted) };
        self.come_to_gate().await?;
        let now = self.now();
        let hold = self.at_gate(gate, |gate| match self.has(Bug::AnywayUncounted) {
            true => gate.clone().call(now, false),
            false => gate.call(now, false),
        });
        let passing = Passing::of(now, hold.flatten());
        going.pass = (passing == Passing::Through).then_some(Pass::Anyway);
        Ok(passing)
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        self.come_to_gate().await?;
        let now = self.now();
        let heard = match lesson {
            Lesson::Slower(Some(_)) if self.has(Bug::GateImpatient) => Lesson::Slower(None),
            heard => heard,
        };
        if !self.has(Bug::GateDeaf) {
            self.at_gate(gate, |gate| gate.learn(now, JobId::MIN, heard, took));
        }
        self.life.world.witness.lock().gate_learned(now, gate, lesson);
        Ok(())
    }
}

/// Somebody who goes without a turn, whether the gate is told in time or not.
struct Going<'a> {
    store: &'a SimStore,
    gate: &'a GateName,
    /// None where it may not.
    pass: Option<Pass>,
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let SimStore { life, node, .. } = self.store;
        if let Some(pass) = self.pass {
            life.world.witness.lock().passed(life.clock.now(), *node, self.gate, pass);
        }
    }
}
