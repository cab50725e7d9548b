//! A ledger in memory for tests, which asks before every write and every read whether it may fail.
//! Invariant: otherwise it is the ledger in memory.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::broadcast;

use crate::group::{Applied, Group, Key, Room};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::{Beats, Health, HeapLedger, Ledger, LedgerError, Owning, Shard, Table, Token};

type BeforeWrite = Box<dyn Fn(&[Group]) -> Result<(), LedgerError> + Send + Sync>;
type BeforeRead = Box<dyn Fn(Table, &[Key]) -> Result<(), LedgerError> + Send + Sync>;

/// A ledger that fails when it is told to.
pub struct LedgerDouble {
    heap: Arc<HeapLedger>,
    before_write: BeforeWrite,
    before_read: BeforeRead,
}

impl LedgerDouble {
    /// One that never fails.
    pub fn over(heap: Arc<HeapLedger>) -> LedgerDouble {
        LedgerDouble { heap, before_write: Box::new(|_| Ok(())), before_read: Box::new(|_, _| Ok(())) }
    }

    /// Asks this before every write.
    pub fn before_write(self, ask: impl Fn(&[Group]) -> Result<(), LedgerError> + Send + Sync + 'static) -> Self {
        LedgerDouble { before_write: Box::new(ask), ..self }
    }

    /// Asks this before every read of keys.
    pub fn before_read(self, ask: impl Fn(Table, &[Key]) -> Result<(), LedgerError> + Send + Sync + 'static) -> Self {
        LedgerDouble { before_read: Box::new(ask), ..self }
    }
}

#[async_trait]
impl Ledger for LedgerDouble {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        self.heap.own(shard, node, seen).await
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        self.heap.beat(held).await
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        self.heap.release(shard, token).await
    }

    async fn write(&self, groups: &[Group], _: Room) -> Result<Vec<Applied>, LedgerError> {
        (self.before_write)(groups)?;
        self.heap.apply(groups)
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        (self.before_read)(table, keys)?;
        self.heap.read(table, keys).await
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        self.heap.scan(table, scan, rows, bytes).await
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        self.heap.inbox(shard, entries, bytes).await
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        self.heap.signal(topic).await
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.heap.listen()
    }

    fn health(&self) -> Health {
        self.heap.health()
    }
}
