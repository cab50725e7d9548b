//! Reading the ledger: one record, or many rows page by page.
//! Invariant: a page is bounded in rows and bytes, whatever the table holds.
//! Never: writes.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_ledger::{Key, Ledger, LedgerError, Scan, Table};

use super::Shared;
use super::tables::id_key;

/// Rows that one page of a long scan may have.
pub(super) const PAGE_ROWS: usize = 2048;
/// The same in bytes.
const PAGE_BYTES: usize = 1 << 20;

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The ledger did not give it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A record that cannot be understood.
    #[error("a record of table {table} cannot be read: {reason}")]
    Record {
        /// Which table.
        table: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Rows of an index are missing.
    #[error(
        "table {table} is damaged in {gaps} places, and jobs would be forgotten without it; restore a backup, or save what \
         can be read with: entrega salvage --from DIR --to NEWDIR"
    )]
    Gaps {
        /// Which table.
        table: &'static str,
        /// In how many places.
        gaps: usize,
    },
}

/// Reads and decodes one record.
pub(super) async fn load<T>(
    ledger: &dyn Ledger,
    table: Table,
    key: Key,
    decode: fn(Table, &[u8]) -> Result<T, ReadError>,
) -> Result<Option<T>, ReadError> {
    let found = ledger.read(table, &[key]).await?.pop().flatten();
    found.map(|bytes| decode(table, &bytes)).transpose()
}

/// How long to wait before a ledger is asked again that did not answer.
pub(super) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Reads until the ledger answers, for whoever may not give up: what came of an attempt must be recorded.
pub(super) async fn patiently<T, F>(mut read: impl FnMut() -> F) -> Result<T, ReadError>
where
    F: Future<Output = Result<T, ReadError>>,
{
    loop {
        match read().await {
            Err(ReadError::Ledger(LedgerError::Unclear { .. })) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            read => return read,
        }
    }
}

/// Where a scan of many pages begins.
#[derive(Clone, Debug)]
pub(super) enum From {
    /// At this key, upwards.
    Up(Vec<u8>),
    /// Just below this key, or at the end, downwards.
    Down(Option<Vec<u8>>),
}

impl From {
    fn scan(&self) -> Scan<'_> {
        match self {
            From::Up(key) => Scan::UpFrom(key),
            From::Down(key) => Scan::DownFrom(key.as_deref()),
        }
    }

    /// Behind this row.
    fn after(&self, key: &[u8]) -> From {
        match self {
            // No key lies between this one and what follows the last.
            From::Up(_) => From::Up([key, &[0]].concat()),
            From::Down(_) => From::Down(Some(key.to_vec())),
        }
    }
}

/// Visits rows in order until `visit` breaks. The first page has so many rows, and the next ones more and more. Gives the
/// places where rows may be missing because what is there cannot be read; the ledger has counted and named them.
pub(super) async fn visit(
    ledger: &dyn Ledger,
    table: Table,
    mut from: From,
    mut page_rows: usize,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + Send,
) -> Result<usize, LedgerError> {
    let mut gaps = 0;
    loop {
        let page = ledger.scan(table, from.scan(), page_rows, PAGE_BYTES).await?;
        gaps += page.gaps();
        for (key, value) in page.iter() {
            if visit(key, value).is_break() {
                return Ok(gaps);
            }
        }
        match page.last_key().filter(|_| page.has_more()) {
            Some(last) => (from, page_rows) = (from.after(last), (page_rows * 4).min(PAGE_ROWS)),
            None => return Ok(gaps),
        }
    }
}

/// Visits all rows that a start cannot do without: where one may be missing, it must not go on as if there were none.
pub(super) async fn visit_whole(
    ledger: &dyn Ledger,
    table: Table,
    from: From,
    see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + Send,
) -> Result<(), ReadError> {
    match visit(ledger, table, from, PAGE_ROWS, see).await? {
        0 => Ok(()),
        gaps => Err(ReadError::Gaps { table: table.name, gaps }),
    }
}

/// The job whose id a key is.
pub(super) fn job_of(key: &[u8]) -> Option<JobId> {
    <[u8; 16]>::try_from(key).ok().map(JobId::from_bytes)
}

impl Shared {
    /// The values of a table under these ids, in order.
    pub(super) async fn read_ids(&self, table: Table, ids: &[JobId]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        let keys: Vec<Key> = ids.iter().map(|id| id_key(*id)).collect();
        self.ledger.read(table, &keys).await
    }
}
