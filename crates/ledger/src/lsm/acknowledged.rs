//! How much was acknowledged: a file that says so beside the journal.
//! Invariant: it is written after the write that it counts was synced, and before anybody is told; so the store has at
//! least as many. It is not synced by itself: whatever ends the process leaves it, and after a power cut it may say less.
//! Never: stands in the way of a write; without the file the journal is all there is to go by.
//!
//! A journal whose last pages were cut off or zeroed looks like one that ends there. Every batch carries its count, so a store
//! that ends before the count in this file has lost what somebody was told is safe.
//!
//! # Layout
//! `count u64, closed u64 (0 or 1), xxh3-64 of the two u64`, little-endian.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

/// Its name, in the directory of the engine.
pub(super) const FILE: &str = "acknowledged";
/// The row of every batch that says how many there were, in a table of its own.
pub(super) const COUNT_KEY: &[u8] = b"entrega/commits";
const LEN: usize = 24;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// There is no such file: an older store, or a copy without it.
    Nothing,
    /// It cannot be read, so nothing can be concluded from it.
    Garbled,
    /// So many writes were acknowledged; and whether the store was stopped in order after the last.
    Count { count: u64, is_closed: bool },
}

/// What the file in `dir` says.
pub(super) fn read(dir: &Path) -> io::Result<Said> {
    let bytes = match std::fs::read(dir.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Said::Nothing),
        Err(error) => return Err(error),
    };
    let number = |at: usize| bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map(u64::from_le_bytes);
    Ok(match (number(0), number(8), number(16)) {
        (Some(count), Some(closed @ 0..=1), Some(sum)) if bytes.len() == LEN && xxh3_64(&bytes[..16]) == sum => {
            Said::Count { count, is_closed: closed == 1 }
        }
        _ => Said::Garbled,
    })
}

/// The count that a row of a batch holds.
pub(super) fn count_of(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

/// The file while the store is open.
pub(super) struct Acknowledged {
    file: File,
    count: u64,
    has_failed: bool,
}

impl Acknowledged {
    /// Says that the store is open, before anything is written.
    pub(super) fn open(dir: &Path, count: u64) -> io::Result<Acknowledged> {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(dir.join(FILE))?;
        file.set_len(LEN as u64)?;
        let opened = Acknowledged { file, count, has_failed: false };
        opened.put(false)?;
        opened.file.sync_all()?;
        File::open(dir)?.sync_all()?;
        Ok(opened)
    }

    /// The count that the next write carries.
    pub(super) fn next(&self) -> u64 {
        self.count + 1
    }

    /// One more is durable.
    pub(super) fn add(&mut self) {
        self.count += 1;
        if let Err(error) = self.put(false)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::warn!(errorReason = %error, "It cannot be noted how much was acknowledged; what is stored is safe");
        }
    }

    /// Says that nothing is written any more: whatever is damaged later is no torn write.
    pub(super) fn close(&self) -> io::Result<()> {
        self.put(true)?;
        self.file.sync_all()
    }

    fn put(&self, is_closed: bool) -> io::Result<()> {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..16].copy_from_slice(&u64::from(is_closed).to_le_bytes());
        let sum = xxh3_64(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_and_damage_to_it_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Said::Nothing);
        let mut noted = Acknowledged::open(dir.path(), 7).unwrap();
        noted.add();
        assert_eq!(read(dir.path()).unwrap(), Said::Count { count: 8, is_closed: false });
        noted.close().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Said::Count { count: 8, is_closed: true });
        let sound = std::fs::read(dir.path().join(FILE)).unwrap();
        for at in 0..sound.len() {
            let mut garbled = sound.clone();
            garbled[at] ^= 1;
            std::fs::write(dir.path().join(FILE), garbled).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Said::Garbled, "{at}");
        }
    }
}
