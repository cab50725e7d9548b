//! A run: one life of the store and its nodes after the other, until all has healed and everything has ended.
//! Invariant: a life ends by dropping its runtime with every task in it, wherever each of them is waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega::engine::Engine;
use entrega::intake::{NewJob, NotAsked, OnceKey, Question, Refusal, Taken};
use entrega::store::StoreError;
use entrega_core::job::Payload;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bug::Bug;
use crate::disk::Disk;
use crate::drift::Drift;
use crate::life::{Life, World};
use crate::node::{self, Doors, House};
use crate::operator::{self, CAREFUL_PER_SEC, Stage};
use crate::plan::{End, Plan, START, Wish};
use crate::pulse::Pulse;
use crate::route::ROUTE;
use crate::store::SimStore;
use crate::troubles::Troubles;
use crate::witness::{Violation, Witness};

/// By then everything must have ended, so long after the world has healed.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than any breaker stays open or waits for a probe: whoever has proxied jobs replayed before that is told so at
/// once, and a job can be replayed a few times only.
const BREAKERS_REST: Duration = Duration::from_secs(4);
/// How often a caller comes back who was turned away.
const RETURNS_MAX: u32 = 20;
const RETURN_AFTER: Duration = Duration::from_millis(1_100);

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
    let mut rng = fastrand::Rng::with_seed(seed);
    let plan = Arc::new(Plan::draw(&mut rng));
    let fates = plan.nodes.iter().map(|node| node.fates.iter().copied().collect()).collect();
    let world = Arc::new(World {
        open: Mutex::new(vec![true; plan.wishes.len()]),
        orders: Mutex::new(vec![Stage::Open; plan.orders.len()]),
        witness: Mutex::new(Witness::new(plan.clone())),
        plan,
        bug,
        disk: Mutex::new(Disk::default()),
        rng: Mutex::new(rng),
        fates: Mutex::new(fates),
    });
    let mut now = START;
    let ends = world.plan.ends.iter().copied().map(Some).chain([None]);
    for (number, end) in ends.enumerate() {
        now = live(&world, number, end, now);
        if !world.witness.lock().is_content() {
            break;
        }
    }
    let disk = world.disk.lock();
    world.witness.lock().set_clock(now, Drift::default());
    world.witness.lock().finish(now, &disk);
    drop(disk);
    let (trace, violation, troubles) = world.witness.lock().close();
    Run { trace, violation, troubles }
}

/// One life of the store and its nodes, from its start to its end; gives the moment of the end.
fn live(world: &Arc<World>, number: usize, end: Option<End>, start: Time) -> Time {
    let (runtime, pulse) = Pulse::runtime();
    runtime.block_on(async {
        let drift = world.plan.drift(number);
        world.witness.lock().set_clock(start, drift);
        let life = Arc::new(Life::new(world, start, drift, end));
        let store = SimStore::open(&life, number > 0);
        let (doors, shutdown) = (Doors::new(world.plan.nodes.len()), CancellationToken::new());
        let house = Arc::new(House { life: life.clone(), store: store.clone(), doors, shutdown: shutdown.clone() });
        let mut nodes = JoinSet::new();
        for node in 0..world.plan.nodes.len() {
            nodes.spawn(node::live_on(house.clone(), node));
        }
        for wish in 0..world.plan.wishes.len() {
            tokio::spawn(call(house.clone(), wish));
        }
        tokio::spawn(operator::help_early(life.clone(), store.clone()));
        for order in 0..world.plan.orders.len() {
            tokio::spawn(operator::operate(life.clone(), store.clone(), order));
        }
        let stopping = async {
            wait_for_end(&life, &store, end).await;
            shutdown.cancel();
            nodes.join_all().await;
        };
        let is_killed = tokio::select! {
            biased;
            () = life.died() => true,
            () = cut_short(&life, &shutdown, &pulse, end) => true,
            () = stopping => false,
        };
        world.witness.lock().life_over(life.clock.now(), is_killed, end);
        life.moment()
    })
}

/// Waits until the process is to be stopped in order.
async fn wait_for_end(life: &Life, store: &SimStore, end: Option<End>) {
    match end {
        Some(End::Stop { after } | End::CutStop { after, .. }) => life.wait(after).await,
        // A life that was to be killed and was not goes on to the end like the last.
        _ => settle_down(life, store).await,
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

/// A caller: comes at its time, comes back when it is turned away, and goes when it is answered.
async fn call(house: Arc<House>, number: usize) {
    let (life, world) = (&house.life, &house.life.world);
    let wish = &world.plan.wishes[number];
    if !world.open.lock()[number] {
        return;
    }
    life.wait_until(wish.at).await;
    let keys: Vec<OnceKey> = wish.key.iter().filter_map(|key| OnceKey::new(key, &[key.as_bytes()]).ok()).collect();
    // Whoever has a key may be impatient and come twice.
    let mut is_impatient = !keys.is_empty() && number.is_multiple_of(2);
    for _ in 0..RETURNS_MAX {
        match ask(&house.doors, number, wish, &keys).await {
            None => life.wait(RETURN_AFTER).await,
            Some(Ok(taken)) => {
                let mut witness = world.witness.lock();
                witness.troubles.repeated += u32::from(taken.is_repeat);
                witness.acknowledged(life.clock.now(), taken.id);
                drop(witness);
                if !std::mem::take(&mut is_impatient) {
                    break;
                }
            }
            Some(Err(Refusal::Store(StoreError::MemoryFull | StoreError::Unreachable { .. }))) => {
                life.wait(RETURN_AFTER).await;
            }
            Some(Err(Refusal::Full { .. })) => break,
            other => {
                let detail = format!("wish {number} was answered {other:?}");
                world.witness.lock().break_promise("engine_goes_on", detail);
                break;
            }
        }
    }
    world.open.lock()[number] = false;
}

/// Hands a wish in at a node; nobody answers where that is gone, or dies over it.
async fn ask(doors: &Doors, caller: usize, wish: &Wish, keys: &[OnceKey]) -> Option<Result<Taken, Refusal>> {
    let (life, engine) = doors.find(caller)?;
    let asked = async {
        match question(&wish.job, keys) {
            None => engine.submit_once(&wish.tenant, vec![(wish.job.clone(), keys.to_vec())]).await.pop(),
            Some(question) => Some(put_to(&engine, &wish.tenant, question).await),
        }
    };
    tokio::select! {
        biased;
        () = life.died() => None,
        answer = asked => answer,
    }
}

/// What a wish asks of the proxy, if it does.
fn question(job: &NewJob, keys: &[OnceKey]) -> Option<Question> {
    let Payload::Proxy(call) = &job.payload else { return None };
    let params = call.params.clone().into_iter().collect();
    Some(Question { params, priority: job.priority, once: keys.first().cloned(), labels: BTreeMap::new() })
}

async fn put_to(engine: &Engine, tenant: &TenantName, question: Question) -> Result<Taken, Refusal> {
    let route = engine.route(ROUTE).expect("the route that every engine has");
    engine.ask(tenant, route, question).await.map_err(|refused| match refused {
        NotAsked::Refused(refusal) => refusal,
        other => panic!("a question that fits was not asked: {other}"),
    })
}

/// Waits until everything has ended, has what died replayed and what is blocked unblocked, and waits again.
async fn settle_down(life: &Life, store: &SimStore) {
    let world = &life.world;
    life.wait_until(world.plan.heal_at).await;
    let deadline = world.plan.heal_at + PATIENCE;
    let mut helped = Vec::new();
    while life.moment() < deadline && world.witness.lock().is_content() {
        life.wait(LOOK_EVERY).await;
        if world.is_busy() {
            continue;
        }
        // A replay passes over what died later than it was asked for, and after a clock was set back, what died before
        // that may look so: whoever still sees dead letters then asks again.
        let newest = world.disk.lock().newest_dead();
        let died = match helped.last() {
            None => life.clock.now(),
            Some(last) => match newest {
                Some(died) if died >= *last => died,
                _ => return,
            },
        };
        life.wait(died.since(life.clock.now()).max(BREAKERS_REST)).await;
        let replay = format!("all {}", helped.len());
        helped.push(life.clock.now());
        operator::help(life, store, &replay, CAREFUL_PER_SEC).await;
    }
}
