//! What is seen of several nodes: who owns what, who stands still, and whose lease is over.
//! Invariant: knows what the ledger answered; the nodes are not asked.

use std::collections::BTreeMap;
use std::time::Duration;

use entrega::store::Ticket;
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use entrega_ledger::Shard;

use super::{Broken, Witness};
use crate::disk::{Disk, Place};

/// Who claims.
#[derive(Clone, Copy, Debug)]
pub struct By {
    /// Which node.
    pub node: usize,
    /// When it asked its store; what happens between that and the answer, a ledger that is far away may not have seen.
    pub asked_at: Time,
}

/// What is known of nodes.
#[derive(Debug, Default)]
pub struct Owners {
    /// Who owns a lane, and since when.
    pub(super) by_lane: BTreeMap<LaneName, (usize, Time)>,
    /// Until when each node may act.
    until: BTreeMap<usize, Time>,
    /// When each node last went on after it had stood still.
    resumed_at: BTreeMap<usize, Time>,
    /// Lanes whose owner is gone, and for how long somebody could have taken them since.
    pub(super) orphans: BTreeMap<LaneName, Duration>,
}

impl Owners {
    /// Whether a node may act at a moment for a lane.
    pub fn check(&self, node: usize, now: Time) -> Result<(), Broken> {
        match self.until.get(&node) {
            Some(until) if now >= *until => Err(("lease_holds", format!("starts at node {node} after its lease"))),
            _ => Ok(()),
        }
    }

    /// Whether a lane is another's than it was when somebody asked for its jobs.
    pub fn has_moved(&self, by: By, lane: &LaneName) -> bool {
        self.by_lane.get(lane).is_some_and(|(node, since)| *node != by.node || *since > by.asked_at + SAME_INSTANT)
    }

    /// Whether a node went on just now: what it had begun before is late, and nobody can help that.
    pub fn has_just_resumed(&self, node: usize, now: Time) -> bool {
        self.resumed_at(node) == Some(now)
    }

    /// When a node went on that had stood still; whoever waits there begins to be late then.
    pub fn resumed_at(&self, node: usize) -> Option<Time> {
        self.resumed_at.get(&node).copied()
    }
}

/// How long it may take until all nodes know what an operator said to one, though signals are lost.
const HEARD_WITHIN: Duration = Duration::from_secs(4);

/// What happens in the same instant has no order that could be seen.
const SAME_INSTANT: Duration = Duration::from_micros(1);
/// How long it may take beyond leases until somebody owns what nobody does.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// An attempt that was begun.
#[derive(Clone, Copy, Debug)]
pub struct Attempting {
    /// The job.
    pub id: JobId,
    /// The number of its claim.
    pub claim: u64,
}

impl Witness {
    /// What was said before this, whoever claims must have heard.
    pub(super) fn heard_before(&self, by: By) -> Time {
        match &self.plan.nodes {
            Some(_) => by.asked_at - HEARD_WITHIN,
            None => by.asked_at,
        }
    }

    /// A node opened its store, while others may live.
    pub fn joined(&mut self, now: Time, disk: &Disk) {
        self.note(now, format_args!("joins with {} jobs", disk.waiting().count()));
        self.check_disk(disk);
    }

    /// A node is gone, and whatever it had in its hands.
    pub fn node_gone(&mut self, node: usize) {
        self.owners.until.remove(&node);
        let left = self.owners.by_lane.iter().filter(|(_, owner)| owner.0 == node).map(|(lane, _)| lane.clone());
        self.owners.orphans.extend(left.map(|lane| (lane, Duration::ZERO)));
        self.hands.drop_all(node);
    }

    /// A node owns a shard from now on. What the last owner of a lane had in memory is over, and so are its attempts.
    pub fn owned(&mut self, now: Time, node: usize, shard: &Shard, disk: &Disk) {
        let Some(lane) = shard.as_str().strip_prefix("lane/").and_then(|lane| LaneName::new(lane).ok()) else { return };
        self.note(now, format_args!("node {node} owns {lane}"));
        let before = self.owners.by_lane.insert(lane.clone(), (node, now));
        self.owners.orphans.remove(&lane);
        self.rewound.owned(&lane);
        self.troubles.taken_over += u32::from(before.is_some_and(|before| before.0 != node));
        self.hands.cut_off(&lane);
        self.breakers.forget(&lane);
        self.turns.retain(|(of, _), _| *of != lane);
        self.to_learn.retain(|_, (of, _)| *of != lane);
        for (id, seen) in self.jobs.iter_mut().filter(|(_, seen)| seen.lane == lane) {
            seen.in_hands = false;
            seen.in_lane = disk.jobs.get(id).is_some_and(|record| record.place == Place::Waiting);
            seen.in_lane_at = now;
            (seen.is_leaving, seen.cancels) = (false, 0);
        }
    }

    /// A node that was told just now that jobs are written writes new ones before it lets the first go: both are one draft.
    /// Gives the jobs of its lanes that wait for that.
    pub fn held_up(&mut self, now: Time, node: usize) -> Vec<JobId> {
        let by_lane = &self.owners.by_lane;
        let is_owned = |lane: &LaneName| by_lane.get(lane).is_some_and(|owner| owner.0 == node);
        let jobs = self.jobs.iter_mut().filter(|(_, seen)| seen.in_lane_at == now && is_owned(&seen.lane));
        let held_up = jobs.map(|(id, seen)| {
            seen.in_lane_at = Time::NEVER;
            *id
        });
        let held_up = held_up.collect();
        self.breakers.hold_up(now, is_owned);
        held_up
    }

    /// The draft is written, and its jobs go.
    pub fn let_go(&mut self, now: Time, node: usize, held_up: Vec<JobId>) {
        for id in held_up {
            let seen = self.jobs.get_mut(&id).filter(|seen| seen.in_lane_at == Time::NEVER);
            seen.into_iter().for_each(|seen| seen.in_lane_at = now);
        }
        let by_lane = &self.owners.by_lane;
        self.breakers.let_go(now, |lane| by_lane.get(lane).is_some_and(|owner| owner.0 == node));
    }

    /// Time went on, and some node was well all the while, or none was.
    pub fn time_passed(&mut self, by: Duration, is_somebody_well: bool) {
        let Some(lease) = self.plan.nodes.as_ref().map(|nodes| nodes.lease) else { return };
        for waited in self.owners.orphans.values_mut() {
            *waited = if is_somebody_well { *waited + by } else { Duration::ZERO };
        }
        let late = self.owners.orphans.iter().find(|(_, waited)| **waited > lease * 2 + TAKEN_WITHIN);
        if let Some(lane) = late.map(|(lane, _)| lane.clone()) {
            self.break_promise("lanes_go_on", format!("{lane} has no owner although somebody could take it"));
        }
    }

    /// A node showed that it lives, and was answered; it had asked then.
    pub fn beaten(&mut self, node: usize, asked_at: Time) {
        if let Some(nodes) = &self.plan.nodes {
            let until = self.owners.until.entry(node).or_default();
            *until = (*until).max(asked_at + nodes.lease);
        }
    }

    /// A node stands still from now on.
    pub fn stalled(&mut self, now: Time, node: usize) {
        self.troubles.stalls += 1;
        self.note(now, format_args!("node {node} stands still"));
    }

    /// A node that stood still goes on.
    pub fn resumed(&mut self, now: Time, node: usize) {
        self.owners.resumed_at.insert(node, now);
        self.note(now, format_args!("node {node} goes on"));
    }

    /// The first byte of an attempt went out when its node went on, however long that had stood still after the attempt had
    /// looked at its lease: nobody can help that, and whatever comes of it changes nothing if the lane has moved.
    pub fn started_late(&mut self, now: Time, node: usize, late: Attempting) {
        self.troubles.late_bytes += 1;
        self.note(now, format_args!("start {} late", late.id));
        let checked = self.hands.started_late(node, late.claim);
        self.judge(checked.map_err(|(checker, why)| (checker, format!("{} {why}", late.id))));
    }

    /// An attempt was cut off because a lease was over: its job waits again.
    pub fn given_back(&mut self, now: Time, ticket: Ticket) {
        self.troubles.given_back += 1;
        let Some(id) = self.hands.give_back(ticket.number().unwrap_or_default()) else { return };
        self.note(now, format_args!("cut off {id}"));
        if let Some(seen) = self.jobs.get_mut(&id) {
            seen.in_hands = false;
            seen.in_lane = seen.place == Place::Waiting;
            seen.in_lane_at = now;
        }
    }
}
