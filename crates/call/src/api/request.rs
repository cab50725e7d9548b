//! Requests to an API: what is asked, for whom, under which names; and what came back.
//! Invariant: everything given is checked before the first attempt, and a problem names what is wrong.
//! Never: changes between two attempts.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::Instant;

use super::base_url::{PathProblem, encode};
use super::credentials::Credentials;
use super::{ApiClient, Shared};
use crate::chance::Chance;
use crate::error::CallError;
use crate::headers::{HeaderProblem, check_headers};
use crate::retry::{GaveUp, LogFields, Operation, RetryPolicy, Rules, Stopped, counted};
use crate::trace::TraceParent;
use crate::url::UrlProblem;
use entrega_core::outcome::Answer;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static OUR_NAME: HeaderValue = HeaderValue::from_static(concat!("Entrega/", env!("CARGO_PKG_VERSION")));

/// What an API answered in the end, success or not.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The last answer.
    pub answer: Answer,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why an answer that is no success was not asked for again; `None` for a success.
    pub stopped: Option<Stopped>,
    /// The name of the request in everybody's logs.
    pub request_id: String,
}

/// Why a request has no answer, or none that can be used.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The path leads out of the base URL.
    #[error("the path of the request cannot be used")]
    Path(#[source] PathProblem),
    /// The whole URL cannot be called.
    #[error("the URL of the request cannot be called")]
    Url(#[source] UrlProblem),
    /// A header, or a name that is sent as one, cannot be sent.
    #[error("the request cannot be sent")]
    Header(#[from] HeaderProblem),
    /// The body is not JSON.
    #[error("the body of the request cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// No attempt had an answer.
    #[error(transparent)]
    GaveUp(#[from] GaveUp<CallError>),
    /// An answer that is no success, where a value was asked for.
    #[error("the API answered {} after {}", reply.answer.status, counted(reply.attempts))]
    Status {
        /// All of it.
        reply: Box<Reply>,
    },
    /// An answer that was cut off.
    #[error("the answer is longer than {bytes_max} bytes; raise `client.answer_bytes_max`")]
    TooLarge {
        /// What is kept of an answer.
        bytes_max: usize,
    },
    /// An answer that is not what was expected.
    #[error("the answer cannot be read as JSON of the expected form")]
    Decode(#[source] serde_json::Error),
}

impl ApiError {
    /// The status of the last answer, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            ApiError::Status { reply } => Some(reply.answer.status),
            _ => None,
        }
    }
}

/// A request that is being put together.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct ApiRequest<'a> {
    client: &'a ApiClient,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
    operation: Option<String>,
    deadline: Option<Instant>,
    retry: Option<RetryPolicy>,
    rules: Rules,
    tenant: Option<String>,
    fields: LogFields,
}

impl<'a> ApiRequest<'a> {
    pub(super) fn new(client: &'a ApiClient, method: Method, path: &str) -> ApiRequest<'a> {
        ApiRequest {
            client,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            operation: None,
            deadline: None,
            retry: None,
            rules: client.shared.config.rules.clone(),
            tenant: None,
            fields: LogFields::default(),
        }
    }

    /// One more parameter of the query.
    pub fn query(mut self, name: &str, value: &str) -> ApiRequest<'a> {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(&format!("{}={}", encode(name), encode(value)));
        self
    }

    /// One more header.
    pub fn header(mut self, name: &str, value: &str) -> ApiRequest<'a> {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The only header of that name.
    fn sole_header(mut self, name: &HeaderName, value: &str) -> ApiRequest<'a> {
        self.headers.retain(|(given, _)| !given.eq_ignore_ascii_case(name.as_str()));
        self.header(name.as_str(), value)
    }

    /// The request's name in everybody's logs (`x-request-id`). Without one, a name is made.
    pub fn request_id(self, id: &str) -> ApiRequest<'a> {
        self.sole_header(&REQUEST_ID, id)
    }

    /// The name under which repeating it is safe (`idempotency-key`). Without one, the request id is.
    pub fn idempotency_key(self, key: &str) -> ApiRequest<'a> {
        self.sole_header(&IDEMPOTENCY_KEY, key)
    }

    /// The trace it belongs to (`traceparent`). Without one, or with a header that is none, a trace is begun.
    pub fn trace(self, parent: &TraceParent) -> ApiRequest<'a> {
        self.sole_header(&TRACEPARENT, &parent.to_string())
    }

    /// For whom it is made.
    pub fn user(mut self, user: &str) -> ApiRequest<'a> {
        self.fields.user_id = Some(user.to_owned());
        let name = self.client.shared.config.user_header.clone();
        self.sole_header(&name, user)
    }

    /// Whose work it is. Tenants take turns before a throttle, and none of them can use up what all share.
    pub fn tenant(mut self, tenant: &str) -> ApiRequest<'a> {
        self.tenant = Some(tenant.to_owned());
        self
    }

    /// A body of this type.
    pub fn body(mut self, content_type: &str, body: Bytes) -> ApiRequest<'a> {
        self.body = body;
        self.sole_header(&CONTENT_TYPE, content_type)
    }

    /// A body whose type, if it has one, is among the headers.
    pub fn content(mut self, body: Bytes) -> ApiRequest<'a> {
        self.body = body;
        self
    }

    /// A value as JSON.
    ///
    /// # Errors
    /// [`ApiError::Encode`] when it has no form in JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Result<ApiRequest<'a>, ApiError> {
        let body = serde_json::to_vec(value).map_err(ApiError::Encode)?;
        Ok(self.body("application/json", body.into()))
    }

    /// What logs and metrics call it; method and path unless it is said.
    pub fn operation(mut self, name: &str) -> ApiRequest<'a> {
        self.operation = Some(name.to_owned());
        self
    }

    /// Names for its log lines. Those that the client knows are filled in.
    pub fn fields(mut self, fields: LogFields) -> ApiRequest<'a> {
        self.fields = LogFields { user_id: fields.user_id.or(self.fields.user_id), ..fields };
        self
    }

    /// Nothing starts or goes on after this moment.
    pub fn deadline(mut self, deadline: Instant) -> ApiRequest<'a> {
        self.deadline = Some(deadline);
        self
    }

    /// Another policy than the client's.
    pub fn retry(mut self, policy: RetryPolicy) -> ApiRequest<'a> {
        self.retry = Some(policy);
        self
    }

    /// It creates what is not there yet, so that a 409 is a success.
    pub fn create_if_absent(mut self) -> ApiRequest<'a> {
        self.rules = self.rules.create_if_absent();
        self
    }

    /// Refuses what could not be sent, without sending it.
    ///
    /// # Errors
    /// [`ApiError`], which `send` would give.
    pub fn check(&self) -> Result<(), ApiError> {
        self.prepare().map(drop)
    }

    /// Sends it, again and again as the policy says, and gives back the last answer, whatever its status.
    ///
    /// # Errors
    /// [`ApiError`] when it cannot be sent, or no answer came.
    pub async fn send(self) -> Result<Reply, ApiError> {
        let Prepared { request, operation, policy, request_id } = self.prepare()?;
        let Shared { client, retrier, .. } = &*self.client.shared;
        let done = retrier
            .run(&operation, &policy, |ctx| client.exchange(self.tenant.as_deref(), request.clone(), ctx.deadline));
        let done = done.await?;
        Ok(Reply { answer: done.value, attempts: done.attempts, stopped: done.stopped, request_id })
    }

    /// Sends it and reads a value out of a 2xx answer. An answer without a body reads as `null`.
    ///
    /// # Errors
    /// [`ApiError`], for answers that are no success too.
    pub async fn fetch<T: DeserializeOwned>(self) -> Result<T, ApiError> {
        let bytes_max = self.client.shared.config.client.answer_bytes_max;
        let wants_json = self.headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case(ACCEPT.as_str()));
        let request = if wants_json { self.header(ACCEPT.as_str(), "application/json") } else { self };
        let reply = request.send().await?;
        if !reply.answer.status.is_success() {
            return Err(ApiError::Status { reply: Box::new(reply) });
        }
        if reply.answer.truncated {
            return Err(ApiError::TooLarge { bytes_max });
        }
        let body = if reply.answer.body.is_empty() { b"null" } else { &reply.answer.body[..] };
        serde_json::from_slice(body).map_err(ApiError::Decode)
    }

    fn prepare(&self) -> Result<Prepared, ApiError> {
        let Shared { config, retrier, .. } = &*self.client.shared;
        let url = config.base_url.join(&self.path).map_err(ApiError::Path)?;
        config.client.filter.check_url(&url).map_err(ApiError::Url)?;
        let given = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut headers = check_headers(given)?;
        let names = Names::complete(&mut headers, &retrier.chance);
        if let Some((name, value)) = config.credentials.as_ref().map(Credentials::as_header) {
            headers.insert(name, value);
        }
        headers.entry(USER_AGENT).or_insert_with(|| OUR_NAME.clone());
        // Some servers refuse a POST that does not say that it has no body.
        if self.body.is_empty() && !matches!(self.method, Method::GET | Method::HEAD | Method::DELETE) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let operation = self.named_operation(&url, &names);
        let mut request = Request::new(self.body.clone());
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (self.method.clone(), url, headers);
        let policy = self.retry.clone().unwrap_or_else(|| config.retry.clone());
        Ok(Prepared { request, operation, policy, request_id: names.request_id })
    }

    fn named_operation(&self, url: &Uri, names: &Names) -> Operation<Rules> {
        let path = url.path();
        let name = self.operation.clone().unwrap_or_else(|| format!("{} {path}", self.method));
        let given = self.fields.clone();
        let fields = LogFields {
            request_id: Some(names.request_id.clone()),
            trace_id: Some(names.trace_id.clone()),
            connector_id: given.connector_id.or_else(|| self.client.shared.config.connector_id.clone()),
            method: Some(self.method.to_string()),
            path: Some(path.to_owned()),
            ..given
        };
        let mut operation = Operation::new(&name, self.rules.clone()).idempotency_key(&*names.key).fields(fields);
        if let Some(tenant) = &self.tenant {
            operation = operation.tenant(tenant.as_str());
        }
        match self.deadline {
            Some(deadline) => operation.deadline(deadline),
            None => operation,
        }
    }
}

/// All that one attempt after the other needs.
struct Prepared {
    request: Request<Bytes>,
    operation: Operation<Rules>,
    policy: RetryPolicy,
    request_id: String,
}

/// The names a request is found by.
struct Names {
    request_id: String,
    key: String,
    trace_id: String,
}

impl Names {
    /// Takes over the names among the headers and makes those that are missing.
    fn complete(headers: &mut HeaderMap, chance: &Chance) -> Names {
        let request_id = taken_or_made(headers, &REQUEST_ID, || format!("req_{:032x}", chance.id_bits()));
        let key = taken_or_made(headers, &IDEMPOTENCY_KEY, || request_id.clone());
        let taken = headers.get(&TRACEPARENT).and_then(|value| value.to_str().ok()?.parse().ok());
        let trace: TraceParent = taken.unwrap_or_else(|| {
            let made = TraceParent::made(chance);
            headers.insert(TRACEPARENT.clone(), visible(&made.to_string()));
            made
        });
        Names { request_id, key, trace_id: trace.trace_id() }
    }
}

fn taken_or_made(headers: &mut HeaderMap, name: &HeaderName, make: impl FnOnce() -> String) -> String {
    match headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty()) {
        Some(taken) => taken.to_owned(),
        None => {
            let made = make();
            headers.insert(name.clone(), visible(&made));
            made
        }
    }
}

/// What was made of digits and letters, or read out of a header.
fn visible(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names are visible ASCII")
}
