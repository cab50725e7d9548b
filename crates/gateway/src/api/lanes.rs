//! Lanes: what is where, what holds it, and by which policy; pause and resume.
//! Invariant: sizes are the lane machine's own counts, not sums made here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use entrega_core::breaker::{BreakerFigures, BreakerState};
use entrega_core::cadence::CadenceFigures;
use entrega_core::job::{JobState, Priority};
use entrega_core::lane::SlowBounds;
use entrega_core::name::LaneName;
use entrega_core::policy::{Destinations, LanePolicy, OnExhausted, OnFull, Scope};
use entrega_core::time::Time;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::{Admin, Principal};
use super::jobs::HoldRow;
use super::problem::ApiError;
use super::query::LanePath;
use super::{Api, schema};
use entrega::store::LaneView;

/// The states that a lane machine counts.
const COUNTED: [JobState; 5] =
    [JobState::Idle, JobState::Queued, JobState::Running, JobState::RetryWait, JobState::Replaying];

type Sizes = BTreeMap<&'static str, u32>;

/// All lanes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Lanes {
    /// By name.
    items: Vec<LaneRow>,
}

/// A lane.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LaneRow {
    /// Its name.
    #[schema(value_type = String)]
    lane: LaneName,
    /// How its jobs leave.
    channel: String,
    /// Whether it is paused.
    paused: bool,
    /// What holds the whole lane.
    #[schema(required = true)]
    hold: Option<HoldRow>,
    /// How its breaker stands; `null` without one, or with one for each tenant.
    #[schema(required = true)]
    breaker: Option<BreakerStanding>,
    /// How fast it goes; `null` without a cadence.
    #[schema(required = true)]
    cadence: Option<CadenceStanding>,
    /// Since when the oldest waiting job waits.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    oldest_at: Option<Time>,
    /// Jobs that wait for an operator.
    blocked: u32,
    /// Dead letters, of every status.
    dead_letters: u32,
    /// How many jobs may wait.
    capacity: u32,
    /// Jobs by state: `idle`, `queued`, `running`, `retry_wait`, `replaying`.
    #[schema(value_type = BTreeMap<String, u32>)]
    sizes: Sizes,
    /// How many of those that run hold no slot, because they are slow or others of their tenant are.
    slow: u32,
    /// The same as `sizes` by priority: `high`, `normal`, `low`.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, u32>>)]
    by_priority: BTreeMap<&'static str, Sizes>,
    /// What it was told.
    policy: PolicyRow,
}

/// How a breaker stands. The counts begin when the store's do: with the process, or in Redis with the lane.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BreakerStanding {
    /// `closed`, `open`, `half_open`.
    state: &'static str,
    /// Until when nobody is called, while it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// How often it opened.
    opened: u64,
    /// How often one call was let through to see.
    half_opened: u64,
    /// How often that call closed it.
    closed: u64,
}

/// How fast a lane goes. The count begins when the store's do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CadenceStanding {
    /// The current tick.
    interval_ms: u64,
    /// How often it was slowed down.
    penalties: u64,
}

impl From<BreakerFigures> for BreakerStanding {
    fn from(figures: BreakerFigures) -> BreakerStanding {
        let BreakerFigures { state, opened, half_opened, closed } = figures;
        let until = match state {
            BreakerState::Open(until) => Some(until),
            BreakerState::Closed | BreakerState::HalfOpen => None,
        };
        BreakerStanding { state: state.as_str(), until, opened, half_opened, closed }
    }
}

impl From<CadenceFigures> for CadenceStanding {
    fn from(figures: CadenceFigures) -> CadenceStanding {
        CadenceStanding { interval_ms: ms(figures.interval), penalties: figures.penalties }
    }
}

/// A lane's policy.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PolicyRow {
    /// Attempts in all.
    attempts: u32,
    /// One attempt, at most.
    timeout_ms: u64,
    /// How long a job may wait; `null`: for ever.
    #[schema(required = true)]
    ttl_ms: Option<u64>,
    /// Slots: attempts at once, slow ones not counted.
    concurrency: u32,
    /// Slots for one tenant.
    tenant_concurrency: u32,
    /// Whether jobs go to one destination, so that every attempt holds a slot.
    #[schema(value_type = schema::Destinations)]
    destinations: Destinations,
    /// Attempts without a slot at once, at most; 0 with one destination.
    slow_max: u32,
    /// Whether a job is urgent within its tenant or over the whole lane.
    #[schema(value_type = schema::GateScope)]
    priority_scope: Scope,
    /// Limit on starts.
    #[schema(required = true)]
    throttle: Option<ThrottleRow>,
    /// Stops calling what is down.
    #[schema(required = true)]
    breaker: Option<BreakerRow>,
    /// One start per tick.
    #[schema(required = true)]
    cadence: Option<CadenceRow>,
    /// What running out of attempts means.
    #[schema(value_type = schema::OnExhausted)]
    on_exhausted: OnExhausted,
    /// What a full lane does.
    #[schema(value_type = schema::OnFull)]
    on_full: OnFull,
}

/// So many starts in an interval.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThrottleRow {
    /// Starts.
    max_requests: u32,
    /// The interval.
    per_ms: u64,
    /// Whether it counts for the lane or for each tenant.
    #[schema(value_type = schema::GateScope)]
    scope: Scope,
}

/// When to stop calling.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BreakerRow {
    /// Failures in a row.
    failures: u32,
    /// For how long.
    open_ms: u64,
    /// What becomes of jobs meanwhile: `hold` or `pass`.
    when_open: &'static str,
    /// Whether it counts for the lane or for each tenant.
    #[schema(value_type = schema::GateScope)]
    scope: Scope,
}

/// One start per tick.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CadenceRow {
    /// The tick at first.
    initial_ms: u64,
    /// The shortest tick.
    min_ms: u64,
    /// The longest tick.
    max_ms: u64,
    /// An answer that takes longer makes it slower.
    slow_after_ms: u64,
    /// What a success takes off the tick.
    step_ms: u64,
    /// What being too fast multiplies it by.
    penalty: f64,
}

fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

impl From<LaneView> for LaneRow {
    fn from(view: LaneView) -> LaneRow {
        let counted = |count: &dyn Fn(JobState) -> u32| -> Sizes {
            COUNTED.iter().map(|&state| (state.as_str(), count(state))).collect()
        };
        let of = |priority: Priority| counted(&|state| view.sizes.count(priority, state));
        LaneRow {
            sizes: counted(&|state| view.sizes.in_state(state)),
            by_priority: Priority::ALL.iter().map(|&priority| (priority.as_str(), of(priority))).collect(),
            slow: view.sizes.slow(),
            lane: view.name,
            channel: view.policy.channel.clone(),
            paused: view.paused,
            hold: view.hold.map(HoldRow::from),
            breaker: view.breaker.map(BreakerStanding::from),
            cadence: view.cadence.map(CadenceStanding::from),
            oldest_at: view.oldest,
            blocked: view.blocked,
            dead_letters: view.dead_letters,
            capacity: view.policy.capacity,
            policy: PolicyRow::from(&*view.policy),
        }
    }
}

impl From<&LanePolicy> for PolicyRow {
    fn from(policy: &LanePolicy) -> PolicyRow {
        let throttle = policy.throttle.as_ref().map(|throttle| ThrottleRow {
            max_requests: throttle.max_requests,
            per_ms: ms(throttle.per),
            scope: throttle.scope,
        });
        let breaker = policy.breaker.as_ref().map(|(breaker, scope)| BreakerRow {
            failures: breaker.failures,
            open_ms: ms(breaker.open),
            when_open: breaker.when_open.as_str(),
            scope: *scope,
        });
        let cadence = policy.cadence.as_ref().map(|cadence| CadenceRow {
            initial_ms: ms(cadence.initial),
            min_ms: ms(cadence.min),
            max_ms: ms(cadence.max),
            slow_after_ms: ms(cadence.slow_after),
            step_ms: ms(cadence.step),
            penalty: cadence.penalty,
        });
        PolicyRow {
            attempts: policy.retry.attempts,
            timeout_ms: ms(policy.timeout),
            ttl_ms: policy.ttl.map(ms),
            concurrency: policy.concurrency,
            tenant_concurrency: policy.tenant_concurrency,
            destinations: policy.destinations,
            slow_max: SlowBounds::of(policy).map_or(0, |bounds| bounds.max),
            priority_scope: policy.priority_scope,
            throttle,
            breaker,
            cadence,
            on_exhausted: policy.on_exhausted,
            on_full: policy.on_full,
        }
    }
}

/// List lanes
#[utoipa::path(
    get, path = "/v1/lanes", tag = "lanes", security(("key" = ["admin"])),
    responses((status = 200, description = "All lanes", body = Lanes))
)]
pub(super) async fn list(State(api): State<Arc<Api>>, _: Admin) -> Result<Json<Lanes>, ApiError> {
    let views = api.engine.store().lanes().await?;
    Ok(Json(Lanes { items: views.into_iter().map(LaneRow::from).collect() }))
}

/// Pause a lane
///
/// Nothing new starts in it, also after a restart; attempts under way end as they do.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/pause", tag = "lanes", security(("key" = ["admin"])),
    params(("lane" = String, Path, description = "The lane's name")),
    responses((status = 200, description = "The lane", body = LaneRow))
)]
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    LanePath(lane): LanePath,
) -> Result<Json<LaneRow>, ApiError> {
    set_paused(&api, &who, lane, true).await
}

/// Resume a lane
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/resume", tag = "lanes", security(("key" = ["admin"])),
    params(("lane" = String, Path, description = "The lane's name")),
    responses((status = 200, description = "The lane", body = LaneRow))
)]
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    LanePath(lane): LanePath,
) -> Result<Json<LaneRow>, ApiError> {
    set_paused(&api, &who, lane, false).await
}

async fn set_paused(api: &Api, who: &Principal, lane: LaneName, paused: bool) -> Result<Json<LaneRow>, ApiError> {
    api.engine.store().set_paused(&lane, paused).await?;
    who.audit(if paused { "lane.pause" } else { "lane.resume" }, &lane);
    let view = api.engine.store().lanes().await?.into_iter().find(|view| view.name == lane);
    view.map(|view| Json(LaneRow::from(view))).ok_or(ApiError::NotFound { what: "lane" })
}
