//! Facts: what is known of an attempt, as rules and gates look at it.
//! Invariant: facts only; what they mean is decided elsewhere, from data.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

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
