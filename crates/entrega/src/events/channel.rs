//! The `event` channel: an event becomes one delivery for each endpoint that listens to it.
//! Invariant: who listens is asked when the event is handed on, and the deliveries are kept in the same write as its end;
//! their ids follow from the event's, so that handing it on again makes none twice.
//! Never: calls anybody.

use std::sync::Arc;

use async_trait::async_trait;
use entrega_call::Clock;
use entrega_core::outcome::{FanOut, Fault, FaultKind, Outcome};
use tokio::time::Instant;

use super::Published;
use crate::channel::Channel;
use crate::store::{ClaimedJob, Store};
use crate::webhook::event::delivery;

/// Hands events on.
pub struct EventChannel {
    store: Arc<dyn Store>,
    clock: Clock,
}

impl EventChannel {
    /// To the endpoints that this store knows.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> EventChannel {
        EventChannel { store, clock }
    }
}

#[async_trait]
impl Channel for EventChannel {
    async fn attempt(&self, claimed: &ClaimedJob, _: Instant) -> Outcome {
        let Published(event) = match claimed.job.payload.read() {
            Ok(published) => published,
            Err(error) => return Outcome::Fault(Fault { kind: FaultKind::Invalid, message: error.to_string() }),
        };
        let listening = self.store.endpoints_of(&claimed.job.tenant);
        let listening = listening.iter().filter(|endpoint| endpoint.takes(&event.event_type));
        let now = self.clock.now();
        let jobs = listening.map(|endpoint| delivery(&claimed.job, &event, &endpoint.name, now)).collect();
        Outcome::FanOut(FanOut { jobs, body: event.body.0 })
    }
}
