//! The `event` channel: an event becomes one delivery for each endpoint that listens to it.
//! Invariant: who listens is asked when the event is handed on, and the deliveries are kept in the same write as its end;
//! their ids follow from the event's, so that handing it on again makes none twice.
//! Never: calls anybody.

use std::sync::Arc;

use async_trait::async_trait;
use entrega_core::job::Payload;
use entrega_core::outcome::{Fault, FaultKind, Outcome, Spread};
use tokio::time::Instant;

use super::Channel;
use crate::clock::Clock;
use crate::events;
use crate::store::{ClaimedJob, Store};

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
        let Payload::Event(event) = &claimed.job.payload else {
            let message = "the job carries no event".into();
            return Outcome::Fault(Fault { kind: FaultKind::Invalid, message });
        };
        let listening = self.store.endpoints_of(&claimed.job.tenant);
        let listening = listening.iter().filter(|endpoint| endpoint.takes(&event.event_type));
        let now = self.clock.now();
        let jobs = listening.map(|endpoint| events::delivery(&claimed.job, event, &endpoint.name, now)).collect();
        Outcome::Spread(Spread { jobs, body: event.body.0.clone() })
    }
}
