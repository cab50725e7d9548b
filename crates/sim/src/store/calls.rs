//! Calls without a queue: the proxy's answers, and the gate before the API.

use std::time::Duration;

use async_trait::async_trait;
use entrega::store::{AnswerCache, CachedAnswer, GateKeeper, GateName, StoreError};
use entrega_core::id::JobId;
use entrega_core::lane::{Gate, GateKind, Hold};
use entrega_core::outcome::Lesson;
use entrega_core::policy::Scope;
use entrega_core::time::Time;

use super::{WatchedStore, bent};
use crate::bug::Bug;
use crate::route::question_of_key;
use crate::witness::passes::Pass;

#[async_trait]
impl AnswerCache for WatchedStore {
    async fn cached(&self, key: &str) -> Result<Option<CachedAnswer>, StoreError> {
        self.life.reach().await;
        let key = match self.life.world.bug {
            Some(Bug::CacheBlind) => return Ok(None),
            Some(Bug::CacheMixesUp) => self.life.world.first_cached.lock().clone().unwrap_or_else(|| key.to_owned()),
            _ => key.to_owned(),
        };
        let found = self.inner.cached(&key).await;
        let mut answer = found.inspect_err(|_| self.note_unanswered(&key))?;
        if self.has(Bug::CacheKeepsYoung) {
            answer.iter_mut().for_each(|answer| answer.stored_at = self.life.clock.now());
        }
        Ok(answer)
    }

    async fn cache(&self, key: &str, answer: CachedAnswer, keep: Duration) -> Result<(), StoreError> {
        self.life.reach().await;
        let world = &self.life.world;
        world.first_cached.lock().get_or_insert_with(|| key.to_owned());
        if !self.life.is_shared() {
            world.witness.lock().kept(self.life.clock.now(), question_of_key(key), &answer);
            return self.inner.cache(key, answer, keep).await;
        }
        // Other nodes find it once it is written.
        self.inner.cache(key, answer.clone(), keep).await?;
        world.witness.lock().kept(self.life.clock.now(), question_of_key(key), &answer);
        Ok(())
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        self.life.reach().await;
        if self.has(Bug::SingleFlightPerNode) {
            return Ok(true);
        }
        let begun = self.inner.begin_call(key, caller, lasts).await;
        begun.inspect_err(|_| self.note_unanswered(key))
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        self.life.reach().await;
        self.inner.end_call(key, caller).await
    }
}

impl WatchedStore {
    fn note_unanswered(&self, key: &str) {
        let life = &self.life;
        life.world.witness.lock().unanswered(life.clock.now(), life.number(), question_of_key(key));
    }

    /// The gate as a planted bug wants it.
    fn bent_gate(&self, gate: &GateName) -> GateName {
        let is_bent = self.has(Bug::GateOffByOne).then_some(Bug::ThrottleOffByOne);
        GateName { name: gate.name.clone(), policy: bent(&gate.policy, is_bent) }
    }

    /// Asks a gate that knows nothing of the life before.
    fn forgetful(&self, gate: &GateName) -> Option<Hold> {
        let now = self.life.clock.now();
        let mut gates = self.gates.lock();
        let made = gates.entry(gate.name.clone()).or_insert_with(|| Gate::new(&gate.policy, Scope::Lane));
        made.as_mut().and_then(|gate| gate.call(now, true))
    }
}

#[async_trait]
impl GateKeeper for WatchedStore {
    async fn pass(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        self.life.reach().await;
        self.life.wait(self.life.latency()).await;
        self.life.reach().await;
        let asked_at = self.asked_at();
        let is_alone = self.has(Bug::GatePerNode) && self.life.is_shared();
        let hold = match self.has(Bug::GateForgotten) || is_alone {
            true => self.forgetful(gate),
            false => self.inner.pass(&self.bent_gate(gate)).await?,
        };
        let now = self.life.clock.now();
        if self.has(Bug::GateNeverOpens) && matches!(hold, Some(Hold { gate: GateKind::Breaker, .. })) {
            let pause = Lesson::Slower(Some(Duration::from_hours(1)));
            self.inner.learn(gate, pause, Duration::ZERO).await?;
        }
        if hold.is_none() {
            self.life.world.witness.lock().passed(now, asked_at, gate, Pass::Turn);
        }
        Ok(hold)
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Option<Hold>, StoreError> {
        let mut going = Going { store: self, gate, asked_at: self.asked_at(), pass: Some(Pass::Uncounted) };
        self.life.reach().await;
        let hold = match self.has(Bug::AnywayUncounted) {
            true => None,
            false => self.inner.pass_anyway(&self.bent_gate(gate)).await?,
        };
        going.pass = hold.is_none().then_some(Pass::Anyway);
        Ok(hold)
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        self.life.reach().await;
        let heard = match lesson {
            Lesson::Slower(Some(_)) if self.has(Bug::GateImpatient) => Lesson::Slower(None),
            heard => heard,
        };
        let asked_at = self.life.clock.now();
        self.life.world.witness.lock().gate_learning(asked_at, gate, lesson);
        let mut teaching = Teaching { store: self, gate, asked_at, lesson, is_heard: false };
        if !self.has(Bug::GateDeaf) {
            self.inner.learn(&self.bent_gate(gate), heard, took).await?;
        }
        teaching.is_heard = true;
        Ok(())
    }
}

/// Somebody who tells a gate something, and may be gone before it is answered.
struct Teaching<'a> {
    store: &'a WatchedStore,
    gate: &'a GateName,
    asked_at: Time,
    lesson: Lesson,
    is_heard: bool,
}

impl Drop for Teaching<'_> {
    fn drop(&mut self) {
        let life = &self.store.life;
        let mut witness = life.world.witness.lock();
        match self.is_heard {
            true => witness.gate_learned(life.clock.now(), self.asked_at, self.gate, self.lesson),
            false => witness.gate_may_learn(life.clock.now(), self.asked_at, self.gate, self.lesson),
        }
    }
}

/// Somebody who goes without a turn, whether the gate is told in time or not.
struct Going<'a> {
    store: &'a WatchedStore,
    gate: &'a GateName,
    asked_at: Time,
    /// None where it may not.
    pass: Option<Pass>,
}

impl Drop for Going<'_> {
    fn drop(&mut self) {
        let life = &self.store.life;
        if let Some(pass) = self.pass {
            life.world.witness.lock().passed(life.clock.now(), self.asked_at, self.gate, pass);
        }
    }
}
