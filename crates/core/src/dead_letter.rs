//! Dead letters: what is kept of a job that gave up.
//! Invariant: an entry has a reason that is not empty, and holds the whole job, so that a replay needs nothing else.
//! Never: leaves silently; whoever removes one writes an audit record.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::JobId;
use crate::job::{Attempt, Earlier, Job};
use crate::name::{LaneName, TenantName};
use crate::time::Time;

/// How often one job may be replayed.
pub const GENERATIONS_MAX: u8 = 5;

/// What is happening to a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeadLetterStatus {
    /// Waits for somebody.
    Pending,
    /// Its job is on its way again.
    Replaying,
    /// Its job was delivered; kept for audit.
    Replayed,
    /// Somebody gave it up, with a reason; kept for audit.
    Discarded,
}

impl DeadLetterStatus {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeadLetterStatus::Pending => "pending",
            DeadLetterStatus::Replaying => "replaying",
            DeadLetterStatus::Replayed => "replayed",
            DeadLetterStatus::Discarded => "discarded",
        }
    }

    /// Whether its job is still undelivered and not given up.
    pub const fn is_open(self) -> bool {
        matches!(self, DeadLetterStatus::Pending | DeadLetterStatus::Replaying)
    }
}

impl std::fmt::Display for DeadLetterStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job that gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The job's id; also the entry's.
    pub job_id: JobId,
    /// The same for a mail, under the name that its sender knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox_id: Option<JobId>,
    /// The company id.
    pub company_id: TenantName,
    /// Where it died; its dead letters are called `<lane>:dlq`.
    pub lane: LaneName,
    /// The whole job.
    pub original_data: Job,
    /// Failed attempts over all generations.
    pub failed_attempts: u32,
    /// Why it gave up.
    pub last_failure_reason: String,
    /// `http_404`, `timeout`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_code: Option<String>,
    /// When the last attempt failed.
    pub last_failure_timestamp: Time,
    /// When the job was accepted.
    pub enqueued_at: Time,
    /// When it became a dead letter.
    #[serde(rename = "movedToDLQAt")]
    pub moved_to_dlq_at: Time,
    /// How long it is kept, in ms.
    pub ttl: u64,
    /// What is happening to it.
    pub status: DeadLetterStatus,
    /// Every attempt, oldest first.
    pub attempts: Vec<Attempt>,
    /// How often it was replayed.
    pub generation: u8,
    /// Why it was discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_reason: Option<String>,
}

/// An entry that may not be kept as it is.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadDeadLetter {
    /// Nobody could learn from it.
    #[error("a dead letter of {job_id} without a reason: lastFailureReason must say why it gave up")]
    NoReason {
        /// Whose entry.
        job_id: JobId,
    },
    /// Nothing was tried.
    #[error("a dead letter of {job_id} without a failed attempt: failedAttempts must be at least 1")]
    NoAttempt {
        /// Whose entry.
        job_id: JobId,
    },
}

impl DeadLetter {
    /// Refuses an entry without reason or attempt.
    pub fn check(&self) -> Result<(), BadDeadLetter> {
        match () {
            _ if self.last_failure_reason.trim().is_empty() => Err(BadDeadLetter::NoReason { job_id: self.job_id }),
            _ if self.failed_attempts == 0 => Err(BadDeadLetter::NoAttempt { job_id: self.job_id }),
            _ => Ok(()),
        }
    }

    /// When it is no longer kept.
    pub fn expires_at(&self) -> Time {
        self.moved_to_dlq_at + Duration::from_millis(self.ttl)
    }

    /// The job, to be sent on its way again: it knows what was tried before.
    pub fn job_to_replay(&self, now: Time, expires_at: Option<Time>) -> Job {
        Job { due_at: now, expires_at, earlier: Earlier::of(&self.attempts), ..self.original_data.clone() }
    }

    /// Whether it may be sent on its way again, and if not, why.
    pub fn check_replay(&self) -> Result<(), NoReplay> {
        match self.status {
            DeadLetterStatus::Pending if self.generation >= GENERATIONS_MAX => Err(NoReplay::TooOften),
            DeadLetterStatus::Pending => Ok(()),
            status => Err(NoReplay::NotPending { status }),
        }
    }
}

/// Why a dead letter is not replayed.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoReplay {
    /// It came back too often.
    #[error("it was replayed {GENERATIONS_MAX} times already; mend the cause, then send the job anew under a new id")]
    TooOften,
    /// Somebody was faster.
    #[error("it is {status}, not pending")]
    NotPending {
        /// What is happening to it.
        status: DeadLetterStatus,
    },
}
