//! The real disk: fjall, a log-structured tree, in a directory that one process owns.
//! Invariant: a batch is in the journal and fdatasync'ed before `commit` returns.
//! Never: goes on after a failed sync; the engine poisons itself, and the store stops.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fjall::JournalRecoveryError::{ChecksumMismatch, InsufficientLength, TooManyItems};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::disk::{Batch, Disk, DiskError, Key, Order, Table, Visit};
use super::journal;

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

/// Tables in a directory.
pub struct LsmDisk {
    path: PathBuf,
    db: Database,
    tables: Vec<Keyspace>,
}

impl LsmDisk {
    /// Opens or makes the directory, and takes its lock.
    pub fn open(path: &Path) -> Result<LsmDisk, DiskError> {
        let store = path.join(STORE);
        if !store.exists() {
            make(path)?;
        }
        let mut opened = open_tables(&store);
        if let Err(fjall::Error::JournalRecovery(ChecksumMismatch | InsufficientLength | TooManyItems)) = opened {
            journal::cut_torn_batch(&store)?;
            opened = open_tables(&store);
        }
        let (db, tables) = opened.map_err(|error| match error {
            fjall::Error::Locked => DiskError::InUse { path: path.display().to_string() },
            other => cannot_open(path)(other.to_string()),
        })?;
        Ok(LsmDisk { path: path.to_owned(), db, tables })
    }

    fn table(&self, table: Table) -> &Keyspace {
        &self.tables[table as usize]
    }
}

fn cannot_open(path: &Path) -> impl Fn(String) -> DiskError {
    move |reason| DiskError::Open { path: path.display().to_string(), reason }
}

fn open_tables(store: &Path) -> fjall::Result<(Database, Vec<Keyspace>)> {
    let builder = Database::builder(store).cache_size(CACHE_BYTES).max_journaling_size(JOURNAL_BYTES);
    let db = builder.worker_threads(1).open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
    let tables = Table::ALL.iter().map(|table| db.keyspace(table.name(), options)).collect::<fjall::Result<_>>()?;
    Ok((db, tables))
}

/// Makes an empty store. It gets its name when all of it is on the disk: the engine does not open one that a power cut
/// left half made.
fn make(path: &Path) -> Result<(), DiskError> {
    let failed = |error: io::Error| cannot_open(path)(error.to_string());
    let changed = make_folder(path).map_err(failed)?;
    // Whoever else starts here at this moment must not take our draft for one that was left.
    let folder = File::open(path).map_err(failed)?;
    folder.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => DiskError::InUse { path: path.display().to_string() },
        TryLockError::Error(error) => failed(error),
    })?;
    if path.join(STORE).exists() {
        return Ok(());
    }
    let draft = path.join(DRAFT);
    match std::fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => drop(open_tables(&draft).map_err(|error| cannot_open(path)(error.to_string()))?),
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
    // What jobs carry is nobody else's business on this machine.
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

fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> DiskError {
    move |error| DiskError::Io { doing, reason: error.to_string() }
}

impl From<&Key> for fjall::Slice {
    fn from(key: &Key) -> fjall::Slice {
        fjall::Slice::from(key.as_ref())
    }
}

impl Disk for LsmDisk {
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError> {
        let value = self.table(table).get(key).map_err(failed("reading the store"))?;
        Ok(value.map(|value| see(&value)).is_some())
    }

    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError> {
        let table = self.table(table);
        let mut see = |guard: fjall::Guard| -> Result<ControlFlow<()>, DiskError> {
            let (key, value) = guard.into_inner().map_err(failed("reading the store"))?;
            Ok(visit(&key, &value))
        };
        let mut rows: Box<dyn Iterator<Item = fjall::Guard>> = match order {
            Order::UpFrom(key) => Box::new(table.range(key..)),
            Order::DownFrom(Some(key)) => Box::new(table.range(..key).rev()),
            Order::DownFrom(None) => Box::new(table.iter().rev()),
        };
        for row in &mut rows {
            if see(row)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, batch: Batch) -> Result<(), DiskError> {
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), batch.ops.len())
            .durability(Some(PersistMode::SyncData));
        for op in batch.ops {
            let table = self.table(op.table);
            match op.value {
                Some(value) => writes.insert(table, &op.key, value),
                None => writes.remove(table, &op.key),
            }
        }
        writes.commit().map_err(failed("writing the store"))
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn kind(&self) -> &'static str {
        "embedded"
    }

    fn durability(&self) -> &'static str {
        "every write is synced to disk before it is acknowledged"
    }
}
