//! Endpoints: where the webhooks of each tenant go, as an operator says it.
//! Invariant: every endpoint has a URL that may be called and a secret worth the name.
//! Never: shows a secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_call::AddressFilter;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::sender::{BadSender, SENDERS_MAX, SenderRule};
use entrega_core::throttle::Rate;
use toml::{Table, Value};

use super::error::{ConfigError, Origin};
use super::layer;
use super::section::{Given, Section};
use entrega::mail::Senders;
use entrega::secret::Secret;
use entrega::webhook::{
    BadEndpoint, ENDPOINTS_MAX, EVENT_TYPES_MAX, EndpointConfig, check_event_type, check_name, check_secret,
    check_throttle, check_url,
};

/// The endpoint that the plain names set.
const DEFAULT_NAME: &str = "default";
/// What the plain names begin with, the company follows; and the key that each stands for.
const PLAIN_NAMES: [(&str, &str); 2] = [("WEBHOOK_URL_", "url"), ("WEBHOOK_SECRET_", "secret")];

/// The layer of a variable such as `WEBHOOK_URL_ACME`; `None` if it is none of these.
pub(super) fn from_variable(name: &str, text: &str) -> Option<Table> {
    let (company, key) =
        PLAIN_NAMES.iter().find_map(|(prefix, key)| Some((name.strip_prefix(prefix)?.to_ascii_lowercase(), *key)))?;
    let value = Value::from(text);
    (!text.is_empty()).then(|| layer::at(&["tenants", &company, "endpoints", DEFAULT_NAME, key], value))
}

/// What endpoints are held against.
pub(super) struct EndpointRules<'a> {
    /// Which URLs may be called.
    pub(super) filter: AddressFilter,
    /// The lanes there are.
    pub(super) lanes: &'a BTreeMap<LaneName, Arc<LanePolicy>>,
}

/// Reads `[tenants]`: where their webhooks go, and whom they may send mails as.
pub(super) fn read(
    tenants: Section<'_>,
    rules: &EndpointRules<'_>,
) -> Result<(Vec<EndpointConfig>, Senders), ConfigError> {
    let (mut endpoints, mut senders) = (Vec::new(), Senders::new());
    for (name, given) in tenants.named() {
        let origin = given.origin();
        let tenant = TenantName::given(&name).map_err(|source| ConfigError::BadTenantName { origin, source })?;
        let mut settings = given.section()?;
        if let Some(given) = settings.get("endpoints") {
            endpoints.extend(read_endpoints(&tenant, given, rules)?);
        }
        if let Some(given) = settings.get("senders") {
            senders.insert(tenant, read_senders(given)?.into());
        }
        settings.finish()?;
    }
    Ok((endpoints, senders))
}

fn read_senders(given: Given<'_>) -> Result<Vec<SenderRule>, ConfigError> {
    let bad = given.must_be(format!("a list of 1 to {SENDERS_MAX} addresses or domains"));
    let listed = given.list()?;
    if !(1..=SENDERS_MAX).contains(&listed.len()) {
        return Err(bad);
    }
    let read = |given: &Given<'_>| given.text()?.parse().map_err(|error: BadSender| given.must_be(error.to_string()));
    listed.iter().map(read).collect()
}

fn read_endpoints(
    tenant: &TenantName,
    given: Given<'_>,
    rules: &EndpointRules<'_>,
) -> Result<Vec<EndpointConfig>, ConfigError> {
    let origin = given.origin();
    let named: Vec<_> = given.section()?.named().collect();
    if named.len() > ENDPOINTS_MAX {
        return Err(ConfigError::TooManyEndpoints { tenant: tenant.clone(), origin, most: ENDPOINTS_MAX });
    }
    named.into_iter().map(|(name, given)| read_endpoint(tenant, name, given, rules)).collect()
}

fn read_endpoint(
    tenant: &TenantName,
    name: String,
    given: Given<'_>,
    rules: &EndpointRules<'_>,
) -> Result<EndpointConfig, ConfigError> {
    let origin = given.origin();
    check_name(&name).map_err(|source| ConfigError::BadEndpointName { tenant: tenant.clone(), origin, source })?;
    let mut endpoint = given.section()?;
    let (url, secret) = match (endpoint.get("url"), endpoint.get("secret")) {
        (Some(url), Some(secret)) => (url, secret),
        (given, other) => return Err(half(tenant, &name, given.is_none(), given.or(other))),
    };
    let (url_text, secret_text) = (url.text()?, secret.text()?);
    check_url(&rules.filter, &url_text).map_err(|error| url.must_be(error.to_string()))?;
    check_secret(&secret_text).map_err(|error| secret.hidden_must_be(error.to_string()))?;
    let read = EndpointConfig {
        tenant: tenant.clone(),
        name,
        url: url_text,
        secret: Secret::new(secret_text),
        event_types: endpoint.get("event_types").map_or(Ok(Vec::new()), read_event_types)?,
        throttle: read_throttle(endpoint.get("throttle"), rules)?,
        enabled: endpoint.get("enabled").map_or(Ok(true), |given| given.flag())?,
    };
    endpoint.finish()?;
    Ok(read)
}

fn read_throttle(given: Option<Given<'_>>, rules: &EndpointRules<'_>) -> Result<Option<Rate>, ConfigError> {
    let Some(given) = given.and_then(Given::unless_none) else { return Ok(None) };
    let bad = |error: BadEndpoint| given.must_be(error.to_string());
    let [range, turns] = [BadEndpoint::Throttle, BadEndpoint::ThrottleNeedsTurns].map(bad);
    let right = "write { max_requests = 10, per = \"1s\" }, or \"none\"";
    let mut throttle = given.section()?;
    let max_requests = throttle.need("max_requests", right)?.number(0..=u32::MAX)?;
    let per = throttle.need("per", right)?.duration()?;
    throttle.finish()?;
    let rate = Rate { max_requests, per_ms: u64::try_from(per.as_millis()).unwrap_or(u64::MAX) };
    match check_throttle(rate, rules.lanes.values()) {
        Ok(()) => Ok(Some(rate)),
        Err(BadEndpoint::ThrottleNeedsTurns) => Err(turns),
        Err(_) => Err(range),
    }
}

/// The error for an endpoint of which only one half, or neither, was given.
fn half(tenant: &TenantName, name: &str, lacks_url: bool, given: Option<Given<'_>>) -> ConfigError {
    let key = if lacks_url { "url" } else { "secret" };
    let origin = given.map(|given| given.origin());
    // Whoever gave one half as a plain name looks for the other half there.
    let plain = PLAIN_NAMES.iter().find(|(_, other)| *other == key).map(|(prefix, _)| prefix);
    let company = match &origin {
        Some(Origin::Env(variable)) => {
            PLAIN_NAMES.iter().find_map(|(prefix, _)| variable.strip_prefix(prefix)).map(str::to_owned)
        }
        _ => None,
    };
    let endpoint = layer::join(&layer::join(&layer::join("tenants", tenant.as_str()), "endpoints"), name);
    let missing = match (plain, company) {
        (Some(prefix), Some(company)) => format!("{prefix}{company}"),
        _ => layer::join(&endpoint, key),
    };
    ConfigError::HalfEndpoint { origin, missing, endpoint }
}

fn read_event_types(given: Given<'_>) -> Result<Vec<String>, ConfigError> {
    let too_many = given.must_be(BadEndpoint::EventTypes.to_string());
    let list = given.list()?;
    if list.len() > EVENT_TYPES_MAX {
        return Err(too_many);
    }
    let read = |given: Given<'_>| {
        let text = given.text()?;
        check_event_type(&text).map_err(|error| given.must_be(error.to_string()))?;
        Ok(text)
    };
    let mut event_types: Vec<String> = list.into_iter().map(read).collect::<Result<_, ConfigError>>()?;
    event_types.sort();
    event_types.dedup();
    Ok(event_types)
}
