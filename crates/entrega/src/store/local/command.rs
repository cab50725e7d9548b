//! Commands: what the writer is asked to write.
//! Invariant: whatever a command carries was encoded and checked by its caller; the writer only writes.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::lane::{Ticket, Waiting};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use entrega_ledger::Unit;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::records::Kept;
use super::{LaneCell, Shared};
use crate::store::Submitted;

/// A job ready to be written: encoded by its caller, so that this task only writes.
pub(super) struct Prepared {
    pub(super) lane: Arc<LaneCell>,
    pub(super) waiting: Waiting,
    pub(super) job: Vec<u8>,
    /// Its index entry; `None` for one that is done as it is taken.
    pub(super) live: Option<Vec<u8>>,
    /// What it is remembered by, and as what.
    pub(super) once: Vec<(String, Kept)>,
}

/// An attempt that failed for now. It counts as running until that is durable: nobody claims, cancels or pushes out a
/// job whose history is not durable.
pub(super) struct Retried {
    pub(super) lane: Arc<LaneCell>,
    pub(super) ticket: Ticket,
    pub(super) at: Time,
    pub(super) lesson: Lesson,
    pub(super) took: Duration,
}

/// What a change does in memory once it is durable.
pub(super) type Then = Box<dyn FnOnce(&Shared) + Send>;

/// Something to write.
pub(super) enum Command {
    /// New jobs.
    Submit { jobs: Vec<Prepared>, reply: oneshot::Sender<Vec<Submitted>>, permit: OwnedSemaphorePermit },
    /// Attempts that ended.
    Settle {
        lane: Arc<LaneCell>,
        change: Unit,
        ended: Vec<JobId>,
        retries: Vec<Retried>,
        /// Jobs of other lanes that they cause.
        causes: Vec<Prepared>,
        permit: OwnedSemaphorePermit,
    },
    /// Anything else, of a lane or not; its effect in memory has happened already, or is `then`.
    Change {
        lane: Option<Arc<LaneCell>>,
        change: Unit,
        ended: Vec<JobId>,
        then: Option<Then>,
        reply: oneshot::Sender<()>,
    },
    /// Jobs that left their lane because their time was over. Their records are read here: whoever claimed them on the way
    /// to others must not start those late.
    Expire { lane: Arc<LaneCell>, expired: Vec<JobId> },
    /// Submissions whose moment to be forgotten has come, with that moment.
    Forget { remembered: Vec<(Time, String)> },
    /// Nothing more comes.
    Stop,
}

impl Command {
    /// How many changes it makes, about.
    pub(super) fn ops(&self) -> usize {
        match self {
            Command::Submit { jobs, .. } => jobs.len() * 2,
            Command::Settle { change, .. } | Command::Change { change, .. } => change.ops.len(),
            Command::Expire { expired, .. } => expired.len() * 2,
            Command::Forget { remembered } => remembered.len() * 2,
            Command::Stop => 0,
        }
    }

    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self, Command::Settle { .. } | Command::Expire { .. } | Command::Forget { .. })
    }
}
