//! The engine's journals, checked before the engine opens them.
//! Invariant: only a batch that was never acknowledged is cut off, and its bytes are kept beside the journal.
//! Never: guesses; whatever is not one torn batch at the very end is left as it is, for an operator.
//!
//! The pages of a batch reach the disk in any order, so a power cut may leave its end without its middle. Every batch of
//! ours is synced before it is acknowledged and before the next is begun: only the last one of the newest journal can be
//! torn. The engine itself takes most damage for the end of what was written: it would open, say nothing, and be without
//! everything behind the damage.
//!
//! Every batch carries its count, so one that is missing is missed: within a journal, between two of them, and at the end,
//! where `acknowledged` says how far somebody was told that it is safe.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::acknowledged::{COUNT_KEY, Said, count_of};
use super::batch::{Batch, has_end_inside, next_sound, readable_items};
use crate::{Behind, LedgerError};

const MORE_FOLLOWS: &str = "more was written after the damage, so acknowledged work is damaged";
const IS_OLDER: &str = "it is not the newest journal, so acknowledged work is damaged";
const IS_MISSING: &str = "a write that was acknowledged is missing there";
const WAS_CLOSED: &str = "the store was stopped in order, so its last write was acknowledged and is damaged";
const WAS_ACKNOWLEDGED: &str = "what is damaged or missing from there on was acknowledged (if this is a copy that was made \
                                while the store was running, remove the file 'acknowledged' beside it)";

/// What the journals hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// The count of the last batch; `None` where no journal has one.
    pub(super) last_count: Option<u64>,
}

/// Checks every journal in `dir`, and cuts a torn last batch off the newest one.
pub(super) fn check(dir: &Path, said: Said) -> Result<Checked, LedgerError> {
    let journals = journals(dir).map_err(failed)?;
    if journals.is_empty() {
        // Without one the engine would number its writes anew, below those that its tables have.
        let reason = "there is no journal in it, and there always is one";
        return Err(LedgerError::Table { file: dir.display().to_string(), reason });
    }
    let mut counted = None;
    for (place, path) in journals.iter().enumerate() {
        let bytes = std::fs::read(path).map_err(failed)?;
        let refused = |offset, reason, behind| LedgerError::Journal {
            file: path.display().to_string(),
            offset,
            reason,
            behind: Box::new(behind),
        };
        let is_newest = place + 1 == journals.len();
        let Read { end, written, damage } = read(&bytes, &mut counted);
        let is_torn = match damage {
            None => false,
            Some(Damage::Torn) => true,
            Some(Damage::Inside(reason)) => return Err(refused(end, reason, behind(&bytes[end..written]))),
        };
        if is_torn && !is_newest {
            return Err(refused(end, IS_OLDER, behind(&bytes[end..written])));
        }
        if is_newest && let Some(reason) = not_torn(said, counted, is_torn) {
            return Err(refused(end, reason, behind(&bytes[end..written])));
        }
        if is_torn {
            let torn = end..written;
            let kept = path.with_added_extension("torn");
            cut(path, &kept, &bytes, &torn).map_err(failed)?;
            let records = readable_items(&bytes[torn.clone()]).count();
            tracing::warn!(file = %path.display(), offset = torn.start, bytes = torn.len(), batches = 1, records,
                kept = %kept.display(),
                "The journal ended in a torn write, as a power cut leaves it; it was never acknowledged and is cut off");
        }
    }
    Ok(Checked { last_count: counted })
}

/// Takes the engine's own lock: the files must be nobody else's while they are read and cut.
pub(super) fn lock(dir: &Path) -> Result<File, LedgerError> {
    let lock = File::open(dir.join("lock")).map_err(failed)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => LedgerError::InUse { path: dir.display().to_string() },
        TryLockError::Error(error) => failed(error),
    })?;
    Ok(lock)
}

fn failed(error: io::Error) -> LedgerError {
    LedgerError::Broken { doing: "checking the journal", reason: error.to_string() }
}

/// Why the end of the newest journal is not where it was written to, or is no torn write.
fn not_torn(said: Said, counted: Option<u64>, is_torn: bool) -> Option<&'static str> {
    match (said, counted) {
        (Said::Count { is_closed: true, .. }, _) if is_torn => Some(WAS_CLOSED),
        (Said::Count { count, .. }, Some(counted)) if counted < count => Some(WAS_ACKNOWLEDGED),
        _ => None,
    }
}

/// What can be read behind the beginning of damaged bytes, and of the batch that was hit.
fn behind(damaged: &[u8]) -> Behind {
    let mut found = Behind::default();
    let mut ids = BTreeSet::new();
    let mut rest = damaged;
    // The lengths of the batch that was hit may lead through what follows it, too: each id is counted once.
    ids.extend(readable_items(rest).filter_map(|item| <[u8; 16]>::try_from(item.key).ok()));
    while let Some((at, batch)) = next_sound(rest) {
        found.batches += 1;
        ids.extend(batch.items().filter_map(|item| <[u8; 16]>::try_from(item.key).ok()));
        // The next one is looked for behind the first byte.
        rest = &rest[at + batch.len - 1..];
    }
    found.ids = ids.into_iter().collect();
    found
}

/// The journals, oldest first; the engine writes only to the last.
pub(super) fn journals(dir: &Path) -> io::Result<Vec<PathBuf>> {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// One batch at the very end is not whole.
    Torn,
    /// Something else.
    Inside(&'static str),
}

/// One journal, as far as it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    /// Up to where it is sound.
    end: usize,
    /// Up to where anything was written.
    written: usize,
    damage: Option<Damage>,
}

/// Reads a journal that follows one whose last batch had this count, and leaves that of its own last batch there.
fn read(journal: &[u8], counted: &mut Option<u64>) -> Read {
    // The last byte of a batch is not zero.
    let written = journal.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let (mut end, mut number) = (0, None);
    let found = loop {
        match Batch::read(&journal[end..written]) {
            // The number of a batch is outside its checksum; they only ever grow.
            Some(batch) if batch.is_sound && number.is_none_or(|last| batch.number > last) => {
                let count = batch.items().filter(|item| item.key == COUNT_KEY).find_map(|item| count_of(item.value?));
                if let (Some(count), Some(before)) = (count, *counted)
                    && count != before + 1
                {
                    return Read { end, written, damage: Some(Damage::Inside(IS_MISSING)) };
                }
                *counted = count.or(*counted);
                end += batch.len;
                number = Some(batch.number);
            }
            found => break found,
        }
    };
    let tail = &journal[end..written];
    let damage = match found {
        _ if tail.is_empty() => None,
        Some(garbled) if garbled.len == tail.len() => Some(Damage::Torn),
        // Its lengths are damaged, so where it ends is not known: nothing in the rest may be or end another batch.
        None if !has_end_inside(tail) && next_sound(tail).is_none() => Some(Damage::Torn),
        _ => Some(Damage::Inside(MORE_FOLLOWS)),
    };
    Read { end, written, damage }
}

#[cfg(test)]
mod tests {
    use super::super::batch::samples::{batch, item};
    use super::*;

    const ROOM: usize = 100;
    const REFUSED: (usize, Option<Damage>) = (0, Some(Damage::Inside(MORE_FOLLOWS)));

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

    fn look_at(parts: &[Vec<u8>]) -> (usize, Option<Damage>) {
        let read = read(&journal(parts), &mut None);
        (read.end, read.damage)
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
                let parts = [before.clone(), vec![torn.clone()]].concat();
                assert_eq!(look_at(&parts), (start, Some(Damage::Torn)), "{what}");
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
            assert_eq!(look_at(&parts), (parts.concat().len(), None));
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
            let error = check(dir.path(), Said::Nothing).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        };
        write("0.jnl", &[sound(), sound()]);
        write("1.jnl", &[sound()]);
        check(dir.path(), Said::Nothing).unwrap();
        write("0.jnl", &[sound(), garbled()]);
        refused("0.jnl", IS_OLDER);
        write("0.jnl", &[sound()]);
        write("1.jnl", &[sound(), garbled(), sound()]);
        refused("1.jnl", MORE_FOLLOWS);
        write("1.jnl", &[sound(), vec![0; 4096], sound()]);
        refused("1.jnl", MORE_FOLLOWS);
        write("1.jnl", &[sound(), garbled()]);
        check(dir.path(), Said::Nothing).unwrap();
        let left = std::fs::read(dir.path().join("1.jnl")).unwrap();
        assert_eq!(left.len(), sound().len(), "a torn last batch is cut off");
    }
    /// A batch that says so many were written.
    fn counted(count: u64) -> Vec<u8> {
        batch(&[item(&[9; 16], &[0xaa; 40]), item(COUNT_KEY, &count.to_le_bytes())])
    }

    /// The end of a journal was zeroed, whole batches and all: it looked like one that ends there.
    #[test]
    fn a_journal_that_ends_before_what_was_acknowledged_refuses_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [counted(5), counted(6), counted(7)];
        let open = |count| Said::Count { count, is_closed: false };
        let ends = |parts: &[Vec<u8>], said| {
            std::fs::write(dir.path().join("0.jnl"), journal(parts)).unwrap();
            check(dir.path(), said)
        };
        let whole = Checked { last_count: Some(7) };
        assert_eq!(ends(&parts, open(7)), Ok(whole));
        assert_eq!(ends(&parts, open(6)), Ok(whole), "what was written and not acknowledged stays");
        assert_eq!(ends(&parts, Said::Nothing), Ok(whole));
        let reason = |checked: Result<Checked, LedgerError>| checked.unwrap_err().to_string();
        assert!(reason(ends(&parts[..2], open(7))).contains(WAS_ACKNOWLEDGED));
        assert!(reason(ends(&[counted(5), counted(7)], open(7))).contains(IS_MISSING));
        let mut torn = counted(7);
        torn[40] ^= 1;
        let parts = [counted(5), counted(6), torn];
        assert!(reason(ends(&parts, open(7))).contains(WAS_ACKNOWLEDGED));
        assert!(reason(ends(&parts, Said::Count { count: 6, is_closed: true })).contains(WAS_CLOSED));
        assert_eq!(ends(&parts, open(6)), Ok(Checked { last_count: Some(6) }), "a torn write");
    }

    #[test]
    fn a_batch_that_is_missing_between_two_journals_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("3.jnl"), journal(&[counted(5)])).unwrap();
        std::fs::write(dir.path().join("4.jnl"), journal(&[counted(7)])).unwrap();
        let error = check(dir.path(), Said::Nothing).unwrap_err().to_string();
        assert!(error.contains("4.jnl") && error.contains(IS_MISSING), "{error}");
    }

    #[test]
    fn a_refusal_says_how_much_can_be_read_behind_the_damage() {
        let mut garbled = counted(5);
        garbled[0] ^= 0x80;
        let other = batch(&[item(&[8; 16], b"x"), item(&[7; 16], b"y")]);
        let found = behind(&[garbled, counted(6), other].concat());
        assert_eq!((found.batches, found.ids), (2, vec![[7; 16], [8; 16], [9; 16]]));
    }
}
