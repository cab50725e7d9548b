//! The batches of a journal, as the engine writes them.
//! Invariant: what is called sound has the checksum it was written with; nothing here trusts a length before it fits.
//! Never: writes.
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

use xxhash_rust::xxh3::xxh3_64;

const START: u64 = 1;
const ITEM: u64 = 2;
const END: u64 = 3;
const CLEAR: u64 = 4;
pub(super) const END_MAGIC: &[u8] = b"FJL\x03";
const END_BYTES: usize = 1 + 8 + END_MAGIC.len();
/// The kind of an item that sets a value; the others remove one.
const VALUE: u64 = 0;

/// Something with the shape of a batch.
pub(super) struct Batch<'a> {
    pub(super) len: usize,
    /// It is outside the checksum, and greater in every batch that follows.
    pub(super) number: u64,
    pub(super) is_sound: bool,
    items: &'a [u8],
}

/// One change of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    pub(super) keyspace: u64,
    pub(super) key: &'a [u8],
    /// `None` where it is removed.
    pub(super) value: Option<&'a [u8]>,
}

impl<'a> Batch<'a> {
    /// The batch at the beginning of `bytes`; `None` if what is there has not the shape of one.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Batch<'a>> {
        let mut rest = bytes;
        take_tag(&mut rest, START)?;
        let count = take_number(&mut rest, 4)?;
        let number = take_number(&mut rest, 8)?;
        let items = rest;
        for _ in 0..count {
            take_item(&mut rest)?;
        }
        let items = &items[..items.len() - rest.len()];
        take_tag(&mut rest, END)?;
        let checksum = take_number(&mut rest, 8)?;
        let has_magic = take(&mut rest, END_MAGIC.len())? == END_MAGIC;
        let is_sound = || xxh3_64(items) == checksum;
        has_magic.then(|| Batch { len: bytes.len() - rest.len(), number, is_sound: is_sound(), items })
    }

    /// Its changes, in order. A keyspace is never cleared by us.
    pub(super) fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let mut rest = self.items;
        std::iter::from_fn(move || take_item(&mut rest)).flatten()
    }
}

/// The first sound batch behind the beginning of `bytes`, and where it begins.
pub(super) fn next_sound(bytes: &[u8]) -> Option<(usize, Batch<'_>)> {
    (1..bytes.len()).find_map(|at| {
        let batch = Batch::read(&bytes[at..])?;
        batch.is_sound.then_some((at, batch))
    })
}

/// Whether a batch ends before the end of `bytes`.
pub(super) fn has_end_inside(bytes: &[u8]) -> bool {
    let is_end = |bytes: &[u8]| u64::from(bytes[0]) == END && bytes.ends_with(END_MAGIC);
    bytes[..bytes.len() - 1].windows(END_BYTES).any(is_end)
}

/// The changes of a batch whose lengths can be followed, whether its checksum is right or not.
pub(super) fn readable_items(bytes: &[u8]) -> impl Iterator<Item = Item<'_>> {
    let mut rest = bytes.get(1 + 4 + 8..).unwrap_or_default();
    std::iter::from_fn(move || take_item(&mut rest)).flatten()
}

/// `Some(None)` is a keyspace that is cleared.
fn take_item<'a>(rest: &mut &'a [u8]) -> Option<Option<Item<'a>>> {
    match take_number(rest, 1)? {
        ITEM => {
            let kind = take_number(rest, 1)?;
            take(rest, 1)?;
            let keyspace = take_number(rest, 8)?;
            let key_len = take_number(rest, 2)?;
            take(rest, 4)?;
            let stored_len = take_number(rest, 4)?;
            let key = take(rest, key_len as usize)?;
            let value = take(rest, stored_len as usize)?;
            Some(Some(Item { keyspace, key, value: (kind == VALUE).then_some(value) }))
        }
        CLEAR => take(rest, 8).map(|_| None),
        _ => None,
    }
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
pub(super) mod samples {
    use super::*;

    pub(in crate::lsm) fn item(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0];
        bytes.extend(7u64.to_le_bytes());
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        [&bytes, key, value].concat()
    }

    pub(in crate::lsm) fn batch(items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![1];
        bytes.extend((items.len() as u32).to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(items.concat());
        bytes.push(3);
        bytes.extend(xxh3_64(&items.concat()).to_le_bytes());
        bytes.extend(END_MAGIC);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{batch, item};
    use super::*;

    #[test]
    fn the_changes_of_a_batch_are_read_in_order() {
        let mut removal = item(b"gone", b"");
        removal[1] = 1;
        let bytes = batch(&[item(b"key", b"value"), removal, [vec![4], vec![7; 8]].concat(), item(b"last", b"")]);
        let batch = Batch::read(&bytes).unwrap();
        let items: Vec<_> = batch.items().map(|item| (item.key, item.value)).collect();
        assert!(batch.is_sound);
        assert_eq!(items, [(&b"key"[..], Some(&b"value"[..])), (b"gone", None), (b"last", Some(b""))]);
        assert_eq!(readable_items(&bytes).count(), 3);
    }
}
