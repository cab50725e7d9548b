//! The engine's journals, checked before the engine opens them.
//! Invariant: only a batch that was never acknowledged is cut off, and its bytes are kept beside the journal.
//! Never: guesses; whatever is not one torn batch at the very end is left as it is, for an operator.
//!
//! The pages of a batch reach the disk in any order, so a power cut may leave its end without its middle. Every batch of
//! ours is synced before it is acknowledged and before the next is begun: only the last one of the newest journal can be
//! torn. The engine itself takes most damage for the end of what was written: it would open, say nothing, and be without
//! everything behind the damage.
//!
//! # Layout of a journal (fjall 3)
//! Batches one after the other, then zeros: the file is made long in advance. Numbers are little-endian.
//! ```text
//! batch   start, as many items as it says, end
//! start   1, items u32, sequence number u64
//! item    2, kind u8, compression u8, keyspace u64, key length u16, value length u32, stored length u32,
//!         key, stored value
//!         or, to clear a keyspace: 4, keyspace u64
//! end     3, xxh3-64 of the bytes of all items u64, "FJL" 3
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::LedgerError;

const START: u64 = 1;
const ITEM: u64 = 2;
const END: u64 = 3;
const CLEAR: u64 = 4;
const END_MAGIC: &[u8] = b"FJL\x03";
const END_BYTES: usize = 1 + 8 + END_MAGIC.len();

const MORE_FOLLOWS: &str = "more was written after the damage, so acknowledged work is damaged; restore a backup, or \
                            keep a copy of the file and cut it there to give up the rest";
const IS_OLDER: &str = "it is not the newest journal, so acknowledged work is damaged; restore a backup";

/// Checks every journal in `dir`, and cuts a torn last batch off the newest one.
pub(super) fn check(dir: &Path) -> Result<(), LedgerError> {
    let failed = |error: io::Error| LedgerError::Broken { doing: "checking the journal", reason: error.to_string() };
    // The engine's own lock: the files must be nobody else's while they are read and cut.
    let lock = File::open(dir.join("lock")).map_err(failed)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => LedgerError::InUse { path: dir.display().to_string() },
        TryLockError::Error(error) => failed(error),
    })?;
    let journals = journals(dir).map_err(failed)?;
    for (place, path) in journals.iter().enumerate() {
        let bytes = std::fs::read(path).map_err(failed)?;
        let refused = |(offset, reason)| LedgerError::Journal { file: path.display().to_string(), offset, reason };
        let Some(torn) = torn_batch(&bytes).map_err(refused)? else { continue };
        if place + 1 < journals.len() {
            return Err(refused((torn.start, IS_OLDER)));
        }
        let kept = path.with_added_extension("torn");
        cut(path, &kept, &bytes, &torn).map_err(failed)?;
        tracing::warn!(file = %path.display(), offset = torn.start, bytes = torn.len(), kept = %kept.display(),
            "The journal ended in a torn write, as a power cut leaves it; it was never acknowledged and is cut off");
    }
    Ok(())
}

/// The journals, oldest first; the engine writes only to the last.
fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jnl"));
        found.extend(name.and_then(|name| name.parse::<u64>().ok()).map(|number| (number, path)));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Keeps what is cut off before it is cut off. Bytes of an earlier cut stay in front of it.
fn cut(path: &Path, kept: &Path, bytes: &[u8], torn: &Range<usize>) -> io::Result<()> {
    let mut copy = OpenOptions::new().create(true).append(true).open(kept)?;
    copy.write_all(&bytes[torn.clone()])?;
    copy.sync_all()?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    let journal = OpenOptions::new().write(true).open(path)?;
    journal.set_len(torn.start as u64)?;
    journal.sync_all()
}

/// Where the one torn batch at the end is, if there is one; or, if something else is wrong, where and what.
fn torn_batch(journal: &[u8]) -> Result<Option<Range<usize>>, (usize, &'static str)> {
    // The last byte of a batch is not zero.
    let written = journal.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let (mut start, mut last) = (0, None);
    let found = loop {
        match read_batch(&journal[start..written]) {
            // The number of a batch is outside its checksum; they only ever grow.
            Some(batch) if batch.is_sound && last.is_none_or(|last| batch.number > last) => {
                start += batch.len;
                last = Some(batch.number);
            }
            found => break found,
        }
    };
    let tail = &journal[start..written];
    let is_last = match found {
        _ if tail.is_empty() => return Ok(None),
        Some(garbled) => garbled.len == tail.len(),
        // Its lengths are damaged, so where it ends is not known: nothing in the rest may be or end another batch.
        None => !has_end_inside(tail) && !has_sound_batch_inside(tail),
    };
    match is_last {
        true => Ok(Some(start..written)),
        false => Err((start, MORE_FOLLOWS)),
    }
}

fn has_end_inside(tail: &[u8]) -> bool {
    let is_end = |bytes: &[u8]| u64::from(bytes[0]) == END && bytes.ends_with(END_MAGIC);
    tail[..tail.len() - 1].windows(END_BYTES).any(is_end)
}

fn has_sound_batch_inside(tail: &[u8]) -> bool {
    (1..tail.len()).any(|at| read_batch(&tail[at..]).is_some_and(|batch| batch.is_sound))
}

/// Something with the shape of a batch.
struct FoundBatch {
    len: usize,
    number: u64,
    is_sound: bool,
}

/// The batch at the beginning of `bytes`; `None` if what is there has not the shape of one.
fn read_batch(bytes: &[u8]) -> Option<FoundBatch> {
    let mut rest = bytes;
    take_tag(&mut rest, START)?;
    let count = take_number(&mut rest, 4)?;
    let number = take_number(&mut rest, 8)?;
    let items = rest;
    for _ in 0..count {
        match take_number(&mut rest, 1)? {
            ITEM => {
                take(&mut rest, 1 + 1 + 8)?;
                let key_len = take_number(&mut rest, 2)?;
                take(&mut rest, 4)?;
                let stored_len = take_number(&mut rest, 4)?;
                take(&mut rest, (key_len + stored_len) as usize)?;
            }
            CLEAR => drop(take(&mut rest, 8)?),
            _ => return None,
        }
    }
    let items = &items[..items.len() - rest.len()];
    take_tag(&mut rest, END)?;
    let checksum = take_number(&mut rest, 8)?;
    let has_magic = take(&mut rest, END_MAGIC.len())? == END_MAGIC;
    has_magic.then(|| FoundBatch { len: bytes.len() - rest.len(), number, is_sound: xxh3_64(items) == checksum })
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(taken)
}

/// A little-endian number of up to eight bytes.
fn take_number(rest: &mut &[u8], len: usize) -> Option<u64> {
    Some(take(rest, len)?.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn take_tag(rest: &mut &[u8], tag: u64) -> Option<()> {
    (take_number(rest, 1)? == tag).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 100;
    const REFUSED: Result<Option<Range<usize>>, (usize, &str)> = Err((0, MORE_FOLLOWS));

    fn item(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0];
        bytes.extend(7u64.to_le_bytes());
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        [&bytes, key, value].concat()
    }

    fn batch(items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![1];
        bytes.extend((items.len() as u32).to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(items.concat());
        bytes.push(3);
        bytes.extend(xxh3_64(&items.concat()).to_le_bytes());
        bytes.extend(END_MAGIC);
        bytes
    }

    /// A batch with two items; `change` gets all its bytes.
    fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = batch(&[item(b"key", &[0xaa; 40]), item(b"other", &[0xbb; 40])]);
        change(&mut bytes);
        bytes
    }

    fn sound() -> Vec<u8> {
        changed(|_| {})
    }

    /// A journal of these batches, numbered one after the other, and then some room.
    fn journal(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut numbered = parts.to_vec();
        for (number, part) in numbered.iter_mut().enumerate().filter(|(_, part)| part.len() > 13) {
            part[5..13].copy_from_slice(&(7 + number as u64).to_le_bytes());
        }
        [numbered.concat(), vec![0; ROOM]].concat()
    }

    fn look_at(parts: &[Vec<u8>]) -> Result<Option<Range<usize>>, (usize, &'static str)> {
        torn_batch(&journal(parts))
    }

    /// Bytes 24 and 25 are the length of the first key, 30 to 33 that of its value.
    #[test]
    fn one_torn_batch_at_the_end_is_found_whatever_is_missing_of_it() {
        let len = sound().len();
        let clear = batch(&[[vec![4], vec![7; 8]].concat()]);
        for (what, torn) in [
            ("a hole in a value", changed(|bytes| bytes[50..58].fill(0))),
            ("a hole over a length", changed(|bytes| bytes[30..34].fill(0))),
            ("a hole over its number of items", changed(|bytes| bytes[1..5].fill(0))),
            ("its checksum", changed(|bytes| bytes[len - 5] ^= 1)),
            ("a length far too great", changed(|bytes| bytes[30..34].fill(0xff))),
        ] {
            for before in [vec![], vec![sound()], vec![clear.clone(), sound()]] {
                let start = before.concat().len();
                let end = start + torn.len();
                let parts = [before.clone(), vec![torn.clone()]].concat();
                assert_eq!(look_at(&parts), Ok(Some(start..end)), "{what}");
            }
        }
    }

    #[test]
    fn what_was_written_after_the_damage_is_never_cut_off() {
        for damaged in [
            changed(|bytes| bytes[50..58].fill(0)),
            changed(|bytes| bytes[30..34].fill(0)),
            changed(|bytes| bytes[1..5].fill(0)),
        ] {
            assert_eq!(look_at(&[damaged.clone(), sound()]), REFUSED, "a sound batch follows");
            assert_eq!(look_at(&[damaged.clone(), damaged.clone()]), REFUSED, "a damaged batch follows");
            assert_eq!(look_at(&[damaged, vec![9]]), REFUSED, "something follows");
        }
        let without_end = changed(|bytes| bytes.truncate(60));
        assert_eq!(look_at(&[without_end, sound()]), REFUSED, "a sound batch follows one without its end");
    }

    #[test]
    fn a_journal_without_damage_is_left_alone() {
        for parts in [vec![], vec![sound()], vec![sound(), batch(&[])]] {
            assert_eq!(look_at(&parts), Ok(None));
        }
    }

    /// With eight journals or more, the one named `10` sorts before the one named `9`.
    #[test]
    fn journals_are_sorted_by_their_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["9.jnl", "10.jnl", "10.jnl.torn", "99.old", "x.jnl"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(journals(dir.path()).unwrap(), [dir.path().join("9.jnl"), dir.path().join("10.jnl")]);
    }

    /// The engine took a damaged start for the end of a journal, in silence: 234 of 300 acknowledged jobs were gone.
    #[test]
    fn damage_in_an_older_journal_or_before_the_end_refuses_the_start() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "").unwrap();
        let write = |name: &str, parts: &[Vec<u8>]| {
            std::fs::write(dir.path().join(name), journal(parts)).unwrap();
        };
        let garbled = || changed(|bytes| bytes[0] = 0x81);
        let refused = |file: &str, reason: &str| {
            let error = check(dir.path()).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        };
        write("0.jnl", &[sound(), sound()]);
        write("1.jnl", &[sound()]);
        check(dir.path()).unwrap();
        write("0.jnl", &[sound(), garbled()]);
        refused("0.jnl", IS_OLDER);
        write("0.jnl", &[sound()]);
        write("1.jnl", &[sound(), garbled(), sound()]);
        refused("1.jnl", MORE_FOLLOWS);
        write("1.jnl", &[sound(), vec![0; 4096], sound()]);
        refused("1.jnl", MORE_FOLLOWS);
        write("1.jnl", &[sound(), garbled()]);
        check(dir.path()).unwrap();
        let left = std::fs::read(dir.path().join("1.jnl")).unwrap();
        assert_eq!(left.len(), sound().len(), "a torn last batch is cut off");
    }
}
