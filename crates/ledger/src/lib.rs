//! Ledgers: where records are safe. A ledger is to the store what an fsync is to a file: the place where a group of
//! changes becomes durable.
//!
//! Owns: bytes, shards and fences.
//! Invariant: a group is applied whole or not at all, once, in order, and only under the tokens that it names; after `Ok`
//! it is durable, and every later read sees it.
//! Never: knows a job, decides, or draws chance.
//!
//! # Layout
//! - [`Ledger`]: ten methods; `group`: what is written; `rows`: what is read; `error`: what can go wrong
//! - `shards`: owners, fences and inboxes where one process has the ledger to itself; `apply`: judging a group there
//! - `heap`: in memory; `lsm`: in a directory; `redis`: on a server (behind a feature)
//! - `conformance`: what every ledger must do, as a suite; `double`: one that fails when told to (behind a feature)

mod apply;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "conformance")]
mod double;
mod error;
mod group;
mod heap;
mod lsm;
#[cfg(feature = "redis")]
pub mod redis;
mod rows;
mod shards;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::broadcast;

#[cfg(feature = "conformance")]
pub use self::double::LedgerDouble;
pub use self::error::{Behind, LedgerError};
pub use self::group::{Applied, EntryId, Expect, Fence, Group, Key, Op, Room, Unit, Verdict, When};
pub use self::heap::{HeapLedger, HeapState};
pub use self::lsm::{LsmLedger, Salvaged, Scrubbed, salvage};
#[cfg(feature = "redis")]
pub use self::redis::RedisLedger;
pub use self::rows::{InboxEntry, Rows, Scan};

/// A table; which there are, and what is in them, is the store's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Its place in the list of tables that a ledger is opened with.
    pub number: u8,
    /// Its name at rest.
    pub name: &'static str,
    /// Whether it is ever scanned; one that is not needs no order, where keeping one costs something.
    pub scanned: bool,
}

impl Table {
    /// The table of all inboxes, which lies behind those that a ledger is opened with.
    fn inbox_after(tables: &[Table]) -> Table {
        Table { number: tables.len() as u8, name: "inbox", scanned: true }
    }
}

/// What a row reads as whose bytes the ledger cannot read. No record of a store has this value.
pub const UNREADABLE: &[u8] = &[0xff; 20];

/// Signals that whoever listens may be behind.
const SIGNALS_MAX: usize = 1024;

/// What is owned: one node at a time writes under it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(Arc<str>);

impl Shard {
    /// The shard of this name.
    pub fn new(name: &str) -> Shard {
        Shard(name.into())
    }

    fn name(&self) -> Arc<str> {
        self.0.clone()
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one ownership of a shard. Tokens are compared for equality, never by order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The so-manieth owner.
    pub epoch: u64,
    /// The random number of its node.
    pub node: u64,
}

/// What came of asking for a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owning {
    /// It is the caller's; the number of the last group that was applied under it.
    Owned {
        /// For fences.
        token: Token,
        /// Of the last group.
        seq: u64,
    },
    /// Somebody else's: whoever sees these two unchanged for a whole lease may ask with them.
    Held {
        /// The owner's.
        token: Token,
        /// How often it has shown that it lives.
        beat: u64,
    },
}

/// What a beat gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beats {
    /// The ledger's time, in microseconds since the epoch; `None` where it has no clock of its own.
    pub time_us: Option<u64>,
    /// Which of the ownerships still stand, in order.
    pub standing: Vec<bool>,
}

/// How a ledger is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// `memory`, `embedded`, ….
    pub kind: &'static str,
    /// What `Ok` means.
    pub durability: &'static str,
    /// Places that could not be read since the start.
    pub damaged: u64,
    /// Bytes left to write, where there is a limit.
    pub free_bytes: Option<u64>,
    /// Bytes of them that the ledger needs itself for what it has taken.
    pub reserved_bytes: u64,
    /// Of a server that keeps everything in memory.
    pub memory: Option<Memory>,
    /// Why the server cannot be reached at the moment, if so.
    pub trouble: Option<String>,
    /// The server's version.
    pub server: Option<String>,
}

/// From here on memory is a warning, and from there on critical.
const MEMORY_LEVELS: (f64, f64) = (0.8, 0.9);

/// How much memory a server has, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// In use.
    pub used_bytes: u64,
    /// That may be; 0 for no limit.
    pub max_bytes: u64,
}

impl Memory {
    /// The part that is in use, where there is a limit.
    pub fn ratio(&self) -> Option<f64> {
        (self.max_bytes > 0).then(|| self.used_bytes as f64 / self.max_bytes as f64)
    }

    /// 0 well, 1 a warning, 2 critical.
    pub fn level(&self) -> u8 {
        let ratio = self.ratio().unwrap_or(0.0);
        u8::from(ratio > MEMORY_LEVELS.0) + u8::from(ratio > MEMORY_LEVELS.1)
    }
}

/// Where records are safe.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Asks for a shard: it is free, or was seen to stand still for long enough. After `Owned`, no group under another
    /// token is applied to it, not even one that was sent before.
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError>;

    /// Shows that an owner lives.
    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError>;

    /// Gives a shard up, if it is still owned under this token.
    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError>;

    /// Applies groups in order, each by itself. After [`LedgerError::Unclear`] the identical groups may be written again:
    /// what was applied is not applied twice.
    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError>;

    /// The values of keys, in order.
    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError>;

    /// Up to so many rows, and no more after so many bytes; always one if there is one. Rows that do not change meanwhile
    /// are given once, in order.
    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError>;

    /// What was appended for a shard and not taken yet; in the order of each that appended.
    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError>;

    /// Tells whoever listens that something is new. A signal that is lost costs a delay, nothing else.
    async fn signal(&self, topic: &str) -> Result<(), LedgerError>;

    /// Signals from now on, of every node.
    fn listen(&self) -> broadcast::Receiver<Arc<str>>;

    /// How it is.
    fn health(&self) -> Health;
}
