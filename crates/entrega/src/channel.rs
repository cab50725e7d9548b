//! Channels: how the jobs of a product leave.
//! Invariant: an attempt ends by its deadline with an outcome; it never decides what that means.
//! Never: retries, stores, or knows lanes.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use entrega_core::classify::Rule;
use entrega_core::job::Job;
use entrega_core::outcome::Outcome;
use tokio::time::Instant;

use crate::store::ClaimedJob;

/// The channels of an engine, by the name in a lane's policy.
pub type Channels = HashMap<String, Arc<dyn Channel>>;

/// A way out. Whatever is not said otherwise holds for jobs of every kind.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Makes one attempt under one deadline.
    async fn attempt(&self, job: &ClaimedJob, deadline: Instant) -> Outcome;

    /// Rules of the job's own destination; they come before those of its lane.
    fn rules(&self, _job: &Job) -> Vec<Rule> {
        Vec::new()
    }

    /// Whether a job that was let past an open breaker is answered without a call. Only then may a lane say
    /// `when_open = "pass"`: otherwise what is down would be called without any limit.
    fn answers_alone(&self) -> bool {
        false
    }
}
