//! Requests to third-party APIs, for callers who wait and for those who do not.
//! Invariant: with a key, a request is made once: whoever sends it again gets the first answer, or is told that it is being
//! made. A caller who goes away ends the waiting, and no attempt starts after that.
//! Never: gives an answer of its own for the API's; its status is a field.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use entrega::connector::ConnectorCall;
use entrega_call::LogFields;
use entrega_core::body::Body;
use entrega_core::job::Priority;
use entrega_core::name::TenantName;
use entrega_core::outcome::FaultKind;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::auth::Sender;
use super::body::{self, JsonBytes, Object};
use super::caller::{Caller, IdempotencyHeader, has};
use super::connectors::visible;
use super::idempotency::{Done, idempotent};
use super::problem::{ApiError, Problem};
use super::query::TextPath;
use super::submit::{Headers, Taken};
use super::{Api, schema};
use entrega::connector::{Failed, Names, Replied, lane_of};
use entrega::store::Idempotency;
use entrega::store::OnThrottleTimeout;
use entrega::submission::NewJob;

/// The longest a caller can wait, and as long as it waits unless it says otherwise.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Parameters of one request.
const PARAMS_MAX: usize = 100;
const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// A request to a third-party API.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConnectorRequest {
    /// `GET` if left out.
    http_method: Option<String>,
    /// Below the connector's base URL; it cannot lead out of it.
    #[serde(rename = "relativeURL")]
    #[schema(example = "/records/17")]
    relative_url: String,
    /// In the order given.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    headers: Headers,
    /// The type of `requestBody`; `application/json` for a body that is no text.
    content_type: Option<String>,
    /// A text is sent as it is, any other value as the JSON that was given, byte for byte. `null` is no body.
    #[schema(value_type = Option<serde_json::Value>)]
    request_body: Option<Box<RawValue>>,
    /// Added to the query: texts, numbers, `true` and `false`.
    #[schema(value_type = Option<BTreeMap<String, Object>>)]
    request_params: Option<serde_json::Map<String, Value>>,
    /// How urgent, as a job.
    #[schema(value_type = Option<schema::Priority>)]
    priority: Option<Priority>,
    /// For whom; another tenant than the key's own needs the scope `admin`.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
}

/// What the API answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectorAnswer {
    /// The API's status: of the last attempt, where it was tried again.
    http_status_code: u16,
    /// The API's answer: JSON where it is, else a text; `{"base64": …}` where it is neither.
    response: Value,
    /// Whether a cap cut it off.
    truncated: bool,
    /// How often it was tried.
    attempts: u32,
    /// The request's name in everybody's logs.
    request_id: String,
}

impl ConnectorRequest {
    fn into_call(
        self,
        connector: &str,
        caller: &Caller,
    ) -> Result<(Option<TenantName>, Priority, ConnectorCall), ApiError> {
        let Headers(mut headers) = self.headers;
        let (body, default_type) = match self.request_body {
            None => (Bytes::new(), None),
            Some(json) if json.get().starts_with('"') => (body::parse::<String>(json.get().as_bytes())?.into(), None),
            Some(json) => (Bytes::from(String::from(Box::<str>::from(json))), Some("application/json".to_owned())),
        };
        if let Some(content_type) =
            self.content_type.or_else(|| default_type.filter(|_| !has(&headers, "content-type")))
        {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case(CONTENT_TYPE.as_str()));
            headers.push((CONTENT_TYPE.to_string(), content_type));
        }
        caller.add_user(&mut headers, None);
        let call = ConnectorCall {
            connector: connector.to_owned(),
            method: self.http_method.unwrap_or_else(|| "GET".to_owned()).to_ascii_uppercase(),
            relative_url: self.relative_url,
            headers,
            params: params(self.request_params.unwrap_or_default())?,
            body: Body(body),
        };
        Ok((self.tenant, self.priority.unwrap_or_default(), call))
    }
}

fn params(given: serde_json::Map<String, Value>) -> Result<Vec<(String, String)>, ApiError> {
    if given.len() > PARAMS_MAX {
        return Err(ApiError::invalid("requestParams", format!("at most {PARAMS_MAX} parameters")));
    }
    let read = given.into_iter().map(|(name, value)| match value {
        Value::String(text) => Ok((name, text)),
        Value::Number(_) | Value::Bool(_) => Ok((name, value.to_string())),
        _ => Err(ApiError::invalid(format!("requestParams.{name}"), "must be a text, a number, true or false")),
    });
    read.collect()
}

/// What a caller prefers (RFC 7240).
#[derive(Debug, PartialEq, Eq)]
struct Preferred {
    respond_async: bool,
    wait: Duration,
}

fn preferred(headers: &HeaderMap) -> Result<Preferred, ApiError> {
    let mut preferred = Preferred { respond_async: false, wait: WAIT_MAX };
    let words = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    for word in words.flat_map(|text| text.split(',')).map(str::trim) {
        let name = word.split(['=', ';']).next().unwrap_or_default().trim();
        if name.eq_ignore_ascii_case("respond-async") {
            preferred.respond_async = true;
        } else if name.eq_ignore_ascii_case("wait") {
            let seconds = word.split_once('=').map_or("", |(_, rest)| rest.split(';').next().unwrap_or_default());
            let seconds = seconds.trim().trim_matches('"').parse().ok();
            let within = seconds.filter(|seconds| (1..=WAIT_MAX.as_secs()).contains(seconds));
            let bad = || ApiError::invalid("Prefer", format!("wait must be from 1 to {} seconds", WAIT_MAX.as_secs()));
            preferred.wait = Duration::from_secs(within.ok_or_else(bad)?);
        }
    }
    Ok(preferred)
}

/// Send a request to a third-party API
///
/// Through the connector's limits, with up to four attempts. By default the caller waits for the answer, for up to 300 s or
/// as long as `Prefer: wait=10` says; `Prefer: respond-async` hands it in as a job instead, whose result is the answer. The
/// same `Idempotency-Key` with the same body gives the first answer again, for a day.
#[utoipa::path(
    post, path = "/v1/connectors/{id}/requests", tag = "connectors", security(("key" = ["send"])),
    params(("id" = String, Path, description = "The connector's name"),
        ("Prefer" = Option<String>, Header, description = "`respond-async`, or `wait=` and seconds"),
        IdempotencyHeader),
    request_body = ConnectorRequest,
    responses(
        (status = 200, description = "What the API answered, whatever its status", body = ConnectorAnswer,
            headers(("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 202, description = "Handed in as a job", body = Taken,
            headers(("location" = String, description = "Where the job can be looked at"))),
        (status = 409, description = "The same request is being made; try again later", body = Problem,
            content_type = "application/problem+json"),
        (status = 429, description = "Too many calls of this tenant wait already", body = Problem,
            content_type = "application/problem+json"),
        (status = 502, description = "The API gave no answer", body = Problem, content_type = "application/problem+json"),
        (status = 504, description = "It took too long", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    TextPath(id): TextPath,
    caller: Caller,
    headers: HeaderMap,
    JsonBytes(json): JsonBytes,
) -> Result<Response, ApiError> {
    let (connector, _) = visible(&api, &who, &id)?;
    let preferred = preferred(&headers)?;
    let key = caller.idempotency(&json)?;
    let (tenant, priority, call) = body::parse::<Object<ConnectorRequest>>(&json)?.0.into_call(&id, &caller)?;
    let tenant = who.acts_for(tenant)?;
    api.engine.connectors().check(&tenant, &call)?;
    let _waiting = if preferred.respond_async { None } else { Some(api.begin_waiting(&tenant)?) };
    let work = async {
        if preferred.respond_async {
            return hand_in(&api, &tenant, priority, call, key.clone(), &caller).await;
        }
        let fields = LogFields { company_id: Some(tenant.to_string()), ..LogFields::default() };
        let idempotency_key = key.as_ref().map(|key| key.key.clone());
        let traceparent = caller.trace().map(|(_, trace)| trace);
        let names = Names { idempotency_key, traceparent, fields, request_id: None };
        match answer(&api, &tenant, &call, names, preferred.wait).await {
            Err(ApiError::Unanswered(failed)) if is_requeued(&failed, connector.limits.on_throttle_timeout) => {
                hand_in(&api, &tenant, priority, call, key.clone(), &caller).await
            }
            answered => Ok(Done::new(StatusCode::OK, Answered::Api(answered?))),
        }
    };
    let mut response = idempotent(&api, &tenant, key.as_ref(), preferred.wait, work).await?;
    if response.status() == StatusCode::ACCEPTED {
        response.headers_mut().insert(APPLIED, HeaderValue::from_static("respond-async"));
    }
    Ok(response)
}

/// What a caller gets.
#[derive(Serialize)]
#[serde(untagged)]
enum Answered {
    Api(ConnectorAnswer),
    Job(Taken),
}

fn is_requeued(failed: &Failed, on_timeout: OnThrottleTimeout) -> bool {
    let is_throttled = matches!(failed, Failed::NoAnswer { kind: FaultKind::Throttled, .. });
    is_throttled && on_timeout == OnThrottleTimeout::Requeue
}

/// Waits for the answer.
async fn answer(
    api: &Api,
    tenant: &TenantName,
    call: &ConnectorCall,
    names: Names,
    wait: Duration,
) -> Result<ConnectorAnswer, ApiError> {
    let clock = &api.engine.env().clock;
    let sending = api.engine.connectors().send(tenant, call, names, clock.instant(clock.now() + wait));
    let replied = tokio::select! {
        replied = sending => replied,
        () = stopping(api) => return Err(ApiError::ShuttingDown),
    };
    Ok(ConnectorAnswer::from(replied?))
}

/// A call that has left is given most of the time that a shutdown takes: whoever hears nothing of it sends it again.
async fn stopping(api: &Api) {
    api.shutdown.cancelled().await;
    tokio::time::sleep(api.limits.drain_timeout.mul_f64(0.8)).await;
}

impl From<Replied> for ConnectorAnswer {
    fn from(replied: Replied) -> ConnectorAnswer {
        let content_type =
            replied.answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let json = content_type.contains("json").then(|| serde_json::from_slice(&replied.answer.body).ok()).flatten();
        // A body of any bytes has a form in JSON.
        let text = || serde_json::to_value(Body(replied.answer.body.clone())).unwrap_or_default();
        ConnectorAnswer {
            http_status_code: replied.answer.status.as_u16(),
            response: json.unwrap_or_else(text),
            truncated: replied.answer.truncated,
            attempts: replied.attempts,
            request_id: replied.request_id,
        }
    }
}

/// Hands the request in as a job.
async fn hand_in(
    api: &Api,
    tenant: &TenantName,
    priority: Priority,
    call: ConnectorCall,
    key: Option<Idempotency>,
    caller: &Caller,
) -> Result<Done<Answered>, ApiError> {
    let job = NewJob {
        lane: lane_of(&call.connector, &api.engine.env().lanes),
        priority,
        idempotency_key: key.as_ref().map(|key| key.key.clone()),
        content: Arc::new(call),
        labels: caller.trace().into_iter().collect(),
        ttl: None,
        delay: Duration::ZERO,
    };
    // The key itself is the call's, which is under way; the job goes by a part of it.
    let once = key.map(|key| key.part(0)).into_iter().collect();
    let mut answers = api.engine.submit_once(tenant, vec![(job, once)]).await;
    let taken = answers.pop().expect("one answer per job")?;
    let job = Answered::Job(Taken { job_id: taken.id });
    Ok(Done::new(StatusCode::ACCEPTED, job).at(format!("/v1/jobs/{}", taken.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (PREFER, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn preferences_are_read_and_unknown_ones_are_left_alone() {
        let read = |values: &[&str]| preferred(&with(values)).ok().map(|it| (it.respond_async, it.wait.as_secs()));
        assert_eq!(read(&[]), Some((false, 300)));
        assert_eq!(read(&["respond-async"]), Some((true, 300)));
        assert_eq!(read(&["return=minimal, WAIT=10"]), Some((false, 10)));
        assert_eq!(read(&["respond-async, wait=5; x=1"]), Some((true, 5)));
        assert_eq!(read(&["respond-async", "wait=\"5\""]), Some((true, 5)));
        for wait in ["wait", "wait=", "wait=0", "wait=301", "wait=-1", "wait=soon"] {
            assert_eq!(read(&[wait]), None, "{wait}");
        }
    }
}
