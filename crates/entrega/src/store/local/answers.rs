//! Answers that are given again, and calls under way, in this process's memory.
//! Invariant: bounded in bytes; the least used leave first. What is past its time is not given, whether or not it left.
//! Never: writes to the ledger; a restart costs a few calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::time::Time;
use moka::sync::Cache;
use parking_lot::Mutex;

use super::LocalStore;
use crate::store::{AnswerCache, StoreError, StoredAnswer};

/// What all answers together may take.
const BYTES_MAX: u64 = 64 << 20;
/// What an entry takes beside its key and its body, about.
const ENTRY_BYTES: usize = 256;

#[derive(Clone)]
struct Held {
    answer: StoredAnswer,
    until: Time,
    keep: Duration,
}

/// Lets each answer leave when its own time is over.
struct OwnTime;

impl moka::Expiry<String, Held> for OwnTime {
    fn expire_after_create(&self, _: &String, held: &Held, _: Instant) -> Option<Duration> {
        Some(held.keep)
    }

    fn expire_after_update(&self, _: &String, held: &Held, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(held.keep)
    }
}

/// What is remembered of calls.
pub(super) struct Answers {
    kept: Cache<String, Held>,
    /// Who makes which call, and until when that counts; at most as many as attempts are under way.
    calls: Mutex<HashMap<String, (JobId, Time)>>,
}

impl Default for Answers {
    fn default() -> Answers {
        let bytes = |key: &String, held: &Held| {
            u32::try_from(key.len() + held.answer.body.0.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let kept = Cache::builder().max_capacity(BYTES_MAX).weigher(bytes).expire_after(OwnTime).build();
        Answers { kept, calls: Mutex::default() }
    }
}

#[async_trait]
impl AnswerCache for LocalStore {
    async fn cached(&self, key: &str) -> Result<Option<StoredAnswer>, StoreError> {
        let now = self.shared.clock.now();
        Ok(self.shared.answers.kept.get(key).filter(|held| held.until > now).map(|held| held.answer))
    }

    async fn cache(&self, key: &str, answer: StoredAnswer, keep: Duration) -> Result<(), StoreError> {
        let until = self.shared.clock.now() + keep;
        self.shared.answers.kept.insert(key.to_owned(), Held { answer, until, keep });
        Ok(())
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        let now = self.shared.clock.now();
        let mut calls = self.shared.answers.calls.lock();
        let is_free = calls.get(key).is_none_or(|(_, until)| *until <= now);
        if is_free {
            calls.insert(key.to_owned(), (caller, now + lasts));
        }
        Ok(is_free)
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        let mut calls = self.shared.answers.calls.lock();
        if calls.get(key).is_some_and(|(who, _)| *who == caller) {
            calls.remove(key);
        }
        Ok(())
    }
}
