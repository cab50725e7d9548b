//! What came of an attempt, as the channel saw it.
//! Invariant: an outcome states facts; whether to try again is decided elsewhere, from data.
//! Never: puts a body or a secret into a reason.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use crate::classify::{Rule, Verdict, classify_facts};
pub use crate::facts::{Facts, FaultKind, Lesson, Protocol};
use crate::id::JobId;
use crate::job::Job;
use crate::mail::Mailed;

/// The result of one attempt.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The destination answered.
    Answer(Answer),
    /// No answer came.
    Fault(Fault),
    /// The destination answered, and was switched off on our side for it; what it did not get waits.
    EndpointDisabled(Answer),
    /// A mail was tried; each recipient has a result of its own.
    Mail(Box<Mailed>),
    /// An event was handed on: these jobs carry it, and are kept in the same write.
    FanOut(FanOut),
    /// An answer that was given before answers again.
    Cached(Box<Cached>),
}

/// Whose answer it is that another job is given, and where it is cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerSource {
    /// The job whose call brought it.
    pub job: JobId,
    /// Its key in the cache.
    pub key: String,
}

/// An answer that was kept.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The answer.
    pub answer: Answer,
    /// Where it stays; `None` if it does not, so that whoever is given it needs a copy.
    pub source: Option<AnswerSource>,
    /// How old it is.
    pub age: Duration,
    /// What came of the call, where that is why an old answer has to do.
    pub instead_of: Option<Box<Outcome>>,
}

/// An event on its way to whoever listens.
#[derive(Clone, Debug)]
pub struct FanOut {
    /// One for each listener.
    pub jobs: Vec<Job>,
    /// The event, kept for whoever asks later.
    pub body: Bytes,
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

impl Outcome {
    /// `http_503`, `timeout`, …
    pub fn code(&self) -> String {
        match self {
            Outcome::Answer(answer) => format!("http_{}", answer.status.as_u16()),
            Outcome::Fault(fault) => fault.kind.code().to_owned(),
            Outcome::EndpointDisabled(_) => FaultKind::Held.code().to_owned(),
            Outcome::Mail(mailed) => mailed.failure_code().map_or("ok", |code| code.as_str()).to_owned(),
            Outcome::FanOut(_) => "ok".to_owned(),
            Outcome::Cached(cached) => if cached.instead_of.is_some() { "fallback" } else { "cached" }.to_owned(),
        }
    }

    /// What rules look at. A mail is judged recipient by recipient instead.
    pub fn facts(&self) -> Option<Facts<'_>> {
        let (status, headers, message) = match self {
            Outcome::Answer(answer) | Outcome::EndpointDisabled(answer) => {
                (Some(answer.status.as_u16()), Some(&answer.headers), &answer.body[..])
            }
            Outcome::Fault(fault) => (None, None, fault.message.as_bytes()),
            Outcome::Mail(_) | Outcome::FanOut(_) | Outcome::Cached(_) => return None,
        };
        Some(Facts { protocol: Protocol::Http, status, code: self.code().into(), headers, message })
    }

    /// What it means by these rules. Nothing matching means `Permanent`: what nobody foresaw is looked at by a person
    /// rather than repeated. The recipients of a mail were judged one by one.
    pub fn verdict(&self, rules: &[Rule]) -> Verdict {
        match (self.facts(), self) {
            (Some(facts), _) => classify_facts(rules, &facts),
            (None, Outcome::Mail(mailed)) => mailed.verdict(),
            (None, Outcome::FanOut(_) | Outcome::Cached(_)) => Verdict::Success,
            (None, _) => Verdict::Permanent,
        }
    }

    /// What happened, in words that may be logged.
    pub fn reason(&self) -> String {
        match self {
            Outcome::Answer(answer) => status_line(answer.status),
            Outcome::Fault(fault) => fault.message.clone(),
            Outcome::EndpointDisabled(answer) => {
                let answered = status_line(answer.status);
                format!("{answered}; the destination is switched off now, and what it did not get waits for it")
            }
            Outcome::Mail(mailed) => mailed.reason(),
            Outcome::FanOut(fan_out) => format!("handed to {} endpoints", fan_out.jobs.len()),
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
            | Outcome::EndpointDisabled(_)
            | Outcome::Mail(_)
            | Outcome::FanOut(_)
            | Outcome::Cached(_) => "outro",
        }
    }

    /// How long the destination asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Outcome::Answer(answer) => answer.retry_after,
            Outcome::Fault(_)
            | Outcome::EndpointDisabled(_)
            | Outcome::Mail(_)
            | Outcome::FanOut(_)
            | Outcome::Cached(_) => None,
        }
    }

    /// What the destination answered, if it did.
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Outcome::Answer(answer) | Outcome::EndpointDisabled(answer) => Some(answer),
            Outcome::Fault(_) | Outcome::Mail(_) | Outcome::FanOut(_) | Outcome::Cached(_) => None,
        }
    }

    /// What the gates of a lane learn from it.
    pub fn lesson(&self) -> Lesson {
        match self {
            Outcome::Answer(answer) => Lesson::of_status(answer.status, answer.retry_after),
            Outcome::Fault(fault) => fault.kind.lesson(),
            Outcome::EndpointDisabled(_) => Lesson::Nothing,
            Outcome::Mail(mailed) => mailed.lesson(),
            Outcome::FanOut(_) => Lesson::Up,
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
