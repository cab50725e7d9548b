//! The ledger on disk: fjall, a log-structured tree, in a directory that one process owns.
//! Invariant: a group is in the journal and fdatasync'ed before `write` returns; nothing is opened that was not checked.
//! Never: goes on after a failed sync; the engine poisons itself, and the store stops.
//!
//! # Layout
//! - `folder`: making the directory; `journal` (with `batch`), `manifest`, `acknowledged`: what is checked before it is opened
//! - `tables`: the engine, and reading in spite of damage
//! - `salvage`: what can be read of a damaged store goes into a new one
//! - `upkeep`: a thread for `compaction` (room comes back) and `scrub` (damage is found early)

mod acknowledged;
mod batch;
mod compaction;
mod folder;
mod journal;
mod manifest;
mod salvage;
mod scrub;
mod tables;
mod upkeep;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::PersistMode;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use self::acknowledged::{Acknowledged, COUNT_KEY, Said, count_of};
use self::compaction::free_bytes;
use self::folder::{STORE, cannot_open, make};
use self::salvage::RawRow;
pub use self::salvage::{Salvaged, salvage};
pub use self::scrub::Scrubbed;
use self::scrub::scrub_all;
use self::tables::{CACHED_FILES_MAX, READING, Tables, failed};
use self::upkeep::Upkeep;
use crate::apply::judge;
use crate::group::{Applied, EntryId, Group, Key, Room};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::shards::Shards;
use crate::{Beats, Health, Ledger, LedgerError, Owning, SIGNALS_MAX, Shard, Table, Token};

/// Whoever wants more than so many rows reads on a thread that delivers nothing.
const ROWS_IN_PLACE_MAX: usize = 128;

/// With so much free, what the engine needs itself makes no difference.
const PLENTY: u64 = 8 << 30;

/// Tables in a directory.
pub struct LsmLedger {
    path: PathBuf,
    tables: Tables,
    inbox: Table,
    shards: Mutex<Shards>,
    acknowledged: Mutex<Acknowledged>,
    upkeep: Upkeep,
    signals: broadcast::Sender<Arc<str>>,
}

/// An orderly end: nothing is written any more, so that damage is told from a torn write at the next start.
impl Drop for LsmLedger {
    fn drop(&mut self) {
        self.upkeep.stop();
        let closed = self.tables.db.persist(PersistMode::SyncAll).map_err(failed("closing the store"));
        if closed.is_ok()
            && let Err(error) = self.acknowledged.lock().close()
        {
            tracing::warn!(errorReason = %error, "The orderly end of the store could not be noted");
        }
    }
}

impl LsmLedger {
    /// Opens or makes the directory, and takes its lock.
    pub fn open(path: &Path, tables: &[Table]) -> Result<LsmLedger, LedgerError> {
        LsmLedger::open_with(path, tables, CACHED_FILES_MAX)
    }

    /// The same, with at most so many files of tables kept open for reading.
    pub fn open_with(path: &Path, tables: &[Table], cached_files_max: usize) -> Result<LsmLedger, LedgerError> {
        let inbox = Table::inbox_after(tables);
        let tables: Vec<Table> = tables.iter().copied().chain([inbox]).collect();
        let store = path.join(STORE);
        let said = match store.exists() {
            true => check(&store)?,
            false => {
                make(path, &tables, cached_files_max)?;
                Said::Nothing
            }
        };
        let tables = open_tables(path, &store, &tables, cached_files_max)?;
        let count = tables.commits.get(COUNT_KEY).map_err(|error| cannot_open(path)(error.to_string()))?;
        let count = count.and_then(|value| count_of(&value)).unwrap_or(0);
        if let Said::Count { count: acknowledged, .. } = said
            && count < acknowledged
        {
            return Err(LedgerError::Short { path: path.display().to_string(), found: count, acknowledged });
        }
        let noted = Acknowledged::open(&store, count).map_err(|error| cannot_open(path)(error.to_string()))?;
        let appended = tables.scan(inbox, Scan::UpFrom(&[]), usize::MAX, usize::MAX)?;
        let last = appended.iter().filter_map(|(key, _)| EntryId::of_key(key)).max();
        Ok(LsmLedger {
            path: path.to_owned(),
            upkeep: Upkeep::start(tables.clone(), store)?,
            tables,
            inbox,
            shards: Mutex::new(Shards::after(last)),
            acknowledged: Mutex::new(noted),
            signals: broadcast::Sender::new(SIGNALS_MAX),
        })
    }

    /// Writes what is gathered in memory into tables. It is durable without that, in the journal.
    pub fn flush(&self) -> Result<(), LedgerError> {
        self.tables.flush().map_err(failed("writing tables"))
    }

    /// Makes a batch durable, and notes that it is.
    fn commit(&self, mut writes: fjall::OwnedWriteBatch) -> Result<(), LedgerError> {
        if !writes.is_empty() {
            let mut acknowledged = self.acknowledged.lock();
            writes.insert(&self.tables.commits, COUNT_KEY, acknowledged.next().to_le_bytes());
            writes.commit().map_err(failed("writing the store"))?;
            acknowledged.add();
        }
        Ok(())
    }

    /// Writes rows that another store had.
    fn put_raw(&self, rows: Vec<RawRow>) -> Result<(), LedgerError> {
        let writes = fjall::OwnedWriteBatch::with_capacity(self.tables.db.clone(), rows.len() + 1);
        let mut writes = writes.durability(Some(PersistMode::SyncData));
        for (place, key, value) in rows {
            match value {
                Some(value) => writes.insert(&self.tables.all[place], key, value),
                None => writes.remove(&self.tables.all[place], key),
            }
        }
        self.commit(writes)
    }

    /// Reads all tables, and says which are not as they were written.
    pub fn scrub(&self) -> Result<Scrubbed, LedgerError> {
        scrub_all(&self.tables).map_err(|error| LedgerError::Broken { doing: READING, reason: error.to_string() })
    }

    /// Reads on a thread that delivers nothing.
    async fn read_elsewhere<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Tables) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let tables = self.tables.clone();
        let joined = tokio::task::spawn_blocking(move || read(&tables)).await;
        joined.unwrap_or_else(|error| Err(LedgerError::Broken { doing: READING, reason: error.to_string() }))
    }
}

/// Checks what the engine would take as it comes. Gives how much was acknowledged.
fn check(store: &Path) -> Result<Said, LedgerError> {
    let _lock = journal::lock(store)?;
    manifest::check(store)?;
    let said = acknowledged::read(store)
        .map_err(|error| LedgerError::Broken { doing: "checking the store", reason: error.to_string() })?;
    if said == Said::Garbled {
        tracing::error!(file = %store.join(acknowledged::FILE).display(),
            "The note of how much was acknowledged is damaged; whether the journal is complete cannot be told");
    }
    journal::check(store, said)?;
    Ok(said)
}

fn open_tables(path: &Path, store: &Path, tables: &[Table], cached_files_max: usize) -> Result<Tables, LedgerError> {
    // The engine panics over some damage; that must end the start with a reason, and nothing else.
    let opened = std::panic::catch_unwind(AssertUnwindSafe(|| Tables::open(store, tables, cached_files_max)));
    match opened {
        Ok(Ok(tables)) => Ok(tables),
        Ok(Err(fjall::Error::Locked)) => Err(LedgerError::InUse { path: path.display().to_string() }),
        Ok(Err(error)) => Err(cannot_open(path)(error.to_string())),
        Err(_) => Err(cannot_open(path)("the engine cannot make sense of its files".into())),
    }
}

fn slice(key: &Key) -> fjall::Slice {
    key.with(|key| fjall::Slice::from(key))
}

#[async_trait]
impl Ledger for LsmLedger {
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

    /// Syncs on the thread of its caller, which is the store's writer.
    async fn write(&self, groups: &[Group], _: Room) -> Result<Vec<Applied>, LedgerError> {
        let mut shards = self.shards.lock();
        let look = |table: Table, key: &Key| self.tables.get(table, key);
        let ops: usize = groups.iter().flat_map(|group| &group.units).map(|unit| unit.ops.len()).sum();
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.tables.db.clone(), ops + 1)
            .durability(Some(PersistMode::SyncData));
        let answers = judge(&mut shards, groups, self.inbox, &look, &mut |table, key, value| {
            self.tables.changed(table, value.map_or(0, <[u8]>::len));
            match value {
                Some(value) => writes.insert(self.tables.table(table), slice(key), value),
                None => writes.remove(self.tables.table(table), slice(key)),
            }
        })?;
        self.commit(writes)?;
        Ok(answers)
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        if keys.len() <= ROWS_IN_PLACE_MAX {
            return keys.iter().map(|key| self.tables.get(table, key)).collect();
        }
        let keys = keys.to_vec();
        self.read_elsewhere(move |tables| keys.iter().map(|key| tables.get(table, key)).collect()).await
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        if rows <= ROWS_IN_PLACE_MAX {
            return self.tables.scan(table, scan, rows, bytes);
        }
        let (is_up, from) = match scan {
            Scan::UpFrom(key) => (true, Some(key.to_vec())),
            Scan::DownFrom(key) => (false, key.map(<[u8]>::to_vec)),
        };
        let read = move |tables: &Tables| match (is_up, &from) {
            (true, from) => tables.scan(table, Scan::UpFrom(from.as_deref().unwrap_or_default()), rows, bytes),
            (false, from) => tables.scan(table, Scan::DownFrom(from.as_deref()), rows, bytes),
        };
        self.read_elsewhere(read).await
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        let prefix = Key::prefix(shard.as_str());
        let rows = self.tables.scan(self.inbox, Scan::UpFrom(&prefix), entries, bytes)?;
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
        let free_bytes = free_bytes(&self.path);
        Health {
            kind: "embedded",
            durability: "every write is synced to disk before it is acknowledged",
            damaged: self.tables.damaged(),
            free_bytes,
            reserved_bytes: match free_bytes {
                // Nobody need count it.
                Some(PLENTY..) | None => 0,
                Some(_) => self.tables.reserved(&self.path.join(STORE)),
            },
            ..Health::default()
        }
    }
}
