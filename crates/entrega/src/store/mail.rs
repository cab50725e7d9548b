//! What is known of addresses and of mails that were sent: who is not written to any more, and what came back.
//! Invariant: addresses are compared without regard to case, and kept in lower case.
//! Never: knows where it is kept.

use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::mail::FailureCode;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

/// How long what came back about a mail is kept, counted from the last of it.
pub const FEEDBACK_FOR: Duration = Duration::from_hours(7 * 24);
/// The most that is kept about one mail.
pub const FEEDBACK_MAX: usize = 100;

/// An address that a tenant does not write to any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suppression {
    /// Whose mails it does not get.
    pub tenant: TenantName,
    /// Which address; in lower case once it is kept.
    pub address: String,
    /// A bounce or a complaint.
    pub code: FailureCode,
    /// What was said about it.
    pub reason: String,
    /// Since when.
    pub since: Time,
    /// The mail that it began with, where one is known.
    pub outbox_id: Option<JobId>,
}

impl Suppression {
    /// As it is compared and kept.
    pub(super) fn lower_cased(self) -> Suppression {
        Suppression { address: comparable(&self.address), ..self }
    }

    /// What takes the place of the first one; `None` if that stays. A complaint weighs more than a bounce, but the
    /// address has been suppressed since the first.
    pub(super) fn after(self, first: Option<&Suppression>) -> Option<Suppression> {
        match first {
            None => Some(self),
            Some(first) if self.code == FailureCode::Complaint && first.code != FailureCode::Complaint => {
                Some(Suppression { since: first.since, ..self })
            }
            Some(_) => None,
        }
    }
}

/// What is compared of an address. No server takes one of a quarter of this; but a key must not be longer than a disk can
/// hold, whoever says that somebody complained.
const ADDRESS_BYTES_MAX: usize = 1024;

/// An address as it is compared and kept.
pub(super) fn comparable(address: &str) -> String {
    let mut address = address[..address.floor_char_boundary(ADDRESS_BYTES_MAX)].to_lowercase();
    address.truncate(address.floor_char_boundary(ADDRESS_BYTES_MAX));
    address
}

/// What came back about a mail after it was handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// Whom it is about.
    pub recipient: String,
    /// A bounce or a complaint.
    pub code: FailureCode,
    /// What was said; at most 500 characters, the caller cuts.
    pub detail: String,
    /// When it happened.
    pub at: Time,
    /// Names it at its source: the same twice, about the same recipient, is kept once.
    pub feedback_id: String,
}

impl Feedback {
    /// Whether both are the same notice, told twice.
    pub(super) fn is_same(&self, other: &Feedback) -> bool {
        self.feedback_id == other.feedback_id && self.recipient == other.recipient
    }
}

/// Says that a mail has had all the feedback that is kept.
pub(super) fn note_overflow(id: JobId) {
    tracing::warn!(jobId = %id, most = FEEDBACK_MAX, "More came back about a mail than is kept; the rest is let go");
}
