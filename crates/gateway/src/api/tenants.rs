//! Tenants: fairness figures, and the weight and quotas that an operator gives.
//! Invariant: a caller without the scope `admin` sees only its own figures.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::quota::Quotas;
use entrega_core::sender::{BadSender, SENDERS_MAX, SenderRule};
use entrega_core::throttle::THROTTLE_MAX_REQUESTS_MAX;
use entrega_core::time::Time;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::auth::{Admin, Reader};
use super::body::JsonBody;
use super::page::{Listing, PageQuery};
use super::problem::ApiError;
use super::query::{Params, TextPath};
use entrega::store::{TenantSettings, TenantView};

const WEIGHT_MAX: u32 = 100;
/// The most jobs, dead letters or calls that a quota can name.
const COUNT_MAX: u64 = 1_000_000_000;
/// The most bytes: a petabyte.
const BYTES_MAX: u64 = 1_000_000_000_000_000;

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

/// What an operator sets for a tenant; what is left out stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Settings {
    /// Its share of turns, in every lane.
    #[schema(minimum = 1, maximum = 100)]
    weight: Option<u32>,
    /// What it may use up.
    #[serde(default, deserialize_with = "object")]
    quotas: Option<QuotaChanges>,
    /// Whom it may send mails as: addresses, and domains all of whose addresses are meant. Empty: anybody; left out: as before.
    #[schema(max_items = 100, example = json!(["example.com", "news@example.org"]))]
    senders: Option<Vec<String>>,
}

/// Quotas to set; `null` takes one back to its default.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct QuotaChanges {
    /// Waiting jobs in one lane; by default nine tenths of its capacity, and in a lane that pushes out all of it.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u32>, maximum = 1000000000)]
    places: Option<Option<u32>>,
    /// Dead letters that one lane keeps; by default half of its cap.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u32>, maximum = 1000000000)]
    dead_letters: Option<Option<u32>>,
    /// Calls that wait for something at once, such as long polls; by default 256.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u32>, maximum = 1000000000)]
    waiting_calls: Option<Option<u32>>,
    /// Bytes of jobs that have not ended, and of dead letters; by default as many as there is room for.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u64>, maximum = 1000000000000000_i64)]
    stored_bytes: Option<Option<u64>>,
    /// Calls of the API in any second, at each node; by default as many as come.
    #[serde(deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100000)]
    requests_per_second: Option<Option<u32>>,
}

/// Tells a field that is `null` from one that is not there.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Takes an object or `null`: a list of values in the order of the fields would do otherwise.
fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<QuotaChanges>, D::Error> {
    struct Quotas;
    impl<'de> Visitor<'de> for Quotas {
        type Value = Option<QuotaChanges>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with quotas")
        }
        fn visit_unit<E>(self) -> Result<Option<QuotaChanges>, E> {
            Ok(None)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<QuotaChanges>, A::Error> {
            QuotaChanges::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(Quotas)
}

impl QuotaChanges {
    fn apply(self, quotas: Quotas) -> Quotas {
        Quotas {
            places: self.places.unwrap_or(quotas.places),
            dead_letters: self.dead_letters.unwrap_or(quotas.dead_letters),
            waiting_calls: self.waiting_calls.unwrap_or(quotas.waiting_calls),
            stored_bytes: self.stored_bytes.unwrap_or(quotas.stored_bytes),
            requests_per_second: self.requests_per_second.unwrap_or(quotas.requests_per_second),
        }
    }
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
    /// What it may use up.
    quotas: QuotaRow,
    /// Whom it may send mails as; left out where that is anybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    senders: Vec<String>,
}

/// The quotas of a tenant; `null`: the default holds.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct QuotaRow {
    /// Waiting jobs in one lane.
    #[schema(required = true)]
    places: Option<u32>,
    /// Dead letters that one lane keeps.
    #[schema(required = true)]
    dead_letters: Option<u32>,
    /// Calls that wait for something at once.
    #[schema(required = true)]
    waiting_calls: Option<u32>,
    /// Bytes of jobs that have not ended, and of dead letters.
    #[schema(required = true)]
    stored_bytes: Option<u64>,
    /// Calls of the API in any second.
    #[schema(required = true)]
    requests_per_second: Option<u32>,
}

impl From<Quotas> for QuotaRow {
    fn from(quotas: Quotas) -> QuotaRow {
        let Quotas { places, dead_letters, waiting_calls, stored_bytes, requests_per_second } = quotas;
        QuotaRow { places, dead_letters, waiting_calls, stored_bytes, requests_per_second }
    }
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

/// Refuses numbers beyond what can be meant.
fn check(quotas: &Quotas) -> Result<(), ApiError> {
    let rate_max = u64::from(THROTTLE_MAX_REQUESTS_MAX);
    let fields = [
        ("places", quotas.places.map(u64::from), 0, COUNT_MAX),
        ("deadLetters", quotas.dead_letters.map(u64::from), 0, COUNT_MAX),
        ("waitingCalls", quotas.waiting_calls.map(u64::from), 0, COUNT_MAX),
        ("storedBytes", quotas.stored_bytes, 0, BYTES_MAX),
        ("requestsPerSecond", quotas.requests_per_second.map(u64::from), 1, rate_max),
    ];
    for (field, value, least, most) in fields {
        if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
            let detail = format!("{value} is not from {least} to {most}; null takes it back to its default");
            return Err(ApiError::invalid(format!("quotas.{field}"), detail));
        }
    }
    Ok(())
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

/// Set a tenant's weight, quotas and senders
///
/// What is left out stays as it is. Whoever has more than a new quota keeps it, and gets no more in; dead letters past it leave.
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
    JsonBody(changes): JsonBody<Settings>,
) -> Result<Json<SettingsRow>, ApiError> {
    let tenant = TenantName::given(&tenant).map_err(|error| ApiError::invalid("tenant", error.to_string()))?;
    let now = api.engine.store().tenant_settings(&tenant);
    let weight = changes.weight.unwrap_or(now.weight);
    if !(1..=WEIGHT_MAX).contains(&weight) {
        return Err(ApiError::invalid("weight", format!("{weight} is not from 1 to {WEIGHT_MAX}")));
    }
    let quotas = changes.quotas.unwrap_or_default().apply(now.quotas);
    check(&quotas)?;
    let senders = changes.senders.map(|given| read_senders(&api, &tenant, &given)).transpose()?;
    let settings = TenantSettings { tenant: tenant.clone(), weight, quotas };
    api.engine.store().put_tenant(settings).await?;
    if quotas.requests_per_second.is_none() {
        api.rates.forget(&tenant);
    }
    who.audit("tenant.settings", format_args!("{tenant} weight {weight} {quotas:?}"));
    if let Some(senders) = senders {
        api.engine.store().put_senders(&tenant, senders).await?;
        who.audit("tenant.senders", &tenant);
    }
    let senders = api.engine.mail().senders(&tenant).0.iter().map(ToString::to_string).collect();
    Ok(Json(SettingsRow { company_id: tenant, weight, quotas: quotas.into(), senders }))
}
