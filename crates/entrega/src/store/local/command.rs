//! Commands: what the writer is asked to write.
//! Invariant: whatever a command carries was read, decided, encoded and checked by its caller; the writer only writes.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::lane::{Left, Ticket, Waiting};
use entrega_core::outcome::Lesson;
use entrega_core::quota::Quota;
use entrega_core::time::Time;
use entrega_ledger::{EntryId, Unit, When};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Shared;
use super::hold::Hold;
use super::lanes::OwnedLane;
use super::records::IdempotencyRecord;

/// A job ready to be written: encoded by its caller, so that the writer only writes.
pub(super) struct Prepared {
    pub(super) waiting: Waiting,
    pub(super) job: Vec<u8>,
    /// Its index entry; `None` for one that is done as it is taken.
    pub(super) live: Option<Vec<u8>>,
    /// What it is remembered by, as what, and what must still be there for that.
    pub(super) idempotency: Vec<(String, IdempotencyRecord, When)>,
}

/// What became of a new job.
#[derive(Clone, Debug)]
pub(super) enum Taken {
    /// It is durable.
    Accepted(Option<Left>),
    /// The lane is full.
    Full,
    /// Its tenant has all that it may have.
    OverQuota(Quota),
    /// Its id is in the lane.
    Duplicate,
    /// One of its keys was used by somebody else since it was looked at.
    Raced,
    /// The lane is not this node's any more.
    Moved,
    /// The ledger has no room.
    NoRoom,
}

/// An attempt that failed for now. It counts as running until that is durable: nobody claims, cancels or pushes out a
/// job whose history is not durable.
pub(super) struct Retried {
    pub(super) lane: Arc<OwnedLane>,
    pub(super) ticket: Ticket,
    pub(super) at: Time,
    pub(super) lesson: Lesson,
    pub(super) took: Duration,
}

/// What a change does in memory once it is durable.
pub(super) type Then = Box<dyn FnOnce(&Shared) + Send>;

/// Why something was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotWritten {
    /// Whatever it was about is not this node's any more.
    Moved,
    /// There is no room.
    Full,
}

/// A change that is no submission and no settlement.
pub(super) struct Change {
    /// What it is written under.
    pub(super) hold: Arc<Hold>,
    /// Whose it is, if it is a lane's.
    pub(super) lane: Option<Arc<OwnedLane>>,
    pub(super) units: Vec<Unit>,
    /// Jobs that rest with it.
    pub(super) ended: Vec<JobId>,
    /// Happens in memory if its first unit took effect.
    pub(super) then: Option<Then>,
}

impl Change {
    /// A change of a lane.
    pub(super) fn of(lane: &Arc<OwnedLane>, unit: Unit, ended: Vec<JobId>, then: Option<Then>) -> Change {
        Change { hold: lane.hold.clone(), lane: Some(lane.clone()), units: vec![unit], ended, then }
    }
}

/// A job of a lane that another settled job caused; the lane's memory if it is this node's.
pub(super) struct Cause {
    pub(super) job: Prepared,
    pub(super) lane: Arc<super::LaneEntry>,
}

/// Something to write.
pub(super) enum Command {
    /// New jobs of a lane that this node owns.
    Submit {
        lane: Arc<OwnedLane>,
        jobs: Vec<Prepared>,
        reply: oneshot::Sender<Vec<Taken>>,
        permit: OwnedSemaphorePermit,
    },
    /// New jobs of lanes that others own, each a unit; which of them took effect.
    Hand { units: Vec<Unit>, reply: oneshot::Sender<Result<Vec<bool>, NotWritten>>, permit: OwnedSemaphorePermit },
    /// Attempts that ended.
    Settle {
        lane: Arc<OwnedLane>,
        change: Unit,
        ended: Vec<JobId>,
        retries: Vec<Retried>,
        causes: Vec<Cause>,
        permit: OwnedSemaphorePermit,
    },
    /// Anything else; its effect in memory has happened already, or is its `then`.
    Change { change: Change, reply: Option<oneshot::Sender<Result<Vec<bool>, NotWritten>>> },
    /// Jobs that came by the inbox, with their entries.
    Arrive { lane: Arc<OwnedLane>, jobs: Vec<(EntryId, Waiting)>, reply: oneshot::Sender<()> },
    /// Jobs that left their lane because their time was over. Their records are read here: whoever claimed them on the way
    /// to others must not start those late.
    Expire { lane: Arc<OwnedLane>, expired: Vec<JobId> },
    /// Nothing more comes.
    Stop,
}

impl Command {
    /// How many changes it makes, about.
    pub(super) fn ops(&self) -> usize {
        match self {
            Command::Submit { jobs, .. } => jobs.len() * 2,
            Command::Hand { units, .. } => units.len() * 3,
            Command::Settle { change, .. } => change.ops.len(),
            Command::Change { change, .. } => change.units.iter().map(|unit| unit.ops.len()).sum(),
            Command::Arrive { jobs, .. } => jobs.len(),
            Command::Expire { expired, .. } => expired.len() * 2,
            Command::Stop => 0,
        }
    }

    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self, Command::Settle { .. } | Command::Expire { .. } | Command::Change { reply: None, .. })
    }
}
