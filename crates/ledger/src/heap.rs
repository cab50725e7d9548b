//! A ledger in memory, gone with the process.
//! Invariant: behaves as the one on disk in every way but durability; a group is seen whole or not at all.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;

use crate::apply::judge;
use crate::group::{Applied, EntryId, Group, Key, Room};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::shards::Shards;
use crate::{Beats, Health, Ledger, LedgerError, Owning, SIGNALS_MAX, Shard, Table, Token};

type Sorted = BTreeMap<Vec<u8>, Bytes>;

/// Tables in memory.
#[derive(Debug)]
pub struct HeapLedger {
    tables: RwLock<Vec<Sorted>>,
    shards: Mutex<Shards>,
    inbox: Table,
    signals: broadcast::Sender<Arc<str>>,
}

/// Everything that a ledger in memory held at a moment.
#[derive(Clone, Debug)]
pub struct HeapState {
    tables: Vec<Sorted>,
    shards: Shards,
}

impl HeapState {
    /// Who owned a shard then, and the number of the last group that was written under it.
    pub fn owner(&self, shard: &Shard) -> (Option<Token>, u64) {
        self.shards.owner(shard)
    }
}

impl HeapLedger {
    /// An empty one.
    pub fn new(tables: &[Table]) -> HeapLedger {
        HeapLedger {
            tables: RwLock::new(vec![Sorted::new(); tables.len() + 1]),
            shards: Mutex::default(),
            inbox: Table::inbox_after(tables),
            signals: broadcast::Sender::new(SIGNALS_MAX),
        }
    }

    /// What would be left of it after a crash: the same rows, and nobody who owns anything.
    pub fn copy(&self) -> HeapLedger {
        let tables = self.tables.read().clone();
        let last = tables[usize::from(self.inbox.number)].keys().filter_map(|key| EntryId::of_key(key)).max();
        HeapLedger {
            tables: RwLock::new(tables),
            shards: Mutex::new(Shards::after(last)),
            inbox: self.inbox,
            signals: broadcast::Sender::new(SIGNALS_MAX),
        }
    }

    /// Everything that it holds now, owners included.
    pub fn state(&self) -> HeapState {
        HeapState { tables: self.tables.read().clone(), shards: self.shards.lock().clone() }
    }

    /// Loses whatever came after a state of it, as a server does that had not written it down. Names of inbox entries are
    /// not given again.
    pub fn rewind(&self, state: &HeapState) {
        let mut shards = self.shards.lock();
        *self.tables.write() = state.tables.clone();
        *shards = state.shards.clone().not_before(&shards);
    }

    /// Applies groups at once.
    pub fn apply(&self, groups: &[Group]) -> Result<Vec<Applied>, LedgerError> {
        let mut shards = self.shards.lock();
        let look = |table: Table, key: &Key| Ok(self.get(table, key));
        let mut changed = Vec::new();
        let answers = judge(&mut shards, groups, self.inbox, &look, &mut |table, key, value| {
            changed.push((table, key.to_vec(), value.map(Bytes::copy_from_slice)));
        })?;
        let mut tables = self.tables.write();
        for (table, key, value) in changed {
            let rows = &mut tables[usize::from(table.number)];
            match value {
                Some(value) => drop(rows.insert(key, value)),
                None => drop(rows.remove(&key)),
            }
        }
        Ok(answers)
    }

    /// The value of a key.
    pub fn get(&self, table: Table, key: &Key) -> Option<Bytes> {
        key.with(|key| self.tables.read()[usize::from(table.number)].get(key).cloned())
    }

    /// Some rows of a table, at once.
    pub fn rows(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Rows {
        let tables = self.tables.read();
        let (range, is_up) = match scan {
            Scan::UpFrom(key) => ((Bound::Included(key), Bound::Unbounded), true),
            Scan::DownFrom(Some(key)) => ((Bound::Unbounded, Bound::Excluded(key)), false),
            Scan::DownFrom(None) => ((Bound::Unbounded, Bound::Unbounded), false),
        };
        let mut range = tables[usize::from(table.number)].range::<[u8], _>(range);
        let mut found = Rows::default();
        while let Some((key, value)) = if is_up { range.next() } else { range.next_back() } {
            if !found.push(key, value, rows, bytes) {
                break;
            }
        }
        found
    }
}

#[async_trait]
impl Ledger for HeapLedger {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        Ok(self.shards.lock().own(shard, node, seen))
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        Ok(self.shards.lock().beat(held))
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        self.shards.lock().release(shard, token);
        Ok(())
    }

    async fn write(&self, groups: &[Group], _: Room) -> Result<Vec<Applied>, LedgerError> {
        self.apply(groups)
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        Ok(keys.iter().map(|key| self.get(table, key)).collect())
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        Ok(self.rows(table, scan, rows, bytes))
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        let prefix = Key::prefix(shard.as_str());
        let rows = self.rows(self.inbox, Scan::UpFrom(&prefix), entries, bytes);
        Ok(InboxEntry::of_rows(&rows, &prefix))
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        // Nobody may listen.
        drop(self.signals.send(topic.into()));
        Ok(())
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.signals.subscribe()
    }

    fn health(&self) -> Health {
        let durability = "none: everything is lost with the process";
        Health { kind: "memory", durability, ..Health::default() }
    }
}
