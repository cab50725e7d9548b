//! What is seen of a ledger that loses what it had acknowledged, under nodes that live.
//! Invariant: what was there at the state that came back is held to as before; what came after it may be lost, or may happen
//! again. Until the owner of a lane has noticed, it goes by what it remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;

use super::orders::Orders;
use super::seen::Seen;
use super::{Broken, Witness};
use crate::disk::Disk;

/// What the witness knew at a moment of what is durable.
pub struct Memory {
    jobs: BTreeMap<JobId, Seen>,
    replays: BTreeMap<String, BTreeSet<JobId>>,
    keys: BTreeMap<(TenantName, String), JobId>,
    orders: Orders,
    owners: BTreeMap<LaneName, (usize, Time)>,
    at: Time,
}

/// What the ledger lost.
#[derive(Debug, Default)]
pub struct Rewound {
    at: Option<Time>,
    lease: Duration,
    /// Lanes whose owner remembers more than the ledger.
    adrift: BTreeSet<LaneName>,
    /// Lanes of which the ledger has forgotten who owned them.
    disowned: BTreeSet<LaneName>,
    lost: BTreeSet<JobId>,
}

impl Rewound {
    /// Whether a job was lost, at least for a while.
    pub fn has_lost(&self, id: JobId) -> bool {
        self.lost.contains(&id)
    }

    /// Whether the owner of a lane may take a job for another than it is.
    pub fn may_differ(&self, lane: &LaneName, id: JobId) -> bool {
        self.has_lost(id) || self.adrift.contains(lane)
    }

    /// Whether nobody has loaded a lane since the ledger lost something of it.
    pub fn is_adrift(&self, lane: &LaneName) -> bool {
        self.adrift.contains(lane)
    }

    /// Whether a node may still act for a lane that was given to another: it learns of that with its next beat, or its lease
    /// ends.
    pub fn may_overlap(&self, lane: &LaneName, now: Time) -> bool {
        self.disowned.contains(lane) && self.at.is_some_and(|at| now < at + self.lease)
    }

    /// What is left of what a checker saw: nothing, if a node acts that cannot know yet that it owns a lane no more.
    pub fn excuse<T>(&self, lane: &LaneName, now: Time, checked: Result<T, Broken>) -> Result<Option<T>, Broken> {
        match checked {
            Err(("one_owner", _)) if self.may_overlap(lane, now) => Ok(None),
            checked => checked.map(Some),
        }
    }

    /// A lane has an owner that has loaded it since.
    pub fn owned(&mut self, lane: &LaneName) {
        self.adrift.remove(lane);
    }
}

impl Witness {
    /// What is known now, for the case that this state comes back.
    pub fn memory(&self, now: Time) -> Memory {
        Memory {
            jobs: self.jobs.clone(),
            replays: self.replays.clone(),
            keys: self.keys.clone(),
            orders: self.orders.clone(),
            owners: self.owners.by_lane.clone(),
            at: now,
        }
    }

    /// A state of the ledger came back; these lanes had been written to since, and these had another owner.
    pub fn rewound(
        &mut self,
        now: Time,
        memory: Memory,
        disk: &Disk,
        written: BTreeSet<LaneName>,
        disowned: BTreeSet<LaneName>,
    ) {
        self.troubles.rewinds += 1;
        let before = std::mem::replace(&mut self.jobs, memory.jobs);
        let lost: BTreeSet<JobId> = before.keys().filter(|id| !self.jobs.contains_key(id)).copied().collect();
        self.note(now, format_args!("the ledger is as it was at {:?}, {} jobs are lost", memory.at, lost.len()));
        self.troubles.lost += lost.len() as u32;
        self.acknowledged.retain(|id, _| !lost.contains(id));
        let lease = self.plan.nodes.as_ref().map_or(Duration::ZERO, |nodes| nodes.lease);
        self.rewound.lost.extend(lost);
        self.rewound.adrift.extend(written.into_iter().chain(disowned.iter().cloned()));
        (self.rewound.at, self.rewound.lease, self.rewound.disowned) = (Some(now), lease, disowned);
        self.orders.lost(memory.orders);
        self.keys = memory.keys;
        // A letter that a replay had met need not be met again, although the ledger has lost that.
        for (run, waiting) in memory.replays {
            let met = self.replays.entry(run).or_insert_with(|| waiting.clone());
            met.retain(|id| waiting.contains(id));
        }
        for (id, seen) in &mut self.jobs {
            match before.get(id).filter(|_| !self.rewound.adrift.contains(&seen.lane)) {
                Some(now) => *seen = now.clone(),
                None => seen.in_lane = disk.waiting().any(|record| record.job.id == *id),
            }
        }
        self.owners.orphans.values_mut().for_each(|waited| *waited = Duration::ZERO);
        for lane in &self.rewound.disowned {
            // Whoever had it before may live, or be gone for long.
            self.owners.orphans.remove(lane);
            match memory.owners.get(lane) {
                Some(owner) => drop(self.owners.by_lane.insert(lane.clone(), *owner)),
                None => drop(self.owners.by_lane.remove(lane)),
            }
        }
        for lane in self.rewound.adrift.clone() {
            self.starts.lost(&lane, memory.at);
            self.turns.retain(|(of, _), _| *of != lane);
        }
        self.answers.forgotten();
        self.passes.lost();
        self.breakers.clear();
        self.breakers.are_gates_vague = true;
        self.to_learn.clear();
    }
}
