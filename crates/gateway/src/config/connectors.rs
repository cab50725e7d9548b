//! Connectors as an operator says them.
//! Invariant: every connector can be called as it stands here, and has a lane.
//! Never: shows credentials.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::AddressFilter;
use entrega_core::classify::Rule;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::time::format_duration;
use toml::{Table, Value};

use super::error::ConfigError;
use super::lane;
use super::section::{Given, Section};
use entrega::connector::{
    Auth, BREAKER_FAILURES_MAX, CONNECTOR, Connector, LANE_PREFIX, RULES_MAX, SECONDS_MAX, THROTTLE_MAX,
    check_base_url, check_id,
};
use entrega::store::{ConnectorLimits, OnThrottleTimeout};

const ON_THROTTLE_TIMEOUT: [(&str, OnThrottleTimeout); 3] = [
    ("proceed", OnThrottleTimeout::Proceed),
    ("fail", OnThrottleTimeout::Fail),
    ("requeue", OnThrottleTimeout::Requeue),
];

/// Reads `[connectors]`; base URLs are those that `filter` lets through.
pub(super) fn read(connectors: Section<'_>, filter: &AddressFilter) -> Result<Vec<Connector>, ConfigError> {
    let read = connectors.named().map(|(id, given)| {
        check_id(&id).map_err(|error| given.must_be(format!("named by {error}")))?;
        read_connector(id, given.section()?, filter)
    });
    read.collect()
}

/// Every configured connector has a lane.
pub(super) fn match_lanes(
    connectors: &[Connector],
    lanes: &mut BTreeMap<LaneName, Arc<LanePolicy>>,
) -> Result<(), ConfigError> {
    for connector in connectors {
        let lane = LaneName::new(&format!("{LANE_PREFIX}{}", connector.id)).expect("an id is short");
        let policy = lanes.entry(lane.clone()).or_insert_with(|| Arc::new(LanePolicy::connector()));
        if policy.channel != CONNECTOR.name {
            return Err(ConfigError::NotAConnectorLane { lane, channel: policy.channel.clone() });
        }
    }
    Ok(())
}

fn read_connector(id: String, mut section: Section<'_>, filter: &AddressFilter) -> Result<Connector, ConfigError> {
    let url = section.need("base_url", "write base_url = \"https://api.example.com\"")?;
    let base_url = url.text()?;
    check_base_url(filter, &base_url).map_err(|error| url.must_be(error.to_string()))?;
    let read = Connector {
        id,
        base_url,
        auth: section.get("auth").map(read_auth).transpose()?,
        tenant: section.get("tenant").map(read_tenant).transpose()?,
        rules: section.get("classify").map_or(Ok(Vec::new()), read_rules)?,
        limits: read_limits(&mut section)?,
    };
    section.finish()?;
    Ok(read)
}

fn read_rules(given: Given<'_>) -> Result<Vec<Rule>, ConfigError> {
    let too_many = given.must_be(format!("a list of at most {RULES_MAX} rules"));
    let rules = lane::rules::read(given)?;
    if rules.len() > RULES_MAX { Err(too_many) } else { Ok(rules) }
}

fn read_tenant(given: Given<'_>) -> Result<TenantName, ConfigError> {
    let text = given.text()?;
    TenantName::given(&text).map_err(|error| given.must_be(error.to_string()))
}

/// `{ bearer = "…" }`, `{ user = "…", password = "…" }` or `{ header = "…", value = "…" }`.
fn read_auth(given: Given<'_>) -> Result<Auth, ConfigError> {
    let right = "one of { bearer = \"…\" }, { user = \"…\", password = \"…\" } and { header = \"…\", value = \"…\" }, \
                 in characters that a header can hold";
    let bad = given.hidden_must_be(right);
    let mut section = given.section()?;
    let mut text = |key| section.get(key).map(|given| given.text()).transpose();
    let [bearer, user, password, header, value] =
        [text("bearer")?, text("user")?, text("password")?, text("header")?, text("value")?];
    section.finish()?;
    let auth = match (bearer, user, password, header, value) {
        (Some(token), None, None, None, None) => Auth::Bearer(token),
        (None, Some(user), Some(password), None, None) => Auth::Basic { user, password },
        (None, None, None, Some(name), Some(value)) => Auth::Header { name, value },
        _ => return Err(bad),
    };
    if auth.credentials().is_ok() { Ok(auth) } else { Err(bad) }
}

fn read_limits(section: &mut Section<'_>) -> Result<ConnectorLimits, ConfigError> {
    let base = ConnectorLimits::default();
    let max = section.get("throttle_max_requests").map(|given| given.number(1..=THROTTLE_MAX)).transpose()?;
    let per = section.get("throttle_per_seconds").map_or(Ok(1), |given| given.number(1..=SECONDS_MAX))?;
    let breaker = match section.get("breaker") {
        Some(given) => given.unless_none().map(read_breaker).transpose()?,
        None => base.breaker,
    };
    Ok(ConnectorLimits {
        throttle: max.map(|max| (max, Duration::from_secs(per))),
        adaptive: section.get("adaptive").map_or(Ok(base.adaptive), |given| given.flag())?,
        throttle_wait: section.get("throttle_wait").map_or(Ok(base.throttle_wait), |given| given.duration())?,
        on_throttle_timeout: section
            .get("on_throttle_timeout")
            .map_or(Ok(base.on_throttle_timeout), |given| given.choice(&ON_THROTTLE_TIMEOUT))?,
        breaker,
        timeout: section.get("timeout").map_or(Ok(base.timeout), |given| given.positive_duration())?,
    })
}

fn read_breaker(given: Given<'_>) -> Result<(u32, Duration), ConfigError> {
    let right = "write { failures = 5, open = \"30s\" }, or \"none\"";
    let mut section = given.section()?;
    let failures = section.need("failures", right)?.number(1..=BREAKER_FAILURES_MAX)?;
    let open = section.need("open", right)?.positive_duration()?;
    section.finish()?;
    Ok((failures, open))
}

/// A connector as it is printed.
pub(super) fn table(connector: &Connector) -> Table {
    let text = |text: &str| Value::from(text);
    let duration = |length| Value::from(format_duration(length));
    let limits = &connector.limits;
    let word = ON_THROTTLE_TIMEOUT.iter().find(|(_, meaning)| *meaning == limits.on_throttle_timeout);
    let breaker = limits.breaker.map_or_else(
        || text("none"),
        |(failures, open)| {
            let keys = [("failures".to_owned(), Value::from(i64::from(failures))), ("open".to_owned(), duration(open))];
            Value::Table(Table::from_iter(keys))
        },
    );
    let mut table = Table::from_iter([
        ("base_url".to_owned(), text(&connector.base_url)),
        ("adaptive".to_owned(), Value::from(limits.adaptive)),
        ("throttle_wait".to_owned(), duration(limits.throttle_wait)),
        ("on_throttle_timeout".to_owned(), text(word.map_or("proceed", |(word, _)| *word))),
        ("breaker".to_owned(), breaker),
        ("timeout".to_owned(), duration(limits.timeout)),
        ("classify".to_owned(), Value::Array(connector.rules.iter().map(lane::rules::print).collect())),
    ]);
    if let Some((max, per)) = limits.throttle {
        table.insert("throttle_max_requests".into(), Value::from(i64::from(max)));
        table.insert("throttle_per_seconds".into(), Value::from(i64::try_from(per.as_secs()).unwrap_or(i64::MAX)));
    }
    if let Some(tenant) = &connector.tenant {
        table.insert("tenant".into(), text(tenant.as_str()));
    }
    if let Some(auth) = &connector.auth {
        let hidden = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), text("***"))).collect::<Table>();
        let keys: &[&str] = match auth {
            Auth::Bearer(_) => &["bearer"],
            Auth::Basic { .. } => &["user", "password"],
            Auth::Header { .. } => &["header", "value"],
        };
        table.insert("auth".into(), Value::Table(hidden(keys)));
    }
    table
}
