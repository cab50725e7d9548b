//! Replays of many dead letters, as the ledger keeps them.
//! Invariant: a tenant never has more than a node lets it begin, and what ended leaves in time; a run under way stays.
//! Never: carries one on.

use entrega_ledger::{Key, Unit};

use super::changes::Decided;
use super::command::{Change, Then};
use super::tables::REGISTRY;
use super::{Shared, records};
use crate::store::{BeginReplayError, ReplayRun, StoreError};

fn key(id: &str) -> String {
    format!("replay/{id}")
}

fn forget(unit: &mut Unit, ids: &[String]) {
    ids.iter().for_each(|id| unit.remove(REGISTRY, Key::Text(key(id))));
}

impl Shared {
    /// Keeps a new replay, in the write that takes those away that must leave for it.
    pub(super) async fn begin_replay(&self, replay: ReplayRun) -> Result<(), BeginReplayError> {
        let _one_at_a_time = self.registering.lock().await;
        let leaving = self.registered.read().replays.room_for(replay.filter.tenant.as_ref());
        let leaving = leaving.ok_or(BeginReplayError::TooMany)?;
        let key = key(&replay.id);
        let begun = self.decide(REGISTRY, &key, |_| {
            let mut unit = Unit::default();
            unit.put(REGISTRY, Key::Text(key.clone()), records::encode_json(&replay));
            forget(&mut unit, &leaving);
            self.mark_change(&mut unit);
            let (kept, leaving) = (replay.clone(), leaving.clone());
            Ok(Decided::Write(unit, (), None).then(move |shared| {
                let replays = &mut shared.registered.write().replays;
                leaving.iter().for_each(|id| replays.remove(id));
                replays.put(kept);
            }))
        });
        begun.await?;
        self.signal("registry".into());
        Ok(())
    }

    /// Keeps how far a replay has got. Whoever carries it on does so under the right to; anybody may begin one.
    pub(super) async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        let key = key(&replay.id);
        let kept = replay.clone();
        let then = move |shared: &Shared| shared.registered.write().replays.put(kept.clone());
        let house = self.house.read().clone();
        let is_known = self.registered.read().replays.get(&replay.id).is_some();
        match house.filter(|_| is_known) {
            Some(house) => {
                let _one_at_a_time = self.registering.lock().await;
                let mut unit = Unit::default();
                unit.put(REGISTRY, Key::Text(key), records::encode_json(&replay));
                self.mark_change(&mut unit);
                let then: Then = Box::new(then);
                let units = vec![unit];
                self.write(Change { hold: house, lane: None, units, ended: Vec::new(), then: Some(then) }).await?;
                self.signal("registry".into());
                Ok(())
            }
            None => self.put(&key, &replay, then).await,
        }
    }

    /// Forgets those that ended long ago. One node does.
    pub(super) async fn sweep_replays(&self) -> Result<(), StoreError> {
        let Some(house) = self.house.read().clone() else { return Ok(()) };
        let _one_at_a_time = self.registering.lock().await;
        let expired = self.registered.read().replays.expired(self.clock.now());
        if expired.is_empty() {
            return Ok(());
        }
        let mut unit = Unit::default();
        forget(&mut unit, &expired);
        self.mark_change(&mut unit);
        let then: Then = Box::new(move |shared| {
            let replays = &mut shared.registered.write().replays;
            expired.iter().for_each(|id| replays.remove(id));
        });
        self.write(Change { hold: house, lane: None, units: vec![unit], ended: Vec::new(), then: Some(then) }).await?;
        self.signal("registry".into());
        Ok(())
    }
}
