//! Events: what was told of a mail.
//! Invariant: in the order of their numbers; a caller sees only its own tenant's.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::auth::Reader;
use super::problem::ApiError;
use super::query::Params;
use entrega::events::{EVENTS_MAX, event_job};

/// After so many numbers that were not told, no more are looked for.
const MISSING_MAX: u32 = 20;

/// Of which mail.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// The mail's id.
    #[param(value_type = String, example = "out_01J9Z3K5V8N4QW6R7T2Y0X1ABC")]
    outbox_id: JobId,
}

/// What was told of a mail.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Events {
    /// As endpoints get them: `eventType`, `eventId`, `timestamp`, `sequenceNumber`, `data`.
    items: Vec<Value>,
}

/// List a mail's events
///
/// By their numbers. Kept as long as ended jobs are. Events are made for tenants that have an endpoint.
#[utoipa::path(
    get, path = "/v1/events", tag = "webhooks", security(("key" = ["read"])), params(EventsQuery),
    responses((status = 200, description = "The events", body = Events))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<EventsQuery>,
) -> Result<Json<Events>, ApiError> {
    let (mut items, mut missing) = (Vec::new(), 0);
    for sequence in 1..=EVENTS_MAX {
        let Some(job) = api.engine.store().job(event_job(query.outbox_id, sequence)).await? else {
            // Nothing was told while nobody listened; an endpoint may have been made in the middle.
            missing += 1;
            if missing == MISSING_MAX {
                break;
            }
            continue;
        };
        if !who.sees(&job.company_id) {
            break;
        }
        // One that is still on its way to the endpoints is listed a moment later.
        let told = job.result.filter(|_| job.state == JobState::Done);
        items.extend(told.and_then(|told| serde_json::from_slice(&told.body.0).ok()));
    }
    Ok(Json(Events { items }))
}
