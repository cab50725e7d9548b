//! One page of a listing out of several searches.
//! Invariant: ordered by id, newest first, each row once, and only as far down as every search went.

use entrega_core::id::JobId;

use super::Paged;

/// A page of whole entries ends once they carry this much: a mail may have megabytes.
pub(super) const PAGE_BYTES_MAX: usize = 16 << 20;

/// Rows of one search, and how far down it went (`None`: to the end).
pub(super) struct Found<T> {
    pub(super) rows: Vec<T>,
    pub(super) searched_to: Option<JobId>,
}

/// Puts searches together.
pub(super) fn merge<T>(found: Vec<Found<T>>, limit: usize, id: impl Fn(&T) -> JobId) -> Paged<T, JobId> {
    let searched_to = found.iter().filter_map(|found| found.searched_to).max();
    let mut items: Vec<_> = found.into_iter().flat_map(|found| found.rows).collect();
    items.sort_by_key(|row| std::cmp::Reverse(id(row)));
    items.dedup_by_key(|row| id(row));
    items.retain(|row| searched_to.is_none_or(|lowest| id(row) >= lowest));
    let next = match items.len() > limit {
        true => items.get(limit.saturating_sub(1)).map(&id),
        false => searched_to,
    };
    items.truncate(limit);
    Paged { items, next }
}
