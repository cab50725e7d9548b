//! The engine and its tables, and reading them in spite of damage.
//! Invariant: what cannot be read takes nothing else with it: a row whose block is damaged reads as [`UNREADABLE`], a scan
//! goes on behind the block, and both are counted. An older version of a row never stands in for one that cannot be read.
//! Never: changes what is damaged.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, UserKey};
use parking_lot::Mutex;

use super::journal::journals;
use crate::group::Key;
use crate::rows::{Rows, Scan};
use crate::{LedgerError, Table, UNREADABLE};

/// Blocks kept for reading. Payloads are read about once, soon after they were written.
const CACHE_BYTES: u64 = 16 << 20;
/// What each table gathers in memory before it is written out.
const MEMTABLE_BYTES: u64 = 8 << 20;
/// The journal is read again at start-up, so its size bounds the time that takes.
const JOURNAL_BYTES: u64 = 128 << 20;
/// Files of tables that are kept open for reading, unless there are fewer handles to go round.
pub(super) const CACHED_FILES_MAX: usize = 512;
/// The engine refuses to keep fewer.
const CACHED_FILES_MIN: usize = 10;
/// No level of a table is ever so large.
const NEVER_REACHED: u64 = 1 << 40;
/// The table of the engine in which every write leaves its count.
const COMMITS: &str = "commits";
/// Rows of one table file that are looked at for the damage that a scan met: it lies at most a block away.
const LOOKED_AT_MAX: usize = 4096;
/// Places that are remembered so that each is counted and logged once.
const PLACES_MAX: usize = 10_000;

pub(super) const READING: &str = "reading the store";

/// A table, and a key beside the damage in it.
type Spot = (String, Vec<u8>);

/// The engine and its tables, in the order of their numbers.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) db: Database,
    pub(super) all: Arc<[Keyspace]>,
    pub(super) commits: Keyspace,
    damaged: Arc<Mutex<BTreeSet<Spot>>>,
    changes: Arc<[AtomicU64]>,
    written: Arc<AtomicU64>,
}

impl Tables {
    pub(super) fn open(store: &Path, tables: &[Table], cached_files_max: usize) -> fjall::Result<Tables> {
        let builder = Database::builder(store).cache_size(CACHE_BYTES).max_journaling_size(JOURNAL_BYTES);
        let builder = builder.max_cached_files(Some(cached_files_max.max(CACHED_FILES_MIN)));
        let db = builder.worker_threads(1).open()?;
        // The engine's worker writes tables out and moves them. It would end the store over a block that it cannot merge; `compaction`
        // merges, and goes on.
        let moves_only = Leveled::default().with_l0_threshold(u8::MAX).with_table_target_size(NEVER_REACHED);
        let options = || {
            let options = KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
            options.compaction_strategy(Arc::new(moves_only.clone()))
        };
        let all = tables.iter().map(|table| db.keyspace(table.name, options)).collect::<fjall::Result<Vec<_>>>()?;
        let commits = db.keyspace(COMMITS, options)?;
        let changes = (0..=all.len()).map(|_| AtomicU64::new(0)).collect();
        Ok(Tables { db, all: all.into(), commits, damaged: Arc::default(), changes, written: Arc::default() })
    }

    pub(super) fn table(&self, table: Table) -> &Keyspace {
        &self.all[usize::from(table.number)]
    }

    /// Counts a row that is put or removed.
    pub(super) fn changed(&self, table: Table, bytes: usize) {
        self.changes[usize::from(table.number)].fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Rows of the table at this place that were put or removed since the start.
    pub(super) fn changes(&self, place: usize) -> u64 {
        self.changes[place].load(Ordering::Relaxed)
    }

    /// Bytes that were written since the start.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Places that could not be read since the start.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged.lock().len() as u64
    }

    pub(super) fn get(&self, table: Table, key: &Key) -> Result<Option<Bytes>, LedgerError> {
        key.with(|key| self.get_bytes(table, key))
    }

    fn get_bytes(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, LedgerError> {
        match self.table(table).get(key) {
            Ok(value) => Ok(value.map(|value| Bytes::copy_from_slice(&value))),
            Err(error) if is_damage(&error) => {
                self.note(table.name, key, &error);
                Ok(Some(Bytes::from_static(UNREADABLE)))
            }
            Err(error) => Err(failed(READING)(error)),
        }
    }

    pub(super) fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        let keyspace = self.table(table);
        let mut found = Rows::default();
        let mut from = match scan {
            Scan::UpFrom(key) => Place::Up(Bound::Included(key.into())),
            Scan::DownFrom(Some(key)) => Place::Down(Bound::Excluded(key.into())),
            Scan::DownFrom(None) => Place::Down(Bound::Unbounded),
        };
        loop {
            let range: Box<dyn Iterator<Item = fjall::Guard>> = match &from {
                Place::Up(start) => Box::new(keyspace.range((start.clone(), Bound::Unbounded))),
                Place::Down(end) => Box::new(keyspace.range((Bound::Unbounded, end.clone())).rev()),
            };
            let mut met = None;
            for row in range {
                match row.into_inner() {
                    Ok((key, value)) if !found.push(&key, &value, rows, bytes) => return Ok(found),
                    Ok((key, _)) => from = from.behind(key),
                    Err(error) => {
                        met = Some(error);
                        break;
                    }
                }
            }
            let Some(error) = met else { return Ok(found) };
            let next = is_damage(&error).then(|| behind_damage(keyspace, &from)).flatten();
            let Some(Resume { row, from: next }) = next else { return Err(failed(READING)(error)) };
            found.add_gap();
            if let Some(key) = row {
                self.note(table.name, &key, &error);
                let value = self.get_bytes(table, &key)?;
                if value.is_some_and(|value| !found.push(&key, &value, rows, bytes)) {
                    return Ok(found);
                }
            } else {
                self.note(table.name, next.key(), &error);
            }
            from = next;
        }
    }

    /// What the engine must still write of what it has taken: what is in memory into tables, and the journal up to the size at
    /// which it begins another.
    pub(super) fn reserved(&self, store: &Path) -> u64 {
        let on_disk = |path: &Path| path.metadata().map_or(0, |file| file.blocks() * 512);
        let journals: u64 = journals(store).unwrap_or_default().iter().map(|path| on_disk(path)).sum();
        self.db.write_buffer_size() + JOURNAL_BYTES.saturating_sub(journals)
    }

    /// Writes what is gathered in memory into files.
    pub(super) fn flush(&self) -> fjall::Result<()> {
        let mut gathered =
            self.all.iter().chain([&self.commits]).filter(|table| table.tree.active_memtable().size() > 0);
        gathered.try_for_each(Keyspace::rotate_memtable_and_wait)
    }

    /// Counts a place that cannot be read, and says so the first time.
    pub(super) fn note(&self, table: impl Into<String>, key: &[u8], error: &dyn std::fmt::Display) {
        let (mut damaged, table) = (self.damaged.lock(), table.into());
        if damaged.len() < PLACES_MAX && damaged.insert((table.clone(), key.to_vec())) {
            tracing::error!(table, key = %key.escape_ascii(), errorReason = %error,
                "A block of the store is damaged; its records cannot be read, the others can");
        }
    }
}

/// Where a scan stands.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    Up(Bound<UserKey>),
    Down(Bound<UserKey>),
}

impl Place {
    fn behind(&self, key: UserKey) -> Place {
        match self {
            Place::Up(_) => Place::Up(Bound::Excluded(key)),
            Place::Down(_) => Place::Down(Bound::Excluded(key)),
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Place::Up(Bound::Included(key) | Bound::Excluded(key))
            | Place::Down(Bound::Included(key) | Bound::Excluded(key)) => key,
            Place::Up(Bound::Unbounded) | Place::Down(Bound::Unbounded) => &[],
        }
    }

    /// Whether it is farther on the way.
    fn is_behind(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Up(_), _) => self.key() > other.key(),
            (Place::Down(_), Place::Down(Bound::Unbounded)) => true,
            (Place::Down(_), _) => self.key() < other.key(),
        }
    }
}

/// Where a scan goes on that met damage.
struct Resume {
    /// The first row behind the damaged blocks; it is read by itself.
    row: Option<UserKey>,
    /// Behind that.
    from: Place,
}

/// Finds the first row behind the damaged blocks. Whatever other tables hold between is left out, too, for a damaged block may
/// have something newer about it.
fn behind_damage(keyspace: &Keyspace, from: &Place) -> Option<Resume> {
    let version = keyspace.tree.current_version();
    let mut nearest: Option<Resume> = None;
    for table in version.iter_tables() {
        let mut rows: Box<dyn Iterator<Item = _>> = match from {
            Place::Up(start) => Box::new(table.range((start.clone(), Bound::Unbounded))),
            Place::Down(end) => Box::new(table.range((Bound::Unbounded, end.clone())).rev()),
        };
        if !rows.by_ref().take(LOOKED_AT_MAX).any(|row| row.is_err()) {
            continue;
        }
        // A damaged index gives nothing but errors.
        let row = rows.take(LOOKED_AT_MAX).find_map(Result::ok).map(|row| row.key.user_key);
        let range = &table.metadata.key_range;
        let next = match from {
            Place::Up(_) => Place::Up(Bound::Excluded(row.as_ref().unwrap_or_else(|| range.max()).clone())),
            Place::Down(_) => Place::Down(Bound::Included(before(row.as_ref().unwrap_or_else(|| range.min())).into())),
        };
        if next.is_behind(from) && nearest.as_ref().is_none_or(|nearest| nearest.from.is_behind(&next)) {
            nearest = Some(Resume { row, from: next });
        }
    }
    nearest
}

/// A key below this one and above every other that is below it. The engine would look for the upper end of a range that ends
/// with the last key of a block in the block behind it, which may be the damaged one.
fn before(key: &[u8]) -> Vec<u8> {
    let mut before = key.to_vec();
    match before.pop() {
        None | Some(0) => {}
        Some(last) => {
            before.push(last - 1);
            before.extend([0xff; 32]);
        }
    }
    before
}

/// Whether bytes on the disk are not what was written, or cannot be read there, rather than the reader short of something.
pub(super) fn is_damage(error: &fjall::Error) -> bool {
    let is_short_of = |error: &std::io::Error| {
        use std::io::ErrorKind::{Interrupted, OutOfMemory, PermissionDenied, StorageFull};
        let no_files = matches!(error.raw_os_error(), Some(EMFILE | ENFILE));
        no_files || matches!(error.kind(), Interrupted | OutOfMemory | PermissionDenied | StorageFull)
    };
    match error {
        fjall::Error::Storage(fjall::LsmError::Io(error)) | fjall::Error::Io(error) => !is_short_of(error),
        fjall::Error::Storage(_) | fjall::Error::Decompress(_) | fjall::Error::InvalidTag(_) => true,
        _ => false,
    }
}

const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

pub(super) fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> LedgerError {
    move |error| LedgerError::Broken { doing, reason: error.to_string() }
}
