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
use entrega::store::{Endpoint, EndpointOrigin, EndpointState};
use entrega::webhook::{EndpointPut, EndpointRequest, check_name};

/// What an endpoint is to be.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EndpointBody {
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
    /// The tenant that it belongs to.
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

impl From<EndpointBody> for EndpointRequest {
    fn from(given: EndpointBody) -> EndpointRequest {
        let EndpointBody { url, secret, enabled, paused, event_types, throttle } = given;
        EndpointRequest { url, secret, enabled, paused, event_types, throttle }
    }
}

impl From<EndpointPut> for EndpointSet {
    fn from(put: EndpointPut) -> EndpointSet {
        EndpointSet { secret: put.secret, row: EndpointRow::from(&*put.endpoint) }
    }
}

pub(super) const NOT_FOUND: ApiError = ApiError::NotFound { what: "endpoint" };

/// The endpoint in the path, if it exists for this caller.
pub(super) fn find(api: &Api, who: &Principal, path: &EndpointPath) -> Result<Arc<Endpoint>, ApiError> {
    let tenant = TenantName::new(&path.tenant).ok().filter(|tenant| who.sees(tenant)).ok_or(NOT_FOUND)?;
    api.engine.store().endpoint(&tenant, &path.name).ok_or(NOT_FOUND)
}

/// Which endpoint a caller wants to set; it need not be there.
pub(super) fn place(who: &Principal, path: EndpointPath) -> Result<(TenantName, String), ApiError> {
    let tenant = match TenantName::given(&path.tenant) {
        Ok(tenant) if who.sees(&tenant) => tenant,
        Err(error) if who.is_admin() => return Err(ApiError::invalid("tenant", error.to_string())),
        _ => return Err(NOT_FOUND),
    };
    check_name(&path.name).map_err(|error| ApiError::invalid("name", format!("must be {error}")))?;
    Ok((tenant, path.name))
}

/// Set an endpoint
///
/// The whole of it: what is left out has its default, but for the secret. A given secret takes the place of those there
/// were; `rotate` keeps the last one valid beside the new. Of an endpoint from the configuration only `enabled` and
/// `paused` can be set.
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}/endpoints/{name}", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath), request_body = EndpointBody,
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
    JsonBody(given): JsonBody<EndpointBody>,
) -> Result<(StatusCode, Json<EndpointSet>), ApiError> {
    let (tenant, name) = place(&who, path)?;
    let put = api.engine.webhooks().put(&tenant, &name, given.into()).await?;
    who.audit("endpoint.set", format_args!("{tenant}/{name}"));
    let status = if put.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(put.into())))
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
    let rows = api.engine.store().endpoints_of(&tenant).iter().map(|endpoint| EndpointRow::from(&**endpoint)).collect();
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
    let endpoint = find(&api, &who, &path)?;
    api.engine.webhooks().remove(&endpoint.tenant, &endpoint.name).await?;
    who.audit("endpoint.remove", format_args!("{}/{}", endpoint.tenant, endpoint.name));
    Ok(StatusCode::NO_CONTENT)
}
