//! Pages: where a listing goes on.
//! Invariant: a cursor is opaque to callers and reads back to what was written; a foreign one is refused.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use entrega_core::id::JobId;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::problem::ApiError;
use super::traffic::CallContext;
use entrega::store::{DeadLetterCursor, Page, Paged};

/// Rows on a page, unless the caller asks for another number.
const LIMIT_DEFAULT: usize = 50;
/// Rows on a page, at most.
pub(super) const LIMIT_MAX: usize = 200;

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The `nextCursor` of the page before.
    cursor: Option<String>,
    /// Rows on a page; 50 if left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

impl PageQuery {
    /// The page that a caller asks for.
    pub(super) fn page<C: Cursor>(&self) -> Result<Page<C>, ApiError> {
        page(self.cursor.as_deref(), self.limit)
    }
}

/// Room to put a large listing together: it is in memory several times until it is an answer, so only a few are at once.
pub(super) struct Composing;

impl FromRequestParts<Arc<Api>> for Composing {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Composing, ApiError> {
        if let Some(call) = parts.extensions.get::<Arc<CallContext>>() {
            call.compose(api.composing.take(call.tenant()).await);
        }
        Ok(Composing)
    }
}

/// One page of a listing.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listing<T> {
    /// The rows.
    items: Vec<T>,
    /// Give it as `cursor` for the next page; `null` on the last.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// A place in a listing that can be written as text.
pub(super) trait Cursor: Sized {
    fn write(&self) -> Vec<u8>;
    fn read(bytes: &[u8]) -> Option<Self>;
}

impl Cursor for JobId {
    fn write(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
    fn read(bytes: &[u8]) -> Option<JobId> {
        bytes.try_into().ok().map(JobId::from_bytes)
    }
}

impl Cursor for DeadLetterCursor {
    fn write(&self) -> Vec<u8> {
        [&self.0.as_micros().to_be_bytes(), self.1.as_bytes().as_slice()].concat()
    }
    fn read(bytes: &[u8]) -> Option<DeadLetterCursor> {
        let (micros, id) = bytes.split_first_chunk::<8>()?;
        Some((Time::from_micros(u64::from_be_bytes(*micros)), JobId::read(id)?))
    }
}

impl Cursor for String {
    fn write(&self) -> Vec<u8> {
        self.clone().into_bytes()
    }
    fn read(bytes: &[u8]) -> Option<String> {
        String::from_utf8(bytes.to_vec()).ok()
    }
}

/// The page that a caller asks for.
pub(super) fn page<C: Cursor>(cursor: Option<&str>, limit: Option<usize>) -> Result<Page<C>, ApiError> {
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ApiError::invalid("limit", format!("{limit} is not from 1 to {LIMIT_MAX}")));
    }
    let read = |text: &str| {
        let place = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| C::read(&bytes));
        place.ok_or_else(|| ApiError::invalid("cursor", "use the nextCursor of the page before, as it was given"))
    };
    Ok(Page { after: cursor.map(read).transpose()?, limit })
}

/// A place as callers are given it.
pub(super) fn next_cursor(place: &impl Cursor) -> String {
    URL_SAFE_NO_PAD.encode(place.write())
}

impl<T> Listing<T> {
    /// A page as the store gave it.
    pub(super) fn of<C: Cursor>(paged: Paged<T, C>) -> Listing<T> {
        Listing { items: paged.items, next_cursor: paged.next.as_ref().map(next_cursor) }
    }

    /// The same rows in another form.
    pub(super) fn map<U>(self, convert: impl FnMut(T) -> U) -> Listing<U> {
        Listing { items: self.items.into_iter().map(convert).collect(), next_cursor: self.next_cursor }
    }

    /// A page out of rows that are all at hand, in the order of their places. It goes on after the place of its cursor,
    /// whether or not the row that was there is gone.
    pub(super) fn cut(mut rows: Vec<T>, page: Page<String>, place: impl Fn(&T) -> String) -> Listing<T> {
        rows.sort_by_cached_key(&place);
        let start = page.after.as_ref().map_or(0, |after| rows.partition_point(|row| place(row) <= *after));
        let is_last = start + page.limit >= rows.len();
        let items: Vec<T> = rows.into_iter().skip(start).take(page.limit).collect();
        let next = items.last().map(&place).filter(|_| !is_last);
        Listing::of(Paged { items, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_a_foreign_one_is_refused() {
        let id = JobId::from_parts(Time::from_millis(1_700_000_000_000), 42);
        let place: DeadLetterCursor = (Time::from_micros(1_700_000_000_000_123), id);
        let text = Listing::of(Paged { items: vec![()], next: Some(place) }).next_cursor;
        assert_eq!(page::<DeadLetterCursor>(text.as_deref(), None).unwrap().after, Some(place));
        assert!(page::<JobId>(text.as_deref(), None).is_err(), "of another listing");
        assert!(page::<JobId>(Some("no!"), None).is_err());
        for (limit, is_good) in [(0, false), (1, true), (LIMIT_MAX, true), (LIMIT_MAX + 1, false)] {
            assert_eq!(page::<JobId>(None, Some(limit)).is_ok(), is_good, "{limit}");
        }
    }

    #[test]
    fn rows_at_hand_are_cut_into_pages() {
        let rows = || vec!["a", "b", "c", "d"];
        let mut seen = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = page::<String>(cursor.as_deref(), Some(3)).unwrap();
            let listing = Listing::cut(rows(), page, |row| (*row).to_owned());
            seen.push(listing.items.clone());
            cursor = listing.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, [vec!["a", "b", "c"], vec!["d"]]);
        // A listing ended where the row of its cursor had been removed in between.
        let after = Some(next_cursor(&"bb".to_owned()));
        let gone = Listing::cut(rows(), page(after.as_deref(), Some(3)).unwrap(), |row| (*row).to_owned());
        assert_eq!(gone.items, ["c", "d"]);
        let whole = page::<String>(None, Some(4)).unwrap();
        assert!(Listing::cut(rows(), whole, |row| (*row).to_owned()).next_cursor.is_none());
    }
}
