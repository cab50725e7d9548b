//! The cache of answers, and calls under way: in this process's memory, or where nodes share the ledger there.
//! Invariant: the memory is bounded in bytes; the least used leave first. What is past its time is not given, whether or
//! not it left.
//! Never: writes to a ledger that nobody shares; a restart costs a few calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};
use moka::sync::Cache;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::changes::Decided;
use super::reading::ReadError;
use super::records::{self, CallRow};
use super::tables::CALLS;
use super::{LocalStore, Shared};
use crate::store::{AnswerCache, CachedAnswer, StoreError};

/// What all answers together may take.
const BYTES_MAX: u64 = 64 << 20;
/// What an entry takes beside its key and its body, about.
const ENTRY_BYTES: usize = 256;

#[derive(Clone)]
struct Held {
    answer: CachedAnswer,
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
            u32::try_from(key.len() + held.answer.answer.body.0.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let kept = Cache::builder().max_capacity(BYTES_MAX).weigher(bytes).expire_after(OwnTime).build();
        Answers { kept, calls: Mutex::default() }
    }
}

/// Who makes a call.
type Caller = CallRow<JobId>;
/// An answer that is kept.
type Answer = CallRow<CachedAnswer>;

/// A record that expires, in the place of one before it.
fn put<T: Serialize>(key: &str, row: &CallRow<T>, before: Option<Time>) -> Unit {
    let mut unit = Unit::default();
    if let Some(before) = before {
        unit.remove(CALLS, Key::Text(records::expiry_key(before, key)));
    }
    unit.put(CALLS, Key::Text(records::expiry_key(row.expires, key)), Vec::new());
    unit.put(CALLS, Key::Text(key.to_owned()), records::encode(row));
    unit
}

impl Shared {
    /// What is under a key, and when it expires.
    fn call_row<T: DeserializeOwned>(&self, key: &str, found: Option<&Bytes>) -> Result<Option<CallRow<T>>, ReadError> {
        let row = found.map(|bytes| records::decode(CALLS, bytes)).transpose();
        Ok(self.readable(&key, row)?.flatten())
    }

    async fn shared_answer(&self, key: &str) -> Result<Option<Answer>, ReadError> {
        let read = self.ledger.read(CALLS, &[Key::Text(key.to_owned())]).await?;
        self.call_row(key, read.first().and_then(Option::as_ref))
    }

    /// What is kept under a key, if its time is not over.
    pub(super) async fn cached_answer(&self, key: &str) -> Result<Option<CachedAnswer>, ReadError> {
        let now = self.clock.now();
        if self.cluster.is_some() {
            let found = self.shared_answer(&format!("answer/{key}")).await?;
            return Ok(found.filter(|row| row.expires > now).map(|row| row.value));
        }
        Ok(self.answers.kept.get(key).filter(|held| held.until > now).map(|held| held.answer))
    }

    async fn share_answer(&self, key: &str, row: Answer) -> Result<(), StoreError> {
        let decided = self.decide(CALLS, key, |found| {
            let before = self.call_row::<CachedAnswer>(key, found)?.map(|row| row.expires);
            Ok(Decided::Write(put(key, &row, before), (), None))
        });
        decided.await
    }

    async fn begin_shared_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        let decided = self.decide(CALLS, key, |found| {
            let now = self.clock.now();
            let made: Option<Caller> = self.call_row(key, found)?;
            let before = made.as_ref().map(|made| made.expires);
            // A caller that begins again was cut off, or went with its node: it would wait for itself.
            Ok(match made.is_some_and(|made| made.expires > now && made.value != caller) {
                true => Decided::Leave(false),
                false => Decided::Write(put(key, &Caller { expires: now + lasts, value: caller }, before), true, None),
            })
        });
        decided.await
    }

    async fn end_shared_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        let decided = self.decide(CALLS, key, |found| {
            let made: Option<Caller> = self.call_row(key, found)?;
            let Some(made) = made.filter(|made| made.value == caller) else { return Ok(Decided::Leave(())) };
            let mut unit = Unit::default();
            unit.remove(CALLS, Key::Text(records::expiry_key(made.expires, key)));
            unit.remove(CALLS, Key::Text(key.to_owned()));
            Ok(Decided::Write(unit, (), None))
        });
        decided.await
    }
}

#[async_trait]
impl AnswerCache for LocalStore {
    async fn cached(&self, key: &str) -> Result<Option<CachedAnswer>, StoreError> {
        Ok(self.shared.cached_answer(key).await?)
    }

    async fn cache(&self, key: &str, answer: CachedAnswer, keep: Duration) -> Result<(), StoreError> {
        let until = self.shared.clock.now() + keep;
        if self.shared.cluster.is_some() {
            let row = Answer { expires: until, value: answer };
            return self.shared.share_answer(&format!("answer/{key}"), row).await;
        }
        self.shared.answers.kept.insert(key.to_owned(), Held { answer, until, keep });
        Ok(())
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        if self.shared.cluster.is_some() {
            return self.shared.begin_shared_call(&format!("call/{key}"), caller, lasts).await;
        }
        let now = self.shared.clock.now();
        let mut calls = self.shared.answers.calls.lock();
        let is_free = calls.get(key).is_none_or(|(who, until)| *until <= now || *who == caller);
        if is_free {
            calls.insert(key.to_owned(), (caller, now + lasts));
        }
        Ok(is_free)
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        if self.shared.cluster.is_some() {
            return self.shared.end_shared_call(&format!("call/{key}"), caller).await;
        }
        let mut calls = self.shared.answers.calls.lock();
        if calls.get(key).is_some_and(|(who, _)| *who == caller) {
            calls.remove(key);
        }
        Ok(())
    }
}
