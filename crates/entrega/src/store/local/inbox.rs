//! Inboxes: what nodes leave for the owner of a lane.
//! Invariant: an entry is taken in the same group as what follows from it, so it takes effect once; a job in an inbox has
//! its record and its index entry already, so no owner can lose it.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::lane::Waiting;
use entrega_ledger::{EntryId, InboxEntry, Op, Unit};
use tokio::sync::oneshot;

use super::Shared;
use super::command::Command;
use super::lanes::{LaneEntry, OwnedLane};
use super::order::{Entry, Receipt};
use super::reading::{ReadError, patiently};
use super::records::{self, Live};
use super::tables::LIVE;
use crate::store::StoreError;

/// Entries that are taken at once.
const ENTRIES_AT_ONCE: usize = 512;
/// The same in bytes.
const BYTES_AT_ONCE: usize = 1 << 20;
/// An inbox is looked at this often even if nobody says that there is something in it.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The most jobs of one lane whose takers are told of their end; the takers of others look now and then.
const TAKERS_MAX: usize = 100_000;

/// Reads a lane's inbox for as long as this node owns it.
pub(super) async fn tend(shared: Arc<Shared>, entry: Arc<LaneEntry>, lane: Arc<OwnedLane>) {
    let is_ours = || entry.owned().is_some_and(|owned| Arc::ptr_eq(&owned, &lane));
    while is_ours() && !shared.stop.is_cancelled() {
        match shared.take_in(&lane).await {
            Ok(0) => {
                tokio::select! {
                    biased;
                    () = shared.stop.cancelled() => {}
                    () = entry.inbox.notified() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(lane = %lane.name, errorReason = %error, "An inbox could not be read; it is tried again");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

impl Shared {
    /// Takes what is in a lane's inbox, up to a limit; how much that was.
    pub(super) async fn take_in(&self, lane: &Arc<OwnedLane>) -> Result<usize, StoreError> {
        let shard = &lane.hold.shard;
        let found = self.ledger.inbox(shard, ENTRIES_AT_ONCE, BYTES_AT_ONCE).await.map_err(ReadError::from)?;
        let count = found.len();
        let mut jobs = Vec::new();
        for InboxEntry { id: entry, bytes } in found {
            match records::decode::<Entry>(LIVE, &bytes) {
                Ok(Entry::Job { id, live, taker }) => match records::decode::<Live>(LIVE, &live) {
                    Ok(live) => {
                        lane.note_taker(id, taker);
                        jobs.push((entry, live.waiting(id)));
                    }
                    Err(error) => self.throw_away(lane, entry, &error).await?,
                },
                Ok(Entry::Order { id, until, order }) => {
                    // In the order they came.
                    self.arrive(lane, std::mem::take(&mut jobs)).await?;
                    Box::pin(self.carry_out(lane, order, until, Receipt { entry, id, until })).await?;
                }
                Err(error) => self.throw_away(lane, entry, &error).await?,
            }
        }
        self.arrive(lane, jobs).await?;
        Ok(count)
    }

    async fn arrive(&self, lane: &Arc<OwnedLane>, jobs: Vec<(EntryId, Waiting)>) -> Result<(), StoreError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let (reply, durable) = oneshot::channel();
        self.send(Command::Arrive { lane: lane.clone(), jobs, reply })?;
        durable.await.map_err(|_| self.stopped())
    }

    /// An entry that cannot be read would stand before all others for ever. A job's records are found when the lane is
    /// loaded next.
    async fn throw_away(&self, lane: &Arc<OwnedLane>, entry: EntryId, error: &ReadError) -> Result<(), StoreError> {
        self.note_unreadable("inbox", error);
        let mut unit = Unit::default();
        unit.ops.push(Op::Take(lane.hold.shard.clone(), entry));
        self.change(lane, unit, Vec::new()).await
    }

    /// Takes everything that is in the inbox of a lane that is being loaded. Whatever the load saw of jobs that came by the
    /// inbox is still in it: taken now, none of them can come twice.
    pub(super) async fn empty_inbox(&self, lane: &Arc<OwnedLane>) -> Result<(), ReadError> {
        let take_in = || async {
            self.take_in(lane).await.map_err(|error| match error {
                StoreError::Read(error) => error,
                StoreError::Unreachable { reason } => unclear(reason),
                other => unclear(other.to_string()),
            })
        };
        loop {
            if lane.hold.lease.is_over() || self.is_failed() {
                return Err(unclear("the lane was lost while it was loaded".into()));
            }
            if patiently(take_in).await? == 0 {
                return Ok(());
            }
        }
    }
}

fn unclear(reason: String) -> ReadError {
    entrega_ledger::LedgerError::Unclear { doing: "emptying an inbox", reason }.into()
}

impl OwnedLane {
    fn note_taker(&self, id: JobId, taker: Option<u64>) {
        let mut takers = self.takers.lock();
        if let Some(taker) = taker.filter(|_| takers.len() < TAKERS_MAX) {
            takers.insert(id, taker);
        }
    }
}
