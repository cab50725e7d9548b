//! Salvage: what can be read of a damaged store goes into a new one.
//! Invariant: the damaged store is only read. What the journals say comes after what the tables say, as it was written.
//! Never: leaves anything out without a word: every place that cannot be read is named.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use super::LsmLedger;
use super::acknowledged::{self, COUNT_KEY};
use super::batch::{Batch, next_sound, readable_items};
use super::folder::STORE;
use super::journal::{self, journals};
use super::tables::{CACHED_FILES_MAX, Tables};
use crate::rows::Scan;
use crate::{LedgerError, Table};

/// Rows that are written together.
const TOGETHER: usize = 512;
/// Rows of a page, and its bytes.
const PAGE: (usize, usize) = (1024, 4 << 20);
/// The tables as the engine gets them, in the new directory; removed at the end.
const SCRATCH: &str = "salvage.tmp";
const FOLDERS: &str = "keyspaces";

/// What was saved, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Rows of each table after the salvage.
    pub rows: Vec<(&'static str, u64)>,
    /// Writes that the journals had.
    pub writes: u64,
    /// Places that cannot be read, each with what it is.
    pub damaged: Vec<String>,
    /// Ids that damaged writes speak of, as far as they can be followed.
    pub hit: Vec<[u8; 16]>,
}

/// A row on its way; without a value it is removed.
pub(super) type RawRow = (usize, Vec<u8>, Option<Vec<u8>>);

/// Reads what can be read in `from` into a new ledger in `to`.
pub fn salvage(from: &Path, to: &Path, tables: &[Table]) -> Result<(LsmLedger, Salvaged), LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "salvaging the store", reason: error.to_string() };
    let store = from.join(STORE);
    if !store.exists() {
        return Err(LedgerError::Open { path: from.display().to_string(), reason: "there is no store in it".into() });
    }
    if to.join(STORE).exists() {
        let reason = "there is a store in it already; name a new directory".into();
        return Err(LedgerError::Open { path: to.display().to_string(), reason });
    }
    let _lock = journal::lock(&store)?;
    let saved = LsmLedger::open(to, tables)?;
    let all: Vec<Table> = tables.iter().copied().chain([Table::inbox_after(tables)]).collect();
    let mut salvaged = Salvaged::default();
    let scratch = to.join(SCRATCH);
    let numbers = save_tables(&store, &scratch, &all, &saved, &mut salvaged)?;
    save_journals(&store, &numbers, &saved, &mut salvaged)?;
    std::fs::remove_dir_all(&scratch).map_err(failed)?;
    for table in &all {
        let mut rows = 0;
        visit(&saved.tables, *table, |_, _| {
            rows += 1;
            Ok(())
        })?;
        salvaged.rows.push((table.name, rows));
    }
    Ok((saved, salvaged))
}

/// Saves the rows of all tables that the engine can open. Gives the number that each has in the journals.
fn save_tables(
    store: &Path,
    scratch: &Path,
    all: &[Table],
    saved: &LsmLedger,
    salvaged: &mut Salvaged,
) -> Result<Vec<u64>, LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "reading the tables", reason: error.to_string() };
    // As they are made: the engine's own comes first.
    let mut numbers: Vec<u64> = (1..=all.len() as u64).collect();
    let mut left_out = Vec::new();
    let tables = loop {
        link_tables(store, scratch, &left_out).map_err(failed)?;
        let checked = super::manifest::damaged_folder(scratch).map_err(failed)?;
        if checked.is_none()
            && let Ok(Ok(tables)) =
                std::panic::catch_unwind(AssertUnwindSafe(|| Tables::open(scratch, all, CACHED_FILES_MAX)))
        {
            break tables;
        }
        // One that the engine cannot open keeps it from opening the others: each is left out in turn until it opens.
        let next = checked.or_else(|| {
            (1..=all.len() as u64).rev().map(|number| number.to_string()).find(|name| !left_out.contains(name))
        });
        let Some(next) = next else {
            salvaged.damaged.push("all tables: the engine cannot open them".into());
            return Ok(numbers);
        };
        left_out.push(next);
    };
    for name in &left_out {
        let table = name.parse::<usize>().ok().and_then(|number| all.get(number.wrapping_sub(1)));
        let table = table.map_or("one of the engine's own", |table| table.name);
        salvaged.damaged.push(format!("table {table}: it cannot be opened; what the journal has of it is saved"));
    }
    for (place, table) in all.iter().enumerate() {
        if !left_out.contains(&(place as u64 + 1).to_string()) {
            numbers[place] = tables.all[place].id();
        }
        let mut some = Vec::new();
        let gaps = visit(&tables, *table, |key, value| {
            // One whose block is damaged is named below.
            if value != crate::UNREADABLE {
                some.push((place, key.to_vec(), Some(value.to_vec())));
            }
            if some.len() >= TOGETHER { saved.put_raw(std::mem::take(&mut some)) } else { Ok(()) }
        })?;
        saved.put_raw(some)?;
        if gaps > 0 {
            let places = tables.note_damaged_tables(&tables.all[place]);
            salvaged.damaged.push(format!("table {}: {} damaged blocks", table.name, places.max(gaps as u64)));
        }
    }
    Ok(numbers)
}

/// Saves what the sound batches of all journals say.
fn save_journals(store: &Path, numbers: &[u64], saved: &LsmLedger, salvaged: &mut Salvaged) -> Result<(), LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "reading the journals", reason: error.to_string() };
    for path in journals(store).map_err(failed)? {
        let bytes = std::fs::read(&path).map_err(failed)?;
        let written = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let mut at = 0;
        while at < written {
            let rest = &bytes[at..written];
            let batch = match Batch::read(rest).filter(|batch| batch.is_sound) {
                Some(batch) => batch,
                None => {
                    let skipped = next_sound(rest).map_or(rest.len(), |(skipped, _)| skipped);
                    salvaged.damaged.push(format!("journal {}: {skipped} bytes at {at}", path.display()));
                    let items = readable_items(&rest[..skipped]);
                    salvaged.hit.extend(items.filter_map(|item| <[u8; 16]>::try_from(item.key).ok()));
                    at += skipped;
                    continue;
                }
            };
            at += batch.len;
            salvaged.writes += 1;
            let rows = batch.items().filter(|item| item.key != COUNT_KEY).filter_map(|item| {
                let place = numbers.iter().position(|number| *number == item.keyspace)?;
                Some((place, item.key.to_vec(), item.value.map(<[u8]>::to_vec)))
            });
            saved.put_raw(rows.collect())?;
        }
    }
    Ok(())
}

fn visit(
    tables: &Tables,
    table: Table,
    mut see: impl FnMut(&[u8], &[u8]) -> Result<(), LedgerError>,
) -> Result<usize, LedgerError> {
    let (mut from, mut gaps) = (Vec::new(), 0);
    loop {
        let page = tables.scan(table, Scan::UpFrom(&from), PAGE.0, PAGE.1)?;
        gaps += page.gaps();
        for (key, value) in page.iter() {
            see(key, value)?;
        }
        match page.last_key().filter(|_| page.has_more()) {
            Some(last) => from = [last, &[0]].concat(),
            None => return Ok(gaps),
        }
    }
}

/// Puts the files of the tables where the engine may do with them what it likes: it removes what its lists do not name.
fn link_tables(store: &Path, scratch: &Path, left_out: &[String]) -> io::Result<()> {
    match std::fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(scratch)?,
    }
    let copied = |name: &str| name != acknowledged::FILE && !name.contains(".jnl");
    link(store, scratch, &|path: &Path| {
        let mut names = path.components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let (name, parent) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        copied(&name) && !(parent == FOLDERS && left_out.contains(&name))
    })?;
    // An empty one: the journals are read by us.
    std::fs::write(scratch.join("0.jnl"), [])?;
    std::fs::write(scratch.join("lock"), [])
}

/// Links, or copies where that cannot be: the files of tables are never changed, the others are small.
fn link(from: &Path, to: &Path, is_wanted: &dyn Fn(&Path) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let path: PathBuf = entry?.path();
        let Some(target) = path.file_name().map(|name| to.join(name)).filter(|_| is_wanted(&path)) else { continue };
        let is_table = path.parent().is_some_and(|parent| parent.ends_with("tables"));
        match path.is_dir() {
            true => {
                std::fs::create_dir_all(&target)?;
                link(&path, &target, is_wanted)?;
            }
            false if is_table && std::fs::hard_link(&path, &target).is_ok() => {}
            false => drop(std::fs::copy(&path, &target)?),
        }
    }
    Ok(())
}
