//! What came of an attempt, as the channel saw it.
//! Invariant: an outcome states facts; whether to try again is decided elsewhere, from data.
//! Never: puts a body or a secret into a reason.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use crate::email::Mailed;
use crate::job::Job;

/// The result of one attempt.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The destination answered.
    Answer(Answer),
    /// No answer came.
    Fault(Fault),
    /// The destination answered, and was switched off on our side for it; what it did not get waits.
    SwitchedOff(Answer),
    /// A mail was tried; each recipient has a result of its own.
    Mail(Box<Mailed>),
    /// An event was handed on: these jobs carry it, and are kept in the same write.
    Spread(Spread),
    /// An answer that was given before answers again.
    Cached(Box<Cached>),
}

/// An answer that was kept.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The answer.
    pub answer: Answer,
    /// How old it is.
    pub age: Duration,
    /// What came of the call, where that is why an old answer has to do.
    pub instead_of: Option<Box<Outcome>>,
}

/// An event on its way to whoever listens.
#[derive(Clone, Debug)]
pub struct Spread {
    /// One for each listener.
    pub jobs: Vec<Job>,
    /// The event, kept for whoever asks later.
    pub body: Bytes,
}

/// What was spoken with the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP.
    Http,
    /// SMTP.
    Smtp,
    /// The API of Amazon SES.
    Ses,
}

/// What a rule looks at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// What was spoken.
    pub protocol: Protocol,
    /// The answer's status or reply code.
    pub status: Option<u16>,
    /// `http_503`, `smtp_450`, `timeout`, …
    pub code: Cow<'a, str>,
    /// The answer's header fields.
    pub headers: Option<&'a HeaderMap>,
    /// The answer's body or text, or the fault's message; read only by a rule that asks for it.
    pub message: &'a [u8],
}

/// An answer of the destination.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// All header fields.
    pub headers: HeaderMap,
    /// The body, up to the channel's cap.
    pub body: Bytes,
    /// Whether the cap cut the body off.
    pub truncated: bool,
    /// How long the destination asked us to wait.
    pub retry_after: Option<Duration>,
}

/// Why no answer came.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which kind.
    pub kind: FaultKind,
    /// In words.
    pub message: String,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The host name has no address.
    Resolve,
    /// Every address of the host is one we do not call.
    Forbidden,
    /// No connection.
    Connect,
    /// No trust: the TLS handshake failed.
    Tls,
    /// The deadline passed.
    Timeout,
    /// The connection broke in the middle.
    Aborted,
    /// The job cannot be sent as it is.
    Invalid,
    /// The attempt's own code panicked.
    Crashed,
    /// The destination is switched off on our side.
    Held,
    /// The breaker is open in a lane that does not wait for it.
    BreakerOpen,
    /// The same call failed, made for another job at the same moment.
    Shared,
    /// It waited too long for its turn.
    Throttled,
    /// The same, or nobody could be called yet, and it goes back to its queue.
    Requeued,
}

impl FaultKind {
    /// The word for it in codes, metrics and rules.
    pub const fn code(self) -> &'static str {
        match self {
            FaultKind::Resolve => "resolve",
            FaultKind::Forbidden => "forbidden_address",
            FaultKind::Connect => "connect",
            FaultKind::Tls => "tls",
            FaultKind::Timeout => "timeout",
            FaultKind::Aborted => "aborted",
            FaultKind::Invalid => "invalid",
            FaultKind::Crashed => "crashed",
            FaultKind::Held => "held",
            FaultKind::BreakerOpen => "breaker_aberto",
            FaultKind::Shared => "shared",
            FaultKind::Throttled => "throttled",
            FaultKind::Requeued => "requeued",
        }
    }

    /// What it says about the destination: that it is down, or nothing when it was never reached.
    pub const fn lesson(self) -> Lesson {
        match self {
            FaultKind::Resolve | FaultKind::Connect | FaultKind::Tls | FaultKind::Timeout | FaultKind::Aborted => {
                Lesson::Down
            }
            FaultKind::Forbidden | FaultKind::Invalid | FaultKind::Crashed | FaultKind::Held => Lesson::Nothing,
            FaultKind::BreakerOpen | FaultKind::Shared | FaultKind::Throttled | FaultKind::Requeued => Lesson::Unused,
        }
    }

    /// Those that a job waits out: nobody was called.
    const WAITED_OUT: [FaultKind; 2] = [FaultKind::BreakerOpen, FaultKind::Requeued];

    /// Whether an attempt that ended with this code is one of those that a lane allows.
    pub fn counts(code: &str) -> bool {
        FaultKind::WAITED_OUT.iter().all(|kind| kind.code() != code)
    }
}

impl Outcome {
    /// `http_503`, `timeout`, …
    pub fn code(&self) -> String {
        match self {
            Outcome::Answer(answer) => format!("http_{}", answer.status.as_u16()),
            Outcome::Fault(fault) => fault.kind.code().to_owned(),
            Outcome::SwitchedOff(_) => FaultKind::Held.code().to_owned(),
            Outcome::Mail(mailed) => mailed.failure_code().map_or("ok", |code| code.as_str()).to_owned(),
            Outcome::Spread(_) => "ok".to_owned(),
            Outcome::Cached(cached) => if cached.instead_of.is_some() { "fallback" } else { "cached" }.to_owned(),
        }
    }

    /// What rules look at. A mail is judged recipient by recipient instead.
    pub fn facts(&self) -> Option<Facts<'_>> {
        let (status, headers, message) = match self {
            Outcome::Answer(answer) | Outcome::SwitchedOff(answer) => {
                (Some(answer.status.as_u16()), Some(&answer.headers), &answer.body[..])
            }
            Outcome::Fault(fault) => (None, None, fault.message.as_bytes()),
            Outcome::Mail(_) | Outcome::Spread(_) | Outcome::Cached(_) => return None,
        };
        Some(Facts { protocol: Protocol::Http, status, code: self.code().into(), headers, message })
    }

    /// What happened, in words that may be logged.
    pub fn reason(&self) -> String {
        match self {
            Outcome::Answer(answer) => status_line(answer.status),
            Outcome::Fault(fault) => fault.message.clone(),
            Outcome::SwitchedOff(answer) => {
                let answered = status_line(answer.status);
                format!("{answered}; the destination is switched off now, and what it did not get waits for it")
            }
            Outcome::Mail(mailed) => mailed.reason(),
            Outcome::Spread(spread) => format!("handed to {} endpoints", spread.jobs.len()),
            Outcome::Cached(cached) => match &cached.instead_of {
                Some(failure) => format!("an answer {} s old instead of: {}", cached.age.as_secs(), failure.reason()),
                None => format!("an answer {} s old", cached.age.as_secs()),
            },
        }
    }

    /// Why an old answer has to do, as a word for metrics.
    pub fn motive(&self) -> &'static str {
        match self {
            Outcome::Answer(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => "limite_429",
            Outcome::Answer(answer) if answer.status.is_server_error() => "erro_5xx",
            Outcome::Fault(Fault { kind: FaultKind::Timeout, .. }) => "timeout",
            Outcome::Fault(Fault { kind: FaultKind::BreakerOpen, .. }) => "breaker_aberto",
            Outcome::Fault(Fault { kind: FaultKind::Shared, .. }) => "chamada_igual",
            Outcome::Fault(_) => "erro_rede",
            Outcome::Answer(_)
            | Outcome::SwitchedOff(_)
            | Outcome::Mail(_)
            | Outcome::Spread(_)
            | Outcome::Cached(_) => "outro",
        }
    }

    /// How long the destination asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Outcome::Answer(answer) => answer.retry_after,
            Outcome::Fault(_)
            | Outcome::SwitchedOff(_)
            | Outcome::Mail(_)
            | Outcome::Spread(_)
            | Outcome::Cached(_) => None,
        }
    }

    /// What the destination answered, if it did.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Answer(answer) | Outcome::SwitchedOff(answer) => Some(answer),
            Outcome::Fault(_) | Outcome::Mail(_) | Outcome::Spread(_) | Outcome::Cached(_) => None,
        }
    }

    /// What the gates of a lane learn from it.
    pub fn lesson(&self) -> Lesson {
        match self {
            Outcome::Answer(answer) => Lesson::of_status(answer.status, answer.retry_after),
            Outcome::Fault(fault) => fault.kind.lesson(),
            Outcome::SwitchedOff(_) => Lesson::Nothing,
            Outcome::Mail(mailed) => mailed.lesson(),
            Outcome::Spread(_) => Lesson::Up,
            Outcome::Cached(cached) => cached.instead_of.as_ref().map_or(Lesson::Unused, |failure| failure.lesson()),
        }
    }
}

/// `HTTP 503 Service Unavailable`.
fn status_line(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(words) => format!("HTTP {} {words}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

/// What an outcome says about the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lesson {
    /// It works.
    Up,
    /// It is down.
    Down,
    /// It asks for a slower pace, and perhaps for a pause.
    Slower(Option<Duration>),
    /// Nothing: the attempt never reached it.
    Nothing,
    /// Nothing, and nobody asked: the attempt went past the gates, so whatever they know stays as it is.
    Apart,
    /// Nothing, and nobody was called: the start that was taken for it is given back.
    Unused,
}

impl Lesson {
    /// What an answer says. Only "the destination is down" counts against a breaker: a 404 comes from a healthy server,
    /// and a 429 from one that asks for patience.
    pub fn of_status(status: StatusCode, retry_after: Option<Duration>) -> Lesson {
        match status {
            StatusCode::TOO_MANY_REQUESTS => Lesson::Slower(retry_after),
            status if status.is_server_error() => Lesson::Down,
            _ => Lesson::Up,
        }
    }
}
