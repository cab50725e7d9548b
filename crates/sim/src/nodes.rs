//! Several nodes over one ledger: each is a process with a runtime and a clock of its own, and all go on in step.
//! Invariant: time is the same for all, a millisecond after the other; in each, nodes go on in an order that chance gives,
//! each until all its tasks wait. One that stalls is not polled, wherever its tasks are, and finds later how late it is;
//! one that is killed goes with its runtime and every task in it.

mod outside;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use entrega_core::time::Time;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::outside::Outside;
use crate::life::{Life, World};
use crate::node::{self, Doors, House};
use crate::plan::{End, NodePlan, START};
use crate::pulse::Pulse;
use crate::rewind::Rewinder;
use crate::store::WatchedStore;

/// How far time goes at once while things go wrong, and after that.
const STEP: Duration = Duration::from_millis(1);
const STEP_HEALED: Duration = Duration::from_millis(5);
/// A stall begins after so many polls at most.
const STALL_POLLS_MAX: u64 = 60;

/// One node.
pub struct Node {
    number: usize,
    lives: usize,
    state: State,
}

enum State {
    /// Nobody is there until then.
    Away(Time),
    Up(Box<Process>),
}

/// A process while it lives.
pub struct Process {
    runtime: Runtime,
    pulse: Arc<Pulse>,
    life: Arc<Life>,
    house: Arc<OnceLock<Arc<House>>>,
    shutdown: CancellationToken,
    /// Whether it came to its end by itself.
    is_over: Arc<AtomicBool>,
    /// Up to when its clock has gone.
    at: Time,
    end: Option<End>,
    /// After so many polls it is killed.
    polls_left: Option<u64>,
    is_stalled: bool,
}

/// What a step came to.
enum Stepped {
    GoesOn,
    Killed,
    Stopped,
}

/// Lets all nodes live until everything has ended; gives the moment of that.
pub fn live(world: &Arc<World>) -> Time {
    let count = world.plan.nodes.as_ref().map_or(0, |nodes| nodes.each.len());
    let mut nodes: Vec<Node> = (0..count).map(|number| Node { number, lives: 0, state: State::Away(START) }).collect();
    let mut outside = Outside::new(world);
    let mut rewinder = Rewinder::new(world);
    let mut now = START;
    loop {
        let mut order: Vec<usize> = (0..count).collect();
        world.rng.lock().shuffle(&mut order);
        for number in order {
            nodes[number].go_on(world, now);
        }
        outside.send(world, &nodes, now);
        rewinder.go_on(world, now);
        if outside.is_over() || !world.witness.lock().is_content() {
            return now;
        }
        let step = if now < world.plan.heal_at { STEP } else { STEP_HEALED };
        let is_somebody_well = nodes.iter().any(|node| node.is_well(world, now));
        world.witness.lock().time_passed(step, is_somebody_well);
        now = now + step;
    }
}

impl Node {
    /// The process, if there is one and it lets anybody in.
    pub fn open(&self) -> Option<(&Runtime, &Arc<House>)> {
        match &self.state {
            State::Up(process) => process.house.get().map(|house| (&process.runtime, house)),
            State::Away(_) => None,
        }
    }

    /// Which life of it this is, for those who were here before.
    pub fn life(&self) -> usize {
        self.lives
    }

    /// Whether nothing keeps it from taking over what others leave.
    fn is_well(&self, world: &World, now: Time) -> bool {
        let plan = &world.plan;
        let is_reached = plan.cut_off_until(self.number, now).is_none() && !plan.is_slow(now);
        self.open().is_some() && is_reached && self.plan(world).stalled_until(now).is_none()
    }

    /// Whether it is in its last life.
    pub fn stays(&self, world: &World, now: Time) -> bool {
        matches!(self.state, State::Up(_)) && now >= world.plan.heal_at
    }

    fn plan<'a>(&self, world: &'a World) -> &'a NodePlan {
        let nodes = world.plan.nodes.as_ref().expect("there are several nodes");
        &nodes.each[self.number]
    }

    fn go_on(&mut self, world: &Arc<World>, now: Time) {
        let plan = self.plan(world);
        let next = plan.lives.get(self.lives).copied();
        match &mut self.state {
            State::Away(until) if *until > now => {}
            State::Away(_) => {
                let end = next.map(|(end, _)| end);
                self.state = State::Up(Box::new(Process::start(world, self.number, end, now)));
            }
            State::Up(process) => {
                let stepped = process.go_on(now, plan.stalled_until(now));
                let is_killed = match stepped {
                    Stepped::GoesOn => return,
                    Stepped::Killed => true,
                    Stepped::Stopped => false,
                };
                let away = next.map_or(Duration::from_secs(1), |(_, away)| away);
                let mut witness = world.witness.lock();
                witness.note(now, format_args!("node {} is gone", self.number));
                witness.life_over(now, is_killed, process.end);
                drop(witness);
                self.lives += 1;
                self.state = State::Away(now + away);
                // Whatever its tasks held is dropped by now.
                world.witness.lock().node_gone(self.number);
            }
        }
    }
}

impl Process {
    fn start(world: &Arc<World>, number: usize, end: Option<End>, now: Time) -> Process {
        let (runtime, pulse) = Pulse::runtime();
        let context = runtime.enter();
        pulse.begin();
        let life = Arc::new(Life::of_node(world, now, number, end));
        let (house, is_over, shutdown) = (Arc::default(), Arc::default(), CancellationToken::new());
        let polls_left = match end {
            Some(End::Cut { polls }) => Some(polls),
            _ => None,
        };
        world.witness.lock().note(now, format_args!("node {number} starts"));
        tokio::spawn(live_one(life.clone(), Arc::clone(&house), Arc::clone(&is_over), shutdown.clone()));
        if let Some(End::Stop { after } | End::CutStop { after, .. }) = end {
            tokio::spawn(stop_after(life.clone(), shutdown.clone(), after));
        }
        drop(context);
        Process { runtime, pulse, life, house, shutdown, is_over, at: now, end, polls_left, is_stalled: false }
    }

    /// Goes on until all tasks wait, or to where it stalls or is killed.
    fn go_on(&mut self, now: Time, stalled_until: Option<Time>) -> Stepped {
        if self.is_stalled && stalled_until.is_some() {
            return Stepped::GoesOn;
        }
        let world = &self.life.world;
        if self.is_stalled {
            let mut witness = world.witness.lock();
            witness.resumed(now, self.life.number());
            let late = self.life.goes_on();
            late.into_iter().for_each(|late| witness.started_late(now, self.life.number(), late));
        }
        self.life.stands_still_soon(stalled_until.is_some());
        let mut polls_to_stall = stalled_until.map(|_| world.rng.lock().u64(0..STALL_POLLS_MAX));
        if let (Some(End::CutStop { polls, .. }), None) = (self.end, self.polls_left)
            && self.shutdown.is_cancelled()
        {
            self.polls_left = Some(polls);
        }
        let is_trouble = now < world.plan.heal_at;
        let by = now.since(self.at);
        self.at = now;
        let (life, polls_left) = (&self.life, &mut self.polls_left);
        let mut is_cut = false;
        self.runtime.block_on(async {
            tokio::time::advance(by).await;
            let is_over = || {
                if let Some(left) = polls_left.as_mut().filter(|_| is_trouble) {
                    *left = left.saturating_sub(1);
                    is_cut = *left == 0;
                }
                if let Some(left) = &mut polls_to_stall {
                    *left = left.saturating_sub(1);
                }
                is_cut || polls_to_stall == Some(0) || life.is_at_brink() || life.is_dead()
            };
            self.pulse.rest(is_over).await
        });
        self.is_stalled = stalled_until.is_some();
        if self.is_stalled {
            let mut witness = world.witness.lock();
            witness.stalled(now, self.life.number());
        }
        match () {
            _ if is_cut || self.life.is_dead() => Stepped::Killed,
            _ if self.is_over.load(Ordering::Relaxed) => Stepped::Stopped,
            _ => Stepped::GoesOn,
        }
    }
}

/// One life of a node: opens the store and lets the engine run.
async fn live_one(
    life: Arc<Life>,
    house: Arc<OnceLock<Arc<House>>>,
    is_over: Arc<AtomicBool>,
    shutdown: CancellationToken,
) {
    let Some(store) = WatchedStore::open(&life, false).await else {
        // A process that cannot read its store does not start; somebody starts it again.
        return life.kill();
    };
    let doors = Doors::default();
    let opened = Arc::new(House { life: life.clone(), store, doors, shutdown });
    drop(house.set(opened.clone()));
    node::live_on(opened).await;
    is_over.store(true, Ordering::Relaxed);
}

/// Has a node stop in order, if things still go wrong by then.
async fn stop_after(life: Arc<Life>, shutdown: CancellationToken, after: Duration) {
    life.wait(after).await;
    if life.moment() < life.world.plan.heal_at {
        shutdown.cancel();
    }
}
