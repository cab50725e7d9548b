//! A node: one of the engines over the store, with one life after the other while the others go on.
//! Invariant: a lone node shares the life of its store; one of several dies alone, and what it held stays held until its
//! leases end.

use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::channel::Channel;
use entrega::channel::connector::ConnectorChannel;
use entrega::channel::event::EventChannel;
use entrega::channel::proxy::ProxyChannel;
use entrega::connector::CONNECTOR_CHANNEL;
use entrega::engine::Engine;
use entrega::proxy::PROXY_CHANNEL;
use entrega_call::Client;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api;
use crate::destination::Destination;
use crate::life::Life;
use crate::plan::{End, Fate};
use crate::route::routes;
use crate::store::SimStore;
use crate::upstream::Upstream;

/// What an orderly stop waits for.
const GRACE: Duration = Duration::from_millis(500);

/// How a life of one of several nodes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// While the others went on.
    Killed,
    /// In order, while the others went on.
    Stopped,
    /// In order, with all the others.
    WithAll,
}

/// Where callers are let in: the life of a node and its engine.
pub type Door = (Arc<Life>, Arc<Engine>);

/// The doors of all nodes; closed while a node is away.
pub struct Doors(Mutex<Vec<Option<Door>>>);

impl Doors {
    /// All closed.
    pub fn new(nodes: usize) -> Doors {
        Doors(Mutex::new(vec![None; nodes]))
    }

    /// The door that this caller is at, or the next that is open.
    pub fn find(&self, caller: usize) -> Option<Door> {
        let doors = self.0.lock();
        let count = doors.len();
        (0..count).find_map(|step| doors[(caller + step) % count].clone())
    }

    fn set(&self, node: usize, door: Option<Door>) {
        self.0.lock()[node] = door;
    }
}

/// One life of the store, with the nodes over it.
pub struct House {
    /// The life of the store, and of a lone node.
    pub life: Arc<Life>,
    /// The store as it is seen from outside.
    pub store: Arc<SimStore>,
    /// Where callers are let in.
    pub doors: Doors,
    /// Told when all nodes are to stop.
    pub shutdown: CancellationToken,
}

/// Lets a node live until all are to stop, or it is gone for good.
pub async fn live_on(house: Arc<House>, node: usize) {
    while !house.shutdown.is_cancelled() {
        let fate = house.life.world.next_fate(node);
        live(&house, node, fate).await;
        match fate.map(|fate| fate.away) {
            Some(Some(away)) => tokio::select! {
                biased;
                () = house.shutdown.cancelled() => {}
                () = house.life.wait(away) => {}
            },
            _ => return,
        }
    }
}

/// One life of a node.
async fn live(house: &House, node: usize, fate: Option<Fate>) {
    let world = &house.life.world;
    let end = fate.map(|fate| fate.end);
    let life = match world.plan.nodes.len() {
        1 => house.life.clone(),
        _ => Arc::new(Life::of_node(&house.life, node, end)),
    };
    let store = house.store.join(&life, node);
    let engine = engine(&life, &store);
    house.doors.set(node, Some((life.clone(), engine.clone())));
    let stop = house.shutdown.child_token();
    let running = AbortOnDropHandle::new(tokio::spawn({
        let (engine, stop) = (engine.clone(), stop.clone());
        async move { engine.run(stop, GRACE).await }
    }));
    let stopping = async {
        tokio::select! {
            biased;
            () = house.shutdown.cancelled() => {}
            () = wait_for_stop(&life, end) => {}
        }
        house.doors.set(node, None);
        stop.cancel();
        running.await
    };
    let ended = tokio::select! {
        biased;
        () = life.died() => None,
        ended = stopping => Some(ended),
    };
    house.doors.set(node, None);
    let mut witness = world.witness.lock();
    if !Arc::ptr_eq(&life, &house.life) {
        // Whatever is left of it does nothing any more.
        life.kill();
        let how = match ended {
            None => NodeEnd::Killed,
            Some(_) if house.shutdown.is_cancelled() => NodeEnd::WithAll,
            Some(_) => NodeEnd::Stopped,
        };
        witness.node_over(life.clock.now(), node, how);
    }
    if let Some(ended) = ended.filter(|ended| !matches!(ended, Ok(Ok(())))) {
        witness.break_promise("engine_goes_on", format!("it ended with {ended:?}"));
    }
}

/// Waits until a node is to be stopped in order while the others go on.
async fn wait_for_stop(life: &Life, end: Option<End>) {
    match end {
        Some(End::Stop { after }) => life.wait(after).await,
        _ => std::future::pending().await,
    }
}

fn engine(life: &Arc<Life>, store: &Arc<SimStore>) -> Arc<Engine> {
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
