//! What is shown of nodes that share a store.
//! Invariant: plain values; nothing here can touch a store.

use entrega_core::time::Time;

/// A node that shares the store, as the one that was asked sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its number.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// When it joined.
    pub started_at: Time,
    /// When it last showed something new.
    pub seen_at: Time,
    /// Whether it showed something new within a lease.
    pub is_alive: bool,
    /// Whether it has lived long enough to be given lanes.
    pub is_steady: bool,
    /// Whether it is the one that was asked.
    pub is_this: bool,
    /// Whether its policies differ from those of the one that was asked.
    pub has_other_policies: bool,
    /// What it owns.
    pub owns: Vec<OwnedShard>,
    /// What it last gave up for another.
    pub last_hand_over: Option<HandOver>,
}

/// Something that a node owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedShard {
    /// `lane/<name>`, or `house` for replays and sweeps.
    pub shard: String,
    /// Since when.
    pub since: Time,
}

/// Something that a node gave up for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The shard.
    pub shard: String,
    /// For which node.
    pub to: String,
    /// The moment of it.
    pub at: Time,
}
