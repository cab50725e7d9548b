//! A run: one life of the process after the other, until all has healed and everything has ended.
//! Invariant: a life ends by dropping its runtime with every task in it, wherever each of them is waiting.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use entrega::store::local::tables::TABLES;
use entrega_core::time::Time;
use entrega_ledger::HeapLedger;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::bug::Bug;
use crate::caller;
use crate::disk::Disk;
use crate::drift::Drift;
use crate::life::{Late, Life, Stage, World};
use crate::node::{self, Doors, House};
use crate::nodes;
use crate::operator;
use crate::plan::{Cast, End, Plan, START};
use crate::pulse::Pulse;
use crate::store::WatchedStore;
use crate::troubles::Troubles;
use crate::witness::{Violation, Witness};

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// All that happened, line by line.
    pub trace: Vec<String>,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// How often things went wrong on purpose.
    pub troubles: Troubles,
}

/// Runs one seed to its end.
pub fn run(seed: u64) -> Run {
    run_with(seed, None)
}

/// Runs one seed with a rule broken on purpose.
pub fn run_with(seed: u64, bug: Option<Bug>) -> Run {
    run_cast(seed, Cast::Alone, bug)
}

/// Runs one seed with one node or with several.
pub fn run_cast(seed: u64, cast: Cast, bug: Option<Bug>) -> Run {
    let world = world(seed, cast, bug);
    let now = match &world.plan.nodes {
        Some(_) => nodes::live(&world),
        None => live_alone(&world),
    };
    let disk = world.disk.lock();
    world.witness.lock().set_clock(now, Drift::default());
    world.witness.lock().finish(now, &disk);
    if world.witness.lock().is_content() && world.open.lock().contains(&true) {
        world.witness.lock().break_promise("callers_answered", "somebody still waits".into());
    }
    drop(disk);
    let (trace, violation, troubles) = world.witness.lock().close();
    Run { trace, violation, troubles }
}

/// One process after the other, until all is over; gives the moment of that.
fn live_alone(world: &Arc<World>) -> Time {
    let mut now = START;
    let ends = world.plan.ends.iter().copied().map(Some).chain([None]);
    for (number, end) in ends.enumerate() {
        now = live(world, number, end, now);
        if !world.witness.lock().is_content() {
            break;
        }
    }
    now
}

/// The world of a seed, before anything has happened in it.
pub(crate) fn world(seed: u64, cast: Cast, bug: Option<Bug>) -> Arc<World> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let plan = Arc::new(Plan::of_seed(seed, cast, &mut rng));
    Arc::new(World {
        open: Mutex::new(vec![true; plan.requests.len()]),
        accepted: Mutex::default(),
        handed: Mutex::default(),
        orders: Mutex::new(vec![Stage::Open; plan.orders.len()]),
        witness: Mutex::new(Witness::new(plan.clone())),
        plan,
        bug,
        heap: Mutex::new(Arc::new(HeapLedger::new(&TABLES))),
        late: Late::default(),
        disk: Mutex::new(Disk::default()),
        rng: Mutex::new(rng),
        stopped_at: Mutex::default(),
        first_cached: Mutex::default(),
        counted: AtomicU64::new(0),
    })
}

/// One life of the process, from its start to its end; gives the moment of the end.
fn live(world: &Arc<World>, number: usize, end: Option<End>, start: Time) -> Time {
    let (runtime, pulse) = Pulse::runtime();
    runtime.block_on(async {
        let drift = world.plan.drift(number);
        world.witness.lock().set_clock(start, drift);
        let life = Arc::new(Life::new(world, start, drift, end));
        if number > 0 {
            // What is durable, and nobody who owns anything.
            let left = Arc::new(world.heap.lock().copy());
            *world.heap.lock() = left;
        }
        let lived = live_with(world, &life, number > 0, &pulse, end);
        let is_killed = tokio::select! {
            biased;
            () = life.died() => true,
            is_killed = lived => is_killed,
        };
        world.witness.lock().life_over(life.clock.now(), is_killed, end);
        life.moment()
    })
}

/// Opens the store and lets everything happen; says whether the process was killed.
async fn live_with(
    world: &Arc<World>,
    life: &Arc<Life>,
    is_restart: bool,
    pulse: &Arc<Pulse>,
    end: Option<End>,
) -> bool {
    let opened = WatchedStore::open(life, is_restart).await;
    let store = opened.expect("the simulated ledger can be read while a store is opened");
    let (doors, shutdown) = (Doors::default(), CancellationToken::new());
    let house = Arc::new(House { life: life.clone(), store: store.clone(), doors, shutdown: shutdown.clone() });
    let node = tokio::spawn(node::live_on(house.clone()));
    for request in 0..world.plan.requests.len() {
        tokio::spawn(caller::call(house.clone(), request));
    }
    tokio::spawn(operator::help_early(life.clone(), store.clone()));
    for order in 0..world.plan.orders.len() {
        tokio::spawn(operator::operate(life.clone(), store.clone(), order));
    }
    let stopping = async {
        wait_for_end(life, &store, end).await;
        shutdown.cancel();
        drop(node.await);
    };
    tokio::select! {
        biased;
        () = cut_short(life, &shutdown, pulse, end) => true,
        () = stopping => false,
    }
}

/// Waits until the process is to be stopped in order.
async fn wait_for_end(life: &Life, store: &WatchedStore, end: Option<End>) {
    match end {
        Some(End::Stop { after } | End::CutStop { after, .. }) => life.wait(after).await,
        // A life that was to be killed and was not goes on to the end like the last.
        _ => operator::settle_down(life, store).await,
    }
}

/// Resolves when the process is killed between two polls, if it is to be, and if things still go wrong by then.
async fn cut_short(life: &Life, shutdown: &CancellationToken, pulse: &Arc<Pulse>, end: Option<End>) {
    let polls = match end {
        Some(End::Cut { polls }) => polls,
        Some(End::CutStop { polls, .. }) => {
            shutdown.cancelled().await;
            polls
        }
        _ => return std::future::pending().await,
    };
    pulse.clone().stop(polls).await;
    if life.moment() >= life.world.plan.heal_at {
        std::future::pending::<()>().await;
    }
}
