//! Answers that are given again, and calls under way: what all nodes know of the upstream.
//! Invariant: in memory only, so that a restart costs calls; what is past its time is not given.

use std::time::Duration;

use async_trait::async_trait;
use entrega::store::{AnswerCache, StoreError, StoredAnswer};
use entrega_core::id::JobId;

use super::SimStore;
use crate::bug::Bug;
use crate::route::question_of_key;

#[async_trait]
impl AnswerCache for SimStore {
    async fn cached(&self, key: &str) -> Result<Option<StoredAnswer>, StoreError> {
        self.get_through().await?;
        let now = self.now();
        let state = self.shared.state.lock();
        let any = || state.answers.values().next();
        let found = match self.life.world.bug {
            Some(Bug::CacheBlind) => None,
            Some(Bug::CacheMixesUp) => any(),
            _ => state.answers.get(key),
        };
        let mut answer = found.filter(|(_, until)| *until > now).map(|(answer, _)| answer.clone());
        if self.has(Bug::CacheKeepsYoung) {
            answer.iter_mut().for_each(|answer| answer.stored_at = now);
        }
        Ok(answer)
    }

    async fn cache(&self, key: &str, answer: StoredAnswer, keep: Duration) -> Result<(), StoreError> {
        self.get_through().await?;
        let now = self.now();
        self.life.world.witness.lock().kept(now, question_of_key(key), &answer);
        self.shared.state.lock().answers.insert(key.to_owned(), (answer, now + keep));
        Ok(())
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        self.get_through().await?;
        let now = self.now();
        let mut state = self.shared.state.lock();
        let is_free = state.calls.get(key).is_none_or(|(_, until)| *until <= now) || self.has(Bug::CallsNotShared);
        if is_free {
            state.calls.insert(key.to_owned(), (caller, now + lasts));
        }
        Ok(is_free)
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        self.get_through().await?;
        let mut state = self.shared.state.lock();
        if state.calls.get(key).is_some_and(|(who, _)| *who == caller) {
            state.calls.remove(key);
        }
        Ok(())
    }
}
