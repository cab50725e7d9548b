//! The simulated store: the lane machines in memory, records on the simulated disk, one writer between them.
//! Invariant: a caller is answered, and a job is claimable, only after the batch that holds it is on the disk; a
//! settlement names the lease that it was made under. Unless a planted bug says otherwise.
//! Never: uses a thread or draws chance of its own.
//!
//! # Layout
//! `jobs` is the way of a job, `leases` who holds one, `settlements` what becomes of one, `changes` what operators ask
//! for, `answers` the proxy's cache, `gates` the gate before the API, `writer` group commit, `rest` the other verbs.

mod answers;
mod changes;
mod gates;
mod jobs;
mod leases;
mod rest;
mod settlements;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega::events::WEBHOOK_LANE;
use entrega::store::{StoreError, StoredAnswer};
use entrega_core::id::JobId;
use entrega_core::lane::{Gate, Lane, Next, Ticket, Waiting};
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify, oneshot};

pub use self::rest::HOOK;

use self::writer::Command;
use crate::bug::Bug;
use crate::disk::{Change, Record, Stopped};
use crate::life::Life;
use crate::plan::listening;

/// Shorter than the longest attempt, outage and stall.
pub const LEASE: Duration = Duration::from_millis(1_200);
/// How often a node renews the leases of what it is at.
pub const RENEW_EVERY: Duration = Duration::from_millis(300);
const REAP_EVERY: Duration = Duration::from_millis(250);

/// An attempt under way.
struct Lease {
    node: usize,
    /// The life of that node.
    life: Arc<Life>,
    lane: LaneName,
    ticket: Ticket,
    id: JobId,
    until: Time,
}

struct LaneCell {
    machine: Lane,
    /// By node.
    wakes: BTreeMap<usize, Arc<Notify>>,
    bug: Option<Bug>,
}

impl LaneCell {
    /// There may be something to claim, whoever comes first.
    fn wake_all(&self) {
        let heard = if self.bug == Some(Bug::WakeOneNode) { 1 } else { usize::MAX };
        self.wakes.values().take(heard).for_each(|wake| wake.notify_one());
    }

    /// Lets a job wait again whose attempt comes to nothing.
    fn put_back(&mut self, now: Time, ticket: Ticket, record: &Record) {
        self.machine.settle(now, ticket, Next::Leave, Lesson::Nothing, Duration::ZERO);
        self.machine.restore(now, &entry(record, self.bug));
        self.wake_all();
    }
}

struct State {
    lanes: BTreeMap<LaneName, LaneCell>,
    leases: BTreeMap<u64, Lease>,
    leases_made: u64,
    /// The node that carries replays on, until this moment.
    leader: Option<(usize, Time)>,
    /// Answers of the upstream, and until when each is kept.
    answers: BTreeMap<String, (StoredAnswer, Time)>,
    /// Who calls the upstream for an answer, and until when that counts.
    calls: BTreeMap<String, (JobId, Time)>,
    /// When the store was opened.
    opened_at: Time,
    /// Gates before APIs, by name, and by node where a planted bug says so; none where one holds nothing.
    gates: BTreeMap<(LaneName, usize), Option<Gate>>,
    queue: Vec<Command>,
}

/// What all nodes share.
struct Shared {
    state: Mutex<State>,
    /// Told when there is something to write.
    bell: Notify,
    /// Operators change one thing at a time.
    changes: tokio::sync::Mutex<()>,
}

/// The store as one node reaches it, or somebody outside.
pub struct SimStore {
    life: Arc<Life>,
    node: usize,
    shared: Arc<Shared>,
}

impl SimStore {
    /// Opens it: whatever had not ended waits again. The writer and the reaper of leases begin to work.
    pub fn open(life: &Arc<Life>, is_restart: bool) -> Arc<SimStore> {
        let world = &life.world;
        if is_restart && world.has(Bug::DropOnCrash) {
            let mut disk = world.disk.lock();
            let lost = disk.waiting().find(|record| record.attempt > 0).map(|record| record.job.id);
            lost.into_iter().for_each(|id| drop(disk.jobs.remove(&id)));
        }
        let mut disk = world.disk.lock();
        let now = life.clock.now();
        let stopped = disk.stopped.take();
        world.witness.lock().reopened(now, &disk);
        let lanes = world.plan.lanes.iter().map(|(name, policy)| {
            let mut machine = Lane::new(bent(policy, world.bug, world.plan.nodes.len()));
            let is_skipped = |record: &Record| world.has(Bug::SkipTheFuture) && record.job.accepted_at > now;
            for record in disk.waiting().filter(|record| record.job.lane == *name && !is_skipped(record)) {
                machine.restore(now, &entry(record, world.bug));
            }
            if name.as_str() == WEBHOOK_LANE && !(is_restart && world.has(Bug::EndpointThrottleForgotten)) {
                listening().for_each(|tenant| machine.set_throttle(&tenant.endpoint(HOOK), world.plan.endpoint_rate));
            }
            if is_restart {
                go_on(now, &mut machine, name, stopped.as_ref(), world.bug);
            }
            if disk.paused.contains(name) && !world.has(Bug::PauseForgotten) {
                machine.pause();
            }
            (name.clone(), LaneCell { machine, wakes: BTreeMap::new(), bug: world.bug })
        });
        let state = Mutex::new(State {
            lanes: lanes.collect(),
            leases: BTreeMap::new(),
            leases_made: 0,
            leader: None,
            answers: BTreeMap::new(),
            calls: BTreeMap::new(),
            opened_at: now,
            gates: BTreeMap::new(),
            queue: Vec::new(),
        });
        drop(disk);
        let shared = Arc::new(Shared { state, bell: Notify::new(), changes: tokio::sync::Mutex::default() });
        let store = Arc::new(SimStore { life: life.clone(), node: 0, shared });
        tokio::spawn(store.clone().write_on());
        tokio::spawn(store.clone().reap_on());
        store
    }

    /// The store as a node reaches it that begins to live.
    pub fn join(&self, life: &Arc<Life>, node: usize) -> Arc<SimStore> {
        for cell in self.shared.state.lock().lanes.values_mut() {
            cell.wakes.insert(node, Arc::default());
        }
        let joined = Arc::new(SimStore { life: life.clone(), node, shared: self.shared.clone() });
        tokio::spawn(joined.clone().renew_on());
        joined
    }

    fn is_lone(&self) -> bool {
        self.life.world.plan.nodes.len() == 1
    }

    fn has(&self, bug: Bug) -> bool {
        self.life.world.has(bug)
    }

    fn now(&self) -> Time {
        self.life.clock.now()
    }

    fn unknown_lane(&self, lane: &LaneName) -> StoreError {
        let known = self.life.world.plan.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", ");
        StoreError::UnknownLane { lane: lane.to_string(), known }
    }

    fn push(&self, command: Command) {
        self.shared.state.lock().queue.push(command);
        self.shared.bell.notify_one();
    }

    /// Waits until nobody else changes anything; also for whoever went away with a change that is on its way to the disk.
    async fn only_one(&self) -> Result<MutexGuard<'_, ()>, StoreError> {
        let guard = self.shared.changes.lock().await;
        self.change(Vec::new(), None).await?;
        Ok(guard)
    }

    /// Writes changes; `put_back` stands in its lane once they are durable.
    async fn change(&self, changes: Vec<Change>, put_back: Option<Record>) -> Result<(), StoreError> {
        let (reply, durable) = oneshot::channel();
        self.push(Command::Change { changes, put_back: put_back.map(Box::new), reply: Some(reply) });
        durable.await.map_err(|_| StoreError::Stopped { reason: "the process is gone".into() })
    }
}

/// Lets the gates of a lane go on where they stopped, or count as used up where nobody knows.
fn go_on(now: Time, machine: &mut Lane, name: &LaneName, stopped: Option<&Stopped>, bug: Option<Bug>) {
    /// Longer than any throttle's period or tick.
    const LONG_AGO: Duration = Duration::from_secs(2);
    match bug {
        Some(Bug::ThrottleForgotten) => return,
        Some(Bug::BelieveTheClock) if stopped.is_some_and(|stopped| now.since(stopped.at) > LONG_AGO) => return,
        _ => {}
    }
    let starts = stopped.and_then(|stopped| stopped.starts.get(name));
    if !starts.is_some_and(|starts| machine.resume_with(now, starts)) {
        machine.assume_spent(now);
    }
}

/// The policy that the lane machine is given.
fn bent(policy: &Arc<LanePolicy>, bug: Option<Bug>, nodes: usize) -> Arc<LanePolicy> {
    let mut policy = policy.clone();
    if nodes > 1 {
        // Each node sees to its own concurrency.
        Arc::make_mut(&mut policy).concurrency = u32::MAX;
    }
    match bug {
        Some(Bug::ThrottleOffByOne) => {
            Arc::make_mut(&mut policy).throttle.iter_mut().for_each(|throttle| throttle.max_requests += 1);
        }
        Some(Bug::ThrottlePerNode) => {
            let times = nodes as u32;
            Arc::make_mut(&mut policy).throttle.iter_mut().for_each(|throttle| throttle.max_requests *= times);
        }
        Some(Bug::TenantConcurrencyPerNode) => Arc::make_mut(&mut policy).tenant_concurrency *= nodes as u32,
        Some(Bug::BreakerIgnored) => Arc::make_mut(&mut policy).breaker = None,
        Some(Bug::EndlessTurn) => Arc::make_mut(&mut policy).fairness.max_jobs_per_tenant_batch = u32::MAX,
        _ => {}
    }
    policy
}

/// A job as the lane machine is told of it.
fn entry(record: &Record, bug: Option<Bug>) -> Waiting {
    let mut waiting = record.waiting();
    match bug {
        Some(Bug::IgnoreTtl) => waiting.expires = Time::NEVER,
        Some(Bug::IgnorePriority) => waiting.priority = Default::default(),
        _ => {}
    }
    waiting
}
