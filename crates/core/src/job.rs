//! What a job is, the states it passes through, and which moves are legal.
//! Invariant: every change of state goes through [`JobState::may_become`].
//! Never: knows how a job is stored or sent.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::id::JobId;
use crate::mail::Mailed;
use crate::name::{LaneName, TenantName};
use crate::payload::Payload;
use crate::time::Time;

/// How urgent a job is within its lane. Served strictly in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Priority {
    /// Before all others.
    High,
    /// The default.
    #[default]
    Normal,
    /// When nothing else waits.
    Low,
}

impl Priority {
    /// All, most urgent first.
    pub const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Accepted; not due yet, or its lane is paused before its first run.
    Idle,
    /// Due, waiting for its turn.
    Queued,
    /// An attempt is under way.
    Running,
    /// Failed for now, tried again later.
    RetryWait,
    /// Delivered.
    Done,
    /// Out of attempts in a lane that blocks, or its endpoint is not called; somebody decides.
    Blocked,
    /// Given up, kept as a dead letter.
    Dlq,
    /// A dead letter on its way back.
    Replaying,
    /// Ended undelivered: expired, pushed out, or failed where nobody would look after it.
    Dropped,
    /// Ended by request.
    Cancelled,
}

impl JobState {
    /// All states.
    pub const ALL: [JobState; 10] = [
        JobState::Idle,
        JobState::Queued,
        JobState::Running,
        JobState::RetryWait,
        JobState::Done,
        JobState::Blocked,
        JobState::Dlq,
        JobState::Replaying,
        JobState::Dropped,
        JobState::Cancelled,
    ];

    /// The word for it in API, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            JobState::Idle => "idle",
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::RetryWait => "retry_wait",
            JobState::Done => "done",
            JobState::Blocked => "blocked",
            JobState::Dlq => "dlq",
            JobState::Replaying => "replaying",
            JobState::Dropped => "dropped",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more happens to the job by itself.
    pub const fn is_end(self) -> bool {
        matches!(self, JobState::Done | JobState::Dlq | JobState::Dropped | JobState::Cancelled)
    }

    /// The legal moves. An expired or cancelled job may still be `idle` or `replaying`: both wait like `queued`. The
    /// contract's list does not name the move from `blocked` to `cancelled`, but asks that what waits for a disabled
    /// endpoint can be discarded; without it, a job whose endpoint never comes back could never end.
    pub const fn may_become(self, next: JobState) -> bool {
        use JobState::*;
        match self {
            Idle => matches!(next, Queued | Dropped | Cancelled),
            Queued => matches!(next, Idle | Running | Dropped | Cancelled),
            Running => matches!(next, Done | RetryWait | Blocked | Dlq | Dropped),
            RetryWait => matches!(next, Running | Dropped | Cancelled),
            Blocked => matches!(next, Queued | Cancelled),
            Dlq => matches!(next, Replaying),
            Replaying => matches!(next, Running | Dropped | Cancelled),
            Done | Dropped | Cancelled => false,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One outbound call in a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// The same on every attempt and replay.
    #[serde(rename = "jobId")]
    pub id: JobId,
    /// The lane whose policy holds for it.
    pub lane: LaneName,
    /// Who it is for.
    #[serde(rename = "companyId")]
    pub tenant: TenantName,
    /// Order within the lane.
    pub priority: Priority,
    /// What to send.
    pub payload: Payload,
    /// Where it goes, as people may read it; `None` where that cannot be said.
    pub destination: Option<String>,
    /// What came of it before it was replayed.
    #[serde(default)]
    pub earlier: Earlier,
    /// Free words carried into logs, events and dead letters.
    pub labels: BTreeMap<String, String>,
    /// Sent with every attempt, so that the destination can tell a repeat; the id stands in where none was given.
    pub idempotency_key: Option<String>,
    /// When it was accepted.
    pub accepted_at: Time,
    /// Not attempted before this.
    pub due_at: Time,
    /// Dropped when still waiting at this moment.
    pub expires_at: Option<Time>,
}

/// What came of a job before it was replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Earlier {
    /// How many attempts there were.
    pub attempts: u32,
    /// Recipients of a mail that got it; a replay spares them.
    pub accepted: Vec<String>,
}

impl Earlier {
    /// What these attempts came to. The last may not have got as far as anybody, so the last that did counts.
    pub fn of(attempts: &[Attempt]) -> Earlier {
        let mailed = attempts.iter().rev().find_map(|attempt| attempt.mail.as_deref());
        Earlier {
            attempts: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
            accepted: mailed.map_or_else(Vec::new, |mailed| mailed.accepted().map(str::to_owned).collect()),
        }
    }
}

/// One try of a job.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// From 1; it starts again with each replay.
    pub number: u32,
    /// When it began.
    pub started_at: Time,
    /// How long it took.
    pub duration_ms: u64,
    /// `http_503`, `timeout`, … or `ok`.
    pub code: String,
    /// What went wrong, in words; `None` for a success.
    pub reason: Option<String>,
    /// For a mail: what came of it for each recipient.
    #[serde(default)]
    pub mail: Option<Box<Mailed>>,
    /// For a webhook: the first part of what the endpoint answered, as [`excerpt`](crate::excerpt::excerpt) gives it.
    #[serde(default)]
    pub answer: Option<String>,
}

/// By hand because only mails have `mail` and only webhooks `answer`: people need not read that others have none, but a
/// binary record must say so.
impl Serialize for Attempt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (is_record, has_mail) = (!serializer.is_human_readable(), self.mail.is_some());
        let (has_mail, has_answer) = (is_record || has_mail, is_record || self.answer.is_some());
        let fields = 5 + usize::from(has_mail) + usize::from(has_answer);
        let mut attempt = serializer.serialize_struct("Attempt", fields)?;
        attempt.serialize_field("number", &self.number)?;
        attempt.serialize_field("startedAt", &self.started_at)?;
        attempt.serialize_field("durationMs", &self.duration_ms)?;
        attempt.serialize_field("code", &self.code)?;
        attempt.serialize_field("reason", &self.reason)?;
        if has_mail {
            attempt.serialize_field("mail", &self.mail)?;
        }
        if has_answer {
            attempt.serialize_field("answer", &self.answer)?;
        }
        attempt.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_lead_nowhere_but_a_dead_letter_can_come_back() {
        for state in JobState::ALL {
            let ways_out = JobState::ALL.iter().filter(|next| state.may_become(**next)).count();
            let is_final = state.is_end() && state != JobState::Dlq;
            assert_eq!(ways_out == 0, is_final, "{state}");
        }
        assert!(JobState::Dlq.may_become(JobState::Replaying));
        assert!(!JobState::Running.may_become(JobState::Cancelled));
        assert!(!JobState::RetryWait.may_become(JobState::Queued));
        assert!(JobState::Blocked.may_become(JobState::Cancelled) && !JobState::Blocked.may_become(JobState::Dropped));
    }

    #[test]
    fn an_attempt_reads_back_with_and_without_a_mail_or_an_answer() {
        let mail = Mailed {
            protocol: crate::facts::Protocol::Smtp,
            transport: "main".into(),
            message_id: None,
            ambiguous: true,
            recipients: vec![crate::mail::Recipient::accepted("a@example.com")],
        };
        for (mail, answer) in [(None, None), (Some(Box::new(mail)), None), (None, Some("no".to_owned()))] {
            let attempt = Attempt {
                number: 1,
                started_at: Time::from_millis(5),
                duration_ms: 2,
                code: "ok".into(),
                reason: None,
                mail,
                answer,
            };
            let record = postcard::to_stdvec(&attempt).unwrap();
            assert_eq!(postcard::from_bytes::<Attempt>(&record).unwrap(), attempt);
            let json = serde_json::to_string(&attempt).unwrap();
            assert_eq!(json.contains("\"mail\""), attempt.mail.is_some(), "{json}");
            assert_eq!(json.contains("\"answer\""), attempt.answer.is_some(), "{json}");
            assert_eq!(serde_json::from_str::<Attempt>(&json).unwrap(), attempt);
        }
    }
}
