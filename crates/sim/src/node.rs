//! The node: the engine over the store, for one life of the process.
//! Invariant: callers are let in while it lives and is not told to stop.

use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::channel::Channel;
use entrega::channel::connector::ConnectorChannel;
use entrega::channel::event::EventChannel;
use entrega::channel::proxy::ProxyChannel;
use entrega::connector::CONNECTOR_CHANNEL;
use entrega::dispatch::RunError;
use entrega::engine::Engine;
use entrega::proxy::PROXY_CHANNEL;
use entrega::store::StoreError;
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
    let lanes = life.world.plan.lanes.clone();
    let destination: Arc<dyn Channel> = Arc::new(Destination { life: life.clone() });
    let event: Arc<dyn Channel> = Arc::new(EventChannel::new(store.clone(), life.clock.clone()));
    let routes = Arc::new(routes(life.world.plan.keeping));
    let upstream = Client::over(Arc::new(Upstream { life: life.clone() }));
    let proxy = ProxyChannel::new(upstream, store.clone(), life.clock.clone(), routes.clone());
    let chance = Chance::from_seed(life.world.rng.lock().u64(..));
    let engine = Engine { chance, routes, ..Engine::over(store.clone(), life.clock.clone(), lanes) };
    let connectors = Arc::new(api::connectors(life, &engine));
    let connector = ConnectorChannel::new(connectors.clone(), life.clock.clone());
    let channels: [(&str, Arc<dyn Channel>); 6] = [
        (CONNECTOR_CHANNEL, Arc::new(connector)),
        (PROXY_CHANNEL, Arc::new(proxy)),
        ("simulated", destination.clone()),
        ("email", destination.clone()),
        ("webhook", destination),
        ("event", event),
    ];
    let channels = channels.map(|(name, channel)| (name.to_owned(), channel)).into();
    Arc::new(Engine { connectors, channels, ..engine })
}
