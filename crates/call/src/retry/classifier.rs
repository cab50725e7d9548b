//! Classifiers: what came of an attempt, and what that means.
//! Invariant: an answer that is retried keeps the wait its destination asked for.
//! Never: reads a body or shows one, unless a rule says so.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::classify::{Rule, Statuses, Verdict, classify_facts};
use entrega_core::dialect::Dialect;
use entrega_core::outcome::{Facts, Lesson, Protocol};
use entrega_core::rate_limit::RateLimit;
use entrega_core::time::Time;
use http::header::RETRY_AFTER;

use crate::error::CallError;
use crate::retry_after::parse_retry_after;
use entrega_core::outcome::Answer;

/// What a result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It worked.
    Success,
    /// It failed for now.
    Retry {
        /// How long the destination asked to be left alone.
        after: Option<Duration>,
    },
    /// It failed for good.
    Permanent,
}

/// What may be logged about a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The answer's status.
    pub http_status: Option<u16>,
    /// `http_503`, `connect`, …
    pub error_code: Option<String>,
    /// In words.
    pub error_reason: Option<String>,
}

/// Judges the result of an attempt. A closure over `&Result<T, E>` is one; [`Rules`] judge answers of HTTP. An attempt
/// that outlives its deadline has no result: it is always retried.
pub trait Classifier<T, E>: Send + Sync {
    /// What the result, which came at `now`, means.
    fn judge(&self, result: &Result<T, E>, now: Time) -> Judgement;

    /// What it says about the destination; a breaker and an adaptive throttle learn from that.
    fn lesson(&self, result: &Result<T, E>, now: Time) -> Lesson {
        match (self.judge(result, now), result) {
            (Judgement::Retry { .. }, _) => Lesson::Down,
            (Judgement::Success, _) | (_, Ok(_)) => Lesson::Up,
            (Judgement::Permanent, Err(_)) => Lesson::Nothing,
        }
    }

    /// What it says about the destination's rate limit.
    fn rate_limit(&self, _result: &Result<T, E>, _now: Time) -> Option<RateLimit> {
        None
    }

    /// What may be logged about it; nothing by default, for nobody knows what a stranger's error holds.
    fn describe(&self, _result: &Result<T, E>) -> Description {
        Description::default()
    }
}

impl<T, E, F> Classifier<T, E> for F
where
    F: Fn(&Result<T, E>) -> Judgement + Send + Sync,
{
    fn judge(&self, result: &Result<T, E>, _now: Time) -> Judgement {
        self(result)
    }
}

/// Rules over answers and errors of HTTP calls, as lanes have them; the first that matches wins. Clones are cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules(Arc<[Rule]>);

impl Rules {
    /// The default rules of a dialect.
    #[must_use]
    pub fn of(dialect: Dialect) -> Rules {
        Rules(dialect.rules().into())
    }

    /// Network errors, timeouts, 408, 425, 429 and 5xx are retried.
    #[must_use]
    pub fn http() -> Rules {
        Rules::of(Dialect::Http)
    }

    /// Network errors, timeouts, 429, 500, 502, 503 and 504 are retried.
    #[must_use]
    pub fn connector() -> Rules {
        Rules::of(Dialect::Connector)
    }

    /// With one more rule before all others.
    #[must_use]
    pub fn preceded_by(self, rule: Rule) -> Rules {
        Rules(std::iter::once(rule).chain(self.0.iter().cloned()).collect())
    }

    /// For operations that create what is not there yet: a 409 says that it is there, which is what was wanted.
    #[must_use]
    pub fn create_if_absent(self) -> Rules {
        self.preceded_by(Rule::status(&[Statuses::range(409, 409)], Verdict::Success))
    }
}

/// How long an answer asks to be left alone.
fn retry_after(answer: &Answer, now: Time) -> Option<Duration> {
    let value = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    parse_retry_after(value, now.as_millis())
}

fn http_code(answer: &Answer) -> String {
    format!("http_{}", answer.status.as_u16())
}

impl Classifier<Answer, CallError> for Rules {
    fn judge(&self, result: &Result<Answer, CallError>, now: Time) -> Judgement {
        // Rules over the text of an error need it whole; it is made for those only who have such a rule.
        let reads_text = self.0.iter().any(|rule| rule.message.is_some());
        let reason = match result {
            Err(error) if reads_text => error.reason(),
            _ => String::new(),
        };
        let facts = match result {
            Ok(answer) => Facts {
                protocol: Protocol::Http,
                status: Some(answer.status.as_u16()),
                code: http_code(answer).into(),
                headers: Some(&answer.headers),
                message: &answer.body,
            },
            Err(error) => Facts {
                protocol: Protocol::Http,
                status: None,
                code: error.kind().code().into(),
                headers: None,
                message: reason.as_bytes(),
            },
        };
        match classify_facts(&self.0, &facts) {
            Verdict::Success => Judgement::Success,
            Verdict::Retry => {
                Judgement::Retry { after: result.as_ref().ok().and_then(|answer| retry_after(answer, now)) }
            }
            // Without a queue there is nobody to hold it for.
            Verdict::Permanent | Verdict::Hold => Judgement::Permanent,
        }
    }

    fn lesson(&self, result: &Result<Answer, CallError>, now: Time) -> Lesson {
        match result {
            Ok(answer) => Lesson::of_status(answer.status, retry_after(answer, now)),
            Err(error) => error.kind().lesson(),
        }
    }

    fn rate_limit(&self, result: &Result<Answer, CallError>, now: Time) -> Option<RateLimit> {
        RateLimit::from_headers(&result.as_ref().ok()?.headers, now)
    }

    fn describe(&self, result: &Result<Answer, CallError>) -> Description {
        match result {
            Ok(answer) => Description {
                http_status: Some(answer.status.as_u16()),
                error_code: (!answer.status.is_success()).then(|| http_code(answer)),
                error_reason: None,
            },
            Err(error) => Description {
                http_status: None,
                error_code: Some(error.kind().code().to_owned()),
                error_reason: Some(error.reason()),
            },
        }
    }
}
