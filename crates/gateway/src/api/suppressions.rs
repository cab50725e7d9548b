//! Suppressed addresses: whom a tenant does not write to any more.
//! Invariant: a caller without the scope `admin` sees and changes only its own tenant's.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::id::JobId;
use entrega_core::mail::FailureCode;
use entrega_core::mask::mask_address;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::auth::{Reader, Sender};
use super::body::JsonBody;
use super::page::{Listing, page};
use super::problem::ApiError;
use super::query::{Params, TextPath};
use entrega::mail::check_mailbox;
use entrega::store::{Paged, Suppression};

const REASON_CHARS_MAX: usize = 500;

/// Which page, and whose.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SuppressionsQuery {
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
    /// The `nextCursor` of the page before.
    cursor: Option<String>,
    /// Rows on a page; 50 if left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// For which tenant.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TenantQuery {
    /// Of this tenant; another than the key's own needs the scope `admin`.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantName>,
}

/// An address to write to no more.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SuppressionRequest {
    /// The address.
    address: String,
    /// Why; kept for whoever asks later.
    reason: String,
    /// For whom; another tenant than the key's own needs the scope `admin`.
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantName>,
}

/// An address that is not written to any more.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SuppressionRow {
    /// The address.
    address: String,
    /// By whom.
    #[schema(value_type = String)]
    company_id: TenantName,
    /// A mail to it fails with this.
    #[schema(value_type = String, example = "BOUNCE_PERMANENT")]
    code: FailureCode,
    /// Why it is not written to any more.
    reason: String,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    since: Time,
    /// The mail that bounced or was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    outbox_id: Option<JobId>,
}

impl From<Suppression> for SuppressionRow {
    fn from(suppression: Suppression) -> SuppressionRow {
        SuppressionRow {
            address: suppression.address,
            company_id: suppression.tenant,
            code: suppression.code,
            reason: suppression.reason,
            since: suppression.since,
            outbox_id: suppression.outbox_id,
        }
    }
}

/// List suppressed addresses
///
/// By address. They come from bounces and complaints, and from callers.
#[utoipa::path(
    get, path = "/v1/suppressions", tag = "e-mail", security(("key" = ["read"])), params(SuppressionsQuery),
    responses((status = 200, description = "A page", body = Listing<SuppressionRow>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<SuppressionsQuery>,
) -> Result<Json<Listing<SuppressionRow>>, ApiError> {
    let page = page::<String>(query.cursor.as_deref(), query.limit)?;
    let found = api.engine.store().suppressions(&who.acts_for(query.tenant)?, page).await?;
    let items = found.items.into_iter().map(SuppressionRow::from).collect();
    Ok(Json(Listing::of(Paged { items, next: found.next })))
}

/// Suppress an address
///
/// Mails to it fail at once from now on.
#[utoipa::path(
    post, path = "/v1/suppressions", tag = "e-mail", security(("key" = ["send"])), request_body = SuppressionRequest,
    responses((status = 201, description = "It is suppressed", body = SuppressionRow))
)]
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    JsonBody(given): JsonBody<SuppressionRequest>,
) -> Result<(StatusCode, Json<SuppressionRow>), ApiError> {
    let tenant = who.acts_for(given.tenant)?;
    let length = given.reason.chars().count();
    if !(1..=REASON_CHARS_MAX).contains(&length) {
        return Err(ApiError::invalid("reason", format!("{length} characters; say why in 1 to {REASON_CHARS_MAX}")));
    }
    let suppression = Suppression {
        tenant,
        address: check_mailbox("address", &given.address)?.address,
        code: FailureCode::BouncePermanent,
        reason: given.reason,
        since: api.engine.env().clock.now(),
        outbox_id: None,
    };
    api.engine.store().suppress(suppression.clone()).await?;
    who.audit("suppression.add", mask_address(&suppression.address));
    Ok((StatusCode::CREATED, Json(suppression.into())))
}

/// Allow an address again
#[utoipa::path(
    delete, path = "/v1/suppressions/{address}", tag = "e-mail", security(("key" = ["send"])),
    params(("address" = String, Path, description = "The address"), TenantQuery),
    responses((status = 204, description = "It can be written to again"))
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Sender(who): Sender,
    TextPath(address): TextPath,
    Params(query): Params<TenantQuery>,
) -> Result<StatusCode, ApiError> {
    let tenant = who.acts_for(query.tenant)?;
    match api.engine.store().unsuppress(&tenant, &address).await? {
        true => {
            who.audit("suppression.remove", mask_address(&address));
            Ok(StatusCode::NO_CONTENT)
        }
        false => Err(ApiError::NotFound { what: "suppressed address" }),
    }
}
