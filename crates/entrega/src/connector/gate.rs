//! The limits of a connector, as the store keeps them.
//! Invariant: a store that cannot be asked gives no turn; whoever waits too long does what the connector says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{Hold, Later, SharedGate};
use entrega_core::lane::GateKind;
use entrega_core::outcome::Lesson;

use crate::store::{GateName, Store};

/// A store that did not answer gives no turn, and is asked again in a while.
const NOT_ANSWERED: Hold = Hold { gate: GateKind::Throttle, until: None };

pub(super) struct StoreGate {
    store: Arc<dyn Store>,
    gate: GateName,
}

impl StoreGate {
    pub(super) fn new(store: Arc<dyn Store>, gate: GateName) -> StoreGate {
        StoreGate { store, gate }
    }
}

impl fmt::Debug for StoreGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreGate").field(&self.gate.name).finish()
    }
}

impl SharedGate for StoreGate {
    fn ask(&self) -> Later<'_, Option<Hold>> {
        Box::pin(async {
            self.store.pass(&self.gate).await.unwrap_or_else(|error| {
                tracing::warn!(lane = %self.gate.name, errorReason = %error, "A gate cannot be asked");
                Some(NOT_ANSWERED)
            })
        })
    }

    fn start_anyway(&self) -> Later<'_, Option<Hold>> {
        Box::pin(async {
            self.store.pass_anyway(&self.gate).await.unwrap_or_else(|error| {
                tracing::warn!(lane = %self.gate.name, errorReason = %error, "A start could not be counted");
                None
            })
        })
    }

    fn learn(&self, lesson: Lesson, took: Duration) -> Later<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.store.learn(&self.gate, lesson, took).await {
                tracing::warn!(lane = %self.gate.name, errorReason = %error, "What came of a call could not be kept");
            }
        })
    }
}
