//! Nodes: what each shows of itself, and how shards are handed over.
//! Invariant: a shard moves only when nothing of it runs, one at a time, and not again for some leases.
//! Never: takes anything from a living owner; the owner gives it up by itself.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use entrega_core::time::Time;
use entrega_ledger::{Key, Shard, Unit};

use super::Shared;
use super::cluster::Cluster;
use super::hold::{HOUSE, Hold};
use super::lanes::OwnedLane;
use super::placement::{Known, NodeRow, hash, place};
use super::reading::{From, PAGE_ROWS, ReadError, visit};
use super::records;
use super::tables::NODES;
use crate::store::{HandOver, NodeView, OwnedShard, StoreError};

/// A shard that moved stays for so many leases.
const STAYS_FOR: u32 = 5;
/// How long a lane that is to move waits for what runs.
const DRAINS_FOR: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What is known of a node that is gone is forgotten after this.
const FORGET_AFTER: Duration = Duration::from_hours(1);

impl Shared {
    /// What this node shows of itself.
    pub(super) fn show_node(&self, cluster: &Cluster, unit: &mut Unit) {
        let policies = hash(format!("{:?}", self.options.lanes).as_bytes());
        let row = NodeRow {
            name: cluster.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: cluster.started_at(),
            policies,
            beat: cluster.nodes.beat.fetch_add(1, Ordering::Relaxed),
            owns: cluster.holds().iter().map(|hold| (hold.shard.to_string(), hold.since)).collect(),
            last: cluster.nodes.last.lock().clone(),
        };
        unit.put(NODES, Key::Text(format!("{:016x}", self.options.node)), records::encode(&row));
        let known = Known { row, since: self.clock.now() };
        cluster.nodes.known.lock().insert(self.options.node, known);
    }

    /// Looks at what other nodes show.
    pub(super) async fn look_at_nodes(&self, cluster: &Cluster) -> Result<(), ReadError> {
        let (now, mut found) = (self.clock.now(), BTreeMap::new());
        visit(&*self.ledger, NODES, From::Up(Vec::new()), PAGE_ROWS, |key, value| {
            let node = std::str::from_utf8(key).ok().and_then(|key| u64::from_str_radix(key, 16).ok());
            match (node, records::decode::<NodeRow>(NODES, value)) {
                (Some(node), Ok(row)) => drop(found.insert(node, row)),
                (_, Err(error)) => self.note_unreadable("nodes", &error),
                (None, Ok(_)) => {}
            }
            ControlFlow::Continue(())
        })
        .await?;
        let mut known = cluster.nodes.known.lock();
        known.retain(|node, _| found.contains_key(node) || *node == self.options.node);
        for (node, row) in found {
            match known.get_mut(&node) {
                Some(known) if known.row.beat == row.beat => {}
                known_before => {
                    let is_new = known_before.is_none();
                    // One that is seen for the first time may be long gone.
                    let since = if is_new { now - cluster.patience() / 2 } else { now };
                    known.insert(node, Known { row, since });
                }
            }
        }
        drop(known);
        self.warn_of_other_policies(cluster, now);
        Ok(())
    }

    fn warn_of_other_policies(&self, cluster: &Cluster, now: Time) {
        for (node, name) in self.other_policies(cluster, now) {
            if cluster.nodes.warned.lock().insert(node) {
                tracing::warn!(
                    node = name,
                    "This node has other policies; whichever node owns a lane goes by its own. Give all nodes the same configuration"
                );
            }
        }
    }

    /// Nodes that live and have other policies than this one.
    fn other_policies(&self, cluster: &Cluster, now: Time) -> Vec<(u64, String)> {
        let known = cluster.nodes.known.lock();
        let Some(mine) = known.get(&self.options.node).map(|mine| mine.row.policies) else { return Vec::new() };
        let others = known.iter().filter(|(_, other)| cluster.nodes.is_alive(other, now));
        let others = others.filter(|(_, other)| other.row.policies != mine);
        others.map(|(node, other)| (*node, other.row.name.clone())).collect()
    }

    /// How many nodes have other policies than this one.
    pub(super) fn policy_mismatches(&self) -> u32 {
        let now = self.clock.now();
        self.cluster.as_ref().map_or(0, |cluster| self.other_policies(cluster, now).len() as u32)
    }

    /// Forgets nodes that are long gone.
    pub(super) fn choose_nodes(&self, unit: &mut Unit) {
        let Some(cluster) = &self.cluster else { return };
        let now = self.clock.now();
        let known = cluster.nodes.known.lock();
        for (node, _) in known.iter().filter(|(_, known)| now.since(known.since) > FORGET_AFTER) {
            unit.remove(NODES, Key::Text(format!("{node:016x}")));
        }
    }

    /// Gives up one shard that another node should own, if nothing of it runs.
    pub(super) async fn balance(&self, cluster: &Cluster) -> Result<(), StoreError> {
        let now = self.clock.now();
        let me = self.options.node;
        let steady = cluster.nodes.steady(now);
        if !steady.contains(&me) || self.is_released.load(Ordering::SeqCst) {
            return Ok(());
        }
        let stays = cluster.lease() * STAYS_FOR;
        for hold in cluster.holds() {
            let Some(to) = place(&hold.shard, &steady).filter(|to| *to != me) else { continue };
            let tried = cluster.nodes.tried.lock().get(&hold.shard).copied();
            if now.since(hold.since) < stays || tried.is_some_and(|tried| now.since(tried) < stays) {
                continue;
            }
            cluster.nodes.tried.lock().insert(hold.shard.clone(), now);
            return self.hand_over(cluster, &hold, to).await;
        }
        Ok(())
    }

    async fn hand_over(&self, cluster: &Cluster, hold: &Hold, to: u64) -> Result<(), StoreError> {
        let lane = self.all_owned().find(|lane| lane.hold.token == hold.token && lane.hold.shard == hold.shard);
        match &lane {
            Some(lane) => {
                if !self.drain(lane).await {
                    return Ok(());
                }
                self.settled().await?;
                self.write_last_starts(lane).await?;
            }
            // Not loaded yet.
            None if hold.shard.as_str() != HOUSE => return Ok(()),
            None => self.settled().await?,
        }
        let now = self.clock.now();
        self.hint(cluster, &hold.shard, to).await;
        self.ledger.release(&hold.shard, hold.token).await.map_err(ReadError::from)?;
        self.leave(&hold.shard, hold.token);
        *cluster.nodes.last.lock() = Some((hold.shard.to_string(), to, now));
        tracing::info!(shard = %hold.shard, to = format!("{to:016x}"), "Handed over to another node");
        self.signal("free".into());
        Ok(())
    }

    /// Starts nothing more in a lane, and waits until nothing runs; whether that was soon.
    async fn drain(&self, lane: &OwnedLane) -> bool {
        lane.is_leaving.store(true, Ordering::SeqCst);
        let until = self.clock.now() + DRAINS_FOR;
        while self.clock.now() < until {
            if lane.machine.lock().sizes().running() == 0 {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        lane.is_leaving.store(false, Ordering::SeqCst);
        lane.wake.notify_one();
        false
    }

    /// Tells all nodes to whom a shard is left.
    async fn hint(&self, cluster: &Cluster, shard: &Shard, to: u64) {
        cluster.nodes.leave_to(self.clock.now(), shard.clone(), to);
        // One that is lost costs a move more.
        drop(self.ledger.signal(&format!("left {to:016x} {shard}")).await);
    }

    /// The same for all that this node owns, when it stops.
    pub(super) async fn hint_all(&self, cluster: &Cluster, holds: &[Arc<Hold>]) {
        let mut steady = cluster.nodes.steady(self.clock.now());
        steady.retain(|node| *node != self.options.node);
        for hold in holds {
            if let Some(to) = place(&hold.shard, &steady) {
                self.hint(cluster, &hold.shard, to).await;
            }
        }
    }

    /// All nodes, as this one sees them.
    pub(super) fn node_views(&self) -> Vec<NodeView> {
        let now = self.clock.now();
        let Some(cluster) = &self.cluster else { return vec![self.only_node()] };
        let steady = cluster.nodes.steady(now);
        let known = cluster.nodes.known.lock();
        let mine = known.get(&self.options.node).map(|mine| mine.row.policies);
        let view = |(node, one): (&u64, &Known)| {
            let Known { row, since } = one;
            let is_alive = cluster.nodes.is_alive(one, now);
            // What a node that is gone owned, others have or are about to.
            let owns = row.owns.iter().filter(|_| is_alive);
            NodeView {
                id: format!("{node:016x}"),
                name: row.name.clone(),
                version: row.version.clone(),
                started_at: row.started_at,
                seen_at: *since,
                is_alive,
                is_steady: steady.contains(node),
                is_this: *node == self.options.node,
                has_other_policies: Some(row.policies) != mine,
                owns: owns.map(|(shard, since)| OwnedShard { shard: shard.clone(), since: *since }).collect(),
                last_hand_over: row.last.clone().map(|(shard, to, at)| HandOver {
                    shard,
                    to: format!("{to:016x}"),
                    at,
                }),
            }
        };
        known.iter().map(view).collect()
    }

    /// This node, where it has the ledger to itself.
    fn only_node(&self) -> NodeView {
        let (now, since) = (self.clock.now(), self.node.read().since);
        let owns =
            self.all_owned().map(|lane| OwnedShard { shard: lane.hold.shard.to_string(), since: lane.hold.since });
        NodeView {
            id: format!("{:016x}", self.options.node),
            name: "this process".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: since,
            seen_at: now,
            is_alive: true,
            is_steady: true,
            is_this: true,
            has_other_policies: false,
            owns: owns.collect(),
            last_hand_over: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::ClusterOptions;

    /// A beat was answered so late that the lease had a moment left. What was started in it was cut off, and made again.
    #[test]
    fn nothing_is_started_under_a_lease_that_is_about_to_end() {
        let now = Time::from_millis(1_000_000);
        let options = ClusterOptions { lease: Duration::from_secs(4), name: "node".into() };
        let cluster = Cluster::new(&options, now);
        assert!(cluster.is_unsure(now), "its lease ends now");
        cluster.lease_until(now + Duration::from_secs(4));
        assert!(!cluster.is_unsure(now + Duration::from_millis(2_999)));
        assert!(cluster.is_unsure(now + Duration::from_millis(3_001)));
    }
}
