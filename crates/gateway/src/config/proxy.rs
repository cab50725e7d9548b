//! Proxy routes as an operator says them.
//! Invariant: every route can be asked as it stands here, or has no upstream yet; each has a lane.
//! Never: shows a header's value.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_call::{AddressFilter, check_headers};
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use toml::{Table, Value};

use super::error::ConfigError;
use super::section::{Given, Section};
use entrega::proxy::{CachePolicy, LANE_PREFIX, PROXY, Param, ParamKind, RESERVED, Route, Routes, Template};
use entrega::secret::Secret;
use entrega::webhook::check_url;

const PARAMS_MAX: usize = 16;
const NAME_RULE: &str = "1 to 32 characters of a-z, 0-9, _ and -";

/// Names that are known outside of Entrega, the key that each stands for, and what its number counts. They set the shipped
/// route.
pub(super) const PLAIN_NAMES: [(&str, &[&str], &str); 9] = [
    ("UPSTREAM_URL", &["proxy", "score", "upstream_url"], ""),
    ("CACHE_TTL_SEC", &["proxy", "score", "cache", "ttl"], "s"),
    ("CACHE_STALE_SEC", &["proxy", "score", "cache", "stale"], "s"),
    ("REQUEST_TIMEOUT_MS", &["lanes", "proxy:score", "timeout"], "ms"),
    ("JOB_TTL_MS", &["lanes", "proxy:score", "ttl"], "ms"),
    ("QUEUE_MAX_SIZE", &["lanes", "proxy:score", "capacity"], "count"),
    ("SCHEDULER_INITIAL_INTERVAL_MS", &["lanes", "proxy:score", "cadence", "initial"], "ms"),
    ("BREAKER_FAILURE_THRESHOLD", &["lanes", "proxy:score", "breaker", "failures"], "count"),
    ("BREAKER_OPEN_WINDOW_MS", &["lanes", "proxy:score", "breaker", "open"], "ms"),
];

/// The value of a plain name: a bare number counts what its name says. Anything else is left for whoever reads it.
pub(super) fn plain_value(text: &str, counts: &str) -> Value {
    match (text.trim().parse::<i64>(), counts) {
        (Ok(number), "count") => Value::from(number),
        (Ok(number), "s" | "ms") => Value::from(format!("{number}{counts}")),
        _ => Value::from(text),
    }
}

/// Reads `[proxy]`; upstreams are those that `filter` lets through.
pub(super) fn read(routes: Section<'_>, filter: &AddressFilter) -> Result<Routes, ConfigError> {
    let read = routes.named().map(|(name, given)| {
        let is_name = is_name(&name);
        let lane = LaneName::new(&format!("{LANE_PREFIX}{name}")).ok().filter(|_| is_name);
        let lane = lane.ok_or_else(|| given.must_be(format!("named by {NAME_RULE}")))?;
        let route = read_route(name, lane.clone(), given.section()?, filter)?;
        Ok((lane, route))
    });
    read.collect()
}

/// Every route has a lane, and every lane of the channel a route.
pub(super) fn match_lanes(routes: &Routes, lanes: &mut BTreeMap<LaneName, Arc<LanePolicy>>) -> Result<(), ConfigError> {
    for lane in routes.keys() {
        let policy = lanes.entry(lane.clone()).or_insert_with(|| Arc::new(LanePolicy::proxy()));
        if policy.channel != PROXY.name {
            return Err(ConfigError::NotAProxyLane { lane: lane.clone(), channel: policy.channel.clone() });
        }
    }
    let alone = lanes.iter().find(|(lane, policy)| policy.channel == PROXY.name && !routes.contains_key(*lane));
    alone.map_or(Ok(()), |(lane, _)| Err(ConfigError::LaneWithoutRoute { lane: lane.clone() }))
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    (1..=32).contains(&name.len()) && name.chars().all(is_allowed)
}

fn read_route(
    name: String,
    lane: LaneName,
    mut route: Section<'_>,
    filter: &AddressFilter,
) -> Result<Route, ConfigError> {
    let given = route.need("params", "write params = { name = { type = \"text\" } }")?;
    let params = read_params(given)?;
    let upstream = route.get("upstream_url").filter(|given| !given.text().is_ok_and(|text| text.is_empty()));
    let upstream = upstream.map(|given| read_upstream(&given, &params, filter)).transpose()?;
    let right = "write cache = { key = \"cache:name:{param}\", ttl = \"60s\", stale = \"1h\" }";
    let read = Route {
        upstream,
        headers: route.get("headers").map_or(Ok(Vec::new()), read_headers)?,
        is_public: route.get("public").map_or(Ok(true), |given| given.flag())?,
        cache: read_cache(route.need("cache", right)?.section()?, &params)?,
        name,
        lane,
        params,
    };
    route.finish()?;
    Ok(read)
}

fn read_params(given: Given<'_>) -> Result<Vec<Param>, ConfigError> {
    let bounds = given.must_be(format!("1 to {PARAMS_MAX} parameters, each named by {NAME_RULE}"));
    let reserved = given.must_be(format!("parameters with other names than {}", RESERVED.join(", ")));
    let params = given.section()?.named().map(read_param).collect::<Result<Vec<Param>, ConfigError>>()?;
    if !(1..=PARAMS_MAX).contains(&params.len()) || !params.iter().all(|param| is_name(&param.name)) {
        return Err(bounds);
    }
    if params.iter().any(|param| RESERVED.contains(&param.name.as_str())) {
        return Err(reserved);
    }
    Ok(params)
}

fn read_param((name, given): (String, Given<'_>)) -> Result<Param, ConfigError> {
    let mut param = given.section()?;
    let kind = param
        .get("type")
        .map_or(Ok("text"), |given| given.choice(&[("cpf", "cpf"), ("integer", "integer"), ("text", "text")]))?;
    let pattern = param.get("pattern");
    let kind = match (kind, pattern) {
        ("text", Some(given)) => {
            let right = |error: regex_lite::Error| given.must_be(format!("a regular expression: {error}"));
            ParamKind::text(Some(&given.text()?)).map_err(right)?
        }
        (_, Some(given)) => return Err(given.must_be("left out: only type = \"text\" has a pattern")),
        ("cpf", None) => ParamKind::Cpf,
        ("integer", None) => ParamKind::Integer,
        (_, None) => ParamKind::Text { pattern: None, whole: None },
    };
    let is_required = param.get("required").map_or(Ok(true), |given| given.flag())?;
    param.finish()?;
    Ok(Param { name, kind, is_required })
}

/// A template whose places are all of these.
fn read_template(given: &Given<'_>, fits: impl Fn(&str) -> bool, right: &str) -> Result<Template, ConfigError> {
    let text = given.text()?;
    let template = Template::parse(&text).map_err(|error| given.must_be(error.to_string()))?;
    if let Some(name) = template.names().find(|name| !fits(name)) {
        return Err(given.must_be(format!("a text whose places are {right}; '{name}' is none")));
    }
    Ok(template)
}

fn read_upstream(given: &Given<'_>, params: &[Param], filter: &AddressFilter) -> Result<Template, ConfigError> {
    let is_given = |name: &str| params.iter().any(|param| param.name == name && param.is_required);
    let template = read_template(given, is_given, "required parameters")?;
    let server = template.as_str().splitn(4, '/').take(3).collect::<String>();
    if server.contains('{') {
        return Err(given.must_be("a URL whose places are in its path or its query, not in its host"));
    }
    let example = params.iter().map(|param| (param.name.clone(), "1".to_owned())).collect();
    check_url(filter, &template.fill(&example, str::to_owned)).map_err(|error| given.must_be(error.to_string()))?;
    Ok(template)
}

/// A key that says all that is asked: questions that differ must not share an answer.
fn read_cache(mut cache: Section<'_>, params: &[Param]) -> Result<CachePolicy, ConfigError> {
    let given = cache.need("key", "write key = \"cache:name:{param}\"")?;
    let is_param = |name: &str| params.iter().any(|param| param.name == name);
    let key = read_template(&given, is_param, "parameters")?;
    // Other things are kept beside them.
    if !key.as_str().starts_with("cache:") {
        return Err(given.must_be("a key that begins with \"cache:\""));
    }
    let left_out = params.iter().find(|param| !key.names().any(|name| name == param.name));
    if let Some(param) = left_out {
        return Err(given.must_be(format!("a key that says all that is asked; '{}' is not in it", param.name)));
    }
    let right = "write ttl = \"60s\", stale = \"1h\"";
    let read =
        CachePolicy { key, ttl: cache.need("ttl", right)?.duration()?, stale: cache.need("stale", right)?.duration()? };
    cache.finish()?;
    Ok(read)
}

fn read_headers(given: Given<'_>) -> Result<Vec<(String, Secret)>, ConfigError> {
    let bad = given.hidden_must_be("headers that may be set, such as { authorization = \"Bearer …\" }");
    let mut headers = Vec::new();
    for (name, value) in given.section()?.named() {
        headers.push((name, value.text()?));
    }
    match check_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))).is_ok() {
        true => Ok(headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect()),
        false => Err(bad),
    }
}

/// A route as it is printed.
pub(super) fn table(route: &Route) -> Table {
    let text = |text: &str| Value::from(text);
    let params = route.params.iter().map(|param| {
        let mut table = Table::from_iter([("type".to_owned(), text(&param.kind.to_string()))]);
        if let ParamKind::Text { pattern: Some(pattern), .. } = &param.kind {
            table.insert("pattern".into(), text(pattern));
        }
        table.insert("required".into(), Value::from(param.is_required));
        (param.name.clone(), Value::Table(table))
    });
    let cache = Table::from_iter([
        ("key".to_owned(), text(route.cache.key.as_str())),
        ("ttl".to_owned(), text(&entrega_core::time::format_duration(route.cache.ttl))),
        ("stale".to_owned(), text(&entrega_core::time::format_duration(route.cache.stale))),
    ]);
    let headers = route.headers.iter().map(|(name, _)| (name.clone(), text("***")));
    let mut table = Table::from_iter([
        ("public".to_owned(), Value::from(route.is_public)),
        ("headers".to_owned(), Value::Table(headers.collect())),
        ("params".to_owned(), Value::Table(params.collect())),
        ("cache".to_owned(), Value::Table(cache)),
    ]);
    if let Some(upstream) = &route.upstream {
        table.insert("upstream_url".into(), text(upstream.as_str()));
    }
    table
}
