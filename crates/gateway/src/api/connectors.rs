//! Connectors: third-party APIs, set up and looked at.
//! Invariant: credentials go in and never come out.
//! Never: changes what the configuration says; that would be undone at the next start.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use entrega_core::classify::Rule;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::auth::{Admin, Principal, Reader};
use super::body::JsonBody;
use super::page::{Listing, PageQuery};
use super::problem::ApiError;
use super::query::{Params, TextPath};
use entrega::connector::{Auth, Connector, SECONDS_MAX};
use entrega::store::{ConnectorLimits, OnThrottleTimeout};

/// What a connector is to be.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConnectorBody {
    /// Requests go below it; https, unless the operator opened more.
    #[schema(example = "https://api.example.com/v1")]
    base_url: String,
    /// Its credentials; left out, one that is there keeps its own, as long as scheme, host and port stay the same.
    auth: Option<AuthBody>,
    /// Who alone may use it; everybody if left out.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// In no interval of `throttlePerSeconds` do more calls start, over all nodes.
    #[schema(minimum = 1, maximum = 100_000)]
    throttle_max_requests: Option<u32>,
    /// 1 if left out.
    #[schema(minimum = 1, maximum = 86_400)]
    throttle_per_seconds: Option<u64>,
    /// Whether to go slower where the API asks for it.
    adaptive: Option<bool>,
    /// How long a call waits for its turn; 60 if left out.
    #[schema(maximum = 86_400)]
    throttle_wait_seconds: Option<u64>,
    /// What happens then; `proceed` if left out.
    #[schema(value_type = Option<OnTimeout>)]
    on_throttle_timeout: Option<OnThrottleTimeout>,
    /// When to stop calling it for a while; 5 failures and 30 seconds if left out.
    breaker: Option<BreakerBody>,
    /// One attempt; 30000 if left out.
    #[schema(minimum = 1, maximum = 300_000)]
    timeout_ms: Option<u64>,
    /// What answers mean, before the rules that hold for every connector; the first that fits wins.
    #[schema(value_type = Option<Vec<Object>>, max_items = 50)]
    classify: Option<Vec<Rule>>,
}

/// The credentials of a connector.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schema(as = Auth)]
pub(super) enum AuthBody {
    /// `Authorization: Bearer …`.
    Bearer(String),
    /// `Authorization: Basic …`.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A header of the API's own.
    Header {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
}

impl From<AuthBody> for Auth {
    fn from(given: AuthBody) -> Auth {
        match given {
            AuthBody::Bearer(token) => Auth::Bearer(token),
            AuthBody::Basic { user, password } => Auth::Basic { user, password },
            AuthBody::Header { name, value } => Auth::Header { name, value },
        }
    }
}

/// What happens to a call that waited too long.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "it only describes")]
pub(super) enum OnTimeout {
    /// It goes anyway.
    Proceed,
    /// It fails.
    Fail,
    /// It becomes a job.
    Requeue,
}

/// When to stop calling an API, and for how long.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BreakerBody {
    /// Failures in a row.
    #[schema(minimum = 1)]
    failures: u32,
    /// Then nobody is called for so long.
    #[schema(minimum = 1, maximum = 86_400)]
    open_seconds: u64,
}

/// A connector, without its credentials.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectorRow {
    /// Its name.
    id: String,
    /// Where it begins.
    base_url: String,
    /// `bearer`, `basic`, `header`; `null` without.
    #[schema(required = true)]
    auth: Option<&'static str>,
    /// Who alone may use it.
    #[schema(value_type = Option<String>, required = true)]
    tenant: Option<TenantName>,
    /// `config` or `api`.
    origin: &'static str,
    /// Calls that may start in one interval.
    #[schema(required = true)]
    throttle_max_requests: Option<u32>,
    /// The interval.
    #[schema(required = true)]
    throttle_per_seconds: Option<u64>,
    /// Whether it goes slower where the API asks for it.
    adaptive: bool,
    /// How many calls an adaptive throttle of this node lets start in one interval for now.
    #[schema(required = true)]
    estimate: Option<f64>,
    /// How long a call waits for its turn.
    throttle_wait_seconds: u64,
    /// What happens then.
    #[schema(value_type = OnTimeout)]
    on_throttle_timeout: OnThrottleTimeout,
    /// When it is not called for a while.
    #[schema(required = true)]
    breaker: Option<BreakerBody>,
    /// One attempt.
    timeout_ms: u64,
    /// What answers mean, before the rules that hold for every connector.
    #[schema(value_type = Vec<Object>)]
    classify: Vec<Rule>,
    /// When it was last changed through the API.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    updated_at: Option<Time>,
}

impl ConnectorRow {
    fn of(api: &Api, connector: Connector, updated_at: Option<Time>) -> ConnectorRow {
        let limits = connector.limits;
        let breaker = limits.breaker;
        ConnectorRow {
            estimate: api.engine.connectors().estimate(&connector.id),
            origin: if api.engine.connectors().is_configured(&connector.id) { "config" } else { "api" },
            id: connector.id,
            base_url: connector.base_url,
            auth: connector.auth.as_ref().map(Auth::kind),
            tenant: connector.tenant,
            throttle_max_requests: limits.throttle.map(|(max, _)| max),
            throttle_per_seconds: limits.throttle.map(|(_, per)| per.as_secs()),
            adaptive: limits.adaptive,
            throttle_wait_seconds: limits.throttle_wait.as_secs(),
            on_throttle_timeout: limits.on_throttle_timeout,
            breaker: breaker.map(|(failures, open)| BreakerBody { failures, open_seconds: open.as_secs() }),
            timeout_ms: u64::try_from(limits.timeout.as_millis()).unwrap_or(u64::MAX),
            classify: connector.rules,
            updated_at,
        }
    }
}

impl ConnectorBody {
    fn limits(&self) -> Result<ConnectorLimits, ApiError> {
        let base = ConnectorLimits::default();
        // Without a number of requests nobody else would look at it.
        let per = self.throttle_per_seconds.unwrap_or(1);
        if !(1..=SECONDS_MAX).contains(&per) {
            return Err(ApiError::invalid("throttlePerSeconds", format!("must be from 1 to {SECONDS_MAX}")));
        }
        let wait = self.throttle_wait_seconds.unwrap_or(base.throttle_wait.as_secs());
        let breaker =
            self.breaker.as_ref().map(|breaker| (breaker.failures, Duration::from_secs(breaker.open_seconds)));
        Ok(ConnectorLimits {
            throttle: self.throttle_max_requests.map(|max| (max, Duration::from_secs(per))),
            adaptive: self.adaptive.unwrap_or(base.adaptive),
            throttle_wait: Duration::from_secs(wait),
            on_throttle_timeout: self.on_throttle_timeout.unwrap_or(base.on_throttle_timeout),
            breaker: breaker.or(base.breaker),
            timeout: self.timeout_ms.map_or(base.timeout, Duration::from_millis),
        })
    }
}

/// The connector, if it exists for this caller.
pub(super) fn visible(api: &Api, who: &Principal, id: &str) -> Result<(Arc<Connector>, Option<Time>), ApiError> {
    let found = api.engine.connectors().find(id)?;
    match found.0.tenant.as_ref().is_none_or(|tenant| who.sees(tenant)) {
        true => Ok(found),
        false => Err(ApiError::NotFound { what: "connector" }),
    }
}

/// Set a connector
///
/// A third-party API with its base URL, its credentials, and its limits, which hold over all nodes. A connector of the
/// configuration is changed there.
#[utoipa::path(
    put, path = "/v1/connectors/{id}", tag = "connectors", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "1 to 32 characters of a-z, 0-9, _ and -")),
    request_body = ConnectorBody,
    responses(
        (status = 200, description = "Changed", body = ConnectorRow),
        (status = 201, description = "New", body = ConnectorRow),
        (status = 409, description = "It is from the configuration", body = super::problem::Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn set(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    TextPath(id): TextPath,
    JsonBody(given): JsonBody<ConnectorBody>,
) -> Result<(StatusCode, Json<ConnectorRow>), ApiError> {
    let limits = given.limits()?;
    let rules = given.classify.unwrap_or_default();
    let tenant = given.tenant.map(|tenant| who.acts_for(Some(tenant))).transpose()?;
    let (base_url, auth) = (given.base_url, given.auth.map(Auth::from));
    let is_new =
        api.engine.connectors().put(Connector { id: id.clone(), base_url, auth, tenant, limits, rules }).await?;
    who.audit("connector.set", &id);
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let (connector, updated_at) = api.engine.connectors().find(&id)?;
    Ok((status, Json(ConnectorRow::of(&api, Connector::clone(&connector), updated_at))))
}

/// List connectors
///
/// Those that the caller may use, by name.
#[utoipa::path(
    get, path = "/v1/connectors", tag = "connectors", security(("key" = ["read"])), params(PageQuery),
    responses((status = 200, description = "A page", body = Listing<ConnectorRow>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<ConnectorRow>>, ApiError> {
    let mut all = api.engine.connectors().all();
    all.retain(|(connector, _)| connector.tenant.as_ref().is_none_or(|tenant| who.sees(tenant)));
    let rows = all.into_iter().map(|(connector, updated_at)| ConnectorRow::of(&api, connector, updated_at));
    Ok(Json(Listing::cut(rows.collect(), query.page()?, |row| row.id.clone())))
}

/// Show a connector
#[utoipa::path(
    get, path = "/v1/connectors/{id}", tag = "connectors", security(("key" = ["read"])),
    params(("id" = String, Path, description = "Its name")),
    responses((status = 200, description = "The connector", body = ConnectorRow))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    TextPath(id): TextPath,
) -> Result<Json<ConnectorRow>, ApiError> {
    let (connector, updated_at) = visible(&api, &who, &id)?;
    Ok(Json(ConnectorRow::of(&api, Connector::clone(&connector), updated_at)))
}

/// Remove a connector
///
/// Jobs that are for it fail when their turn comes, and can be replayed once it is there again.
#[utoipa::path(
    delete, path = "/v1/connectors/{id}", tag = "connectors", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "Removed"),
        (status = 409, description = "It is from the configuration", body = super::problem::Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    TextPath(id): TextPath,
) -> Result<StatusCode, ApiError> {
    api.engine.connectors().remove(&id).await?;
    who.audit("connector.remove", &id);
    Ok(StatusCode::NO_CONTENT)
}
