//! The ledger on disk: fjall, a log-structured tree, in a directory that one process owns.
//! Invariant: a group is in the journal and fdatasync'ed before `write` returns; no journal is opened that was not checked.
//! Never: goes on after a failed sync; the engine poisons itself, and the store stops.

mod journal;

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::apply::judge;
use crate::group::{Applied, EntryId, Group, Key, Room};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::shards::Shards;
use crate::{Beats, Health, Ledger, LedgerError, Owning, SIGNALS_MAX, Shard, Table, Token};

/// Where the engine keeps its files, in the data directory.
const STORE: &str = "store";
/// The same until all of it is there.
const DRAFT: &str = "store.new";
/// Blocks kept for reading. Payloads are read about once, soon after they were written.
const CACHE_BYTES: u64 = 16 << 20;
/// What each table gathers in memory before it is written out.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The journal is read again at start-up, so its size bounds the time that takes.
const JOURNAL_BYTES: u64 = 128 << 20;
/// Files of tables that are kept open for reading, unless there are fewer handles to go round.
const CACHED_FILES_MAX: usize = 512;
/// The engine refuses to keep fewer.
const CACHED_FILES_MIN: usize = 10;
/// Whoever wants more than so many rows reads on a thread that delivers nothing.
const ROWS_IN_PLACE_MAX: usize = 128;

/// Tables in a directory.
pub struct LsmLedger {
    path: PathBuf,
    tables: Tables,
    inbox: Table,
    shards: Mutex<Shards>,
    signals: broadcast::Sender<Arc<str>>,
}

/// The engine and its tables, in the order of their numbers.
#[derive(Clone)]
struct Tables {
    db: Database,
    all: Arc<[Keyspace]>,
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
        match store.exists() {
            true => journal::check(&store)?,
            false => make(path, &tables, cached_files_max)?,
        }
        let tables = Tables::open(&store, &tables, cached_files_max).map_err(|error| match error {
            fjall::Error::Locked => LedgerError::InUse { path: path.display().to_string() },
            other => cannot_open(path)(other.to_string()),
        })?;
        let appended = tables.scan(inbox, Scan::UpFrom(&[]), usize::MAX, usize::MAX)?;
        let last = appended.iter().filter_map(|(key, _)| EntryId::of_key(key)).max();
        Ok(LsmLedger {
            path: path.to_owned(),
            tables,
            inbox,
            shards: Mutex::new(Shards::after(last)),
            signals: broadcast::Sender::new(SIGNALS_MAX),
        })
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

const READING: &str = "reading the store";

impl Tables {
    fn open(store: &Path, tables: &[Table], cached_files_max: usize) -> fjall::Result<Tables> {
        let builder = Database::builder(store).cache_size(CACHE_BYTES).max_journaling_size(JOURNAL_BYTES);
        let builder = builder.max_cached_files(Some(cached_files_max.max(CACHED_FILES_MIN)));
        let db = builder.worker_threads(1).open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let all = tables.iter().map(|table| db.keyspace(table.name, options)).collect::<fjall::Result<Vec<_>>>()?;
        Ok(Tables { db, all: all.into() })
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.all[usize::from(table.number)]
    }

    fn get(&self, table: Table, key: &Key) -> Result<Option<Bytes>, LedgerError> {
        let value = key.with(|key| self.table(table).get(key)).map_err(failed(READING))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        let table = self.table(table);
        let range: Box<dyn Iterator<Item = fjall::Guard>> = match scan {
            Scan::UpFrom(key) => Box::new(table.range(key..)),
            Scan::DownFrom(Some(key)) => Box::new(table.range(..key).rev()),
            Scan::DownFrom(None) => Box::new(table.iter().rev()),
        };
        let mut found = Rows::default();
        for row in range {
            let (key, value) = row.into_inner().map_err(failed(READING))?;
            if !found.push(&key, &value, rows, bytes) {
                break;
            }
        }
        Ok(found)
    }
}

fn slice(key: &Key) -> fjall::Slice {
    key.with(|key| fjall::Slice::from(key))
}

fn cannot_open(path: &Path) -> impl Fn(String) -> LedgerError {
    move |reason| LedgerError::Open { path: path.display().to_string(), reason }
}

/// Makes an empty store. It gets its name when all of it is on the disk: the engine does not open one that a power cut
/// left half made.
fn make(path: &Path, tables: &[Table], cached_files_max: usize) -> Result<(), LedgerError> {
    let failed = |error: io::Error| cannot_open(path)(error.to_string());
    let changed = make_folder(path).map_err(failed)?;
    // Whoever else starts here at this moment must not take our draft for one that was left.
    let folder = File::open(path).map_err(failed)?;
    folder.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => LedgerError::InUse { path: path.display().to_string() },
        TryLockError::Error(error) => failed(error),
    })?;
    if path.join(STORE).exists() {
        return Ok(());
    }
    let draft = path.join(DRAFT);
    match std::fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {
            drop(Tables::open(&draft, tables, cached_files_max).map_err(|error| cannot_open(path)(error.to_string()))?)
        }
    }
    // The engine syncs what is in the folders of its tables, but not their names.
    sync_names(&draft.join("keyspaces")).map_err(failed)?;
    sync_names(&draft).map_err(failed)?;
    std::fs::rename(&draft, path.join(STORE)).map_err(failed)?;
    [path].into_iter().chain(changed.iter().map(PathBuf::as_path)).try_for_each(sync_names).map_err(failed)
}

/// Makes a folder and those it lies in. Gives the folders that have a new name in them.
fn make_folder(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = std::path::absolute(path)?;
    let missing = path.ancestors().take_while(|folder| !folder.exists());
    let changed = missing.filter_map(Path::parent).map(Path::to_owned).collect();
    // What records carry is nobody else's business on this machine.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(changed)
}

/// Makes the names in a folder survive a power cut: a synced file whose folder has no name is lost with it.
fn sync_names(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Ok(folder) => folder.sync_all(),
        // One may be allowed to make a folder in another without being allowed to read that one.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> LedgerError {
    move |error| LedgerError::Broken { doing, reason: error.to_string() }
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
        let ops = groups.iter().flat_map(|group| &group.units).map(|unit| unit.ops.len()).sum();
        let mut writes =
            fjall::OwnedWriteBatch::with_capacity(self.tables.db.clone(), ops).durability(Some(PersistMode::SyncData));
        let answers = judge(&mut shards, groups, self.inbox, &look, &mut |table, key, value| match value {
            Some(value) => writes.insert(self.tables.table(table), slice(key), value),
            None => writes.remove(self.tables.table(table), slice(key)),
        })?;
        writes.commit().map_err(failed("writing the store"))?;
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
        let stat = rustix::fs::statvfs(&self.path).ok();
        Health {
            kind: "embedded",
            durability: "every write is synced to disk before it is acknowledged",
            free_bytes: stat.map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            ..Health::default()
        }
    }
}
