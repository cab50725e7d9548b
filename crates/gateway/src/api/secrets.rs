//! Secrets of endpoints: made anew and forgotten.
//! Invariant: one that is in use signs on beside its successor, until it is forgotten or the next rotation.
//! Never: shows a secret twice.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::Api;
use super::auth::Sender;
use super::endpoints::{EndpointRow, EndpointSet, find};
use super::problem::{ApiError, Problem};
use super::query::EndpointPath;

/// Make a new secret
///
/// The one before it stays valid beside it, until the next rotation or until it is forgotten.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{name}/rotate", tag = "endpoints", security(("key" = ["send"])),
    params(EndpointPath),
    responses(
        (status = 200, description = "The new secret, shown this once", body = EndpointSet),
        (status = 409, description = "It is from the configuration",
            content_type = "application/problem+json", body = Problem),
    )
)]
pub(super) async fn rotate(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
) -> Result<Json<EndpointSet>, ApiError> {
    let found = find(&api, &who, &path)?;
    let put = api.engine.webhooks().rotate_secret(&found.tenant, &found.name).await?;
    who.audit("endpoint.rotate", format_args!("{}/{}", found.tenant, found.name));
    Ok(Json(put.into()))
}

/// Forget the old secret
///
/// Only the newest signs from now on.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/endpoints/{name}/forget-old-secret", tag = "endpoints",
    security(("key" = ["send"])), params(EndpointPath),
    responses(
        (status = 200, description = "It has one secret now", body = EndpointRow),
        (status = 409, description = "It is from the configuration",
            content_type = "application/problem+json", body = Problem),
    )
)]
pub(super) async fn forget_old_secret(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    path: EndpointPath,
) -> Result<Json<EndpointRow>, ApiError> {
    let found = find(&api, &who, &path)?;
    let endpoint = api.engine.webhooks().forget_old_secret(&found.tenant, &found.name).await?;
    who.audit("endpoint.forget-old-secret", format_args!("{}/{}", found.tenant, found.name));
    Ok(Json(EndpointRow::from(&*endpoint)))
}
