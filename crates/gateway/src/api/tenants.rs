//! Tenants: fairness figures, and the weight that an operator gives.
//! Invariant: a caller without the scope `admin` sees only its own figures.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::sender::{BadSender, SENDERS_MAX, SenderRule};
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::auth::{Admin, Reader};
use super::body::JsonBody;
use super::page::{Listing, PageQuery};
use super::problem::ApiError;
use super::query::{Params, TextPath};
use entrega::store::{TenantSettings, TenantView};

const WEIGHT_MAX: u32 = 100;

/// A tenant's figures in one lane.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TenantRow {
    /// Who.
    #[schema(value_type = String)]
    company_id: TenantName,
    /// Which of its endpoints, in a lane where each takes turns of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// Where.
    #[schema(value_type = String)]
    lane: LaneName,
    /// Its share of turns.
    weight: u32,
    /// Attempts under way.
    running: u32,
    /// When one of its jobs last started.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    last_processed_at: Option<Time>,
    /// Turns of others since.
    rounds_without_processing: u64,
    /// 1 is most urgent.
    current_priority: u32,
    /// Starts so far.
    total_processed: u64,
    /// Jobs in a row in its current or last turn.
    consecutive_batch_count: u32,
}

/// What an operator sets for a tenant.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Settings {
    /// Its share of turns, in every lane.
    #[schema(minimum = 1, maximum = 100)]
    weight: u32,
    /// Whom it may send mails as: addresses, and domains all of whose addresses are meant. Empty: anybody; left out: as before.
    #[schema(max_items = 100, example = json!(["example.com", "news@example.org"]))]
    senders: Option<Vec<String>>,
}

/// What is set for a tenant.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SettingsRow {
    /// Who.
    #[schema(value_type = String)]
    company_id: TenantName,
    /// Its share of turns.
    weight: u32,
    /// Whom it may send mails as; left out where that is anybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    senders: Vec<String>,
}

impl From<TenantView> for TenantRow {
    fn from(view: TenantView) -> TenantRow {
        let figures = view.figures;
        TenantRow {
            company_id: figures.tenant.company(),
            endpoint: figures.tenant.endpoint_name().map(str::to_owned),
            lane: view.lane,
            weight: figures.weight,
            running: figures.running,
            last_processed_at: figures.last_processed_at,
            rounds_without_processing: figures.rounds_without_processing,
            current_priority: figures.current_priority,
            total_processed: figures.total_processed,
            consecutive_batch_count: figures.consecutive_batch_count,
        }
    }
}

/// List tenants
///
/// One row per tenant and lane that it has used, by name.
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants", security(("key" = ["read"])), params(PageQuery),
    responses((status = 200, description = "A page", body = Listing<TenantRow>))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Reader(who): Reader,
    Params(query): Params<PageQuery>,
) -> Result<Json<Listing<TenantRow>>, ApiError> {
    let page = query.page()?;
    let mut views = api.engine.store().tenants().await?;
    views.retain(|view| who.sees(&view.figures.tenant));
    let rows = views.into_iter().map(TenantRow::from).collect();
    // No name can hold a space.
    let place = |row: &TenantRow| format!("{} {} {}", row.company_id, row.endpoint.as_deref().unwrap_or(""), row.lane);
    Ok(Json(Listing::cut(rows, page, place)))
}

fn read_senders(api: &Api, tenant: &TenantName, given: &[String]) -> Result<Vec<SenderRule>, ApiError> {
    if api.engine.mail().senders(tenant).1 {
        return Err(ApiError::SendersConfigured);
    }
    if given.len() > SENDERS_MAX {
        return Err(ApiError::invalid("senders", format!("{} of them; at most {SENDERS_MAX}", given.len())));
    }
    let read = |(at, text): (usize, &String)| {
        let bad = |error: BadSender| ApiError::invalid(format!("senders[{at}]"), format!("must be {error}"));
        text.parse().map_err(bad)
    };
    given.iter().enumerate().map(read).collect()
}

/// Set a tenant's weight and senders
#[utoipa::path(
    put, path = "/v1/tenants/{tenant}", tag = "tenants", security(("key" = ["admin"])),
    params(("tenant" = String, Path, description = "The tenant's name; it need not have been seen yet")),
    request_body = Settings,
    responses(
        (status = 200, description = "What is set now", body = SettingsRow),
        (status = 409, description = "Its senders are from the configuration", body = super::problem::Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn set(
    State(api): State<Arc<Api>>,
    Admin(who): Admin,
    TextPath(tenant): TextPath,
    JsonBody(settings): JsonBody<Settings>,
) -> Result<Json<SettingsRow>, ApiError> {
    let tenant = TenantName::given(&tenant).map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
    let weight = settings.weight;
    if !(1..=WEIGHT_MAX).contains(&weight) {
        return Err(ApiError::invalid("weight", format!("{weight} is not from 1 to {WEIGHT_MAX}")));
    }
    let senders = settings.senders.map(|given| read_senders(&api, &tenant, &given)).transpose()?;
    api.engine.store().put_tenant(TenantSettings { tenant: tenant.clone(), weight }).await?;
    who.audit("tenant.weight", format_args!("{tenant} {weight}"));
    if let Some(senders) = senders {
        api.engine.store().put_senders(&tenant, senders).await?;
        who.audit("tenant.senders", &tenant);
    }
    let senders = api.engine.mail().senders(&tenant).0.iter().map(ToString::to_string).collect();
    Ok(Json(SettingsRow { company_id: tenant, weight, senders }))
}
