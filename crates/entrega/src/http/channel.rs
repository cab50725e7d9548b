//! The `http` channel: one request, one answer.
//! Invariant: every attempt carries the same id and idempotency key.
//! Never: follows redirects or tries twice.

use async_trait::async_trait;
use bytes::Bytes;
use entrega_call::{CallError, Client};
use entrega_core::outcome::{Answer, Fault, FaultKind, Outcome};
use entrega_core::payload::Content as _;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request};
use tokio::time::Instant;

use super::HttpRequest;
use super::request::HttpRequestView;
use crate::channel::Channel;
use crate::store::ClaimedJob;

pub(crate) static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static(entrega_core::trace::TRACEPARENT);
pub(crate) static OUR_NAME: HeaderValue = HeaderValue::from_static(concat!("Entrega/", env!("CARGO_PKG_VERSION")));

/// Plain HTTP calls.
pub struct HttpChannel {
    client: Client,
}

impl HttpChannel {
    /// Calls through this client.
    pub fn new(client: Client) -> HttpChannel {
        HttpChannel { client }
    }
}

#[async_trait]
impl Channel for HttpChannel {
    async fn attempt(&self, claimed: &ClaimedJob, deadline: Instant) -> Outcome {
        let request = match build(claimed) {
            Ok(request) => request,
            Err(message) => return Outcome::Fault(Fault { kind: FaultKind::Invalid, message }),
        };
        outcome(self.client.call_for(claimed.job.tenant.as_str(), request, deadline).await)
    }
}

/// What came of a call, as it is judged.
pub(crate) fn outcome(called: Result<Answer, CallError>) -> Outcome {
    match called {
        Ok(answer) => Outcome::Answer(answer),
        Err(error) => Outcome::Fault(Fault { kind: error.kind(), message: error.reason() }),
    }
}

/// The request of a job. It was checked when it was taken; what cannot be built now was written by another program. Its body and
/// the values of its headers are sent out of the job's record, without a copy. The URL is copied: the pool keeps its host.
fn build(claimed: &ClaimedJob) -> Result<Request<Bytes>, String> {
    let payload = &claimed.job.payload;
    let wanted: HttpRequestView<'_> = payload.view(HttpRequest::KIND).map_err(|error| error.to_string())?;
    let mut request = Request::builder()
        .method(wanted.method)
        .uri(wanted.url)
        .body(payload.bytes().slice_ref(wanted.body))
        .map_err(|error| error.to_string())?;
    let may_have_body = !matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    let headers = request.headers_mut();
    headers.reserve(wanted.headers.len() + 4);
    add_headers(headers, payload.bytes(), &wanted)?;
    let value = |text: String| HeaderValue::try_from(text).map_err(|error| error.to_string());
    let id = value(claimed.job.id.to_string())?;
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, OUR_NAME.clone());
    }
    if !headers.contains_key(&IDEMPOTENCY_KEY) {
        let key = claimed.job.idempotency_key.clone().map(value).transpose()?;
        headers.insert(IDEMPOTENCY_KEY.clone(), key.unwrap_or_else(|| id.clone()));
    }
    headers.insert(REQUEST_ID.clone(), id);
    if !headers.contains_key(&TRACEPARENT) {
        headers.insert(TRACEPARENT.clone(), value(claimed.job.traceparent(claimed.attempt))?);
    }
    // Some servers refuse a POST that does not say that it has no body.
    if wanted.body.is_empty() && may_have_body {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    Ok(request)
}

/// The caller's own, repeats included.
fn add_headers(headers: &mut HeaderMap, record: &Bytes, wanted: &HttpRequestView<'_>) -> Result<(), String> {
    for (name, value) in &wanted.headers {
        let name = HeaderName::try_from(*name).map_err(|error| error.to_string())?;
        let value = HeaderValue::from_maybe_shared(record.slice_ref(value.as_bytes()));
        let value = value.map_err(|error| error.to_string())?;
        headers.append(name, value);
    }
    Ok(())
}
