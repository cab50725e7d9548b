//! What is written: operations, in units with conditions, in groups under fences.
//! Invariant: plain values. A unit whose conditions do not hold changes nothing, and the others of its group take effect
//! all the same; units are judged in order, each after those before it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Shard, Table, Token};

/// A key. Most are ids, which need no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An id.
    Id([u8; 16]),
    /// An id within a scope: rows of one scope are scanned together.
    Scoped(Arc<str>, [u8; 16]),
    /// Any other.
    Text(String),
}

impl Key {
    /// Between a scope and what is in it; no scope has it in its name.
    const BORDER: u8 = 0;

    /// What the keys of a scope begin with.
    pub fn prefix(scope: &str) -> Vec<u8> {
        let mut prefix = scope.as_bytes().to_vec();
        prefix.push(Key::BORDER);
        prefix
    }

    /// Shows its bytes.
    pub fn with<T>(&self, see: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Key::Id(id) => see(id),
            Key::Text(text) => see(text.as_bytes()),
            Key::Scoped(scope, id) => {
                let mut room = [0; 128];
                let len = scope.len() + 1 + id.len();
                match room.get_mut(..len) {
                    Some(bytes) => {
                        bytes[..scope.len()].copy_from_slice(scope.as_bytes());
                        bytes[scope.len() + 1..].copy_from_slice(id);
                        see(bytes)
                    }
                    None => see(&[&*Key::prefix(scope), id].concat()),
                }
            }
        }
    }

    /// Its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.with(<[u8]>::to_vec)
    }
}

/// Names an entry of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64, pub u64);

impl EntryId {
    /// Its key in the table of inboxes.
    pub(crate) fn key(self, shard: &Shard) -> Key {
        let number = u128::from(self.0) << 64 | u128::from(self.1);
        Key::Scoped(shard.name(), number.to_be_bytes())
    }

    /// The entry that has this key.
    pub(crate) fn of_key(key: &[u8]) -> Option<EntryId> {
        let (_, id) = key.split_last_chunk::<16>()?;
        let number = u128::from_be_bytes(*id);
        Some(EntryId((number >> 64) as u64, number as u64))
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a value.
    Put(Table, Key, Vec<u8>),
    /// Removes a key.
    Remove(Table, Key),
    /// Leaves something for the owner of a shard.
    Append(Shard, Vec<u8>),
    /// Takes what was left for the owner of a shard.
    Take(Shard, EntryId),
}

/// What must be so for a unit to take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Key,
    /// What must be there.
    pub expect: Expect,
}

/// What must be under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Absent,
    /// This value. Comparing values needs no version beside each record; a record that must not return to what it was
    /// carries a count in its value.
    Is(Bytes),
}

impl Expect {
    /// Whether what is there is as expected.
    pub fn holds(&self, found: Option<&[u8]>) -> bool {
        match self {
            Expect::Absent => found.is_none(),
            Expect::Is(value) => found == Some(&**value),
        }
    }
}

/// Changes that take effect together if their conditions hold, and otherwise not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The conditions.
    pub when: Vec<When>,
    /// In the order they take effect.
    pub ops: Vec<Op>,
}

impl Unit {
    /// Sets a value.
    pub fn put(&mut self, table: Table, key: Key, value: impl Into<Vec<u8>>) {
        self.ops.push(Op::Put(table, key, value.into()));
    }

    /// Removes a key.
    pub fn remove(&mut self, table: Table, key: Key) {
        self.ops.push(Op::Remove(table, key));
    }

    /// Takes effect only if there is nothing under a key.
    pub fn when_absent(&mut self, table: Table, key: Key) {
        self.when.push(When { table, key, expect: Expect::Absent });
    }

    /// Takes effect only if this is under a key.
    pub fn when_is(&mut self, table: Table, key: Key, value: Bytes) {
        self.when.push(When { table, key, expect: Expect::Is(value) });
    }
}

/// The right to write: applied only under this token, as number `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The shard.
    pub shard: Shard,
    /// Under which ownership.
    pub token: Token,
    /// One more than the number of the group before it.
    pub seq: u64,
}

/// Units that are judged and applied together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// All must hold.
    pub fences: Vec<Fence>,
    /// In order.
    pub units: Vec<Unit>,
}

/// Whether a write may be refused for want of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// New work: it may.
    New,
    /// What frees room or must be known: it may not, as long as anything can be written at all.
    Must,
}

/// What became of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It took effect.
    Done,
    /// A condition did not hold, the first of them at this place.
    Not(usize),
}

/// What became of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was applied, now or before: what became of its units.
    Applied(Vec<Verdict>),
    /// Somebody else owns this shard.
    Fenced(Shard),
    /// The ledger is at another number for this shard: it lost writes, or others were made.
    Rewound(Shard, u64),
}
