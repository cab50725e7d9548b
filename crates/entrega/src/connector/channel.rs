//! The `connector` channel: a request to a third-party API, with its attempts, as one attempt of a job.
//! Invariant: every attempt carries the job's id and idempotency key.
//! Never: knows limits; the connector keeps them.

use std::sync::Arc;

use async_trait::async_trait;
use entrega_call::LogFields;
use entrega_core::classify::Rule;
use entrega_core::job::Job;
use entrega_core::outcome::{Fault, FaultKind, Outcome};
use tokio::time::Instant;

use super::{ConnectorCall, Connectors, Names};
use crate::channel::Channel;
use crate::store::ClaimedJob;

/// Requests to third-party APIs.
pub struct ConnectorChannel {
    connectors: Arc<Connectors>,
}

impl ConnectorChannel {
    /// Through these connectors.
    pub fn new(connectors: Arc<Connectors>) -> ConnectorChannel {
        ConnectorChannel { connectors }
    }
}

#[async_trait]
impl Channel for ConnectorChannel {
    fn rules(&self, job: &Job) -> Vec<Rule> {
        job.payload.read::<ConnectorCall>().map_or_else(|_| Vec::new(), |call| self.connectors.rules(&call.connector))
    }

    async fn attempt(&self, claimed: &ClaimedJob, deadline: Instant) -> Outcome {
        let job = &claimed.job;
        let call: ConnectorCall = match job.payload.read() {
            Ok(call) => call,
            Err(error) => return Outcome::Fault(Fault { kind: FaultKind::Invalid, message: error.to_string() }),
        };
        let id = job.id.to_string();
        let names = Names {
            idempotency_key: Some(job.idempotency_key.clone().unwrap_or_else(|| id.clone())),
            traceparent: Some(job.traceparent(claimed.attempt)),
            fields: LogFields {
                company_id: Some(job.tenant.to_string()),
                lane: Some(job.lane.to_string()),
                job_id: Some(id.clone()),
                ..LogFields::default()
            },
            request_id: Some(id),
        };
        match self.connectors.send(&job.tenant, &call, names, deadline).await {
            Ok(reply) => Outcome::Answer(reply.answer),
            Err(failed) => Outcome::Fault(failed.fault(self.connectors.on_throttle_timeout(&call.connector))),
        }
    }
}
