//! Problems: every error as an RFC 9457 document.
//! Invariant: this is the only place that turns an error into a status; a caller's mistake names the field.
//! Never: shows what belongs in a log: paths, backtraces, secrets.

use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use entrega_core::outcome::FaultKind;
use entrega_core::time::format_duration;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use entrega::connector::{ConnectorError, Failed, PutConnectorError};
#[cfg(feature = "ses")]
use entrega::mail::sns::SnsError;
use entrega::proxy::{BadQuestion, NotAsked};
use entrega::refusal::Refusal;
use entrega::seal::SealError;
use entrega::store::{BeginReplayError, ChangeError, KeyScope, PutEndpointError, PutKeyError, StoreError};
use entrega::webhook::EndpointError;

/// The content type of a problem document.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Names the kind of problem; stable, for programs.
    #[serde(rename = "type")]
    #[schema(example = "urn:entrega:problem:validation")]
    kind: &'static str,
    /// The kind in words.
    title: &'static str,
    /// The status code again.
    status: u16,
    /// What happened here, and what would help.
    detail: String,
    /// The fields that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldProblem>,
    /// The quota of the tenant that is used up: `places`, `stored_bytes`, `requests_per_second`, `calls`, `in_flight_bytes`,
    /// `connections`.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'static str>,
}

/// What a tenant has a limited amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quota {
    /// Calls that wait: long polls, and requests to connectors.
    Calls,
    /// Bytes of bodies and answers in memory.
    InFlight,
    /// Calls under way, each of which keeps a connection.
    Connections,
}

impl Quota {
    fn name(self) -> &'static str {
        match self {
            Quota::Calls => "calls",
            Quota::InFlight => "in_flight_bytes",
            Quota::Connections => "connections",
        }
    }

    /// What there are so many of, and what helps.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Quota::Calls => ("calls wait already", "wait for one to end"),
            Quota::Connections => ("calls are under way already", "send fewer at once"),
            Quota::InFlight => ("bytes of bodies and answers may be on their way at once", "send fewer at once"),
        }
    }
}

/// A field that is wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct FieldProblem {
    /// Which: a path such as `request.url`, or the name of a query parameter.
    field: String,
    /// What is wrong with it.
    detail: String,
}

/// Whatever a call can fail with.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("send a key: Authorization: Bearer <key>")]
    NoKey,
    #[error("this key is not known; it may have been removed")]
    UnknownKey,
    #[error("this key lacks the scope '{}'", scope_name(*scope))]
    MissingScope { scope: KeyScope },
    #[error("naming another tenant needs the scope 'admin'")]
    OtherTenant,
    #[error("{field}: {detail}")]
    Invalid { field: String, detail: String },
    #[error("the body is not JSON: {reason} (line {line}, column {column})")]
    BadJson { reason: String, line: usize, column: usize },
    #[error("the body is nested more than {depth_max} levels deep")]
    TooDeep { depth_max: usize },
    #[error("the body could not be read; was the connection cut?")]
    BodyBroken,
    #[error("the body did not arrive within {} s", limit.as_secs())]
    BodyTimeout { limit: std::time::Duration },
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: usize },
    #[error("send JSON, with Content-Type: application/json")]
    NotJson,
    #[error("send the body as it is: Content-Encoding: {encoding} is not taken")]
    Encoded { encoding: String },
    #[error("there is no such path; /openapi.json lists them all")]
    NoRoute,
    #[error("this path does not take this method; the Allow header lists those it takes")]
    MethodNotAllowed,
    #[error("no transport for mails is configured; set SMTP_URL, or a url under [transports.main], and start again")]
    NoTransport,
    #[error("no topic of SNS is listened to; list it under [ses] topics, and start again")]
    NoTopics,
    #[error(transparent)]
    Endpoint(EndpointError),
    #[error(transparent)]
    Connector(PutConnectorError),
    #[error(transparent)]
    Replays(BeginReplayError),
    #[error(transparent)]
    Keys(PutKeyError),
    #[error("the senders of this tenant are from the configuration: change them there and start again")]
    SendersConfigured,
    #[error("the same request is being made; its answer comes within {} s", for_another.as_secs() + 1)]
    BeingMade { for_another: std::time::Duration },
    #[error(transparent)]
    Unanswered(Failed),
    #[error("this node is shutting down; send the request again")]
    ShuttingDown,
    #[error("this endpoint is being changed by many at once; try again")]
    EndpointBusy,
    #[error("the quota '{}' is used up: {max} {}; {}", quota.name(), quota.words().0, quota.words().1)]
    OverQuota { quota: Quota, max: usize },
    #[error("too many callers are being served at once; send the request again")]
    Busy,
    #[error("there is no {what} with this id")]
    NotFound { what: &'static str },
    #[error("no job with this id is kept any more: ended jobs are kept for {}", format_duration(*kept_for))]
    Gone { kept_for: std::time::Duration },
    #[error("this call failed by a mistake of the server's own; its log says more")]
    Panicked { message: String },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    NotAsked(NotAsked),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[cfg(feature = "ses")]
    #[error(transparent)]
    Sns(#[from] SnsError),
    #[error("the secret could not be sealed; the log says why")]
    Seal(#[from] SealError),
}

impl From<PutEndpointError> for ApiError {
    fn from(error: PutEndpointError) -> ApiError {
        match error {
            PutEndpointError::Store(error) => ApiError::Store(error),
            PutEndpointError::Changed => ApiError::EndpointBusy,
        }
    }
}

/// Those that stay are conflicts with what is there.
impl From<EndpointError> for ApiError {
    fn from(error: EndpointError) -> ApiError {
        match error {
            EndpointError::Invalid { field, source } => ApiError::invalid(field, format!("must be {source}")),
            EndpointError::DisabledAndPaused => {
                ApiError::invalid("paused", "a disabled endpoint is not called anyway; leave one out")
            }
            EndpointError::Unknown => ApiError::NotFound { what: "endpoint" },
            EndpointError::Put(error) => error.into(),
            EndpointError::Seal(error) => error.into(),
            EndpointError::Store(error) => error.into(),
            conflict @ (EndpointError::TooMany | EndpointError::Configured) => ApiError::Endpoint(conflict),
        }
    }
}

/// The same.
impl From<PutConnectorError> for ApiError {
    fn from(error: PutConnectorError) -> ApiError {
        match error {
            PutConnectorError::Invalid { field, source } => ApiError::invalid(field, format!("must be {source}")),
            PutConnectorError::Auth(error) => ApiError::invalid("auth", error.to_string()),
            error @ PutConnectorError::CredentialsNeeded { .. } => {
                let text = error.to_string();
                ApiError::invalid("auth", text.trim_start_matches("auth: "))
            }
            PutConnectorError::Unknown => ApiError::NotFound { what: "connector" },
            PutConnectorError::Seal(error) => error.into(),
            PutConnectorError::Store(error) => error.into(),
            conflict @ (PutConnectorError::Configured | PutConnectorError::TooMany) => ApiError::Connector(conflict),
        }
    }
}

impl From<BeginReplayError> for ApiError {
    fn from(error: BeginReplayError) -> ApiError {
        match error {
            BeginReplayError::Store(error) => error.into(),
            conflict @ BeginReplayError::TooMany => ApiError::Replays(conflict),
        }
    }
}

impl From<PutKeyError> for ApiError {
    fn from(error: PutKeyError) -> ApiError {
        match error {
            PutKeyError::Store(error) => error.into(),
            conflict @ PutKeyError::TooMany => ApiError::Keys(conflict),
        }
    }
}

/// When to look again for the answer to a request that is being made: it usually comes much sooner than it must.
const BEING_MADE_LOOK_MAX: u64 = 5;
/// When to try again with what is gone or full: a store, a quota. It comes back by itself.
const STORE_RETRY_AFTER_SECONDS: u64 = 2;

/// The kinds of problems: status, type, title.
type Kind = (StatusCode, &'static str, &'static str);

const UNAUTHORIZED: Kind = (StatusCode::UNAUTHORIZED, "urn:entrega:problem:unauthorized", "No valid key");
const FORBIDDEN: Kind = (StatusCode::FORBIDDEN, "urn:entrega:problem:forbidden", "The key may not do this");
const VALIDATION: Kind = (StatusCode::UNPROCESSABLE_ENTITY, "urn:entrega:problem:validation", "A field is wrong");
const BAD_BODY: Kind = (StatusCode::BAD_REQUEST, "urn:entrega:problem:bad-body", "The body cannot be read");
const TIMEOUT: Kind = (StatusCode::REQUEST_TIMEOUT, "urn:entrega:problem:timeout", "The request took too long");
const TOO_LARGE: Kind = (StatusCode::PAYLOAD_TOO_LARGE, "urn:entrega:problem:too-large", "The body is too large");
const ENCODED: Kind = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "urn:entrega:problem:encoded", "The body is encoded");
const NOT_JSON: Kind = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "urn:entrega:problem:not-json", "The body is not JSON");
const NOT_FOUND: Kind = (StatusCode::NOT_FOUND, "urn:entrega:problem:not-found", "Not found");
const GONE: Kind = (StatusCode::GONE, "urn:entrega:problem:gone", "Not kept any more");
const BAD_PARAMETER: Kind = (StatusCode::BAD_REQUEST, "urn:entrega:problem:parameter", "A parameter is wrong");
const NO_UPSTREAM: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:no-upstream", "The route has no upstream yet");
const OVER_QUOTA: Kind = (StatusCode::TOO_MANY_REQUESTS, "urn:entrega:problem:quota", "A quota is used up");
const BUSY: Kind = (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:busy", "Too many callers at once");
const BEING_MADE: Kind = (StatusCode::CONFLICT, "urn:entrega:problem:being-made", "The request is being made");
const STOPPING: Kind = (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:stopping", "The node is stopping");
const NO_ANSWER: Kind = (StatusCode::BAD_GATEWAY, "urn:entrega:problem:no-answer", "The API gave no answer");
const TOOK_TOO_LONG: Kind = (StatusCode::GATEWAY_TIMEOUT, "urn:entrega:problem:no-answer-in-time", "It took too long");
const NOT_CALLED: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:not-called", "The API is not called for now");
const UNUSABLE: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:unusable", "The connector cannot be used");
const METHOD: Kind = (StatusCode::METHOD_NOT_ALLOWED, "urn:entrega:problem:method", "Method not allowed");
const CONFLICT: Kind = (StatusCode::CONFLICT, "urn:entrega:problem:conflict", "Not in a state for this");
const KEY_REUSED: Kind =
    (StatusCode::UNPROCESSABLE_ENTITY, "urn:entrega:problem:key-reused", "The key was used for another request");
const NO_TRANSPORT: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:no-transport", "No transport for mails is configured");
#[cfg(feature = "ses")]
const NOT_FETCHED: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:not-fetched", "What SNS points to could not be used");
const UNTRUSTED: Kind = (StatusCode::FORBIDDEN, "urn:entrega:problem:untrusted", "The notification is not trusted");
const LANE_FULL: Kind = (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:lane-full", "The lane is full");
const STOPPED: Kind = (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:stopped", "The store takes no writes");
const DISK_FULL: Kind = (StatusCode::INSUFFICIENT_STORAGE, "urn:entrega:problem:disk-full", "The disk is nearly full");
const UNREACHABLE: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:store-unreachable", "The store cannot be reached");
const MEMORY_FULL: Kind =
    (StatusCode::SERVICE_UNAVAILABLE, "urn:entrega:problem:store-full", "The store's memory is full");
const UNSEALED: Kind =
    (StatusCode::INTERNAL_SERVER_ERROR, "urn:entrega:problem:unsealed", "A secret could not be sealed");
const INTERNAL: Kind = (StatusCode::INTERNAL_SERVER_ERROR, "urn:entrega:problem:internal", "A mistake of the server");
const UNREADABLE: Kind = (StatusCode::INTERNAL_SERVER_ERROR, "urn:entrega:problem:store", "The store cannot be read");

fn scope_name(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Send => "send",
        KeyScope::Read => "read",
        KeyScope::Metrics => "metrics",
        KeyScope::Admin => "admin",
    }
}

impl ApiError {
    /// A field that is wrong.
    pub(super) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> ApiError {
        ApiError::Invalid { field: field.into(), detail: detail.into() }
    }

    fn kind(&self) -> Kind {
        match self {
            ApiError::NoKey | ApiError::UnknownKey => UNAUTHORIZED,
            ApiError::MissingScope { .. } | ApiError::OtherTenant => FORBIDDEN,
            ApiError::Refused(Refusal::OtherSender { .. }) => FORBIDDEN,
            ApiError::Invalid { .. } | ApiError::Refused(Refusal::Invalid { .. }) => VALIDATION,
            // Where a job was to go is a field of the submission; elsewhere the lane is part of the path.
            ApiError::Refused(Refusal::Store(StoreError::UnknownLane { .. })) => VALIDATION,
            ApiError::BadJson { .. } | ApiError::TooDeep { .. } | ApiError::BodyBroken => BAD_BODY,
            ApiError::BodyTimeout { .. } => TIMEOUT,
            ApiError::BodyTooLarge { .. } => TOO_LARGE,
            ApiError::NotJson => NOT_JSON,
            ApiError::Encoded { .. } => ENCODED,
            ApiError::NoRoute | ApiError::NotFound { .. } | ApiError::Change(ChangeError::Unknown) => NOT_FOUND,
            ApiError::Gone { .. } => GONE,
            ApiError::NotAsked(NotAsked::UnknownRoute { .. }) => NOT_FOUND,
            ApiError::NotAsked(NotAsked::NoUpstream { .. }) => NO_UPSTREAM,
            ApiError::NotAsked(NotAsked::Bad(_)) => BAD_PARAMETER,
            ApiError::NotAsked(NotAsked::Refused(_)) => INTERNAL,
            ApiError::BeingMade { .. } => BEING_MADE,
            ApiError::OverQuota { .. } => OVER_QUOTA,
            ApiError::Busy => BUSY,
            ApiError::ShuttingDown => STOPPING,
            ApiError::Unanswered(failed) => unanswered_kind(failed),
            ApiError::MethodNotAllowed => METHOD,
            ApiError::NoTransport => NO_TRANSPORT,
            // What could not be fetched may be there when SNS tries again.
            #[cfg(feature = "ses")]
            ApiError::Sns(SnsError::Certificate { .. } | SnsError::Confirm { .. }) => NOT_FETCHED,
            ApiError::NoTopics => UNTRUSTED,
            #[cfg(feature = "ses")]
            ApiError::Sns(_) => UNTRUSTED,
            ApiError::Endpoint(_) | ApiError::Connector(_) | ApiError::EndpointBusy => CONFLICT,
            ApiError::Replays(_) | ApiError::Keys(_) | ApiError::SendersConfigured => CONFLICT,
            ApiError::Change(ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => CONFLICT,
            ApiError::Seal(_) => UNSEALED,
            ApiError::Refused(Refusal::Full { .. }) => LANE_FULL,
            ApiError::Refused(Refusal::OverQuota { .. }) => OVER_QUOTA,
            ApiError::Refused(Refusal::KeyReused) => KEY_REUSED,
            ApiError::Panicked { .. } | ApiError::Refused(Refusal::IdTaken { .. }) => INTERNAL,
            ApiError::Refused(Refusal::Store(error))
            | ApiError::Store(error)
            | ApiError::Change(ChangeError::Store(error)) => store_kind(error),
        }
    }

    fn errors(&self) -> Vec<FieldProblem> {
        let one = |field: &str, detail: String| vec![FieldProblem { field: field.to_owned(), detail }];
        match self {
            ApiError::Invalid { field, detail } => one(field, detail.clone()),
            ApiError::Refused(Refusal::Invalid { field, problem }) => one(field, problem.clone()),
            ApiError::NotAsked(NotAsked::Bad(bad)) => one(&bad.field, bad.problem.clone()),
            ApiError::Refused(Refusal::Store(error @ StoreError::UnknownLane { .. })) => one("lane", error.to_string()),
            _ => Vec::new(),
        }
    }

    /// The document.
    pub(super) fn problem(&self) -> Problem {
        let (status, kind, title) = self.kind();
        let is_expected = matches!(
            self,
            ApiError::Refused(Refusal::Full { .. })
                | ApiError::Unanswered(Failed::NoAnswer { .. })
                | ApiError::ShuttingDown
                | ApiError::Busy
        );
        if status.is_server_error() && !is_expected {
            tracing::error!(httpStatus = status.as_u16(), errorReason = ?self, "API call failed");
        }
        let quota = match self {
            ApiError::OverQuota { quota, .. } => Some(quota.name()),
            ApiError::Refused(Refusal::OverQuota { quota, .. }) => Some(quota.as_str()),
            _ => None,
        };
        Problem { kind, title, status: status.as_u16(), detail: self.to_string(), errors: self.errors(), quota }
    }
}

impl From<NotAsked> for ApiError {
    fn from(error: NotAsked) -> ApiError {
        match error {
            NotAsked::Refused(refusal) => ApiError::Refused(refusal),
            other => ApiError::NotAsked(other),
        }
    }
}

impl From<BadQuestion> for ApiError {
    fn from(bad: BadQuestion) -> ApiError {
        ApiError::NotAsked(NotAsked::Bad(bad))
    }
}

fn unanswered_kind(failed: &Failed) -> Kind {
    match failed {
        Failed::Connector(ConnectorError::Unknown { .. }) => NOT_FOUND,
        Failed::Connector(_) => UNUSABLE,
        Failed::Unfit { .. } => VALIDATION,
        Failed::NoAnswer { kind: FaultKind::BreakerOpen | FaultKind::Throttled, .. } => NOT_CALLED,
        Failed::NoAnswer { kind: FaultKind::Timeout, .. } => TOOK_TOO_LONG,
        Failed::NoAnswer { .. } => NO_ANSWER,
    }
}

impl From<Failed> for ApiError {
    fn from(failed: Failed) -> ApiError {
        match failed {
            Failed::Unfit { field, reason } => ApiError::invalid(field, reason),
            Failed::Connector(error) => error.into(),
            other => ApiError::Unanswered(other),
        }
    }
}

impl From<ConnectorError> for ApiError {
    fn from(error: ConnectorError) -> ApiError {
        match error {
            ConnectorError::Unknown { .. } => ApiError::NotFound { what: "connector" },
            other => ApiError::Unanswered(Failed::Connector(other)),
        }
    }
}

fn store_kind(error: &StoreError) -> Kind {
    match error {
        StoreError::Stopped { .. } => STOPPED,
        StoreError::DiskFull { .. } => DISK_FULL,
        StoreError::UnknownLane { .. } => NOT_FOUND,
        StoreError::Unreachable { .. } => UNREACHABLE,
        StoreError::MemoryFull => MEMORY_FULL,
        StoreError::Read(_) | StoreError::Export { .. } | StoreError::Answer { .. } | StoreError::DeadLetter(_) => {
            UNREADABLE
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let problem = self.problem();
        // Strings and numbers always encode; the status alone would still be true.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let status = self.kind().0;
        let mut response = (status, [(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON))], body).into_response();
        let headers = response.headers_mut();
        match &self {
            ApiError::NoKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ApiError::UnknownKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
            }
            ApiError::Refused(Refusal::Full { retry_after, .. } | Refusal::OverQuota { retry_after, .. }) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)));
            }
            ApiError::BeingMade { for_another } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(for_another.as_secs().clamp(1, BEING_MADE_LOOK_MAX)));
            }
            _ if [UNREACHABLE, MEMORY_FULL, NOT_CALLED, STOPPING, OVER_QUOTA, BUSY].contains(&self.kind()) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(STORE_RETRY_AFTER_SECONDS));
            }
            _ => {}
        }
        response
    }
}
