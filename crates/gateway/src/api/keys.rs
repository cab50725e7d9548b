//! Keys: made, listed, removed.
//! Invariant: a key is shown once, in the answer that makes it; afterwards only its hash is known.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Admin, hash_key, new_key};
use super::body::JsonBody;
use super::page::{Listing, PageQuery};
use super::problem::{ApiError, Problem};
use super::query::{Params, TextPath};
use super::{Api, schema};
use entrega::store::{ApiKey, KeyScope};

/// A key to make.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct KeyRequest {
    /// Whose work it may do.
    #[schema(value_type = String)]
    tenant: TenantName,
    /// What it may do.
    #[schema(value_type = Vec<schema::KeyScope>, min_items = 1)]
    scopes: Vec<KeyScope>,
}

/// A new key, shown this once.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewKey {
    /// The key itself.
    #[schema(example = "ek_…")]
    key: String,
    #[serde(flatten)]
    row: KeyRow,
}

/// A key, without the key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeyRow {
    /// Names it.
    #[schema(example = "key_01J9Z3K5V84NQW6R7T2Y0X1ABC")]
    id: String,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    tenant: TenantName,
    /// What it may do.
    #[schema(value_type = Vec<schema::KeyScope>)]
    scopes: Vec<KeyScope>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
}

impl From<ApiKey> for KeyRow {
    fn from(key: ApiKey) -> KeyRow {
        KeyRow { id: key.id, tenant: key.tenant, scopes: key.scopes, created_at: key.created_at }
    }
}

/// Make a key
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])), request_body = KeyRequest,
    responses(
        (status = 201, description = "The key, shown this once", body = NewKey),
        (status = 409, description = "The tenant has as many as it may: 200", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    JsonBody(given): JsonBody<KeyRequest>,
) -> Result<(StatusCode, Json<NewKey>), ApiError> {
    let mut scopes = given.scopes;
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(ApiError::invalid("scopes", "give at least one of send, read, metrics, admin"));
    }
    let secret = new_key();
    let key = ApiKey {
        id: api.new_id("key"),
        hash: hash_key(&secret),
        tenant: who.acts_for(Some(given.tenant))?,
        scopes,
        created_at: api.engine.env().clock.now(),
    };
    api.engine.store().put_key(key.clone()).await?;
    who.audit("key.create", &key.id);
    Ok((StatusCode::CREATED, Json(NewKey { key: secret, row: key.into() })))
}

/// List keys
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])), params(PageQuery),
    responses((status = 200, description = "A page", body = Listing<KeyRow>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _: Admin,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<KeyRow>>, ApiError> {
    let page = query.page()?;
    Ok(Json(Listing::of(api.engine.store().keys(page).await?).map(KeyRow::from)))
}

/// Remove a key
///
/// It is refused from now on.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", tag = "keys", security(("key" = ["admin"])),
    params(("id" = String, Path, description = "The key's id")),
    responses((status = 204, description = "Gone"))
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    TextPath(id): TextPath,
) -> Result<StatusCode, ApiError> {
    if !api.engine.store().remove_key(&id).await? {
        return Err(ApiError::NotFound { what: "key" });
    }
    who.audit("key.remove", &id);
    Ok(StatusCode::NO_CONTENT)
}
