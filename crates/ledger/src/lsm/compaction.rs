//! Merging tables, so that reading stays cheap and the room of what is gone comes back.
//! Invariant: one thread merges, and nobody else: the engine's own worker only writes tables out and moves them. A merge that
//! fails over damage or want of room leaves everything as it was, and the store goes on.
//! Never: merges everything while much is written, unless room is short; never begins what there is no room for.
//!
//! The engine merges when a level has grown. What was delivered and swept away leaves little more than small marks of removal,
//! which make no level grow: the payloads would lie below them for ever. So whatever may hold something outdated is merged whole
//! when it has changed much, or when nothing has changed in it for a while.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::{AbstractTree as _, Database, Keyspace};

use super::tables::{Tables, is_damage};

/// Runs of new tables that are worth a merge in a quiet moment.
const NEW_RUNS_MIN: usize = 4;
/// The same while much is written: merging takes from whoever delivers. The engine itself slows writers down at 20.
const NEW_RUNS_BUSY_MIN: usize = 12;
/// Merges in a row of one table before others get their turn.
const MERGES_MAX: usize = 8;
/// Less than so much is not worth a merge of everything.
const WHOLE_BYTES_MIN: u64 = 8 << 20;
/// More written in a second is no quiet moment.
const BUSY_BYTES: u64 = 4 << 20;
/// The same from one look for new tables to the next.
const BUSY_BYTES_A_LOOK: u64 = BUSY_BYTES / LOOKS_A_SECOND as u64;
/// How often it is looked for new tables to merge.
pub(super) const LOOKS_A_SECOND: u32 = 20;
/// A table in which nothing changed for so many seconds is at rest.
const REST_SECONDS: u32 = 10;
/// Between two merges of everything in one table, at the least; and as many times as long as the last one took, about.
const WAIT_SECONDS_MIN: u32 = 10;
const WAIT_TIMES: u32 = 8;
/// About what is merged in a second.
const BYTES_A_SECOND: u64 = 128 << 20;
/// How long a table is left alone whose merge failed.
const FAILED_SECONDS: u32 = 600;
/// About the size of a table after that.
const TABLE_BYTES: u64 = 64 << 20;
/// Room that a merge leaves, whatever it takes.
const SPARE_BYTES: u64 = 16 << 20;

/// One table of the engine, and when it is looked at again.
struct Turn {
    table: Keyspace,
    /// As many seconds until everything in it may be merged again.
    wait: u32,
    /// The same for a merge of some of it, which failed.
    held: u32,
    /// Seconds without a change.
    rest: u32,
    /// Changes since everything in it was merged, and since the last look.
    changes: u64,
    seen: u64,
}

/// What is to be merged.
pub(super) struct Compaction {
    db: Database,
    turns: Vec<Turn>,
    /// What had been written a second ago, and at the last look for new tables.
    written: u64,
    looked_at: u64,
}

impl Compaction {
    pub(super) fn of(tables: &Tables) -> Compaction {
        let all = tables.all.iter().chain([&tables.commits]);
        let turn = |table: &Keyspace| {
            // What the last process left is not known: it may all be outdated.
            let changes = table.approximate_len() as u64;
            Turn { table: table.clone(), wait: 0, held: 0, rest: 0, changes, seen: 0 }
        };
        Compaction { db: tables.db.clone(), turns: all.map(turn).collect(), written: 0, looked_at: 0 }
    }

    /// Merges new tables, a bounded number of times.
    pub(super) fn merge_new(&mut self, tables: &Tables) {
        let written = tables.written();
        let is_busy = written - std::mem::replace(&mut self.looked_at, written) > BUSY_BYTES_A_LOOK;
        let worth_it = if is_busy { NEW_RUNS_BUSY_MIN } else { NEW_RUNS_MIN };
        for turn in &mut self.turns {
            if turn.held > 0 || turn.table.tree.l0_run_count() < worth_it {
                continue;
            }
            for _ in 0..MERGES_MAX {
                let before = turn.table.tree.current_version().id();
                let merged = turn.table.tree.compact(Arc::new(Leveled::default()), seen_by_all(&self.db));
                if let Err(error) = merged.and_then(|()| let_go(&self.db, &turn.table)) {
                    turn.held = FAILED_SECONDS;
                    say_failed(tables, &turn.table, error.into());
                    break;
                }
                if turn.table.tree.current_version().id() == before {
                    break;
                }
            }
        }
    }

    /// Once a second: merges everything in at most one table, if that is worth it and there is room.
    pub(super) fn merge_whole(&mut self, tables: &Tables, store: &Path) {
        let written = tables.written();
        let is_busy = written - std::mem::replace(&mut self.written, written) > BUSY_BYTES;
        let Some(free) = free_bytes(store) else { return };
        let all: u64 = self.turns.iter().map(|turn| turn.table.disk_space()).sum();
        let is_short = free < all.saturating_add(SPARE_BYTES);
        for (place, turn) in self.turns.iter_mut().enumerate() {
            let changes = tables.changes(place);
            turn.changes += changes - turn.seen;
            turn.rest = if changes == std::mem::replace(&mut turn.seen, changes) { turn.rest + 1 } else { 0 };
            // While it was merged somebody may have been reading.
            if turn.table.tree.version_free_list_len() > 0
                && let Err(error) = let_go(&self.db, &turn.table)
            {
                tracing::warn!(table = &**turn.table.name(), errorReason = ?error, "Tables that were merged are still there");
            }
            turn.wait = turn.wait.saturating_sub(1);
            turn.held = turn.held.saturating_sub(1);
        }
        if is_busy && !is_short {
            return;
        }
        let Some(turn) = self.turns.iter_mut().find(|turn| turn.is_due(is_short)) else { return };
        let size = turn.table.disk_space();
        let took = (size / BYTES_A_SECOND) as u32;
        turn.wait = WAIT_SECONDS_MIN.max(took * if is_short { 2 } else { WAIT_TIMES });
        match merge_whole(&self.db, &turn.table, size, free) {
            Ok(true) => {
                turn.changes = 0;
                tracing::debug!(
                    table = &**turn.table.name(),
                    before = size,
                    after = turn.table.disk_space(),
                    "Tables were merged"
                );
            }
            // Less is left of it every moment; then there is room.
            Ok(false) => {}
            Err(error) => {
                turn.wait = FAILED_SECONDS;
                say_failed(tables, &turn.table, error);
            }
        }
    }
}

impl Turn {
    fn is_due(&self, is_short: bool) -> bool {
        let entries = self.table.approximate_len() as u64;
        let has_changed = self.changes * if is_short { 10 } else { 2 } >= entries;
        self.wait == 0
            && self.changes > 0
            && (has_changed || self.rest >= REST_SECONDS)
            && self.table.disk_space() >= WHOLE_BYTES_MIN
            && may_be_outdated(&self.table)
    }
}

/// Whether anything may lie below something newer: tables of the last level have each row once.
fn may_be_outdated(table: &Keyspace) -> bool {
    let tree = &table.tree;
    let last = tree.current_version().level_count() - 1;
    tree.active_memtable().size() > 0
        || tree.tombstone_count() > 0
        || (0..last).any(|level| tree.level_table_count(level).is_some_and(|tables| tables > 0))
}

/// Merges everything in a table into its last level; `false` if there is no room for what is left of it.
fn merge_whole(db: &Database, table: &Keyspace, size: u64, free: u64) -> fjall::Result<bool> {
    table.rotate_memtable()?;
    // The engine's worker writes it out; what is not there yet is merged the next time.
    for _ in 0..100 {
        if table.tree.sealed_memtable_count() == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let free = free.saturating_sub(SPARE_BYTES);
    if size > free && live_bytes(table, free)?.is_none() {
        return Ok(false);
    }
    table.tree.major_compact(TABLE_BYTES, seen_by_all(db))?;
    let_go(db, table)?;
    Ok(true)
}

/// Whatever is older than this, and has something newer above it, nobody can read any more. The engine finds that out when a
/// table is written out, which in a quiet moment may be never.
fn seen_by_all(db: &Database) -> u64 {
    let seen = db.visible_seqno();
    match db.supervisor.snapshot_tracker.open_snapshots() {
        0 => seen,
        _ => db.supervisor.snapshot_tracker.get_seqno_safe_to_gc(),
    }
}

/// Lets go of the tables that were merged: the engine keeps their files as long as it remembers that there were such.
fn let_go(db: &Database, table: &Keyspace) -> Result<(), fjall::LsmError> {
    table.tree.get_version_history_lock().maintenance(table.path(), seen_by_all(db))
}

/// What the rows of a table take that are not outdated, unless that is more than `most`.
fn live_bytes(table: &Keyspace, most: u64) -> fjall::Result<Option<u64>> {
    let mut live = 0;
    for row in table.iter() {
        let (key, value) = row.into_inner()?;
        live += (key.len() + value.len()) as u64 * 11 / 10 + 32;
        if live > most {
            return Ok(None);
        }
    }
    Ok(Some(live))
}

pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// A merge that failed changed nothing.
fn say_failed(tables: &Tables, table: &Keyspace, error: fjall::Error) {
    let name = &**table.name();
    if is_damage(&error) {
        tables.note_damaged_tables(table);
    }
    tracing::error!(table = name, errorReason = %error, againInSeconds = FAILED_SECONDS,
        "Tables could not be merged, so room does not come back; the store goes on");
}

#[cfg(test)]
mod tests {
    use super::super::folder::{STORE, make};
    use super::*;
    use crate::Table;

    const TABLE: Table = Table { number: 0, name: "rows", scanned: true };
    const ROWS: u32 = 400;

    /// A store with 16 MB in a table file.
    fn filled(dir: &Path) -> Tables {
        make(dir, &[TABLE], 10).unwrap();
        let tables = Tables::open(&dir.join(STORE), &[TABLE], 10).unwrap();
        for row in 0..ROWS {
            put(&tables, row, &[row as u8; 40_000]);
        }
        tables.flush().unwrap();
        tables
    }

    fn put(tables: &Tables, row: u32, value: &[u8]) {
        tables.table(TABLE).insert(row.to_be_bytes(), value).unwrap();
        tables.changed(TABLE, value.len());
    }

    fn files(dir: &Path) -> Vec<std::path::PathBuf> {
        let files = std::fs::read_dir(dir.join(STORE).join("keyspaces/1/tables")).unwrap();
        files.map(|entry| entry.unwrap().path()).collect()
    }

    fn on_disk(dir: &Path) -> u64 {
        files(dir).iter().map(|path| path.metadata().unwrap().len()).sum()
    }

    /// 1 GiB of delivered payloads stayed on the disk for ever: what says that they are gone is small, and makes no level grow.
    #[test]
    fn the_room_of_what_is_gone_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let tables = filled(dir.path());
        assert!(on_disk(dir.path()) > 16_000_000);
        let mut compaction = Compaction::of(&tables);
        for row in 0..ROWS - 1 {
            put(&tables, row, b"done");
        }
        compaction.merge_whole(&tables, dir.path());
        assert!(on_disk(dir.path()) > 16_000_000, "not in a second in which much was written");
        compaction.merge_whole(&tables, dir.path());
        assert!(on_disk(dir.path()) < 200_000, "{} bytes are left", on_disk(dir.path()));
        let rows = tables.scan(TABLE, crate::Scan::UpFrom(&[]), usize::MAX, usize::MAX).unwrap();
        assert_eq!(rows.len(), ROWS as usize);
        assert_eq!(rows.iter().next_back().map(|(_, value)| value.len()), Some(40_000), "what is not gone is there");
    }

    #[test]
    fn nothing_is_merged_without_room_for_what_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let tables = filled(dir.path());
        for row in 0..ROWS / 2 {
            put(&tables, row, b"done");
        }
        let table = tables.table(TABLE);
        let size = table.disk_space();
        assert!(!merge_whole(&tables.db, table, size, SPARE_BYTES + size / 4).unwrap(), "half is left");
        assert!(on_disk(dir.path()) > 16_000_000);
        assert!(merge_whole(&tables.db, table, size, SPARE_BYTES + size * 3 / 4).unwrap());
        assert!(on_disk(dir.path()) < 9_000_000, "{} bytes are left", on_disk(dir.path()));
    }

    /// The engine's own worker ended the store over a block that it could not merge, again at every start.
    #[test]
    fn a_damaged_block_ends_a_merge_and_not_the_store() {
        let dir = tempfile::tempdir().unwrap();
        drop(filled(dir.path()));
        let file = files(dir.path()).into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let tables = Tables::open(&dir.path().join(STORE), &[TABLE], 10).unwrap();
        let mut compaction = Compaction::of(&tables);
        for round in 0..6 {
            for row in 0..ROWS {
                put(&tables, row, &[round; 100]);
            }
            tables.flush().unwrap();
            compaction.merge_new(&tables);
            compaction.merge_whole(&tables, dir.path());
        }
        assert!(tables.damaged() > 0, "it is counted");
        put(&tables, 7, b"still written");
        assert_eq!(tables.table(TABLE).get(7u32.to_be_bytes()).unwrap().as_deref(), Some(&b"still written"[..]));
    }
}
