//! Changes that are no way of a job: read, decide, write, all on the condition that nobody was faster.
//! Invariant: what was read is a condition of what is written, so that of nodes that change the same record each sees what
//! the others did; a write that is repeated, or that arrives late, changes nothing twice.

use std::sync::Arc;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_ledger::{Expect, Key, Table, Unit, When};
use tokio::sync::oneshot;

use super::Shared;
use super::command::{Change, Command, NotWritten, Then};
use super::hold::Hold;
use super::lanes::OwnedLane;
use super::order::{Answered, Receipt};
use super::reading::patiently;
use crate::store::StoreError;

/// How often a change is tried that others get in the way of.
const TRIES_MAX: usize = 64;

/// What a change makes of what it read.
pub(super) enum Decided<T> {
    /// Nothing is to be written.
    Leave(T),
    /// This is; the condition on what was read is added.
    Write(Unit, T, Option<Then>),
}

impl<T> Decided<T> {
    /// The same with a put.
    pub(super) fn put(table: Table, key: &str, value: Vec<u8>, then: T) -> Decided<T> {
        let mut unit = Unit::default();
        unit.put(table, Key::Text(key.to_owned()), value);
        Decided::Write(unit, then, None)
    }

    /// The same, with what happens in memory once it is durable.
    pub(super) fn then(self, effect: impl FnOnce(&Shared) + Send + 'static) -> Decided<T> {
        match self {
            Decided::Write(unit, value, _) => Decided::Write(unit, value, Some(Box::new(effect))),
            leave => leave,
        }
    }
}

impl Shared {
    /// Reads a record, decides and writes, again if somebody else was faster.
    pub(super) async fn decide<T: Send>(
        &self,
        table: Table,
        key: &str,
        decide: impl FnMut(Option<&Bytes>) -> Result<Decided<T>, StoreError> + Send,
    ) -> Result<T, StoreError> {
        self.bounded(self.decide_patiently(table, key, decide)).await
    }

    async fn decide_patiently<T>(
        &self,
        table: Table,
        key: &str,
        mut decide: impl FnMut(Option<&Bytes>) -> Result<Decided<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let keys = [Key::Text(key.to_owned())];
        for _ in 0..TRIES_MAX {
            let read = patiently(|| async { Ok(self.ledger.read(table, &keys).await?) }).await?;
            let found = read.into_iter().next().flatten();
            let (mut unit, value, then) = match decide(found.as_ref())? {
                Decided::Leave(value) => return Ok(value),
                Decided::Write(unit, value, then) => (unit, value, then),
            };
            let expect = found.map_or(Expect::Absent, Expect::Is);
            unit.when.push(When { table, key: Key::Text(key.to_owned()), expect });
            let node = self.node.read().clone();
            if self.write(Change { hold: node, lane: None, units: vec![unit], ended: Vec::new(), then }).await?[0] {
                return Ok(value);
            }
        }
        Err(StoreError::Unreachable { reason: format!("others change {key} all the time") })
    }

    /// Writes a change and waits until it is durable; which of its units took effect.
    pub(super) async fn write(&self, change: Change) -> Result<Vec<bool>, StoreError> {
        let (reply, durable) = oneshot::channel();
        self.send(Command::Change { change, reply: Some(reply) })?;
        match durable.await {
            Ok(Ok(took_effect)) => Ok(took_effect),
            Ok(Err(refused)) => Err(refused.into()),
            Err(_) => Err(self.stopped()),
        }
    }

    /// Writes a change of a lane whose effect in memory has happened.
    pub(super) async fn change(&self, lane: &Arc<OwnedLane>, unit: Unit, ended: Vec<JobId>) -> Result<(), StoreError> {
        self.write(Change::of(lane, unit, ended, None)).await.map(drop)
    }

    /// Writes a change that an operator asked for, here or by an order of another node; of an order that was given up
    /// meanwhile nothing happens.
    pub(super) async fn change_ordered(
        &self,
        lane: &Arc<OwnedLane>,
        id: JobId,
        mut unit: Unit,
        then: Option<Then>,
        receipt: Option<&Receipt>,
    ) -> Result<(), StoreError> {
        receipt.into_iter().for_each(|receipt| receipt.sign(lane, &mut unit, &Answered::Done));
        match self.write(Change::of(lane, unit, vec![id], then)).await?[0] {
            true => Ok(()),
            false => self.unsay(lane, id).await,
        }
    }

    /// Writes units under this node's or the house's hold.
    pub(super) async fn write_under(&self, hold: Arc<Hold>, units: Vec<Unit>) -> Result<Vec<bool>, StoreError> {
        self.write(Change { hold, lane: None, units, ended: Vec::new(), then: None }).await
    }

    /// Waits until the ledger has what memory knows; whoever reads, decides and writes begins with this.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        let node = self.node.read().clone();
        self.write_under(node, Vec::new()).await.map(drop)
    }
}

impl From<NotWritten> for StoreError {
    fn from(refused: NotWritten) -> StoreError {
        match refused {
            NotWritten::Moved => StoreError::Unreachable { reason: "it has just moved to another node".into() },
            NotWritten::Full => StoreError::MemoryFull,
        }
    }
}
