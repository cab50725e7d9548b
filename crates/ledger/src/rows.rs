//! What is read: rows of a scan, entries of an inbox.
//! Invariant: all rows of a scan lie in one piece of memory, so that a million of them cost no million allocations.

use bytes::Bytes;

use crate::group::EntryId;

/// Which rows, and in which order.
#[derive(Clone, Copy, Debug)]
pub enum Scan<'a> {
    /// From this key on, upwards.
    UpFrom(&'a [u8]),
    /// From just below this key (`None`: the end), downwards.
    DownFrom(Option<&'a [u8]>),
}

/// Rows of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    bytes: Vec<u8>,
    /// Where each key and each value ends.
    ends: Vec<(usize, usize)>,
    has_more: bool,
    gaps: usize,
}

impl Rows {
    /// Adds a row; `false` once there are enough of them, and then it is not added.
    pub fn push(&mut self, key: &[u8], value: &[u8], rows: usize, bytes: usize) -> bool {
        let is_full = self.ends.len() >= rows.max(1) || (!self.ends.is_empty() && self.bytes.len() >= bytes);
        if is_full {
            self.has_more = true;
            return false;
        }
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
        true
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Rows may be missing here: what is there cannot be read.
    pub(crate) fn add_gap(&mut self) {
        self.gaps += 1;
    }

    /// Places where rows may be missing, because what is there cannot be read.
    pub fn gaps(&self) -> usize {
        self.gaps
    }

    /// How many bytes all of them have.
    #[cfg(feature = "redis")]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are more beyond the last.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// Keys and values, in order. The values share the one piece of memory, and keep it.
    pub fn into_shared(self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let bytes = Bytes::from(self.bytes);
        self.ends.into_iter().scan(0, move |start, (key_end, end)| {
            let row = (bytes.slice(*start..key_end), bytes.slice(key_end..end));
            *start = end;
            Some(row)
        })
    }

    /// The last key.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.len().checked_sub(1).map(|last| self.row(last).0)
    }

    fn row(&self, row: usize) -> (&[u8], &[u8]) {
        let start = if row == 0 { 0 } else { self.ends[row - 1].1 };
        let (key_end, end) = self.ends[row];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }
}

/// An entry of an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxEntry {
    /// For taking it.
    pub id: EntryId,
    /// What was appended.
    pub bytes: Bytes,
}

impl InboxEntry {
    /// The entries that rows of the table of inboxes hold, as far as their keys begin with this.
    pub(crate) fn of_rows(rows: &Rows, prefix: &[u8]) -> Vec<InboxEntry> {
        let of_shard = rows.iter().take_while(|(key, _)| key.starts_with(prefix));
        let entry = |(key, value)| Some(InboxEntry { id: EntryId::of_key(key)?, bytes: Bytes::copy_from_slice(value) });
        of_shard.filter_map(entry).collect()
    }
}
