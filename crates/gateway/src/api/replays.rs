//! Replays of many dead letters: asked for and looked at here, carried out by upkeep.
//! Invariant: a replay names what it covers when it is asked for; what dies later is not its business.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use entrega_core::dead_letter::DeadLetterStatus;
use http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::auth::{Principal, Reader, Sender};
use super::body::{self, JsonBytes, Object};
use super::caller::{Caller, IdempotencyHeader};
use super::idempotency::{Done, idempotent_write};
use super::page::{LIMIT_MAX, Listing, PageQuery};
use super::problem::{ApiError, Problem};
use super::query::{Params, TextPath};
use super::{Api, schema};
use entrega::store::{DeadLetterFilter, Page, ReplayRun, ReplayStatus, StoreError};

const RATE_DEFAULT: u32 = 10;
const RATE_MAX: u32 = 1000;

/// Which dead letters to replay, and how fast.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ReplayRequest {
    /// Which; all pending ones if left out.
    #[serde(default)]
    #[schema(value_type = schema::DeadLetterFilter, required = false)]
    filter: Object<DeadLetterFilter>,
    /// How many a second; 10 if left out.
    #[schema(minimum = 1, maximum = 1000)]
    rate_per_sec: Option<u32>,
}

/// Replay dead letters
///
/// All pending entries that fit, oldest first, at a pace. It goes on after a restart, and never meets an entry twice. The
/// same `Idempotency-Key` with the same body gives the first answer again, for a day.
#[utoipa::path(
    post, path = "/v1/dlq/replay", tag = "dead letters", security(("key" = ["send"])), request_body = ReplayRequest,
    params(IdempotencyHeader),
    responses(
        (status = 202, description = "Under way", body = schema::ReplayRun,
            headers(("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 409, description = "The same call is being made, or five replays of the tenant are under way", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn start(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    caller: Caller,
    JsonBytes(json): JsonBytes,
) -> Result<Response, ApiError> {
    let key = caller.idempotency(&json)?;
    let Object(given) = body::parse::<Object<ReplayRequest>>(&json)?;
    let (tenant, shared) = (who.tenant().clone(), api.clone());
    idempotent_write(shared, tenant, key, async move { begin(&api, &who, given).await }).await
}

async fn begin(api: &Api, who: &Principal, given: ReplayRequest) -> Result<Done<ReplayRun>, ApiError> {
    let rate_per_sec = given.rate_per_sec.unwrap_or(RATE_DEFAULT);
    if !(1..=RATE_MAX).contains(&rate_per_sec) {
        return Err(ApiError::invalid("ratePerSec", format!("{rate_per_sec} is not from 1 to {RATE_MAX}")));
    }
    let Object(filter) = given.filter;
    filter.check().map_err(|bad| ApiError::invalid(format!("filter.{}", bad.field), bad.to_string()))?;
    let tenant = who.narrow(filter.tenant.clone())?;
    let filter = DeadLetterFilter { tenant, status: Some(DeadLetterStatus::Pending), ..filter };
    let now = api.engine.env().clock.now();
    let run = ReplayRun {
        id: api.new_id("replay"),
        total: count(api, DeadLetterFilter { before: Some(now), oldest_first: true, ..filter.clone() }).await?,
        filter,
        rate_per_sec,
        created_at: now,
        status: ReplayStatus::Running,
        replayed: 0,
        skipped: 0,
        cursor: None,
        sending: Vec::new(),
    };
    api.engine.store().begin_replay(run.clone()).await?;
    who.audit("dlq.replay_many", &run.id);
    Ok(Done::new(StatusCode::ACCEPTED, run))
}

/// How many entries fit. Only the store's pages know, because a text is looked for in the entries themselves.
async fn count(api: &Api, filter: DeadLetterFilter) -> Result<u64, StoreError> {
    let (mut total, mut after) = (0, None);
    loop {
        let page = api.engine.store().dead_letters(&filter, Page { after, limit: LIMIT_MAX }).await?;
        total += page.items.len() as u64;
        after = page.next;
        if after.is_none() {
            return Ok(total);
        }
    }
}

fn is_visible(who: &Principal, run: &ReplayRun) -> bool {
    who.is_admin() || run.filter.tenant.as_ref() == Some(who.tenant())
}

/// List replays
///
/// Newest first. A tenant's last 50 are kept, and those that ended for a week.
#[utoipa::path(
    get, path = "/v1/replays", tag = "dead letters", security(("key" = ["read"])), params(PageQuery),
    responses((status = 200, description = "A page", body = Listing<schema::ReplayRun>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<ReplayRun>>, ApiError> {
    let page = query.page()?;
    let tenant = who.narrow(None)?;
    Ok(Json(Listing::of(api.engine.store().replay_runs(tenant.as_ref(), page).await?).map(ReplayRun::shown)))
}

/// Show a replay
#[utoipa::path(
    get, path = "/v1/replays/{id}", tag = "dead letters", security(("key" = ["read"])),
    params(("id" = String, Path, description = "The replay's id")),
    responses((status = 200, description = "How far it is", body = schema::ReplayRun))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    TextPath(id): TextPath,
) -> Result<Json<ReplayRun>, ApiError> {
    let run = api.engine.store().replay_run(&id).await?.filter(|run| is_visible(&who, run));
    run.map(|run| Json(run.shown())).ok_or(ApiError::NotFound { what: "replay" })
}
