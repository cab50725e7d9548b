//! Lanes: every lane of the configuration, and those of them that this node owns, with their machine in memory.
//! Invariant: a lane's memory belongs to one ownership; whoever takes the lane again begins with a new one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use entrega_core::id::JobId;
use entrega_core::lane::{Lane, Left, Starts, Waiting};
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use entrega_ledger::{Key, Shard};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::Shared;
use super::dead_index::DeadIndex;
use super::hold::Hold;
use super::published::Published;
use super::read_ahead::{ReadAhead, WrittenRoom};
use super::records::Live;

/// A lane of the configuration.
pub(super) struct LaneEntry {
    pub(super) name: LaneName,
    /// Its name as the scope of its rows.
    pub(super) scope: Arc<str>,
    pub(super) policy: Arc<LanePolicy>,
    pub(super) shard: Shard,
    /// Wakes its dispatcher.
    pub(super) wake: Arc<Notify>,
    /// Wakes whoever reads its inbox.
    pub(super) inbox: Notify,
    /// What its owner, if that is another node, last showed of it.
    pub(super) published: Mutex<Published>,
    /// What this node knew of the last starts when the ledger lost writes, and with them maybe some of these.
    pub(super) kept_starts: Mutex<Option<Starts>>,
    owned: RwLock<Option<Arc<OwnedLane>>>,
}

/// A lane that this node owns.
pub(super) struct OwnedLane {
    pub(super) name: LaneName,
    pub(super) scope: Arc<str>,
    pub(super) policy: Arc<LanePolicy>,
    pub(super) wake: Arc<Notify>,
    pub(super) hold: Arc<Hold>,
    pub(super) machine: Mutex<Lane>,
    pub(super) read_ahead: Mutex<ReadAhead>,
    pub(super) dead: Mutex<DeadIndex>,
    pub(super) blocked: AtomicU32,
    /// Whether a first attempt may have a history.
    pub(super) has_unblocked: AtomicBool,
    /// Whether it is being handed over, so that nothing more is started.
    pub(super) is_leaving: AtomicBool,
    /// Which nodes took the jobs that came by the inbox, to tell them of their end.
    pub(super) takers: Mutex<HashMap<JobId, u64>>,
    /// Jobs that had to leave for others that came by the inbox; the next claim tells of them.
    pub(super) pushed_out: Mutex<Vec<Left>>,
}

impl LaneEntry {
    pub(super) fn new(name: &LaneName, policy: &Arc<LanePolicy>) -> Arc<LaneEntry> {
        Arc::new(LaneEntry {
            name: name.clone(),
            scope: name.as_str().into(),
            policy: policy.clone(),
            shard: Shard::new(&format!("lane/{name}")),
            wake: Arc::new(Notify::new()),
            inbox: Notify::new(),
            published: Mutex::default(),
            kept_starts: Mutex::default(),
            owned: RwLock::default(),
        })
    }

    /// The lane with its memory, if this node owns it.
    pub(super) fn owned(&self) -> Option<Arc<OwnedLane>> {
        self.owned.read().clone()
    }

    /// The same while its lease lasts: one that is over may be somebody else's, and what is remembered of it old.
    pub(super) fn acting(&self) -> Option<Arc<OwnedLane>> {
        self.owned().filter(|owned| !owned.hold.lease.is_over())
    }

    /// A new memory for a new ownership.
    pub(super) fn begin(&self, hold: Arc<Hold>, room: &WrittenRoom) -> OwnedLane {
        OwnedLane {
            name: self.name.clone(),
            scope: self.scope.clone(),
            policy: self.policy.clone(),
            wake: self.wake.clone(),
            hold,
            machine: Mutex::new(Lane::new(self.policy.clone())),
            read_ahead: Mutex::new(ReadAhead::new(room.clone())),
            dead: Mutex::default(),
            blocked: AtomicU32::new(0),
            has_unblocked: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            takers: Mutex::default(),
            pushed_out: Mutex::default(),
        }
    }

    /// The lane is loaded: from now on its jobs are claimed here.
    pub(super) fn open(&self, lane: Arc<OwnedLane>) {
        *self.owned.write() = Some(lane);
        self.wake.notify_one();
    }

    /// This ownership is over, and with it the memory.
    pub(super) fn leave(&self, hold: &Hold) {
        hold.lease.lose();
        self.owned.write().take_if(|owned| owned.hold.token == hold.token);
        self.wake.notify_one();
    }
}

impl OwnedLane {
    /// The key of one of its jobs in the index.
    pub(super) fn live_key(&self, id: JobId) -> Key {
        Key::Scoped(self.scope.clone(), *id.as_bytes())
    }

    /// Keeps at hand what a job carries that is about to be written, if it is to be attempted soon.
    pub(super) fn keep_written(&self, waiting: &Waiting, record: &[u8], now: Time) {
        if waiting.due <= now {
            self.read_ahead.lock().keep_written(waiting.id, record);
        }
    }

    /// Takes a job out that was not written. Nobody can have claimed it.
    pub(super) fn remove_staged(&self, id: JobId) {
        drop(self.machine.lock().remove(id));
        self.read_ahead.lock().forget(id);
    }

    /// Puts a job back that the lane had accepted before; its record is durable.
    pub(super) fn put_back(&self, shared: &Shared, id: JobId, live: &Live) {
        self.read_ahead.lock().forget(id);
        self.machine.lock().restore(shared.clock.now(), &live.waiting(id));
        self.wake.notify_one();
    }

    /// One more job waits for an operator.
    pub(super) fn block(&self, jobs: u32) {
        self.blocked.fetch_add(jobs, Ordering::Relaxed);
    }
}
