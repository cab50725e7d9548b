//! Submissions: what callers hand in, and what makes it happen once.
//! Invariant: what passes its check fits every lane; whether its content can be sent is its product's to say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::Priority;
use entrega_core::name::LaneName;

use crate::content::{AnyContent, NewContent};
use crate::refusal::Refusal;
use crate::store::{IDEMPOTENCY_KEY_RULE, is_idempotency_key};

/// Labels per job.
pub const LABELS_MAX: usize = 16;
/// Bytes in a label's name, and four times as many in its text.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
const LABEL_TEXT_BYTES_MAX: usize = 256;
/// The furthest a job may be put off, and the longest it may then wait.
pub const DELAY_MAX: Duration = Duration::from_hours(365 * 24);

/// What a caller wants sent.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// In which lane.
    pub lane: LaneName,
    /// How urgent.
    pub priority: Priority,
    /// The content.
    pub content: NewContent,
    /// Free words carried along.
    pub labels: BTreeMap<String, String>,
    /// Dropped if it still waits after this; the lane's own if `None`.
    pub ttl: Option<Duration>,
    /// Not before this has passed.
    pub delay: Duration,
    /// Sent with every attempt.
    pub idempotency_key: Option<String>,
}

/// A job that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: JobId,
    /// Whether it was taken before, under the same key.
    pub is_repeat: bool,
}

impl NewJob {
    /// A job for a lane, as plain as it can be: normal priority, due now, with the lane's own TTL.
    pub fn new(lane: LaneName, content: impl AnyContent + 'static) -> NewJob {
        NewJob {
            lane,
            priority: Priority::Normal,
            content: Arc::new(content),
            labels: BTreeMap::new(),
            ttl: None,
            delay: Duration::ZERO,
            idempotency_key: None,
        }
    }

    /// Refuses what holds for no kind of job.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(Refusal::invalid(
                "ttlMs",
                "0 would expire at once; leave it out for the lane's own, or give 1 or more",
            ));
        }
        for (field, length) in [("delayMs", Some(self.delay)), ("ttlMs", self.ttl)] {
            if length.is_some_and(|length| length > DELAY_MAX) {
                return Err(Refusal::invalid(field, "at most a year (31536000000)"));
            }
        }
        if self.labels.len() > LABELS_MAX {
            return Err(Refusal::invalid("labels", format!("{} labels; at most {LABELS_MAX}", self.labels.len())));
        }
        for (name, text) in &self.labels {
            if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX || text.len() > LABEL_TEXT_BYTES_MAX {
                let limits =
                    format!("names have 1 to {LABEL_NAME_BYTES_MAX} bytes, texts at most {LABEL_TEXT_BYTES_MAX}");
                return Err(Refusal::invalid(format!("labels.{}", name.chars().take(64).collect::<String>()), limits));
            }
        }
        match self.idempotency_key.as_ref().is_none_or(|key| is_idempotency_key(key)) {
            true => Ok(()),
            false => Err(Refusal::invalid("idempotencyKey", IDEMPOTENCY_KEY_RULE)),
        }
    }
}
