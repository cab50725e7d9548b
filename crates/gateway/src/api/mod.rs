//! The HTTP API: how programs and people reach an engine.
//! Invariant: every handler is parse, engine or store, convert; every error is a problem document ([`problem`]).
//! Never: decides what becomes of a job, keeps state of its own, or shows one tenant's work to another.
//!
//! # Layout
//! - `server`: connections; `seats`: which one gives way; `traffic`: what they have in memory; `write_timeout`: answers that
//!   are not taken; `auth`: who asks; `caller`, `body`, `query`, `page`: what
//!   was asked; `idempotency`: what a key makes happen once; `waiting`: who is kept waiting; `problem`: what went wrong; `mask`: what is not shown
//! - `jobs`, `submit`, `proxy`, `connectors`, `requests`, `emails` (`mail_view`), `suppressions`, `ses`, `lanes`, `dlq`,
//!   `export`, `replays`, `tenants`, `nodes`, `endpoints` (`secrets`), `deliveries`, `events`, `keys`, `health` (`figures`): the calls, by noun
//! - `openapi`, `schema`: the same calls as a document

mod auth;
mod body;
mod caller;
mod connectors;
mod deliveries;
mod dlq;
mod emails;
mod endpoints;
mod events;
mod export;
mod figures;
mod health;
mod idempotency;
mod jobs;
mod keys;
mod lanes;
mod mail_view;
mod mask;
mod nodes;
mod openapi;
mod page;
mod problem;
mod proxy;
mod query;
mod rates;
mod replays;
mod requests;
mod schema;
mod seats;
mod secrets;
mod server;
mod ses;
mod submit;
mod suppressions;
mod tenants;
mod traffic;
mod waiting;
mod write_timeout;

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderName;
use axum::routing::{delete, get, post, put};
use entrega_call::Shares;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::auth::{hash_key, new_key};
pub use self::openapi::openapi;
pub use self::seats::RESERVED;
pub use self::server::{ServerLimits, WAITING_CALLS_MAX, serve};

use self::problem::ApiError;
use self::rates::RequestRates;
use self::traffic::Traffic;
use self::waiting::WaitingCalls;
use crate::log::Log;
use entrega::engine::Engine;
use entrega::store::{ApiKey, KeyScope};

/// The lane of a job that names none.
const DEFAULT_LANE: &str = "http";
/// The lane of mails.
const MAIL_LANE: &str = "email:send";
/// Listings that are put together at once; each may be as large as a page of the store.
const COMPOSING_MAX: usize = 6;
const COMPOSING_PER_TENANT: usize = 2;
/// The tenant of whoever holds the admin key.
const ADMIN_TENANT: &str = "default";

/// What the API works on.
#[derive(Clone)]
pub struct ApiState {
    /// The engine.
    pub engine: Arc<Engine>,
    /// [`hash_key`] of the admin key; the key itself is not kept.
    pub admin_hash: [u8; 32],
    /// Whether `/metrics` answers without the admin key.
    pub open_metrics: bool,
    /// The header in which callers name the user they act for.
    pub user_header: HeaderName,
    /// The log, for what is counted of it.
    pub log: Option<Log>,
}

impl ApiState {
    /// An API over this engine, with what else is usual.
    pub fn new(engine: Arc<Engine>, admin_hash: [u8; 32]) -> ApiState {
        ApiState { engine, admin_hash, open_metrics: false, user_header: entrega_call::USER_HEADER, log: None }
    }
}

/// What every handler gets.
struct Api {
    engine: Arc<Engine>,
    admin: Arc<ApiKey>,
    open_metrics: bool,
    user_header: HeaderName,
    log: Option<Log>,
    default_lane: LaneName,
    mail_lane: LaneName,
    limits: ServerLimits,
    /// Room for bodies that are larger than most.
    large_bodies: Arc<Semaphore>,
    /// Calls of tenants with a limit.
    rates: RequestRates,
    waiting: WaitingCalls,
    /// Bodies and answers in memory.
    traffic: Arc<Traffic>,
    /// Large answers that are put together at once; others wait.
    composing: Shares,
    /// Ends long polls, so that they do not hold up a shutdown.
    shutdown: CancellationToken,
}

impl Api {
    fn new(state: ApiState, limits: ServerLimits, shutdown: CancellationToken) -> Api {
        let admin = ApiKey {
            id: "admin".into(),
            hash: state.admin_hash,
            tenant: TenantName::new(ADMIN_TENANT).expect("a tenant name"),
            scopes: vec![KeyScope::Admin],
            created_at: Time::ZERO,
        };
        Api {
            engine: state.engine,
            admin: Arc::new(admin),
            open_metrics: state.open_metrics,
            user_header: state.user_header,
            log: state.log,
            default_lane: LaneName::new(DEFAULT_LANE).expect("a lane name"),
            mail_lane: LaneName::new(MAIL_LANE).expect("a lane name"),
            large_bodies: Arc::new(Semaphore::new(limits.large_bodies_max)),
            rates: RequestRates::default(),
            waiting: WaitingCalls::default(),
            // A quarter of the connections is out of any one tenant's reach.
            traffic: Traffic::new(
                limits.in_flight_bytes_max,
                limits.in_flight_bytes_per_tenant,
                limits.connections_max - limits.connections_max / 4,
            ),
            composing: Shares::new(COMPOSING_MAX, COMPOSING_PER_TENANT),
            limits,
            shutdown,
        }
    }

    /// A new id of any kind: made like a job's, so that those of a kind sort by age.
    fn new_id(&self, kind: &str) -> String {
        let id = self.engine.env().chance.job_id(self.engine.env().clock.now()).to_string();
        format!("{kind}_{}", id.trim_start_matches("job_"))
    }
}

/// All routes. Each is also listed in [`openapi()`]; a test compares the two.
fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/jobs", post(submit::submit).get(jobs::list))
        .route("/v1/jobs/{id}", get(jobs::show).delete(jobs::cancel))
        .route("/v1/jobs/{id}/unblock", post(jobs::unblock))
        .route("/v1/jobs/{id}/explain", get(jobs::explain))
        .route("/proxy/{route}", get(proxy::ask_openly))
        .route("/v1/proxy/{route}", post(proxy::ask_with_key))
        .route("/v1/connectors", get(connectors::list))
        .route("/v1/connectors/{id}", put(connectors::set).get(connectors::show).delete(connectors::remove))
        .route("/v1/connectors/{id}/requests", post(requests::send))
        .route("/v1/email/send", post(emails::send))
        .route("/v1/emails", get(emails::list))
        .route("/v1/emails/{id}", get(emails::show))
        .route("/v1/suppressions", get(suppressions::list).post(suppressions::add))
        .route("/v1/suppressions/{address}", delete(suppressions::remove))
        .route("/v1/ses/notifications", post(ses::hear))
        .route("/v1/lanes", get(lanes::list))
        .route("/v1/lanes/{lane}/pause", post(lanes::pause))
        .route("/v1/lanes/{lane}/resume", post(lanes::resume))
        .route("/v1/dlq", get(dlq::list))
        .route("/v1/dlq/stats", get(dlq::stats))
        .route("/v1/dlq/export", get(export::export))
        .route("/v1/dlq/replay", post(replays::start))
        .route("/v1/dlq/{id}", get(dlq::show))
        .route("/v1/dlq/{id}/replay", post(dlq::replay))
        .route("/v1/dlq/{id}/discard", post(dlq::discard))
        .route("/v1/replays", get(replays::list))
        .route("/v1/replays/{id}", get(replays::show))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/tenants", get(tenants::list))
        .route("/v1/tenants/{tenant}", put(tenants::set))
        .route("/v1/tenants/{tenant}/endpoints", get(endpoints::list))
        .route(
            "/v1/tenants/{tenant}/endpoints/{name}",
            put(endpoints::set).get(endpoints::show).delete(endpoints::remove),
        )
        .route("/v1/tenants/{tenant}/endpoints/{name}/test", post(deliveries::test))
        .route("/v1/tenants/{tenant}/endpoints/{name}/deliveries", get(deliveries::list))
        .route("/v1/tenants/{tenant}/endpoints/{name}/discard", post(deliveries::discard))
        .route("/v1/events", get(events::list))
        .route("/v1/tenants/{tenant}/endpoints/{name}/rotate", post(secrets::rotate))
        .route("/v1/tenants/{tenant}/endpoints/{name}/forget-old-secret", post(secrets::forget_old_secret))
        .route("/v1/keys", post(keys::create).get(keys::list))
        .route("/v1/keys/{id}", delete(keys::remove))
        .route("/metrics", get(health::metrics))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/openapi.json", get(openapi::document))
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .fallback(|| async { ApiError::NoRoute })
        .with_state(api)
}
