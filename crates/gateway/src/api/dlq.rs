//! Dead letters: looked at, counted, replayed one by one, discarded.
//! Invariant: another tenant's entry answers exactly as an unknown one; an entry is shown without secrets.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Principal, Reader, Sender};
use super::body::{JsonBody, checked_reason};
use super::caller::{Caller, IdempotencyHeader};
use super::idempotency::{Done, idempotent_write};
use super::mask::shown;
use super::page::{Composing, Listing, page};
use super::problem::{ApiError, Problem};
use super::query::{JobPath, Params};
use super::{Api, schema};
use entrega::store::{Count, CountBy, DeadLetterFilter, Paged};

/// Which dead letters, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeadLettersQuery {
    /// Of this lane.
    #[param(value_type = Option<String>)]
    lane: Option<LaneName>,
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// With this failure code.
    code: Option<String>,
    /// With this status.
    #[param(value_type = Option<schema::DeadLetterStatus>)]
    status: Option<DeadLetterStatus>,
    /// Dead for at least this long.
    #[param(format = "uint64")]
    older_than_seconds: Option<u64>,
    /// With this text in the reason.
    text: Option<String>,
    /// The `nextCursor` of the page before.
    cursor: Option<String>,
    /// Rows on a page; 50 if left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// What to count by.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    /// `code` if left out.
    #[param(value_type = Option<schema::CountBy>)]
    by: Option<CountBy>,
}

/// Dead letters, counted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Stats {
    /// What they are counted by.
    by: &'static str,
    /// All of them.
    total: u64,
    /// One row per lane and value.
    #[schema(value_type = Vec<schema::Count>)]
    items: Vec<Count>,
}

/// A replay of one dead letter.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replaying {
    /// The job, under its old id.
    #[schema(value_type = String)]
    job_id: JobId,
    /// What is happening to the entry.
    #[schema(value_type = schema::DeadLetterStatus)]
    status: DeadLetterStatus,
}

/// Why an entry is given up.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Discard {
    /// Kept with the entry.
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// The entry, if it exists for this caller.
async fn visible(api: &Api, who: &Principal, id: JobId) -> Result<DeadLetter, ApiError> {
    let dead = api.engine.store().dead_letter(id).await?;
    dead.filter(|dead| who.sees(&dead.company_id)).ok_or(ApiError::NotFound { what: "dead letter" })
}

/// List dead letters
///
/// Newest first.
#[utoipa::path(
    get, path = "/v1/dlq", tag = "dead letters", security(("key" = ["read"])), params(DeadLettersQuery),
    responses((status = 200, description = "A page", body = Listing<schema::DeadLetter>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<DeadLettersQuery>,
    _composing: Composing,
) -> Result<Json<Listing<Value>>, ApiError> {
    let page = page(query.cursor.as_deref(), query.limit)?;
    let filter = DeadLetterFilter {
        lane: query.lane,
        tenant: who.narrow(query.tenant)?,
        code: query.code,
        status: query.status,
        older_than_seconds: query.older_than_seconds,
        text: query.text,
        ..DeadLetterFilter::default()
    };
    let paged = api.engine.store().dead_letters(&filter, page).await?;
    let items = paged.items.iter().map(shown).collect();
    Ok(Json(Listing::of(Paged { items, next: paged.next })))
}

/// Show a dead letter
///
/// Values of headers that carry secrets (`authorization`, `cookie`, …) are shown as `***`; a replay sends them whole.
#[utoipa::path(
    get, path = "/v1/dlq/{id}", tag = "dead letters", security(("key" = ["read"])),
    params(("id" = String, Path, description = "The job's id")),
    responses((status = 200, description = "The entry", body = schema::DeadLetter))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    JobPath(id): JobPath,
) -> Result<Json<Value>, ApiError> {
    visible(&api, &who, id).await.map(|dead| Json(shown(&dead)))
}

/// Count dead letters
#[utoipa::path(
    get, path = "/v1/dlq/stats", tag = "dead letters", security(("key" = ["read"])), params(StatsQuery),
    responses((status = 200, description = "The counts", body = Stats))
)]
pub(super) async fn stats(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<StatsQuery>,
) -> Result<Json<Stats>, ApiError> {
    let by = query.by.unwrap_or(CountBy::Code);
    let tenant = who.narrow(None)?;
    let items = api.engine.store().dead_letter_counts(by, tenant.as_ref()).await?;
    let by = match by {
        CountBy::Code => "code",
        CountBy::Tenant => "tenant",
        CountBy::Lane => "lane",
        CountBy::Hour => "hour",
    };
    Ok(Json(Stats { by, total: items.iter().map(|count| count.count).sum(), items }))
}

/// Replay a dead letter
///
/// Its job goes on its way again under its old id; the entry stays until it was delivered. The same `Idempotency-Key`
/// gives the first answer again, for a day.
#[utoipa::path(
    post, path = "/v1/dlq/{id}/replay", tag = "dead letters", security(("key" = ["send"])),
    params(("id" = String, Path, description = "The job's id"),
        IdempotencyHeader),
    responses(
        (status = 202, description = "On its way", body = Replaying,
            headers(("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 409, description = "Not pending, replayed too often, or being made by another call", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn replay(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    JobPath(id): JobPath,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (key, tenant, shared) = (caller.idempotency(b"")?, who.tenant().clone(), api.clone());
    idempotent_write(shared, tenant, key, async move {
        visible(&api, &who, id).await?;
        api.engine.store().replay(id).await?;
        who.audit("dlq.replay", id);
        Ok(Done::new(StatusCode::ACCEPTED, Replaying { job_id: id, status: DeadLetterStatus::Replaying }))
    })
    .await
}

/// Discard a dead letter
///
/// Given up for good; kept for audit until its time is over.
#[utoipa::path(
    post, path = "/v1/dlq/{id}/discard", tag = "dead letters", security(("key" = ["send"])),
    params(("id" = String, Path, description = "The job's id")),
    request_body = Discard,
    responses(
        (status = 200, description = "The entry", body = schema::DeadLetter),
        (status = 409, description = "Not pending", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(super) async fn discard(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    JobPath(id): JobPath,
    JsonBody(body): JsonBody<Discard>,
) -> Result<Json<Value>, ApiError> {
    let reason = checked_reason(&body.reason)?;
    let dead = visible(&api, &who, id).await?;
    api.engine.store().discard(id, reason).await?;
    api.engine.env().metrics.dead_discarded(&dead.lane);
    who.audit("dlq.discard", id);
    visible(&api, &who, id).await.map(|dead| Json(shown(&dead)))
}
