//! What is counted of a connector's calls.

use std::sync::Arc;

use entrega_call::{AttemptEnded, Observer, ThrottleWaited};

use super::LANE_PREFIX;
use crate::metrics::Metrics;

pub(super) struct Watch {
    metrics: Arc<Metrics>,
    connector: String,
    lane: String,
}

impl Watch {
    pub(super) fn new(metrics: Arc<Metrics>, connector: &str) -> Watch {
        Watch { metrics, connector: connector.to_owned(), lane: format!("{LANE_PREFIX}{connector}") }
    }
}

impl Observer for Watch {
    fn attempt_ended(&self, ended: AttemptEnded<'_>) {
        let outcome = match (ended.is_success, ended.is_retryable) {
            (true, _) => "success",
            (false, true) => "retry",
            (false, false) => "failed",
        };
        self.metrics.connector_attempt(&self.connector, outcome, ended.took);
    }

    fn throttle_waited(&self, waited: ThrottleWaited<'_>) {
        self.metrics.throttle_wait(&self.lane, waited.took);
    }
}
