//! Jobs: looked at, waited for, cancelled, unblocked, explained.
//! Invariant: another tenant's job answers exactly as an unknown one.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::{AGE, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Explanation, Hold};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::{Time, parse_duration};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Admin, MaybeReader, Principal, Reader, Sender};
use super::caller::{Caller, IdempotencyHeader};
use super::idempotency::{Done, idempotent_write};
use super::page::{Composing, Listing, page};
use super::problem::{ApiError, Problem};
use super::query::{JobPath, Params};
use super::{Api, schema};
use entrega::proxy::PUBLIC_TENANT;
use entrega::store::{JobFilter, JobView, StoreError};

/// The longest a caller may wait for a job to end.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Which jobs, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JobsQuery {
    /// Of this lane.
    #[param(value_type = Option<String>)]
    lane: Option<LaneName>,
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// In this state.
    #[param(value_type = Option<schema::JobState>)]
    state: Option<JobState>,
    /// The `nextCursor` of the page before.
    cursor: Option<String>,
    /// Rows on a page; 50 if left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// How long to wait.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// Answer when the job has ended or is blocked, or after this time: `10s`, at most `60s`.
    #[param(example = "2s")]
    wait: Option<String>,
}

/// A gate that is shut.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldRow {
    /// `paused`, `delay`, `throttle`, `cadence`, `breaker`, `retry_after`, `concurrency`, `tenant_concurrency`, `turn`.
    gate: &'static str,
    /// Until when, where that is known.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    until: Option<Time>,
}

impl From<Hold> for HoldRow {
    fn from(hold: Hold) -> HoldRow {
        HoldRow { gate: hold.gate.as_str(), until: hold.until }
    }
}

/// Why a job does not move.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Why {
    /// Which job.
    #[schema(value_type = String)]
    job_id: JobId,
    /// Where it stands.
    #[schema(value_type = schema::JobState)]
    state: JobState,
    /// The attempts so far, one under way included.
    attempt: u32,
    /// Not before this; `null` once it has ended.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    due_at: Option<Time>,
    /// Every gate that is shut for it, the outermost first.
    holds: Vec<HoldRow>,
    /// Said where no gate is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// The job, if it exists for this caller.
async fn visible(api: &Api, who: &Principal, id: JobId) -> Result<JobView, ApiError> {
    let view = api.engine.store().job(id).await?;
    view.filter(|view| who.sees(&view.company_id)).ok_or_else(|| not_there(api, id))
}

/// What is said of an id that names nothing for this caller. It follows from the id alone: jobs of others are not told from
/// jobs that never were.
fn not_there(api: &Api, id: JobId) -> ApiError {
    let (now, kept_for) = (api.engine.env().clock.now(), api.engine.retention());
    match id.made_at() + kept_for < now {
        true => ApiError::Gone { kept_for },
        false => ApiError::NotFound { what: "job" },
    }
}

/// A job that was asked for without a key, for whoever knows its id.
async fn public(api: &Api, id: JobId) -> Result<JobView, ApiError> {
    let is_public = |view: &JobView| {
        let route = api.engine.proxy().route_of(&view.lane);
        view.company_id.as_str() == PUBLIC_TENANT && route.is_some_and(|route| route.is_public)
    };
    api.engine.store().job(id).await?.filter(is_public).ok_or(ApiError::NoKey)
}

/// List jobs
///
/// Newest first. A page may be shorter than its limit before the last one: a search looks at a bounded number of
/// records.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", security(("key" = ["read"])), params(JobsQuery),
    responses((status = 200, description = "A page", body = Listing<schema::JobView>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<JobsQuery>,
    _composing: Composing,
) -> Result<Json<Listing<JobView>>, ApiError> {
    let page = page(query.cursor.as_deref(), query.limit)?;
    let states = query.state.into_iter().collect();
    let filter = JobFilter { lane: query.lane, tenant: who.narrow(query.tenant)?, states };
    Ok(Json(Listing::of(api.engine.store().jobs(&filter, page).await?)))
}

/// Show a job
///
/// State, attempts and, once delivered, the destination's answer. With `wait`, answers when the job has ended or is
/// blocked, or the time is up, whichever comes first. A question that was asked without a key is shown without one, and
/// without its attempts: they say too much of what lies behind the gateway. An answer that had been given before comes
/// with its `Age`.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", security((), ("key" = ["read"])),
    params(("id" = String, Path, description = "The job's id"), WaitQuery),
    responses(
        (status = 200, description = "The job", body = schema::JobView,
            headers(("age" = Option<u64>, description = "How old an answer was, in seconds, that had been given before"))),
        (status = 410, description = "It ended so long ago that it is not kept any more", body = Problem,
            content_type = "application/problem+json"),
        (status = 429, description = "Too many calls of this tenant wait already", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    MaybeReader(who): MaybeReader,
    JobPath(id): JobPath,
    query: Result<Params<WaitQuery>, ApiError>,
) -> Result<Response, ApiError> {
    let look = async || match &who {
        Some(who) => visible(&api, who, id).await,
        None => public(&api, id).await,
    };
    // Who may look is said before what is wrong with the question.
    let view = look().await?;
    let Params(query) = query?;
    let wait = query.wait.as_deref().map(wait_time).transpose()?;
    let is_public = who.is_none();
    let Some(wait) = wait.filter(|_| !view.state.is_end()) else { return Ok(shown(view, is_public)) };
    let tenant = who.as_ref().map_or(&view.company_id, Principal::tenant);
    let _waiting = api.begin_waiting(tenant)?;
    let ended = async {
        tokio::select! {
            ended = api.engine.store().ended(id) => ended,
            () = api.shutdown.cancelled() => Ok(()),
        }
    };
    // Out of time is no error: the job is shown as it stands.
    tokio::time::timeout(wait, ended).await.unwrap_or(Ok(()))?;
    look().await.map(|view| shown(view, is_public))
}

/// A job as an answer.
fn shown(mut view: JobView, is_public: bool) -> Response {
    if is_public {
        // Hosts and addresses behind the gateway are nobody's business; that it failed, and how, is the caller's.
        view.reason = view.attempts.last().filter(|_| view.state != JobState::Done).map(|attempt| attempt.code.clone());
        view.attempts.clear();
    }
    let age = view.result.as_ref().and_then(|result| result.cache.as_ref()).map(|cache| cache.age_seconds);
    let mut response = Json(view).into_response();
    if let Some(age) = age {
        response.headers_mut().insert(AGE, HeaderValue::from(age));
    }
    response
}

fn wait_time(text: &str) -> Result<Duration, ApiError> {
    let wait = parse_duration(text).map_err(|error| ApiError::invalid("wait", error.to_string()))?;
    match wait <= WAIT_MAX {
        true => Ok(wait),
        false => Err(ApiError::invalid("wait", format!("'{text}' is more than {} s", WAIT_MAX.as_secs()))),
    }
}

/// Cancel a job
///
/// Only while it waits or is blocked: an attempt under way is not cut off.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "jobs", security(("key" = ["send"])),
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The cancelled job", body = schema::JobView),
        (status = 409, description = "It is being attempted or has ended", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    JobPath(id): JobPath,
) -> Result<Json<JobView>, ApiError> {
    visible(&api, &who, id).await?;
    let view = api.engine.store().cancel(id, &format!("cancelled with key {}", who.key_id())).await?;
    api.engine.env().metrics.dropped(&view.lane, "cancelled");
    who.audit("job.cancel", id);
    Ok(Json(view))
}

/// Unblock a job
///
/// Puts a blocked job back in its queue with all its attempts. The same `Idempotency-Key` gives the first answer again, for
/// a day.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/unblock", tag = "jobs", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The job's id"),
        IdempotencyHeader),
    responses(
        (status = 202, description = "The job, queued again", body = schema::JobView,
            headers(("idempotent-replayed" = String, description = "`true` if this was answered before"))),
        (status = 409, description = "It is not blocked, or another call unblocks it", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn unblock(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    JobPath(id): JobPath,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (key, tenant, shared) = (caller.idempotency(b"")?, who.tenant().clone(), api.clone());
    idempotent_write(shared, tenant, key, async move {
        api.engine.store().unblock(id).await?;
        who.audit("job.unblock", id);
        Ok(Done::new(StatusCode::ACCEPTED, visible(&api, &who, id).await?))
    })
    .await
}

/// Explain a job
///
/// Why it has not run yet: which gates are shut, and until when.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/explain", tag = "jobs", security(("key" = ["read"])),
    params(("id" = String, Path, description = "The job's id")),
    responses((status = 200, description = "Why it does not move", body = Why))
)]
pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    JobPath(id): JobPath,
) -> Result<Json<Why>, ApiError> {
    let view = visible(&api, &who, id).await?;
    let why = match api.engine.store().explain(id).await {
        Ok(Some(explanation)) => Why::held(id, explanation),
        Ok(None) => Why::at_rest(view, None),
        Err(StoreError::UnknownLane { .. }) => Why::at_rest(view, Some("its lane is no longer configured")),
        Err(error) => return Err(error.into()),
    };
    Ok(Json(why))
}

impl Why {
    fn held(id: JobId, explanation: Explanation) -> Why {
        Why {
            job_id: id,
            state: explanation.state,
            attempt: explanation.attempt,
            due_at: Some(explanation.due),
            note: explanation.holds.is_empty().then_some("an attempt is under way"),
            holds: explanation.holds.into_iter().map(HoldRow::from).collect(),
        }
    }

    /// A job that no lane machine holds.
    fn at_rest(view: JobView, note: Option<&'static str>) -> Why {
        let note = note.unwrap_or(match view.state {
            JobState::Done => "it was delivered",
            JobState::Dlq => "it gave up; its dead letter can be replayed or discarded",
            JobState::Dropped => "it was dropped; the job's reason says why",
            JobState::Cancelled => "it was cancelled",
            JobState::Blocked if view.endpoint.is_some() => {
                "it waits for its endpoint; the job's reason says why. It goes on when that is enabled, or is discarded"
            }
            JobState::Blocked => "it is out of attempts; an operator can unblock or cancel it",
            JobState::Idle | JobState::Queued | JobState::RetryWait | JobState::Replaying => "it is on its way",
            JobState::Running => "an attempt has just ended; its result is being written",
        });
        Why {
            job_id: view.job_id,
            state: view.state,
            attempt: view.attempts.last().map_or(0, |attempt| attempt.number),
            due_at: view.due_at,
            holds: Vec::new(),
            note: Some(note),
        }
    }
}
