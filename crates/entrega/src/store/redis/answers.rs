//! Answers that are given again, and calls under way, shared by all nodes.
//! Invariant: whoever began a call ends it; a node that died is forgotten after as long as a call may take.

use std::time::Duration;

use async_trait::async_trait;
use entrega_core::id::JobId;
use redis::Value;

use super::answer::Reader;
use super::{RedisStore, schema};
use crate::store::records::{decode, encode};
use crate::store::{AnswerCache, StoreError, StoredAnswer};

const READING: Reader = Reader("a look for an answer");

/// Takes a key away from whoever holds it, and from nobody else.
const END_CALL: &str = "#!lua flags=allow-oom\n\
    if redis.call('GET', ARGV[1]) == ARGV[2] then return redis.call('DEL', ARGV[1]) end return 0";

/// Whole milliseconds, at least one: what Redis counts in.
fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[async_trait]
impl AnswerCache for RedisStore {
    async fn cached(&self, key: &str) -> Result<Option<StoredAnswer>, StoreError> {
        let mut command = redis::cmd("GET");
        command.arg(schema::answer(&self.shared.options.prefix, key));
        let Some(bytes) = READING.bytes(self.shared.link.ask(&command).await?)? else { return Ok(None) };
        decode(&bytes).map(Some).map_err(|error| READING.wrong(error.to_string()))
    }

    async fn cache(&self, key: &str, answer: StoredAnswer, keep: Duration) -> Result<(), StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(schema::answer(&self.shared.options.prefix, key)).arg(encode(&answer)).arg("PX").arg(millis(keep));
        self.shared.link.ask(&command).await.map(drop)
    }

    async fn begin_call(&self, key: &str, caller: JobId, lasts: Duration) -> Result<bool, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(schema::call(&self.shared.options.prefix, key)).arg(&caller.as_bytes()[..]);
        command.arg("NX").arg("PX").arg(millis(lasts));
        Ok(self.shared.link.ask(&command).await? != Value::Nil)
    }

    async fn end_call(&self, key: &str, caller: JobId) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(END_CALL).arg(0).arg(schema::call(&self.shared.options.prefix, key)).arg(&caller.as_bytes()[..]);
        self.shared.link.ask(&command).await.map(drop)
    }
}
