//! The node: the engine over the store, for one life of the process.
//! Invariant: callers are let in while it lives and is not told to stop.

use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::dispatch::RunError;
use entrega::env::Env;
use entrega::mail::MAIL;
use entrega::store::StoreError;
use entrega::webhook::WEBHOOK;
use entrega::{Engine, EngineParts};
use entrega_call::Client;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api;
use crate::destination::Destination;
use crate::life::Life;
use crate::route::routes;
use crate::store::WatchedStore;
use crate::upstream::Upstream;

/// What an orderly stop waits for.
const GRACE: Duration = Duration::from_millis(500);

/// Where callers are let in: the life of the process and its engine.
pub type Door = (Arc<Life>, Arc<Engine>);

/// The door; closed while nobody is let in.
#[derive(Default)]
pub struct Doors(Mutex<Option<Door>>);

impl Doors {
    /// Who answers, if anybody does.
    pub fn find(&self) -> Option<Door> {
        self.0.lock().clone()
    }

    fn set(&self, door: Option<Door>) {
        *self.0.lock() = door;
    }
}

/// One life of the store, with the engine over it.
pub struct House {
    /// The life of both.
    pub life: Arc<Life>,
    /// The store.
    pub store: Arc<WatchedStore>,
    /// Where callers are let in.
    pub doors: Doors,
    /// Told when the engine is to stop.
    pub shutdown: CancellationToken,
}

/// Lets the engine run until it is to stop.
pub async fn live_on(house: Arc<House>) {
    let engine = engine(&house.life, &house.store);
    house.doors.set(Some((house.life.clone(), engine.clone())));
    let stop = house.shutdown.child_token();
    let running = AbortOnDropHandle::new(tokio::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        async move { engine.run(stop, GRACE).await }
    }));
    house.shutdown.cancelled().await;
    house.doors.set(None);
    let ended = running.await;
    // A ledger that others share may not answer whoever gives back what it owns.
    let is_cut_off = matches!(ended, Ok(Err(RunError::Store(StoreError::Unreachable { .. }))));
    let is_forgiven = is_cut_off && house.life.is_shared();
    if !matches!(ended, Ok(Ok(()))) && !is_forgiven {
        house.life.world.witness.lock().break_promise("engine_goes_on", format!("it ended with {ended:?}"));
    }
}

fn engine(life: &Arc<Life>, store: &Arc<WatchedStore>) -> Arc<Engine> {
    let parts = EngineParts::over(store.clone(), life.clock.clone(), life.world.plan.lanes.clone());
    let chance = Arc::new(Chance::from_seed(life.world.rng.lock().u64(..)));
    let parts = EngineParts {
        env: Env { chance, ..parts.env.clone() },
        client: Client::over(Arc::new(Upstream { life: life.clone() }), life.clock.clone()),
        connector_client: api::client(life),
        routes: routes(life.world.plan.keeping),
        connectors: vec![api::connector(life)],
        ..parts
    };
    let destination = Destination { life: life.clone() };
    let parts = parts.channel("simulated", destination.clone()).channel(MAIL.name, destination.clone());
    Arc::new(parts.channel(WEBHOOK.name, destination).build())
}
