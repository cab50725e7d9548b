//! One request through a connector, for whoever waits and for jobs alike.
//! Invariant: what runs out of attempts on an answer gives that answer; without one, the error.

use bytes::Bytes;
use entrega_call::{
    ApiError, ApiRequest, BadBaseUrl, BaseUrl, CallError, GaveUp, LogFields, Stopped, check_headers, with_causes,
};
use entrega_core::job::ConnectorCall;
use entrega_core::outcome::{Fault, FaultKind};
use entrega_core::trace::TRACEPARENT;
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::{ConnectorError, Connectors};

/// The parts of a request, as callers know them.
const METHOD: &str = "httpMethod";
const RELATIVE_URL: &str = "relativeURL";
const HEADERS: &str = "headers";

/// What an API answered in the end.
#[derive(Clone, Debug)]
pub struct Replied {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body, up to a cap.
    pub body: Bytes,
    /// Whether the cap cut it off.
    pub truncated: bool,
    /// How many attempts were made.
    pub attempts: u32,
    /// The request's name in everybody's logs.
    pub request_id: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The connector cannot be used.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The request cannot be sent.
    #[error("{field}: {reason}")]
    Unfit {
        /// Which part of it.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// No attempt had an answer, or none was made.
    #[error("{reason}")]
    NoAnswer {
        /// What went wrong last.
        kind: FaultKind,
        /// In words, with the number of attempts.
        reason: String,
    },
}

impl Failed {
    /// The same as the end of a job's attempt.
    pub fn fault(&self) -> Fault {
        let kind = match self {
            Failed::NoAnswer { kind, .. } => *kind,
            // The key of the credentials is the operator's to mend.
            Failed::Connector(ConnectorError::Sealed { .. }) => FaultKind::Throttled,
            Failed::Connector(_) | Failed::Unfit { .. } => FaultKind::Invalid,
        };
        Fault { kind, message: self.to_string() }
    }
}

/// Under which names a request is made.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// `x-request-id`.
    pub request_id: Option<String>,
    /// `idempotency-key`.
    pub idempotency_key: Option<String>,
    /// `traceparent`; a new trace if `None`.
    pub traceparent: Option<String>,
    /// For log lines.
    pub fields: LogFields,
}

impl Connectors {
    /// Refuses a request that could not be sent.
    pub fn check(&self, call: &ConnectorCall) -> Result<(), Failed> {
        let (connector, _) = self.find(&call.connector)?;
        let unfit = |field, reason: String| Failed::Unfit { field, reason };
        let method = Method::from_bytes(call.method.as_bytes());
        if !method.is_ok_and(|method| method != Method::CONNECT) {
            return Err(unfit(METHOD, "must be a method such as GET or POST".into()));
        }
        let base: BaseUrl = connector.base_url.parse().map_err(|error: BadBaseUrl| ConnectorError::Unfit {
            id: connector.id.clone(),
            reason: error.to_string(),
        })?;
        base.join(&call.relative_url).map_err(|problem| unfit(RELATIVE_URL, problem.to_string()))?;
        let headers = call.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        check_headers(headers).map_err(|problem| unfit(HEADERS, problem.to_string()))?;
        Ok(())
    }

    /// Sends a request, again and again as its rules say, until `deadline`.
    pub async fn send(&self, call: &ConnectorCall, names: Names, deadline: Instant) -> Result<Replied, Failed> {
        let client = self.client(&call.connector)?;
        let unfit = |error: http::method::InvalidMethod| Failed::Unfit { field: METHOD, reason: error.to_string() };
        let method = Method::from_bytes(call.method.as_bytes()).map_err(unfit)?;
        let mut request: ApiRequest<'_> = client.request(method, &call.relative_url);
        for (name, value) in &call.params {
            request = request.query(name, value);
        }
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        request = request.content(call.body.0.clone()).fields(names.fields).deadline(deadline);
        let has_trace = call.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT));
        if let Some(trace) = names.traceparent.as_ref().filter(|_| !has_trace) {
            request = request.header(TRACEPARENT, trace);
        }
        if let Some(id) = &names.request_id {
            request = request.request_id(id);
        }
        if let Some(key) = &names.idempotency_key {
            request = request.idempotency_key(key);
        }
        let reply = request.send().await.map_err(|error| failed(&error))?;
        let answer = reply.answer;
        Ok(Replied {
            status: answer.status,
            headers: answer.headers,
            body: answer.body,
            truncated: answer.truncated,
            attempts: reply.attempts,
            request_id: reply.request_id,
        })
    }
}

fn failed(error: &ApiError) -> Failed {
    match error {
        ApiError::GaveUp(gave_up) => Failed::NoAnswer { kind: kind(gave_up), reason: gave_up.reason() },
        ApiError::Path(problem) => Failed::Unfit { field: RELATIVE_URL, reason: problem.to_string() },
        other => Failed::Unfit { field: HEADERS, reason: with_causes(other) },
    }
}

fn kind(gave_up: &GaveUp<CallError>) -> FaultKind {
    use entrega_call::AttemptError::{Failed, TimedOut};
    match (&gave_up.last, gave_up.stopped) {
        (None, Stopped::BreakerOpen) => FaultKind::BreakerOpen,
        (None, Stopped::ThrottleTimedOut) => FaultKind::Throttled,
        (Some(Failed(error)), _) => error.kind(),
        (None | Some(TimedOut), _) => FaultKind::Timeout,
    }
}
