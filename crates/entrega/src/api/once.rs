//! Calls that a key makes happen once, where their work is not a job of its own with the key in the same write.
//! Invariant: of many who call at once with one key, one does the work; whoever calls again later gets its answer, for a day.
//! A call that failed is forgotten, so that it can be made again.

use std::time::Duration;

use axum::Json;
use axum::http::header::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use entrega_core::name::TenantName;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Api;
use super::body;
use super::problem::ApiError;
use crate::intake::{OnceKey, Refusal};
use crate::store::{Begun, Once};

/// Says that an answer was given before.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// How long others wait for a call that only writes: should its node die, they may make it again then.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// An answer as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    body: Box<RawValue>,
}

impl Kept {
    fn new(status: StatusCode, answer: &impl Serialize) -> Kept {
        Kept { status: status.as_u16(), body: serde_json::value::to_raw_value(answer).expect("answers are JSON") }
    }

    fn response(self) -> Response {
        (StatusCode::from_u16(self.status).unwrap_or_default(), Json(self.body)).into_response()
    }
}

/// Does the work if nobody did under this key, within `at_most`; otherwise gives what was answered then.
pub(super) async fn once<A: Serialize>(
    api: &Api,
    tenant: &TenantName,
    key: Option<&OnceKey>,
    at_most: Duration,
    work: impl Future<Output = Result<(StatusCode, A), ApiError>>,
) -> Result<Response, ApiError> {
    let Some(key) = key else {
        let (status, answer) = work.await?;
        return Ok((status, Json(answer)).into_response());
    };
    let now = api.engine.clock.now();
    let once = Once { key: key.key.clone(), request: key.request, expires: now + key.lasts };
    match api.engine.store.begin_request(tenant, &once, now + at_most).await? {
        Begun::OtherRequest => Err(Refusal::KeyReused.into()),
        Begun::Running(until) => Err(ApiError::BeingMade { for_another: until.since(now) }),
        Begun::Ended(kept) => {
            let mut response = body::parse::<Kept>(&kept)?.response();
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            Ok(response)
        }
        Begun::New => {
            let answered = work.await.map(|(status, answer)| Kept::new(status, &answer));
            // Without an answer nothing is known to have happened; the caller may try again at once.
            let kept = answered.as_ref().ok().map(|kept| serde_json::to_vec(kept).expect("answers are JSON"));
            api.engine.store.end_request(tenant, &once, kept).await?;
            answered.map(Kept::response)
        }
    }
}
