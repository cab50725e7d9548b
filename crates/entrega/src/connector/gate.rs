//! The limits of a connector, as the store keeps them.
//! Invariant: a store that cannot be asked gives no turn; whoever waits too long does what the connector says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{Later, SharedGate, Turn};
use entrega_core::lane::GateKind;
use entrega_core::outcome::Lesson;

use crate::store::{GateName, Passing, Store};

/// When a store that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

pub(super) struct StoreGate {
    store: Arc<dyn Store>,
    gate: GateName,
}

impl StoreGate {
    pub(super) fn new(store: Arc<dyn Store>, gate: GateName) -> StoreGate {
        StoreGate { store, gate }
    }
}

fn turn(passing: Passing) -> Turn {
    match passing {
        Passing::Through => Turn::Given,
        Passing::Held(GateKind::Breaker, pause) => Turn::Down(pause),
        Passing::Held(_, pause) => Turn::After(pause.unwrap_or(ASK_AGAIN)),
    }
}

impl fmt::Debug for StoreGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreGate").field(&self.gate.name).finish()
    }
}

impl SharedGate for StoreGate {
    fn ask(&self) -> Later<'_, Turn> {
        Box::pin(async {
            self.store.pass(&self.gate).await.map(turn).unwrap_or_else(|error| {
                tracing::warn!(lane = %self.gate.name, errorReason = %error, "A gate cannot be asked");
                Turn::After(ASK_AGAIN)
            })
        })
    }

    fn start_anyway(&self) -> Later<'_, Turn> {
        Box::pin(async {
            self.store.pass_anyway(&self.gate).await.map(turn).unwrap_or_else(|error| {
                tracing::warn!(lane = %self.gate.name, errorReason = %error, "A start could not be counted");
                Turn::Given
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
