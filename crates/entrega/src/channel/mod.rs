//! Channels: how a job leaves.
//! Invariant: an attempt ends by its deadline with an outcome; it never decides what that means.
//! Never: retries, stores, or knows lanes.

pub mod connector;
pub mod email;
pub mod event;
pub mod http;
pub mod proxy;
pub mod webhook;

use async_trait::async_trait;
use entrega_core::outcome::Outcome;
use tokio::time::Instant;

use crate::store::ClaimedJob;

/// A way out.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Makes one attempt under one deadline.
    async fn attempt(&self, job: &ClaimedJob, deadline: Instant) -> Outcome;

    /// Whether a job that was let past an open breaker is answered without a call. Only then may a lane say
    /// `when_open = "pass"`: otherwise what is down would be called without any limit.
    fn answers_alone(&self) -> bool {
        false
    }
}
