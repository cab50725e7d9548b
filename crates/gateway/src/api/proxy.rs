//! Questions to upstreams: open to everybody, or with a key.
//! Invariant: whoever asked gets an id, and with it the answer; a bad question says which parameter is wrong.
//! Never: answers for the upstream; the answer is the result of the job.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::header::{HeaderMap, HeaderValue, LOCATION};
use axum::response::{IntoResponse, Response};
use entrega_core::job::Priority;
use entrega_core::name::TenantName;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::auth::{Principal, Sender};
use super::body::{self, JsonBytes};
use super::caller::{Caller, IdempotencyHeader};
use super::idempotency::REPLAYED;
use super::problem::{ApiError, Problem};
use super::query::TextPath;
use super::submit::Taken;
use super::{Api, schema};
use entrega::proxy::Question;
use entrega::proxy::{BadQuestion, PUBLIC_TENANT, Route};
use entrega::store::KeyScope;

/// Parameters of one question that are looked at.
const PARAMS_MAX: usize = 32;
/// What makes a question urgent.
const TYPE_UPDATE: &str = "update";
const TYPE_CHARS_MAX: usize = 64;

/// A question to the upstream of a route. Its parameters stand beside these, as texts.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    /// How urgent; `normal` if left out.
    #[schema(value_type = Option<schema::Priority>)]
    priority: Option<Priority>,
    /// What it is for, instead of `priority`: `update` is urgent, anything else is not.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// For whom; another tenant than the key's own needs the scope `admin`.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// The route's parameters by name, such as `cpf`.
    #[serde(flatten)]
    #[schema(value_type = Object, additional_properties)]
    params: serde_json::Map<String, Value>,
}

impl Asked {
    fn urgency(&self) -> Result<Priority, ApiError> {
        match (self.priority, self.kind.as_deref()) {
            (Some(_), Some(_)) => Err(bad("type", "give either priority or type, not both")),
            (Some(priority), None) => Ok(priority),
            (None, Some(TYPE_UPDATE)) => Ok(Priority::High),
            (None, Some(kind)) if kind.is_empty() || kind.chars().count() > TYPE_CHARS_MAX => {
                Err(bad("type", &format!("must be a text of 1 to {TYPE_CHARS_MAX} characters; 'update' is urgent")))
            }
            (None, _) => Ok(Priority::Normal),
        }
    }
}

fn bad(field: &str, problem: &str) -> ApiError {
    BadQuestion { field: field.into(), problem: problem.into() }.into()
}

/// Ask an upstream
///
/// Queues a call to the route's upstream; the answer is the result of the job: `GET /v1/jobs/{jobId}?wait=10s`, which needs
/// no key for jobs that were asked for without one. The parameters are the route's, such as `cpf`. A route that is closed
/// by configuration needs a key with the scope `send`.
#[utoipa::path(
    get, path = "/proxy/{route}", tag = "proxy", security((), ("key" = ["send"])),
    params(("route" = String, Path, description = "The route's name"),
        ("cpf" = Option<String>, Query, description = "The parameter of the shipped route `score`: 11 digits with valid check digits, punctuation allowed")),
    responses(
        (status = 202, description = "Queued, or answered from the cache already", body = Taken,
            headers(("location" = String, description = "Where the answer is found"))),
        (status = 400, description = "A parameter is wrong, missing, unknown or given twice", body = Problem,
            content_type = "application/problem+json"),
        (status = 503, description = "The lane is full, or the route has no upstream", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn ask_openly(
    State(api): State<Arc<Api>>,
    TextPath(route): TextPath,
    RawQuery(query): RawQuery,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let route = api.engine.proxy().route(&route)?;
    let tenant = match route.is_public {
        true => TenantName::new(PUBLIC_TENANT).expect("a tenant name"),
        false => {
            let who = Principal::of(&api, &headers)?;
            who.require(KeyScope::Send)?;
            who.tenant().clone()
        }
    };
    let params = pairs(query.as_deref().unwrap_or_default())?;
    ask(
        &api,
        route,
        &tenant,
        Question {
            params,
            priority: Priority::Normal,
            idempotency: None,
            labels: caller.trace().into_iter().collect(),
        },
    )
    .await
}

/// Ask an upstream, with a key
///
/// As `GET /proxy/{route}`, for producers inside: the parameters are texts in the body, and `priority` or `type` says how
/// urgent it is. The same `Idempotency-Key` with the same body gives the first answer again.
#[utoipa::path(
    post, path = "/v1/proxy/{route}", tag = "proxy", security(("key" = ["send"])),
    params(("route" = String, Path, description = "The route's name"),
        IdempotencyHeader),
    request_body(content = Asked, example = json!({"cpf": "529.982.247-25", "priority": "high"})),
    responses(
        (status = 202, description = "Queued, or answered from the cache already", body = Taken,
            headers(("location" = String, description = "Where the answer is found"),
                ("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 400, description = "A parameter is wrong, missing or unknown", body = Problem,
            content_type = "application/problem+json"),
        (status = 503, description = "The lane is full, or the route has no upstream", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn ask_with_key(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    TextPath(route): TextPath,
    caller: Caller,
    JsonBytes(json): JsonBytes,
) -> Result<Response, ApiError> {
    let route = api.engine.proxy().route(&route)?;
    let idempotency = caller.idempotency(&json)?;
    let asked = body::parse::<Asked>(&json)?;
    let priority = asked.urgency()?;
    let tenant = who.acts_for(asked.tenant)?;
    let params = asked.params.into_iter().map(|(name, value)| match value {
        Value::String(text) => Ok((name, text)),
        _ => Err(bad(&name, "must be a text in quotes")),
    });
    let params = params.collect::<Result<Vec<_>, ApiError>>()?;
    ask(&api, route, &tenant, Question { params, priority, idempotency, labels: caller.trace().into_iter().collect() })
        .await
}

async fn ask(api: &Api, route: &Route, tenant: &TenantName, question: Question) -> Result<Response, ApiError> {
    let taken = api.engine.proxy().ask(tenant, route, question).await?;
    let mut response = (StatusCode::ACCEPTED, Json(Taken { job_id: taken.id })).into_response();
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/jobs/{}", taken.id)) {
        headers.insert(LOCATION, location);
    }
    if taken.is_repeat {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The parameters of a query in their order, repeats included.
fn pairs(query: &str) -> Result<Vec<(String, String)>, ApiError> {
    let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().take(PARAMS_MAX + 1).collect();
    match pairs.len() <= PARAMS_MAX {
        true => Ok(pairs),
        false => Err(bad("query", &format!("has more than {PARAMS_MAX} parameters"))),
    }
}
