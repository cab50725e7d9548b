//! A node that stands still, or is cut off. One that stands still is let through nothing until it goes on, as if its process
//! had been stopped between two system calls; one that is cut off is told that nobody knows what became of its calls.
//! Invariant: whatever was called by a node that stood still is carried out late, none of it is lost or refused; nothing is
//! that was called by one that was cut off.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_ledger::{
    Applied, Beats, Group, Health, InboxEntry, Key, Ledger, LedgerError, Owning, Room, Rows, Scan, Shard, Table, Token,
};
use tokio::sync::{broadcast, watch};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    Stopped,
    Cut,
}

/// A ledger that can be stopped or cut off.
pub(crate) struct Stoppable {
    ledger: Arc<dyn Ledger>,
    way: watch::Sender<Way>,
}

impl Stoppable {
    pub(crate) fn over(ledger: Arc<dyn Ledger>) -> Arc<Stoppable> {
        Arc::new(Stoppable { ledger, way: watch::Sender::new(Way::Open) })
    }

    pub(crate) fn stop(&self) {
        self.way.send_replace(Way::Stopped);
    }

    pub(crate) fn cut_off(&self) {
        self.way.send_replace(Way::Cut);
    }

    pub(crate) fn go_on(&self) {
        self.way.send_replace(Way::Open);
    }

    async fn goes(&self) -> Result<&dyn Ledger, LedgerError> {
        let mut way = self.way.subscribe();
        // Closed never: this holds the sender.
        let way = way.wait_for(|way| *way != Way::Stopped).await.map(|way| *way);
        match way {
            Ok(Way::Cut) => Err(LedgerError::Unclear { doing: "asking", reason: "the node is cut off".into() }),
            _ => Ok(&*self.ledger),
        }
    }
}

#[async_trait]
impl Ledger for Stoppable {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        self.goes().await?.own(shard, node, seen).await
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        self.goes().await?.beat(held).await
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        self.goes().await?.release(shard, token).await
    }

    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError> {
        self.goes().await?.write(groups, room).await
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        self.goes().await?.read(table, keys).await
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        self.goes().await?.scan(table, scan, rows, bytes).await
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        self.goes().await?.inbox(shard, entries, bytes).await
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        self.goes().await?.signal(topic).await
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.ledger.listen()
    }

    fn health(&self) -> Health {
        self.ledger.health()
    }
}
