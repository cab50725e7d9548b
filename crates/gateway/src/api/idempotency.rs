//! Calls that a key makes happen once, where their work is not a job of its own with the key in the same write.
//! Invariant: of many who call at once with one key, one does the work, unless its parts happen once by themselves; whoever
//! calls again later gets its answer, for a day. A call that failed may be made again, and no other under its key.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::header::{HeaderName, HeaderValue, LOCATION};
use axum::response::{IntoResponse, Response};
use entrega_core::name::TenantName;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;

use super::Api;
use super::body;
use super::problem::ApiError;
use entrega::refusal::Refusal;
use entrega::store::{Idempotency, RequestState};

/// Says that an answer was given before.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// How long others wait for a call that only writes: should its node die, they may make it again then.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// What is added to how long a call takes at most: it ends a little after its deadline.
const MARGIN: Duration = Duration::from_secs(10);
/// How long whoever has an answer waits for it to be kept.
const KEEP_MAX: Duration = Duration::from_secs(1);
/// Others need not wait for work whose parts happen once by themselves.
pub(super) const AT_ONCE: Duration = Duration::ZERO;

/// What a call is answered.
pub(super) struct Done<A> {
    status: StatusCode,
    answer: A,
    location: Option<String>,
    is_whole: bool,
    is_repeat: bool,
}

impl<A> Done<A> {
    pub(super) fn new(status: StatusCode, answer: A) -> Done<A> {
        Done { status, answer, location: None, is_whole: true, is_repeat: false }
    }

    /// Whether all of it was done, or the same call may be made again for the rest; and whether some was done before.
    pub(super) fn in_part(self, is_whole: bool, is_repeat: bool) -> Done<A> {
        Done { is_whole, is_repeat, ..self }
    }

    /// Where what was made can be looked at.
    pub(super) fn at(self, location: String) -> Done<A> {
        Done { location: Some(location), ..self }
    }
}

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct StoredReply {
    status: u16,
    body: Box<RawValue>,
    location: Option<String>,
    /// Whether it is an answer to the whole of the call.
    #[serde(skip)]
    is_whole: bool,
    #[serde(skip)]
    is_repeat: bool,
}

impl StoredReply {
    fn new(done: Done<impl Serialize>) -> StoredReply {
        let body = serde_json::value::to_raw_value(&done.answer).expect("answers are JSON");
        let Done { location, is_whole, is_repeat, status, .. } = done;
        StoredReply { status: status.as_u16(), body, location, is_whole, is_repeat }
    }

    fn response(self) -> Response {
        let mut response = (StatusCode::from_u16(self.status).unwrap_or_default(), Json(self.body)).into_response();
        if let Some(location) = self.location.and_then(|location| HeaderValue::try_from(location).ok()) {
            response.headers_mut().insert(LOCATION, location);
        }
        if self.is_repeat {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// Does the work if nobody did under this key, within `at_most`; otherwise gives what was answered then. Should the caller
/// go away, the work ends with it, and the key is free again.
pub(super) async fn idempotent<A: Serialize>(
    api: &Arc<Api>,
    tenant: &TenantName,
    key: Option<&Idempotency>,
    at_most: Duration,
    work: impl Future<Output = Result<Done<A>, ApiError>>,
) -> Result<Response, ApiError> {
    let Some(key) = key else { return work.await.map(|done| StoredReply::new(done).response()) };
    let now = api.engine.env().clock.now();
    let runs_until = if at_most == AT_ONCE { now } else { now + at_most + MARGIN };
    match api.engine.store().begin_request(tenant, key, runs_until).await? {
        RequestState::OtherRequest => Err(Refusal::KeyReused.into()),
        RequestState::Running(until) => Err(ApiError::BeingMade { for_another: until.since(now) }),
        RequestState::Ended(kept) => Ok(StoredReply { is_repeat: true, ..body::parse(&kept)? }.response()),
        RequestState::New => {
            let mut in_progress = InProgress { api: api.clone(), tenant: tenant.clone(), key: Some(key.clone()) };
            let answered = work.await.map(StoredReply::new);
            // Without an answer nothing is known to have happened; the caller may try again at once.
            let whole = answered.as_ref().ok().filter(|kept| kept.is_whole);
            let kept = whole.map(|kept| serde_json::to_vec(kept).expect("answers are JSON"));
            if let Some(ending) = in_progress.end(kept) {
                // A store that does not answer keeps nobody from the answer.
                drop(tokio::time::timeout(KEEP_MAX, ending).await);
            }
            answered.map(StoredReply::response)
        }
    }
}

/// The same for work that is a write or two: once begun it is done and remembered, whether or not the caller stays.
pub(super) async fn idempotent_write<A: Serialize + 'static>(
    api: Arc<Api>,
    tenant: TenantName,
    key: Option<Idempotency>,
    work: impl Future<Output = Result<Done<A>, ApiError>> + Send + 'static,
) -> Result<Response, ApiError> {
    let task = tokio::spawn(async move { idempotent(&api, &tenant, key.as_ref(), WRITE_MAX, work).await });
    match task.await {
        Ok(answered) => answered,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(ApiError::ShuttingDown),
    }
}

/// That a call is being made; gone when it is given up.
struct InProgress {
    api: Arc<Api>,
    tenant: TenantName,
    key: Option<Idempotency>,
}

impl InProgress {
    /// Keeps the answer under the key, or frees it; that is done whether or not anybody waits for it.
    fn end(&mut self, answer: Option<Vec<u8>>) -> Option<JoinHandle<()>> {
        let key = self.key.take()?;
        let (api, tenant) = (self.api.clone(), self.tenant.clone());
        Some(tokio::spawn(async move {
            if let Err(error) = api.engine.store().end_request(&tenant, &key, answer).await {
                tracing::warn!(errorReason = %error, "An idempotency key stays taken until its time is up");
            }
        }))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        drop(self.end(None));
    }
}
