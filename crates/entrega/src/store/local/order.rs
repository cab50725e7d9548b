//! An order, and what may come of it; what is left in an owner's inbox.
//! Invariant: whoever carries an order out can answer in the group that does.

use std::borrow::Cow;

use entrega_core::dead_letter::NoReplay;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Explanation, TenantFigures};
use entrega_core::time::Time;
use entrega_ledger::EntryId;
use serde::{Deserialize, Serialize};

use super::records;
use crate::store::{ChangeError, StoreError};

/// Names an order.
pub(super) type OrderId = [u8; 16];

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    Cancel { id: JobId, reason: String },
    Unblock { id: JobId },
    Replay { id: JobId },
    Discard { id: JobId, reason: String },
    Explain { id: JobId },
    Tenants,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answered {
    Done,
    Explained(Option<Explanation>),
    Tenants(Vec<TenantFigures>),
    Refused(Refusal),
    /// Whoever gave the order has given it up.
    GivenUp,
}

impl Answered {
    /// Whether it was done.
    pub(super) fn done(self) -> Result<(), ChangeError> {
        match self {
            Answered::Refused(refusal) => Err(refusal.into()),
            Answered::Done | Answered::Explained(_) | Answered::Tenants(_) | Answered::GivenUp => Ok(()),
        }
    }
}

/// Why it was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    Unknown,
    WrongState { state: JobState, hint: String },
    NoReplay(NoReplay),
    Failed(String),
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Refusal {
        match error {
            ChangeError::Unknown => Refusal::Unknown,
            ChangeError::WrongState { state, hint } => Refusal::WrongState { state, hint: hint.into_owned() },
            ChangeError::NoReplay(why) => Refusal::NoReplay(why),
            ChangeError::Store(error) => Refusal::Failed(error.to_string()),
        }
    }
}

impl From<Refusal> for ChangeError {
    fn from(refusal: Refusal) -> ChangeError {
        match refusal {
            Refusal::Unknown => ChangeError::Unknown,
            Refusal::WrongState { state, hint } => ChangeError::WrongState { state, hint: Cow::Owned(hint) },
            Refusal::NoReplay(why) => ChangeError::NoReplay(why),
            Refusal::Failed(reason) => StoreError::Unreachable { reason }.into(),
        }
    }
}

/// What stands for an order in the group that carries it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) entry: EntryId,
    pub(super) id: OrderId,
    pub(super) until: Time,
}

/// What is left for an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Entry {
    /// A job: its index entry, and the node that took it and may wait for its end.
    Job { id: JobId, live: Vec<u8>, taker: Option<u64> },
    /// Something to do, before this moment or not at all.
    Order { id: OrderId, until: Time, order: Order },
}

impl Entry {
    /// A job that a node took.
    pub(super) fn taken(id: JobId, live: &[u8], taker: u64) -> Vec<u8> {
        records::encode(&Entry::Job { id, live: live.to_vec(), taker: Some(taker) })
    }

    /// A job that another job caused.
    pub(super) fn caused(id: JobId, live: &[u8]) -> Vec<u8> {
        records::encode(&Entry::Job { id, live: live.to_vec(), taker: None })
    }
}
