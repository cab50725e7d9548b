//! Secrets of endpoints: made anew and forgotten.
//! Invariant: one that is in use signs on beside its successor, until it is forgotten or the next rotation.
//! Never: shows a secret twice.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::Api;
use super::auth::{Principal, Sender};
use super::endpoints::{EndpointRow, EndpointSet, NOT_FOUND, find_own};
use super::problem::{ApiError, Problem};
use super::query::EndpointPath;
use crate::endpoint::{change_endpoint, new_secret};
use crate::seal::Sealed;
use crate::store::Endpoint;

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
    let _one_at_a_time = api.endpoint_changes.lock().await;
    let made = new_secret();
    let seal = &api.engine.seal;
    let secrets = |kept: &Endpoint| {
        let newest = seal.seal(&made, &kept.context())?;
        Ok(std::iter::once(newest).chain(kept.secrets.first().cloned()).collect())
    };
    let row = change_secrets(&api, &who, &path, secrets).await?;
    who.audit("endpoint.rotate", format_args!("{}/{}", row.company_id, row.name));
    Ok(Json(EndpointSet { secret: Some(made), row }))
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
    let _one_at_a_time = api.endpoint_changes.lock().await;
    let secrets = |kept: &Endpoint| Ok(kept.secrets.iter().take(1).cloned().collect());
    let row = change_secrets(&api, &who, &path, secrets).await?;
    who.audit("endpoint.forget-old-secret", format_args!("{}/{}", row.company_id, row.name));
    Ok(Json(row))
}

/// Gives an endpoint other secrets, made of those it has.
async fn change_secrets(
    api: &Api,
    who: &Principal,
    path: &EndpointPath,
    secrets: impl Fn(&Endpoint) -> Result<Vec<Sealed>, ApiError>,
) -> Result<EndpointRow, ApiError> {
    let found = find_own(api, who, path)?;
    let change = |kept: Option<&Endpoint>| {
        let kept = kept.ok_or(NOT_FOUND)?;
        let secrets = secrets(kept)?;
        Ok::<_, ApiError>(Some(Endpoint { secrets, updated_at: api.engine.clock.now(), ..kept.clone() }))
    };
    let endpoint = change_endpoint(&*api.engine.store, &found.tenant, &found.name, change).await?.ok_or(NOT_FOUND)?;
    Ok(EndpointRow::from(&*endpoint))
}
