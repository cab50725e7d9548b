//! Health and metrics: what machines ask.
//! Invariant: `live` says only that the process answers; `ready` says whether work can be taken.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::auth::Principal;
use super::figures;
use super::problem::ApiError;
use entrega::store::{KeyScope, MemoryUse};

/// The process answers.
#[derive(Serialize, ToSchema)]
pub(super) struct Live {
    #[schema(example = "live")]
    status: &'static str,
}

/// Whether work can be taken.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// `ready` or `failed`.
    #[schema(example = "ready")]
    status: &'static str,
    /// How the store is.
    store: StoreState,
}

/// How the store is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreState {
    /// `embedded`, `memory`, `redis`.
    kind: &'static str,
    /// What a 2xx for new work means here.
    durability: &'static str,
    /// Why it takes no writes, if it does not.
    #[schema(required = true)]
    failure: Option<String>,
    /// Why it takes no new work, if it does not; deliveries go on.
    #[schema(required = true)]
    refuses: Option<String>,
    /// Records that could not be read since the start.
    unreadable_records: u64,
    /// How full the memory of the server is that keeps the jobs, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryState>,
}

/// How full a server's memory is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryState {
    /// In use.
    used_bytes: u64,
    /// At most; 0 for no limit.
    max_bytes: u64,
    /// `ok`, `warning` (over 80 %) or `critical` (over 90 %).
    #[schema(example = "ok")]
    level: &'static str,
}

impl From<MemoryUse> for MemoryState {
    fn from(memory: MemoryUse) -> MemoryState {
        let level = ["ok", "warning", "critical"][usize::from(memory.level).min(2)];
        MemoryState { used_bytes: memory.used_bytes, max_bytes: memory.max_bytes, level }
    }
}

/// Is the process up?
#[utoipa::path(get, path = "/health/live", tag = "operations", responses((status = 200, description = "Yes", body = Live)))]
pub(super) async fn live() -> Json<Live> {
    Json(Live { status: "live" })
}

/// Can it take work?
#[utoipa::path(
    get, path = "/health/ready", tag = "operations",
    responses(
        (status = 200, description = "Yes", body = Ready),
        (status = 503, description = "No: the store has failed", body = Ready),
    )
)]
pub(super) async fn ready(State(api): State<Arc<Api>>) -> (StatusCode, Json<Ready>) {
    let health = api.engine.store().health();
    let (code, status) = match health.failure {
        None => (StatusCode::OK, "ready"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let store = StoreState {
        kind: health.kind,
        durability: health.durability,
        failure: health.failure,
        refuses: health.refuses,
        unreadable_records: health.unreadable,
        memory: health.memory.map(MemoryState::from),
    };
    (code, Json(Ready { status, store }))
}

/// Whether somebody passed a request on: whoever asked is elsewhere, though its connection comes from this machine.
fn is_forwarded(headers: &HeaderMap) -> bool {
    const SAID_BY_PROXIES: [&str; 5] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    SAID_BY_PROXIES.iter().any(|name| headers.contains_key(*name))
}

/// Metrics
///
/// For Prometheus. Needs the scope `metrics`, but for callers on the same machine where the server listens to nobody else.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", security((), ("key" = ["metrics"])),
    responses((status = 200, description = "The text format", body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(State(api): State<Arc<Api>>, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    if !api.open_metrics || is_forwarded(&headers) {
        Principal::of(&api, &headers)?.require(KeyScope::Metrics)?;
    }
    let text = api.engine.env().metrics.render(api.engine.store(), api.engine.env().clock.now()).await?;
    let text = text + &figures::render(&api);
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text))
}
