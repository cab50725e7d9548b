//! What the verbs of calls without a queue take and give: cached answers, gates.
//! Invariant: plain values; nothing here can touch a store.

use std::sync::Arc;

use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use super::KeptAnswer;

/// An answer of an upstream, kept in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedAnswer {
    /// When it was given.
    pub stored_at: Time,
    /// For which job.
    pub job: JobId,
    /// The answer.
    pub answer: KeptAnswer,
}

/// A gate that is not a lane's: its name, and the policy whose throttle and breaker it keeps.
#[derive(Clone, Debug)]
pub struct GateName {
    /// Its name; gates with one name are one gate.
    pub name: LaneName,
    /// Its policy.
    pub policy: Arc<LanePolicy>,
}
