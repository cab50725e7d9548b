//! Placement: which nodes there are, and which of them should own a shard.
//! Invariant: placement is the same on every node that sees the same steady nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use entrega_core::time::Time;
use entrega_ledger::Shard;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A node is steady after so many leases: those that come and go are given nothing.
const STEADY_AFTER: u32 = 3;

/// What a node shows of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) started_at: Time,
    /// Of the policies of all lanes: nodes that differ would treat the same job differently.
    pub(super) policies: u64,
    pub(super) beat: u64,
    pub(super) owns: Vec<(String, Time)>,
    pub(super) last: Option<(String, u64, Time)>,
}

/// A node, and since when it has shown nothing new.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) row: NodeRow,
    pub(super) since: Time,
}

/// What a node knows of all nodes, itself included.
pub(super) struct Nodes {
    lease: Duration,
    /// How long a node is waited for that shows nothing new.
    patience: Duration,
    pub(super) known: Mutex<BTreeMap<u64, Known>>,
    /// Shards that were given up for a certain node, and until when they are left to it.
    left_to: Mutex<BTreeMap<Shard, (u64, Time)>>,
    /// When this node last tried to give each shard up.
    pub(super) tried: Mutex<BTreeMap<Shard, Time>>,
    /// The last that it gave up.
    pub(super) last: Mutex<Option<(String, u64, Time)>>,
    pub(super) beat: AtomicU64,
    /// Nodes whose other policies were warned of.
    pub(super) warned: Mutex<BTreeSet<u64>>,
}

/// The node that should own a shard: the one that draws highest for it. When a node comes or goes, only shards move that
/// are, or were, its own.
pub(super) fn place(shard: &Shard, nodes: &[u64]) -> Option<u64> {
    nodes.iter().copied().max_by_key(|node| mixed(hash(shard.as_str().as_bytes()) ^ mixed(*node)))
}

/// FNV-1a: the same on every machine and in every version.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The last steps of splitmix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Nodes {
    /// Nobody is known yet.
    pub(super) fn new(lease: Duration, patience: Duration) -> Nodes {
        Nodes {
            lease,
            patience,
            known: Mutex::default(),
            left_to: Mutex::default(),
            tried: Mutex::default(),
            last: Mutex::default(),
            beat: AtomicU64::default(),
            warned: Mutex::default(),
        }
    }

    /// Whether a node has shown something new lately.
    pub(super) fn is_alive(&self, known: &Known, now: Time) -> bool {
        now.since(known.since) < self.patience
    }

    /// Nodes that live, and have for some time.
    pub(super) fn steady(&self, now: Time) -> Vec<u64> {
        let is_steady =
            |known: &Known| self.is_alive(known, now) && now.since(known.row.started_at) >= self.lease * STEADY_AFTER;
        self.known.lock().iter().filter(|(_, known)| is_steady(known)).map(|(node, _)| *node).collect()
    }

    /// Whether a shard is left to another node just now.
    pub(super) fn is_left_to_another(&self, now: Time, shard: &Shard, node: u64) -> bool {
        let mut left_to = self.left_to.lock();
        left_to.retain(|_, (_, until)| *until > now);
        left_to.get(shard).is_some_and(|(to, _)| *to != node)
    }

    /// Leaves a shard to a node for a lease.
    pub(super) fn leave_to(&self, now: Time, shard: Shard, to: u64) {
        self.left_to.lock().insert(shard, (to, now + self.lease));
    }

    /// Whether another node should take a shard whose owner is gone; it is given a moment more.
    pub(super) fn is_anothers(&self, now: Time, shard: &Shard, node: u64) -> bool {
        place(shard, &self.steady(now)).is_some_and(|to| to != node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_spread_over_nodes_and_few_move_when_one_comes() {
        let shards: Vec<Shard> = (0..600).map(|lane| Shard::new(&format!("lane/{lane}"))).collect();
        let three = [11, 222, 3333];
        let four = [11, 222, 3333, 44444];
        let of = |nodes: &[u64]| -> Vec<u64> { shards.iter().filter_map(|shard| place(shard, nodes)).collect() };
        for node in three {
            let share = of(&three).iter().filter(|owner| **owner == node).count();
            assert!((140..260).contains(&share), "{node} owns {share} of 600");
        }
        let moved: Vec<_> = of(&three).into_iter().zip(of(&four)).filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| *after == 44444), "only what the newcomer draws moves");
        assert!((90..220).contains(&moved.len()), "{} moved", moved.len());
        assert_eq!(place(&shards[0], &[]), None);
    }
}
