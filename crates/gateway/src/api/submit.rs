//! Submitting: from a body to jobs that are safe.
//! Invariant: a body that is JSON reaches its destination byte for byte; in an array, a bad job harms no other.
//! Never: answers before the engine has said that a job is durable.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use entrega::http::HttpRequest;
use entrega_core::body::Body;
use entrega_core::id::JobId;
use entrega_core::job::Priority;
use entrega_core::name::{LaneName, TenantName};
use futures_util::future::join_all;
use http::StatusCode;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::auth::{Principal, Sender};
use super::body::{self, JsonBytes, Object};
use super::caller::{Caller, IdempotencyHeader, has};
use super::idempotency::{AT_ONCE, Done, REPLAYED, idempotent};
use super::problem::{ApiError, Problem};
use super::{Api, schema};
use entrega::refusal::Refusal;
use entrega::store::Idempotency;
use entrega::submission::{self, LABELS_MAX, NewJob};

/// Jobs in one array.
const JOBS_MAX: usize = 1000;
const JSON: &str = "application/json";

/// A job to make.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct JobRequest {
    /// The lane; `http` if left out.
    #[schema(value_type = Option<String>, example = "http")]
    lane: Option<LaneName>,
    /// The call to make.
    #[schema(value_type = HttpRequestBody)]
    request: Object<HttpRequestBody>,
    /// How urgent within the lane.
    #[schema(value_type = Option<schema::Priority>)]
    priority: Option<Priority>,
    /// Dropped when it still waits after this; the lane's own if left out.
    #[schema(minimum = 1)]
    ttl_ms: Option<u64>,
    /// Not attempted before this has passed.
    delay_ms: Option<u64>,
    /// Free words carried into logs and dead letters.
    labels: Option<BTreeMap<String, String>>,
    /// For whom; another tenant than the key's own needs the scope `admin`.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// Sent with every attempt, so that the destination can tell a repeat.
    idempotency_key: Option<String>,
}

/// An HTTP call to make.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HttpRequestBody {
    /// `POST` if left out.
    method: Option<String>,
    /// Absolute.
    #[schema(example = "https://example.com/orders")]
    url: String,
    /// In the order given.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    headers: Headers,
    /// A text is sent as it is. Any other value is sent as the JSON that was given, byte for byte, as
    /// `application/json` unless the headers say otherwise. `null` is no body.
    #[schema(value_type = Option<serde_json::Value>)]
    body: Option<Box<RawValue>>,
    /// Bytes to send, instead of `body`.
    body_base64: Option<String>,
}

/// Headers in the order of the JSON object, repeats included.
#[derive(Default)]
pub(super) struct Headers(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Headers, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Headers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of header names and values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Vec::new();
                while let Some(header) = map.next_entry()? {
                    headers.push(header);
                }
                Ok(Headers(headers))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl JobRequest {
    /// Whom it is for, and what it is.
    fn into_job(self, api: &Api, who: &Principal, caller: &Caller) -> Result<(TenantName, NewJob), ApiError> {
        let tenant = who.acts_for(self.tenant)?;
        let mut labels = self.labels.unwrap_or_default();
        labels.extend(caller.trace().filter(|_| labels.len() < LABELS_MAX));
        let mut request = self.request.0.into_request()?;
        caller.add_user(&mut request.headers, self.idempotency_key.as_deref());
        let job = NewJob {
            lane: self.lane.unwrap_or_else(|| api.default_lane.clone()),
            priority: self.priority.unwrap_or_default(),
            content: Arc::new(request),
            labels,
            ttl: self.ttl_ms.map(Duration::from_millis),
            delay: Duration::from_millis(self.delay_ms.unwrap_or(0)),
            idempotency_key: self.idempotency_key,
        };
        Ok((tenant, job))
    }
}

impl HttpRequestBody {
    fn into_request(self) -> Result<HttpRequest, ApiError> {
        let Headers(mut headers) = self.headers;
        let body = match (self.body, self.body_base64) {
            (None, None) => Bytes::new(),
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("request.bodyBase64", "give either body or bodyBase64, not both"));
            }
            (None, Some(text)) => BASE64
                .decode(text)
                .map_err(|error| ApiError::invalid("request.bodyBase64", format!("not base64: {error}")))?
                .into(),
            (Some(json), None) if json.get().starts_with('"') => body::parse::<String>(json.get().as_bytes())?.into(),
            (Some(json), None) => {
                if !has(&headers, CONTENT_TYPE.as_str()) {
                    headers.push((CONTENT_TYPE.to_string(), JSON.to_owned()));
                }
                Bytes::from(String::from(Box::<str>::from(json)))
            }
        };
        let method = self.method.unwrap_or_else(|| "POST".to_owned());
        Ok(HttpRequest { method, url: self.url, headers, body: Body(body) })
    }
}

/// A job, and what makes it happen once.
type IdempotentJob = (NewJob, Vec<Idempotency>);

/// A job that was taken.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Taken {
    /// Its id.
    #[schema(value_type = String, example = "job_01J9Z3K5V84NQW6R7T2Y0X1ABC")]
    pub(super) job_id: JobId,
}

/// One answer of an array.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum ItemAnswer {
    /// It is safe.
    Taken(Taken),
    /// It was not taken.
    Refused {
        /// The problem.
        problem: Problem,
    },
}

/// Take jobs
///
/// One job, or an array of 1 to 1000 that is taken in one durable write and answered one by one. What is answered
/// with a `jobId` is durable. The same `Idempotency-Key` with the same body gives the first answer again, for a day,
/// and makes nothing twice; with another body it is refused.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", security(("key" = ["send"])),
    params(IdempotencyHeader),
    request_body(content = schema::OneOrMany<JobRequest>, description = "One job, or an array of them"),
    responses(
        (status = 201, description = "Taken. For an array: all of them, in order", body = schema::OneOrMany<Taken>,
            headers(("location" = String, description = "Where a single job can be looked at"),
                ("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 207, description = "Some of an array were not taken; in order", body = Vec<ItemAnswer>),
        (status = 507, description = "The disk is nearly full", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn submit(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    caller: Caller,
    JsonBytes(json): JsonBytes,
) -> Result<Response, ApiError> {
    let key = caller.idempotency(&json)?;
    match json.iter().find(|byte| !byte.is_ascii_whitespace()) {
        // Each job has a part of the key, and happens once by it. The whole key stands before them, so that another array
        // under it is refused before any of it is taken.
        Some(b'[') => {
            let work = submit_many(&api, &who, &json, key.as_ref(), &caller);
            idempotent(&api, who.tenant(), key.as_ref(), AT_ONCE, work).await
        }
        _ => submit_one(&api, &who, &json, key, &caller).await,
    }
}

async fn submit_one(
    api: &Api,
    who: &Principal,
    json: &[u8],
    idempotency: Option<Idempotency>,
    caller: &Caller,
) -> Result<Response, ApiError> {
    let (tenant, job) = body::parse::<Object<JobRequest>>(json)?.0.into_job(api, who, caller)?;
    let mut answers = api.engine.submit_once(&tenant, vec![(job, idempotency.into_iter().collect())]).await;
    let submission::Taken { id: job_id, is_repeat } = answers.pop().expect("one answer per job")?;
    let mut response = (StatusCode::CREATED, Json(Taken { job_id })).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/jobs/{job_id}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    if is_repeat {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

async fn submit_many(
    api: &Api,
    who: &Principal,
    json: &[u8],
    idempotency: Option<&Idempotency>,
    caller: &Caller,
) -> Result<Done<Vec<ItemAnswer>>, ApiError> {
    let items: Vec<&RawValue> = serde_json::from_slice(json).map_err(|error| body::bad_json(&error))?;
    if !(1..=JOBS_MAX).contains(&items.len()) {
        return Err(ApiError::invalid("body", format!("{} jobs; send from 1 to {JOBS_MAX}", items.len())));
    }
    let mut answers: Vec<Option<Result<submission::Taken, ApiError>>> = Vec::with_capacity(items.len());
    let mut by_tenant: BTreeMap<TenantName, (Vec<usize>, Vec<IdempotentJob>)> = BTreeMap::new();
    for (index, given) in items.into_iter().enumerate() {
        let given = body::parse::<Object<JobRequest>>(given.get().as_bytes());
        let job = given.and_then(|Object(given)| given.into_job(api, who, caller));
        match job {
            Ok((tenant, job)) => {
                let (places, jobs) = by_tenant.entry(tenant).or_default();
                places.push(index);
                jobs.push((job, idempotency.iter().map(|key| key.part(index)).collect()));
                answers.push(None);
            }
            Err(error) => answers.push(Some(Err(error))),
        }
    }
    // At once, so that the writes of several tenants share one sync.
    let writes = by_tenant.into_iter().map(|(tenant, (places, jobs))| async move {
        let answers = api.engine.submit_once(&tenant, jobs).await;
        places.into_iter().zip(answers)
    });
    for (place, answer) in join_all(writes).await.into_iter().flatten() {
        if let Err(Refusal::KeyReused) = answer {
            return Err(Refusal::KeyReused.into());
        }
        answers[place] = Some(answer.map_err(ApiError::from));
    }
    let is_repeat = answers.iter().any(|answer| matches!(answer, Some(Ok(taken)) if taken.is_repeat));
    let is_whole = answers.iter().all(|answer| matches!(answer, Some(Ok(_))));
    let status = if is_whole { StatusCode::CREATED } else { StatusCode::MULTI_STATUS };
    let items: Vec<ItemAnswer> = answers.into_iter().flatten().map(ItemAnswer::from).collect();
    Ok(Done::new(status, items).in_part(is_whole, is_repeat))
}

impl From<Result<submission::Taken, ApiError>> for ItemAnswer {
    fn from(answer: Result<submission::Taken, ApiError>) -> ItemAnswer {
        match answer {
            Ok(taken) => ItemAnswer::Taken(Taken { job_id: taken.id }),
            Err(error) => ItemAnswer::Refused { problem: error.problem() },
        }
    }
}
