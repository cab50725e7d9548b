//! What a job is, the states it passes through, and which moves are legal.
//! Invariant: every change of state goes through [`JobState::may_become`].
//! Never: knows how a job is stored or sent.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::Error as _;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::email::{Email, Mailed};
use crate::id::JobId;
use crate::name::{LaneName, TenantName};
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
    /// Ended undelivered: expired or pushed out.
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
            Running => matches!(next, Done | RetryWait | Blocked | Dlq),
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

/// Bytes to send. Readable in JSON: text as a string, anything else as `{"base64": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Body(pub Bytes);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BodyJson {
    Text(String),
    Binary { base64: String },
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        // Control characters would be written out six times as long.
        let is_text = |text: &&str| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
        match std::str::from_utf8(&self.0).ok().filter(is_text) {
            Some(text) => serializer.serialize_str(text),
            None => BodyJson::Binary { base64: BASE64.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
        if !deserializer.is_human_readable() {
            return Bytes::deserialize(deserializer).map(Body);
        }
        match BodyJson::deserialize(deserializer)? {
            BodyJson::Text(text) => Ok(Body(text.into())),
            BodyJson::Binary { base64 } => {
                BASE64.decode(base64).map(|bytes| Body(bytes.into())).map_err(D::Error::custom)
            }
        }
    }
}

/// An HTTP request to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRequest {
    /// `GET`, `POST`, …
    pub method: String,
    /// Absolute, http or https.
    pub url: String,
    /// In the order given.
    pub headers: Vec<(String, String)>,
    /// Sent byte for byte.
    pub body: Body,
}

/// What a job carries, by channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Payload {
    /// For the `http` channel.
    Http(HttpRequest),
    /// For a channel that a program brought along; only that channel reads it.
    Opaque(Body),
    /// For the `email` channel.
    Email(Box<Email>),
    /// An event that whoever listens is to hear of.
    Event(EventBody),
    /// For the `webhook` channel: an event for one endpoint.
    Webhook(EventBody),
    /// For the `proxy` channel: a question to an upstream.
    Proxy(ProxyCall),
    /// For the `connector` channel: a request to a third-party API.
    Connector(Box<ConnectorCall>),
}

/// A request to a third-party API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorCall {
    /// Which API.
    pub connector: String,
    /// `GET`, `POST`, …
    pub method: String,
    /// Below the API's base URL.
    pub relative_url: String,
    /// In the order given.
    pub headers: Vec<(String, String)>,
    /// Added to the query, in the order given.
    pub params: Vec<(String, String)>,
    /// Sent byte for byte.
    pub body: Body,
}

/// A question to the upstream of a route; the route is that of the lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyCall {
    /// What is asked, by the names that the route declares; checked and in their plain form.
    pub params: BTreeMap<String, String>,
}

/// An event as it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventBody {
    /// `evt_…`.
    pub event_id: String,
    /// `email.sent`, …
    pub event_type: String,
    /// The bytes that every listener gets.
    pub body: Body,
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
            protocol: crate::outcome::Protocol::Smtp,
            transport: "main".into(),
            message_id: None,
            ambiguous: true,
            recipients: vec![crate::email::Recipient::accepted("a@example.com")],
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

    #[test]
    fn bodies_stay_readable_in_json_and_exact_in_records() {
        for (bytes, json) in [
            (&b"{\"a\":1}"[..], r#""{\"a\":1}""#),
            (&[0xff, 0x00][..], r#"{"base64":"/wA="}"#),
            (&[0, 0][..], r#"{"base64":"AAA="}"#),
        ] {
            let body = Body(Bytes::copy_from_slice(bytes));
            assert_eq!(serde_json::to_string(&body).unwrap(), json);
            assert_eq!(serde_json::from_str::<Body>(json).unwrap(), body);
            let record = postcard::to_stdvec(&body).unwrap();
            assert_eq!(postcard::from_bytes::<Body>(&record).unwrap(), body);
        }
    }
}
