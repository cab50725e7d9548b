//! One life of the process: its clock, the world it lives in, and the moment at which it is killed.
//! Invariant: once dead, nothing that asks [`Life::reach`] goes on; whatever the ledger did not have by then, or gets late,
//! never was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use entrega::store::{ClaimedJob, ReplayStatus};
use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_core::time::Time;
use entrega_ledger::{Group, HeapLedger};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::bug::Bug;
use crate::disk::Disk;
use crate::drift::Drift;
use crate::plan::{End, Plan};
use crate::witness::{Attempting, Witness};

/// Groups that were sent, given up by whoever sent them, and arrive later all the same.
#[derive(Default)]
pub struct Late(pub Mutex<Vec<(Time, Vec<Group>)>>);

/// How far an order got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nobody was answered yet.
    Open,
    /// The lane is paused and waits to be resumed.
    Paused,
    /// Done with.
    Over,
}

/// More points than any life needs by far.
const POINTS_MAX: u64 = 200_000;

/// What outlives every process.
pub struct World {
    /// What the seed says.
    pub plan: Arc<Plan>,
    /// The rule that is broken on purpose.
    pub bug: Option<Bug>,
    /// The rows of the ledger.
    pub heap: Mutex<Arc<HeapLedger>>,
    /// What is on its way to it.
    pub late: Late,
    /// What is durable, as somebody outside understands it.
    pub disk: Mutex<Disk>,
    /// Who sees and judges.
    pub witness: Mutex<Witness>,
    /// The chance of everything that happens by the way.
    pub rng: Mutex<fastrand::Rng>,
    /// Which callers still want something.
    pub open: Mutex<Vec<bool>>,
    /// Which job each entry of an inbox is about.
    pub handed: Mutex<BTreeMap<(u64, u64), JobId>>,
    /// Whose job was taken.
    pub accepted: Mutex<BTreeSet<usize>>,
    /// How far each order of an operator got.
    pub orders: Mutex<Vec<Stage>>,
    /// When the process last stopped in order, by its clock.
    pub stopped_at: Mutex<Option<Time>>,
    /// The first answer of the upstream that was kept.
    pub first_cached: Mutex<Option<String>>,
    /// Processes and attempts so far.
    pub counted: AtomicU64,
}

impl World {
    /// Whether this rule is broken on purpose.
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The number of the next process.
    pub fn next_process(&self) -> u64 {
        self.counted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the next attempt.
    pub fn next_ticket(&self) -> u64 {
        self.counted.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether somebody still wants something, or something is still going to happen.
    pub fn is_busy(&self) -> bool {
        let has_orders = self.orders.lock().iter().any(|stage| *stage != Stage::Over);
        let has_callers = self.open.lock().contains(&true);
        let disk = self.disk.lock();
        let is_replaying = disk.replays.values().any(|run| run.status == ReplayStatus::Running);
        has_orders || has_callers || is_replaying || disk.waiting().next().is_some()
    }
}

/// One life.
pub struct Life {
    /// The world.
    pub world: Arc<World>,
    /// The time as the process knows it.
    pub clock: Clock,
    /// Which of several nodes it is of.
    node: Option<usize>,
    drift: Drift,
    points: AtomicU64,
    crash_at: AtomicU64,
    died: CancellationToken,
    brink: Brink,
}

/// An attempt that looked at its lease and had sent nothing when its process stood still.
#[derive(Default)]
struct Brink {
    /// Whether the process is about to stand still.
    is_near: AtomicBool,
    attempt: Mutex<Option<Attempting>>,
}

impl Life {
    /// One that begins at a moment.
    pub fn new(world: &Arc<World>, start: Time, drift: Drift, end: Option<End>) -> Life {
        let crash_at = match end {
            Some(End::Crash { points }) => points,
            _ => u64::MAX,
        };
        Life {
            world: world.clone(),
            clock: Clock::starting_at(drift.shown(start)),
            node: None,
            drift,
            points: AtomicU64::new(0),
            crash_at: AtomicU64::new(crash_at),
            died: CancellationToken::new(),
            brink: Brink::default(),
        }
    }

    /// The process stands still after a few more polls, or does not.
    pub fn stands_still_soon(&self, is_near: bool) {
        self.brink.is_near.store(is_near, Ordering::Relaxed);
    }

    /// Whether the process stands still right here, between an attempt's look at its lease and its first byte. If so, the
    /// byte goes out when the process goes on, before anything else.
    pub fn stands_still_with(&self, job: &ClaimedJob) -> bool {
        let is_here = self.brink.is_near.load(Ordering::Relaxed) && !self.is_at_brink();
        if is_here {
            let claim = job.ticket.number().unwrap_or_default();
            *self.brink.attempt.lock() = Some(Attempting { id: job.job.id, claim });
        }
        is_here
    }

    /// Whether an attempt is about to send its first byte.
    pub fn is_at_brink(&self) -> bool {
        self.brink.attempt.lock().is_some()
    }

    /// The process goes on: gives the attempt whose first byte goes out now.
    pub fn goes_on(&self) -> Option<Attempting> {
        self.brink.attempt.lock().take()
    }

    /// One of a node among several, whose clocks agree.
    pub fn of_node(world: &Arc<World>, start: Time, node: usize, end: Option<End>) -> Life {
        Life { node: Some(node), ..Life::new(world, start, Drift::default(), end) }
    }

    /// Whether there are other nodes.
    pub fn is_shared(&self) -> bool {
        self.node.is_some()
    }

    /// The number of its node.
    pub fn number(&self) -> usize {
        self.node.unwrap_or(0)
    }

    /// The moment it really is, whatever the process believes: callers, operators and faults come by this.
    pub fn moment(&self) -> Time {
        self.drift.moment(self.clock.now())
    }

    /// A point at which the process may be killed; nobody gets past one when it is dead.
    pub async fn reach(&self) {
        let point = self.points.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_over(point) {
            self.kill();
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends it.
    pub fn kill(&self) {
        self.died.cancel();
    }

    /// Whether it is over.
    pub fn is_dead(&self) -> bool {
        self.died.is_cancelled()
    }

    /// Whether this point is the last.
    fn is_over(&self, point: u64) -> bool {
        let is_time = point >= self.crash_at.load(Ordering::Relaxed) && self.moment() < self.world.plan.heal_at;
        let mut witness = self.world.witness.lock();
        if point == POINTS_MAX {
            witness.break_promise("nothing_stuck_after_heal", "the process goes round without end".into());
        }
        // After a broken promise nothing more is to be learnt, and what broke it may go on for ever.
        is_time || !witness.is_content()
    }

    /// Has the process killed a few points from now, if it is to be killed at all: just when it would hurt.
    pub fn hurry_crash(&self, points: u64) {
        let soon = self.points.load(Ordering::Relaxed) + points;
        let at = self.crash_at.load(Ordering::Relaxed);
        if at != u64::MAX {
            self.crash_at.store(at.min(soon), Ordering::Relaxed);
        }
    }

    /// Resolves when the process is killed.
    pub async fn died(&self) {
        self.died.cancelled().await;
    }

    /// Waits for so long.
    pub async fn wait(&self, length: Duration) {
        if !length.is_zero() {
            tokio::time::sleep(length).await;
        }
    }

    /// Waits until the store can be reached.
    pub async fn wait_for_store(&self) {
        while let Some(until) = self.world.plan.outage_until(self.moment()) {
            self.wait_until(until).await;
        }
    }

    /// Waits until it really is a moment.
    pub async fn wait_until(&self, at: Time) {
        tokio::time::sleep_until(self.clock.instant(self.drift.shown(at))).await;
    }

    /// Until when the ledger, which other nodes share, does not answer this one.
    pub fn cut_off_until(&self) -> Option<Time> {
        self.node.and_then(|node| self.world.plan.cut_off_until(node, self.moment()))
    }

    /// How long the store takes for something, just now.
    pub fn latency(&self) -> Duration {
        let most_ms = if self.world.plan.is_slow(self.moment()) { 400 } else { 4 };
        Duration::from_millis(self.world.rng.lock().u64(0..most_ms))
    }
}
