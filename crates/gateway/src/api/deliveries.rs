//! Deliveries: what an endpoint was sent, a test of it, and what waits for it, given up.
//! Invariant: another tenant's endpoint answers exactly as an unknown one.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, JobState};
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Reader, Sender};
use super::body::{JsonBody, checked_reason};
use super::caller::{Caller, IdempotencyHeader};
use super::endpoints::{find, place};
use super::idempotency::{Done, idempotent_write};
use super::page::{Listing, PageQuery, next_cursor, page};
use super::problem::{ApiError, Problem};
use super::query::{EndpointPath, Params};
use super::{Api, schema};
use entrega::store::{JobFilter, JobView, Paged};
use entrega::webhook::WEBHOOK_LANE;

/// One delivery.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delivery {
    /// Its job.
    #[schema(value_type = String)]
    job_id: JobId,
    /// `email.sent`, …
    event_type: Option<String>,
    /// Where it stands.
    #[schema(value_type = schema::JobState)]
    state: JobState,
    /// When the event was handed on.
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Time,
    /// When it is tried next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Time>,
    /// Every attempt: its code (`http_500`, `timeout`, …), when, how long it took, and what the endpoint answered.
    #[schema(value_type = Vec<schema::Attempt>)]
    attempts: Vec<Attempt>,
    /// The status that the endpoint took it with.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_code: Option<u16>,
    /// The first part of what it answered last, taken or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

impl From<JobView> for Delivery {
    fn from(job: JobView) -> Delivery {
        Delivery {
            job_id: job.job_id,
            event_type: job.destination,
            state: job.state,
            accepted_at: job.accepted_at,
            due_at: job.due_at,
            response_code: job.result.map(|answer| answer.status),
            answer: job.attempts.iter().rev().find_map(|attempt| attempt.answer.clone()),
            attempts: job.attempts,
        }
    }
}

/// A test that is on its way.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Testing {
    /// The job that delivers it.
    #[schema(value_type = String)]
    job_id: JobId,
    /// What the endpoint gets as `eventId`.
    event_id: String,
}

/// Why what waits is given up.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DiscardRequest {
    /// Kept with every job.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
    /// The `nextCursor` of the call before, as long as there is more.
    cursor: Option<String>,
}

/// What was given up.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiscardRow {
    /// How many jobs, now.
    discarded: usize,
    /// Whether more may wait: call again, with the cursor.
    more: bool,
    /// Give it as `cursor` then; `null` when there is no more.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// List an endpoint's deliveries
///
/// Newest first, with every attempt and the first part of what was answered to it.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{name}/deliveries", tag = "endpoints", security(("key" = ["read"])),
    params(EndpointPath, PageQuery),
    responses((status = 200, description = "A page", body = Listing<Delivery>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    path: EndpointPath,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<Delivery>>, ApiError> {
    let endpoint = find(&api, &who, &path)?;
    let lane = LaneName::new(WEBHOOK_LANE).expect("a lane name");
    let filter =
        JobFilter { lane: Some(lane), tenant: Some(endpoint.tenant.endpoint(&endpoint.name)), states: Vec::new() };
    let found = api.engine.store().jobs(&filter, query.page()?).await?;
    let items = found.items.into_iter().map(Delivery::from).collect();
    Ok(Json(Listing::of(Paged { items, next: found.next })))
}

/// Test an endpoint
///
/// Sends it a `webhook.test`, signed and delivered like every event. The same `Idempotency-Key` gives the first answer
/// again, for a day.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{name}/test", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath,
        IdempotencyHeader),
    responses(
        (status = 202, description = "It is on its way", body = Testing,
            headers(("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 409, description = "The same call is being made; try again later", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn test(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
    caller: Caller,
) -> Result<Response, ApiError> {
    let endpoint = find(&api, &who, &path)?;
    let (key, tenant, shared) = (caller.idempotency(b"")?, endpoint.tenant.clone(), api.clone());
    idempotent_write(shared, tenant, key, async move {
        let (job_id, event_id) = api.engine.webhooks().send_test(&endpoint).await?;
        who.audit("endpoint.test", format_args!("{}/{}", endpoint.tenant, endpoint.name));
        Ok(Done::new(StatusCode::ACCEPTED, Testing { job_id, event_id }))
    })
    .await
}

/// Discard what waits for an endpoint
///
/// Ends its blocked jobs as `cancelled`, a few hundred a call. It need not be there any more.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{name}/discard", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath), request_body = DiscardRequest,
    responses((status = 200, description = "How many were, and whether there are more", body = DiscardRow))
)]
pub(super) async fn discard(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
    JsonBody(given): JsonBody<DiscardRequest>,
) -> Result<Json<DiscardRow>, ApiError> {
    let (tenant, name) = place(&who, path)?;
    let reason = checked_reason(&given.reason)?;
    let after = page(given.cursor.as_deref(), None)?.after;
    let discarded = api.engine.webhooks().discard_waiting(&tenant, &name, reason, after).await?;
    who.audit("endpoint.discard", format_args!("{tenant}/{name} ({} jobs)", discarded.count));
    let next_cursor = discarded.next.as_ref().map(next_cursor);
    Ok(Json(DiscardRow { discarded: discarded.count, more: next_cursor.is_some(), next_cursor }))
}
