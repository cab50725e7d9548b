//! A node that stands still: its ledger lets nothing through until it goes on, as if its process had been stopped between
//! two system calls.
//! Invariant: whatever was called meanwhile is carried out late, none of it is lost or refused.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_ledger::{
    Applied, Beats, Group, Health, InboxEntry, Key, Ledger, LedgerError, Owning, Room, Rows, Scan, Shard, Table, Token,
};
use tokio::sync::{broadcast, watch};

/// A ledger that can be stopped.
pub(crate) struct Stoppable {
    ledger: Arc<dyn Ledger>,
    is_stopped: watch::Sender<bool>,
}

impl Stoppable {
    pub(crate) fn over(ledger: Arc<dyn Ledger>) -> Arc<Stoppable> {
        Arc::new(Stoppable { ledger, is_stopped: watch::Sender::new(false) })
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    pub(crate) fn go_on(&self) {
        self.is_stopped.send_replace(false);
    }

    async fn goes(&self) -> &dyn Ledger {
        // Closed never: this holds the sender.
        drop(self.is_stopped.subscribe().wait_for(|is_stopped| !is_stopped).await);
        &*self.ledger
    }
}

#[async_trait]
impl Ledger for Stoppable {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        self.goes().await.own(shard, node, seen).await
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        self.goes().await.beat(held).await
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        self.goes().await.release(shard, token).await
    }

    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError> {
        self.goes().await.write(groups, room).await
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        self.goes().await.read(table, keys).await
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        self.goes().await.scan(table, scan, rows, bytes).await
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        self.goes().await.inbox(shard, entries, bytes).await
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        self.goes().await.signal(topic).await
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.ledger.listen()
    }

    fn health(&self) -> Health {
        self.ledger.health()
    }
}
