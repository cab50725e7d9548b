//! Scrubbing: every table file is read now and then, so that damage is found before its records are needed.
//! Invariant: reads no more than so much at a time; a file that is as it was written has the checksum in the list of tables.
//! Never: changes anything.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use fjall::{AbstractTree as _, Keyspace};
use xxhash_rust::xxh3::Xxh3;

use super::tables::Tables;

/// Between two rounds, in seconds.
const ROUND_SECONDS: u32 = 3_600;
/// Read in a second.
const BYTES_A_SECOND: usize = 4 << 20;
const PIECE: usize = 256 << 10;

/// A file that is being read.
struct Reading {
    table: Keyspace,
    path: PathBuf,
    file: File,
    sum: Xxh3,
    expected: u128,
}

/// One round after the other.
#[derive(Default)]
pub(super) struct Scrub {
    seen: BTreeSet<PathBuf>,
    reading: Option<Box<Reading>>,
    wait: u32,
}

/// What a look at everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that are not as they were written, each with how many places of it cannot be read.
    pub damaged: Vec<(String, u64)>,
}

impl Scrub {
    /// Reads what is due in one second.
    pub(super) fn turn(&mut self, tables: &Tables) {
        self.wait = self.wait.saturating_sub(1);
        let mut left = BYTES_A_SECOND;
        while self.wait == 0 && left > 0 {
            let Some(reading) = self.reading.take().or_else(|| self.next(tables)) else {
                self.seen.clear();
                self.wait = ROUND_SECONDS;
                return;
            };
            left = left.saturating_sub(PIECE);
            match reading.read_on() {
                Ok(Progress::More(reading)) => self.reading = Some(reading),
                Ok(Progress::Sound(_)) => {}
                Ok(Progress::Damaged(table, path)) => {
                    tracing::error!(file = %path.display(), "A table is not as it was written");
                    tables.note_damaged_tables(&table);
                }
                Err(error) => tracing::warn!(errorReason = %error, "A table could not be read to check it"),
            }
        }
    }

    fn next(&mut self, tables: &Tables) -> Option<Box<Reading>> {
        let next = tables.files().find(|(_, path, _)| !self.seen.contains(path));
        let (table, path, expected) = next?;
        self.seen.insert(path.clone());
        // It may have been merged away this moment.
        let file = File::open(&path).ok()?;
        Some(Box::new(Reading { table, path, file, sum: Xxh3::new(), expected }))
    }
}

enum Progress {
    More(Box<Reading>),
    Sound(u64),
    Damaged(Keyspace, PathBuf),
}

impl Reading {
    fn read_on(mut self: Box<Reading>) -> io::Result<Progress> {
        let mut piece = vec![0; PIECE];
        let read = self.file.read(&mut piece)?;
        if read > 0 {
            self.sum.update(&piece[..read]);
            return Ok(Progress::More(self));
        }
        Ok(match self.sum.digest128() == self.expected {
            true => Progress::Sound(self.file.metadata()?.len()),
            false => Progress::Damaged(self.table, self.path),
        })
    }
}

/// Reads everything at once.
pub(super) fn scrub_all(tables: &Tables) -> io::Result<Scrubbed> {
    let mut scrubbed = Scrubbed::default();
    for (table, path, expected) in tables.files() {
        let file = File::open(&path)?;
        let mut reading = Box::new(Reading { table, path: path.clone(), file, sum: Xxh3::new(), expected });
        scrubbed.files += 1;
        loop {
            match reading.read_on()? {
                Progress::More(more) => reading = more,
                Progress::Sound(bytes) => {
                    scrubbed.bytes += bytes;
                    break;
                }
                Progress::Damaged(table, path) => {
                    let places = tables.note_damaged_tables(&table);
                    scrubbed.damaged.push((path.display().to_string(), places));
                    break;
                }
            }
        }
    }
    Ok(scrubbed)
}

impl Tables {
    /// The files of all tables, each with the checksum that it was written with.
    fn files(&self) -> impl Iterator<Item = (Keyspace, PathBuf, u128)> {
        self.all.iter().chain([&self.commits]).flat_map(|keyspace| {
            let version = keyspace.tree.current_version();
            let files = version
                .iter_tables()
                .map(|table| (keyspace.clone(), table.path.to_path_buf(), table.checksum().into_u128()));
            files.collect::<Vec<_>>()
        })
    }

    /// Counts and names the places of a table that cannot be read. Gives how many there are.
    pub(super) fn note_damaged_tables(&self, keyspace: &Keyspace) -> u64 {
        let mut places = 0;
        for table in keyspace.tree.current_version().iter_tables() {
            let mut last = table.metadata.key_range.min().to_vec();
            let mut errors = 0;
            for row in table.iter() {
                match row {
                    Ok(row) => last = row.key.user_key.to_vec(),
                    Err(error) => {
                        errors += 1;
                        places += 1;
                        self.note(keyspace.name().to_string(), &last, &error);
                    }
                }
                // A damaged index gives nothing but errors.
                if errors > table.metadata.data_block_count {
                    break;
                }
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder::{STORE, make};
    use super::*;
    use crate::Table;

    const TABLE: Table = Table { number: 0, name: "rows", scanned: true };

    #[test]
    fn a_scrub_finds_damage_before_its_records_are_needed() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &[TABLE], 10).unwrap();
        let tables = Tables::open(&dir.path().join(STORE), &[TABLE], 10).unwrap();
        for row in 0..500u32 {
            tables.table(TABLE).insert(row.to_be_bytes(), [7; 100]).unwrap();
        }
        tables.flush().unwrap();
        let mut scrub = Scrub::default();
        scrub.turn(&tables);
        assert_eq!((tables.damaged(), scrub.wait), (0, ROUND_SECONDS), "all of it was read in one turn, and is sound");

        let (_, path, _) = tables.files().next().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        scrub.wait = 1;
        scrub.turn(&tables);
        assert_eq!(tables.damaged(), 1, "one block is named");
        let scrubbed = scrub_all(&tables).unwrap();
        assert_eq!(scrubbed.damaged, [(path.display().to_string(), 1)]);
    }
}
