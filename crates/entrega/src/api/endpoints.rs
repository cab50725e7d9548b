//! Endpoints: where a tenant's webhooks go.
//! Invariant: a caller without the scope `admin` sees and changes only its own tenant's; a secret that was made here is
//! shown once, in the answer that makes it.
//! Never: changes what the configuration says; that would be undone at the next start.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::name::TenantName;
use entrega_core::throttle::Rate;
use entrega_core::time::Time;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Principal, Reader, Sender};
use super::body::JsonBody;
use super::page::{Listing, PageQuery};
use super::problem::ApiError;
use super::query::{EndpointPath, Params, TextPath};
use super::{Api, schema};
use crate::endpoint::{
    BadEndpoint, ENDPOINTS_MAX, EVENT_TYPES_MAX, change_endpoint, check_event_type, check_name, check_secret,
    check_throttle, check_url, new_secret,
};
use crate::seal::Sealed;
use crate::store::{Endpoint, EndpointOrigin, EndpointState};
use crate::upkeep;

/// Why one is disabled that a caller disabled.
const DISABLED_BY_CALLER: &str = "disabled through the API";

/// What an endpoint is to be.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EndpointWish {
    /// Where webhooks go; https, unless the operator opened more.
    #[schema(example = "https://acme.example.com/hooks")]
    url: String,
    /// What they are signed with, 16 to 128 visible characters. Left out, a new endpoint gets one that is made here, and
    /// one that is there keeps its own.
    secret: Option<String>,
    /// `false`: nothing is sent until it is enabled; what is for it waits. `true` if left out.
    enabled: Option<bool>,
    /// `true`: what is for it waits for now.
    paused: Option<bool>,
    /// Which events it gets; all if left out or empty.
    #[schema(max_items = 20, example = json!(["email.sent", "email.failed"]))]
    event_types: Option<Vec<String>>,
    /// How often it is called at most; without a limit of its own if left out or `null`.
    #[schema(value_type = Option<schema::Rate>)]
    throttle: Option<Rate>,
}

/// An endpoint, without its secrets.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRow {
    /// Whose.
    #[schema(value_type = String)]
    pub(super) company_id: TenantName,
    /// Its name.
    pub(super) name: String,
    /// Where webhooks go.
    url: String,
    /// Whether it is called.
    #[schema(value_type = schema::EndpointState)]
    state: EndpointState,
    /// Why it is not.
    #[schema(required = true)]
    reason: Option<String>,
    /// Since when every attempt has failed.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    failing_since: Option<Time>,
    /// Which events it gets; all if empty.
    event_types: Vec<String>,
    /// How often it is called at most; `null`: without a limit of its own.
    #[schema(value_type = Option<schema::Rate>, required = true)]
    throttle: Option<Rate>,
    /// Who set it up: one from the configuration is changed there.
    #[schema(value_type = schema::EndpointOrigin)]
    origin: EndpointOrigin,
    /// How many secrets sign: two during a rotation.
    secrets: usize,
    /// When it was set up.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When anybody last changed it.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

/// An endpoint, and the secret if it was made just now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointSet {
    /// The new secret, shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_…")]
    pub(super) secret: Option<String>,
    #[serde(flatten)]
    pub(super) row: EndpointRow,
}

impl From<&Endpoint> for EndpointRow {
    fn from(endpoint: &Endpoint) -> EndpointRow {
        let endpoint = endpoint.clone();
        EndpointRow {
            company_id: endpoint.tenant,
            name: endpoint.name,
            url: endpoint.url,
            state: endpoint.state,
            reason: endpoint.reason,
            failing_since: endpoint.failing_since,
            event_types: endpoint.event_types,
            throttle: endpoint.throttle,
            origin: endpoint.origin,
            secrets: endpoint.secrets.len(),
            created_at: endpoint.created_at,
            updated_at: endpoint.updated_at,
        }
    }
}

impl EndpointWish {
    /// Refuses what cannot be, naming the field.
    fn check(&mut self, api: &Api) -> Result<(), ApiError> {
        check_url(&api.engine.filter, &self.url).map_err(|error| must_be("url", &error))?;
        if let Some(secret) = &self.secret {
            check_secret(secret).map_err(|error| must_be("secret", &error))?;
        }
        if let Some(event_types) = &mut self.event_types {
            if event_types.len() > EVENT_TYPES_MAX {
                return Err(must_be("eventTypes", &BadEndpoint::EventTypes));
            }
            for (index, event_type) in event_types.iter().enumerate() {
                check_event_type(event_type).map_err(|error| must_be(&format!("eventTypes[{index}]"), &error))?;
            }
            event_types.sort();
            event_types.dedup();
        }
        if let Some(rate) = self.throttle {
            check_throttle(rate, api.engine.lanes.values()).map_err(|error| must_be("throttle", &error))?;
        }
        match (self.enabled, self.paused) {
            (Some(false), Some(true)) => {
                Err(ApiError::invalid("paused", "a disabled endpoint is not called anyway; leave one out"))
            }
            _ => Ok(()),
        }
    }

    /// What it stands at afterwards; what is called again starts with a clean record.
    fn state(&self, kept: Option<&Endpoint>) -> (EndpointState, Option<String>, Option<Time>) {
        let is_same_url = kept.filter(|kept| kept.url == self.url);
        let failing_since = is_same_url.and_then(|kept| kept.failing_since);
        match (self.enabled.unwrap_or(true), self.paused.unwrap_or(false)) {
            (false, _) => {
                let reason =
                    kept.filter(|kept| kept.state == EndpointState::Disabled).and_then(|kept| kept.reason.clone());
                (EndpointState::Disabled, reason.or_else(|| Some(DISABLED_BY_CALLER.into())), failing_since)
            }
            (true, true) => (EndpointState::Paused, None, failing_since),
            (true, false) => {
                let was_called = kept.is_none_or(|kept| kept.state == EndpointState::Enabled);
                (EndpointState::Enabled, None, failing_since.filter(|_| was_called))
            }
        }
    }

    /// Whether it asks for no more than the configuration says, but for the state.
    fn leaves_as_configured(&self, kept: &Endpoint) -> bool {
        let event_types = self.event_types.as_ref();
        self.url == kept.url
            && self.secret.is_none()
            && event_types.is_none_or(|wanted| *wanted == kept.event_types)
            && (self.throttle.is_none() || self.throttle == kept.throttle)
    }

    /// The endpoint that it makes of the one there is, and the secret to show.
    fn made_of(
        &self,
        kept: Option<&Endpoint>,
        api: &Api,
        tenant: &TenantName,
        name: &str,
    ) -> Result<(Endpoint, Option<String>), ApiError> {
        match kept {
            None if api.engine.store.endpoints_of(tenant).len() >= ENDPOINTS_MAX => {
                return Err(ApiError::TooManyEndpoints);
            }
            Some(kept) if kept.origin == EndpointOrigin::Config && !self.leaves_as_configured(kept) => {
                return Err(ApiError::ConfiguredEndpoint);
            }
            _ => {}
        }
        let (secrets, secret) = secrets_after(api, &Endpoint::context_of(tenant, name), self, kept)?;
        let (state, reason, failing_since) = self.state(kept);
        let now = api.engine.clock.now();
        let configured = kept.filter(|kept| kept.origin == EndpointOrigin::Config);
        let (event_types, throttle) = match configured {
            Some(configured) => (configured.event_types.clone(), configured.throttle),
            None => (self.event_types.clone().unwrap_or_default(), self.throttle),
        };
        let endpoint = Endpoint {
            tenant: tenant.clone(),
            name: name.to_owned(),
            secrets,
            state,
            reason,
            failing_since,
            origin: kept.map_or(EndpointOrigin::Api, |kept| kept.origin),
            event_types,
            throttle,
            url: self.url.clone(),
            created_at: kept.map_or(now, |kept| kept.created_at),
            updated_at: now,
            version: kept.map_or(0, |kept| kept.version),
        };
        Ok((endpoint, secret))
    }
}

fn must_be(field: &str, error: &BadEndpoint) -> ApiError {
    ApiError::invalid(field, format!("must be {error}"))
}

pub(super) const NOT_FOUND: ApiError = ApiError::NotFound { what: "endpoint" };

/// The endpoint in the path, if it exists for this caller.
pub(super) fn find(api: &Api, who: &Principal, path: &EndpointPath) -> Result<Arc<Endpoint>, ApiError> {
    let tenant = TenantName::new(&path.tenant).ok().filter(|tenant| who.sees(tenant)).ok_or(NOT_FOUND)?;
    api.engine.store.endpoint(&tenant, &path.name).ok_or(NOT_FOUND)
}

/// The same, where it is to be changed in more than its state.
pub(super) fn find_own(api: &Api, who: &Principal, path: &EndpointPath) -> Result<Arc<Endpoint>, ApiError> {
    let endpoint = find(api, who, path)?;
    match endpoint.origin {
        EndpointOrigin::Config => Err(ApiError::ConfiguredEndpoint),
        EndpointOrigin::Api => Ok(endpoint),
    }
}

/// Which endpoint a caller wants to set; it need not be there.
pub(super) fn place(who: &Principal, path: EndpointPath) -> Result<(TenantName, String), ApiError> {
    let tenant = match TenantName::new(&path.tenant) {
        Ok(tenant) if who.sees(&tenant) => tenant,
        Err(error) if who.is_admin() => return Err(ApiError::invalid("tenant", error.to_string())),
        _ => return Err(NOT_FOUND),
    };
    check_name(&path.name).map_err(|error| must_be("name", &error))?;
    Ok((tenant, path.name))
}

/// The secrets after a change, and the one to show.
fn secrets_after(
    api: &Api,
    context: &str,
    wish: &EndpointWish,
    kept: Option<&Endpoint>,
) -> Result<(Vec<Sealed>, Option<String>), ApiError> {
    let seal = &api.engine.seal;
    match (&wish.secret, kept) {
        (None, Some(kept)) => Ok((kept.secrets.clone(), None)),
        (None, None) => {
            let made = new_secret();
            Ok((vec![seal.seal(&made, context)?], Some(made)))
        }
        (Some(given), kept) => {
            // One that does not open is replaced as well: that is the way out when the key is lost.
            let is_kept = |sealed: &&Sealed| seal.open(sealed, context).is_ok_and(|secret| secret.reveal() == given);
            match kept.filter(|kept| kept.secrets.first().as_ref().is_some_and(is_kept)) {
                Some(kept) => Ok((kept.secrets.clone(), None)),
                None => Ok((vec![seal.seal(given, context)?], None)),
            }
        }
    }
}

/// Set an endpoint
///
/// The whole of it: what is left out has its default, but for the secret. A given secret takes the place of those there
/// were; `rotate` keeps the last one valid beside the new. Of an endpoint from the configuration only `enabled` and
/// `paused` can be set.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/endpoints/{name}", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath), request_body = EndpointWish,
    responses(
        (status = 201, description = "It is new; a secret that was made here is shown this once", body = EndpointSet),
        (status = 200, description = "It was there, and is so now", body = EndpointSet),
        (status = 409, description = "It is from the configuration, or there are too many",
            content_type = "application/problem+json", body = super::problem::Problem),
    )
)]
pub(super) async fn set(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
    JsonBody(mut wish): JsonBody<EndpointWish>,
) -> Result<(StatusCode, Json<EndpointSet>), ApiError> {
    let (tenant, name) = place(&who, path)?;
    wish.check(&api)?;
    let _one_at_a_time = api.endpoint_changes.lock().await;
    let (mut secret, mut status) = (None, StatusCode::OK);
    let change = |kept: Option<&Endpoint>| {
        let (endpoint, to_show) = wish.made_of(kept, &api, &tenant, &name)?;
        (secret, status) = (to_show, if kept.is_none() { StatusCode::CREATED } else { StatusCode::OK });
        Ok::<_, ApiError>(Some(endpoint))
    };
    let endpoint = change_endpoint(&*api.engine.store, &tenant, &name, change).await?.ok_or(NOT_FOUND)?;
    who.audit("endpoint.set", format_args!("{tenant}/{name}"));
    if endpoint.state == EndpointState::Enabled {
        // What waited for it need not wait for upkeep, nor this answer for what waited.
        tokio::spawn(upkeep::let_go(api.engine.clone()));
    }
    Ok((status, Json(EndpointSet { secret, row: EndpointRow::from(&*endpoint) })))
}

/// List a tenant's endpoints
///
/// By name.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints", tag = "endpoints", security(("key" = ["read"])),
    params(("tenant" = String, Path, description = "Whose"), PageQuery),
    responses((status = 200, description = "A page", body = Listing<EndpointRow>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    TextPath(tenant): TextPath,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<EndpointRow>>, ApiError> {
    let page = query.page()?;
    let tenant = TenantName::new(&tenant).ok().filter(|tenant| who.sees(tenant));
    let tenant = tenant.ok_or(ApiError::NotFound { what: "tenant" })?;
    let rows = api.engine.store.endpoints_of(&tenant).iter().map(|endpoint| EndpointRow::from(&**endpoint)).collect();
    Ok(Json(Listing::cut(rows, page, |row: &EndpointRow| row.name.clone())))
}

/// Look at an endpoint
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/endpoints/{name}", tag = "endpoints", security(("key" = ["read"])),
    params(EndpointPath),
    responses((status = 200, description = "It, without its secrets", body = EndpointRow))
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    path: EndpointPath,
) -> Result<Json<EndpointRow>, ApiError> {
    Ok(Json(EndpointRow::from(&*find(&api, &who, &path)?)))
}

/// Remove an endpoint
#[utoipa::path(
    delete, path = "/v1/tenants/{tenant}/endpoints/{name}", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath),
    responses(
        (status = 204, description = "Gone"),
        (status = 409, description = "It is from the configuration",
            content_type = "application/problem+json", body = super::problem::Problem),
    )
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
) -> Result<StatusCode, ApiError> {
    let _one_at_a_time = api.endpoint_changes.lock().await;
    let endpoint = find_own(&api, &who, &path)?;
    if !api.engine.store.remove_endpoint(&endpoint.tenant, &endpoint.name).await? {
        return Err(NOT_FOUND);
    }
    who.audit("endpoint.remove", format_args!("{}/{}", endpoint.tenant, endpoint.name));
    Ok(StatusCode::NO_CONTENT)
}
