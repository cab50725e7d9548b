//! One request through a connector, for whoever waits and for jobs alike.
//! Invariant: what runs out of attempts on an answer gives that answer; without one, the error.

use entrega_call::{ApiClient, ApiError, ApiRequest, CallError, GaveUp, LogFields, Stopped, check_method, with_causes};
use entrega_core::body::Body;
use entrega_core::name::TenantName;
use entrega_core::outcome::{Answer, Fault, FaultKind};
use entrega_core::payload::Content;
use entrega_core::trace::TRACEPARENT;
use http::Method;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{ConnectorError, Connectors};
use crate::content::JobContent;
use crate::store::OnThrottleTimeout;

/// The parts of a request, as callers know them.
const METHOD: &str = "httpMethod";
const RELATIVE_URL: &str = "relativeURL";
const HEADERS: &str = "headers";
/// About as long as names are that requests get.
const NAME_BYTES: usize = 55;

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

impl Content for ConnectorCall {
    const KIND: &'static str = "connector";
}

impl JobContent for ConnectorCall {
    fn destination(&self) -> String {
        // What follows the question mark may be somebody's own.
        let path = self.relative_url.split('?').next().unwrap_or_default();
        format!("{} {}: {path}", self.method, self.connector)
    }
}

/// What an API answered in the end.
#[derive(Clone, Debug)]
pub struct Replied {
    /// The answer.
    pub answer: Answer,
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
        /// What went wrong.
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
    /// The same as the end of a job's attempt, where this happens to what waited too long for its turn.
    pub fn fault(&self, on_throttle_timeout: OnThrottleTimeout) -> Fault {
        let kind = match self {
            Failed::NoAnswer { kind: FaultKind::Throttled, .. } if on_throttle_timeout != OnThrottleTimeout::Fail => {
                FaultKind::Requeued
            }
            Failed::NoAnswer { kind, .. } => *kind,
            // The key of the credentials is the operator's to mend.
            Failed::Connector(ConnectorError::Sealed { .. }) => FaultKind::Requeued,
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
    pub fn check(&self, tenant: &TenantName, call: &ConnectorCall) -> Result<(), Failed> {
        // With names as long as those that it is going to have.
        let name = Some("0".repeat(NAME_BYTES));
        let names =
            Names { request_id: name.clone(), idempotency_key: name.clone(), traceparent: name, ..Names::default() };
        let client = self.client(&call.connector, tenant)?;
        made(&client, call, names)?.check().map_err(|error| failed(&error))
    }

    /// Sends a tenant's request, again and again as its rules say, until `deadline`.
    pub async fn send(
        &self,
        tenant: &TenantName,
        call: &ConnectorCall,
        names: Names,
        deadline: Instant,
    ) -> Result<Replied, Failed> {
        let client = self.client(&call.connector, tenant)?;
        let request = made(&client, call, names)?.tenant(tenant.as_str()).deadline(deadline);
        let reply = request.send().await.map_err(|error| failed(&error))?;
        Ok(Replied { answer: reply.answer, attempts: reply.attempts, request_id: reply.request_id })
    }
}

/// The request as the API gets it.
fn made<'a>(client: &'a ApiClient, call: &ConnectorCall, names: Names) -> Result<ApiRequest<'a>, Failed> {
    let bad_method = |reason: String| Failed::Unfit { field: METHOD, reason };
    let method = Method::from_bytes(call.method.as_bytes());
    let method = method.map_err(|_| bad_method("must be a method such as GET or POST".into()))?;
    check_method(&method).map_err(|problem| bad_method(problem.to_string()))?;
    let mut request = client.request(method, &call.relative_url);
    for (name, value) in &call.params {
        request = request.query(name, value);
    }
    for (name, value) in &call.headers {
        request = request.header(name, value);
    }
    request = request.content(call.body.0.clone()).fields(names.fields);
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
    Ok(request)
}

fn failed(error: &ApiError) -> Failed {
    match error {
        ApiError::GaveUp(gave_up) => Failed::NoAnswer { kind: kind(gave_up), reason: gave_up.reason() },
        ApiError::Path(problem) => Failed::Unfit { field: RELATIVE_URL, reason: problem.to_string() },
        ApiError::Url(problem) => Failed::Unfit { field: RELATIVE_URL, reason: problem.to_string() },
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
