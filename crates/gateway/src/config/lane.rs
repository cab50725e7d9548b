//! Lanes: from a table to a policy.
//! Invariant: a policy that leaves here passed [`LanePolicy::check`]; a key left out has the value of its channel's own lane.
//! Never: knows what a channel does.

use std::time::Duration;

use entrega_core::backoff::Backoff;
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::cadence::CadencePolicy;
use entrega_core::classify::{Rule, Statuses, Verdict};
use entrega_core::dialect::Dialect;
use entrega_core::outcome::Protocol;
use entrega_core::policy::{
    CADENCE_PENALTY_MAX, DeadLetterPolicy, Fairness, LanePolicy, OnExhausted, OnFull, Retry, Scope, ThrottlePolicy,
};

use entrega::PRODUCTS;
use entrega::http::HTTP;
use entrega::product::Product;

use super::error::ConfigError;
use super::layer::{RETRY_DOUBLING, RETRY_LISTED};
use super::section::{Given, Section};

pub(super) const SCOPES: [(&str, Scope); 2] = [("lane", Scope::Lane), ("tenant", Scope::Tenant)];
pub(super) const WHEN_OPEN: [(&str, WhenOpen); 2] =
    [(WhenOpen::Hold.as_str(), WhenOpen::Hold), (WhenOpen::Pass.as_str(), WhenOpen::Pass)];
pub(super) const ON_FULL: [(&str, OnFull); 2] = [("refuse", OnFull::Refuse), ("preempt", OnFull::Preempt)];
pub(super) const ON_EXHAUSTED: [(&str, OnExhausted); 2] =
    [("dlq", OnExhausted::Dlq), ("blocked", OnExhausted::Blocked)];
pub(super) const DIALECTS: [(&str, Dialect); 4] = [
    ("http", Dialect::Http),
    ("connector", Dialect::Connector),
    ("webhook", Dialect::Webhook),
    ("email", Dialect::Mail),
];
pub(super) const PROTOCOLS: [(&str, Protocol); 3] =
    [("http", Protocol::Http), ("smtp", Protocol::Smtp), ("ses", Protocol::Ses)];
pub(super) const VERDICTS: [(&str, Verdict); 3] =
    [("success", Verdict::Success), ("retry", Verdict::Retry), ("permanent", Verdict::Permanent)];

/// Reads one lane. Numbers are held against their limits by [`LanePolicy::check`] afterwards.
pub(super) fn read(mut lane: Section<'_>) -> Result<LanePolicy, ConfigError> {
    let product = or(lane.get("channel"), &HTTP, |given| given.choice(&channels()))?;
    let base = (product.policy)();
    let timeout = or(lane.get("timeout"), base.timeout, |given| given.duration())?;
    let concurrency = or(lane.get("concurrency"), base.concurrency, count)?;
    let fairness = or(lane.get("fairness"), base.fairness.clone(), |given| read_fairness(given.section()?))?;
    let tenant_share = (product.tenant_share)(&LanePolicy { concurrency, fairness: fairness.clone(), ..base.clone() });
    let dialect = or(lane.get("dialect"), base.dialect, |given| given.choice(&DIALECTS))?;
    let mut rules = or(lane.get("classify"), Vec::new(), read_rules)?;
    rules.extend(dialect.rules());
    let policy = LanePolicy {
        channel: base.channel,
        retry: or(lane.get("retry"), base.retry, |given| read_retry(given.section()?))?,
        timeout,
        ttl: or(lane.get("ttl"), base.ttl, |given| {
            given.unless_none().map(|given| given.positive_duration()).transpose()
        })?,
        concurrency,
        tenant_concurrency: or(lane.get("tenant_concurrency"), tenant_share, count)?,
        throttle: maybe(lane.get("throttle"), base.throttle, read_throttle)?,
        breaker: maybe(lane.get("breaker"), base.breaker, |breaker| read_breaker(breaker, timeout))?,
        cadence: maybe(lane.get("cadence"), base.cadence, read_cadence)?,
        capacity: or(lane.get("capacity"), base.capacity, count)?,
        on_full: or(lane.get("on_full"), base.on_full, |given| given.choice(&ON_FULL))?,
        on_exhausted: or(lane.get("on_exhausted"), base.on_exhausted, |given| given.choice(&ON_EXHAUSTED))?,
        fairness,
        dialect,
        rules,
        dead_letters: or(lane.get("dead_letters"), base.dead_letters, |given| read_dead_letters(given.section()?))?,
    };
    lane.finish()?;
    Ok(policy)
}

/// What was given, or else the fallback.
fn or<'a, T>(
    given: Option<Given<'a>>,
    fallback: T,
    read: impl FnOnce(Given<'a>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    given.map_or(Ok(fallback), read)
}

/// A table that `none` switches off.
fn maybe<'a, T>(
    given: Option<Given<'a>>,
    fallback: Option<T>,
    read: impl FnOnce(Section<'a>) -> Result<T, ConfigError>,
) -> Result<Option<T>, ConfigError> {
    let Some(given) = given else { return Ok(fallback) };
    given.unless_none().map(|given| read(given.section()?)).transpose()
}

/// The products by the name that a lane gives as its channel.
fn channels() -> Vec<(&'static str, &'static Product)> {
    PRODUCTS.0.iter().map(|product| (product.name, product)).collect()
}

fn count(given: Given<'_>) -> Result<u32, ConfigError> {
    given.number(0..=u32::MAX)
}

fn scope(section: &mut Section<'_>) -> Result<Scope, ConfigError> {
    or(section.get("scope"), Scope::default(), |given| given.choice(&SCOPES))
}

fn read_retry(mut retry: Section<'_>) -> Result<Retry, ConfigError> {
    for listed in RETRY_LISTED {
        retry.exclude(listed, &RETRY_DOUBLING)?;
    }
    let base = LanePolicy::http().retry;
    let attempts = or(retry.get("attempts"), base.attempts, count)?;
    let doubling = read_doubling(&mut retry)?;
    let backoff = or(retry.get("delays"), doubling, |given| {
        let empty = given.must_be("a list of at least one duration, such as [\"1m\", \"5m\"]");
        let delays: Vec<Duration> = given.list()?.iter().map(Given::duration).collect::<Result<_, _>>()?;
        if delays.is_empty() && attempts > 1 { Err(empty) } else { Ok(Backoff::Listed(delays)) }
    })?;
    retry.finish()?;
    Ok(Retry { attempts, backoff })
}

fn read_doubling(retry: &mut Section<'_>) -> Result<Backoff, ConfigError> {
    let seconds = Duration::from_secs;
    Ok(Backoff::Exponential {
        base: or(retry.get("base"), seconds(1), |given| given.duration())?,
        max: or(retry.get("max"), seconds(60), |given| given.duration())?,
        jitter: or(retry.get("jitter"), 0.25, |given| given.fraction(0.0..=1.0))?,
        floor: or(retry.get("floor"), Duration::ZERO, |given| given.duration())?,
    })
}

fn read_throttle(mut throttle: Section<'_>) -> Result<ThrottlePolicy, ConfigError> {
    let right = "write { max_requests = 100, per = \"60s\" }, or \"none\"";
    let policy = ThrottlePolicy {
        max_requests: count(throttle.need("max_requests", right)?)?,
        per: throttle.need("per", right)?.duration()?,
        scope: scope(&mut throttle)?,
    };
    throttle.finish()?;
    Ok(policy)
}

fn read_breaker(mut breaker: Section<'_>, timeout: Duration) -> Result<(BreakerPolicy, Scope), ConfigError> {
    let right = "write { failures = 5, open = \"30s\" }, or \"none\"";
    let policy = BreakerPolicy {
        failures: count(breaker.need("failures", right)?)?,
        open: breaker.need("open", right)?.duration()?,
        probe_timeout: or(breaker.get("probe_timeout"), timeout, |given| given.positive_duration())?,
        when_open: or(breaker.get("when_open"), WhenOpen::default(), |given| given.choice(&WHEN_OPEN))?,
    };
    let scope = scope(&mut breaker)?;
    breaker.finish()?;
    Ok((policy, scope))
}

fn read_cadence(mut cadence: Section<'_>) -> Result<CadencePolicy, ConfigError> {
    let initial = cadence.need("initial", "write { initial = \"1s\" }, or \"none\"")?.positive_duration()?;
    let usual = CadencePolicy::starting_at(initial);
    let policy = CadencePolicy {
        initial,
        min: or(cadence.get("min"), whole_ms(usual.min), |given| match given.positive_duration()? {
            min if min > initial => Err(given.must_be("at most as long as `initial`")),
            min => Ok(min),
        })?,
        max: or(cadence.get("max"), usual.max, |given| match given.duration()? {
            max if max < initial => Err(given.must_be("at least as long as `initial`")),
            max => Ok(max),
        })?,
        slow_after: or(cadence.get("slow_after"), usual.slow_after, |given| given.positive_duration())?,
        step: or(cadence.get("step"), whole_ms(usual.step), |given| given.duration())?,
        penalty: or(cadence.get("penalty"), usual.penalty, |given| given.fraction(1.0..=CADENCE_PENALTY_MAX))?,
    };
    cadence.finish()?;
    Ok(policy)
}

/// Durations in a configuration are whole milliseconds, derived ones too, so that a printed one reads back.
fn whole_ms(length: Duration) -> Duration {
    Duration::from_millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1))
}

fn read_fairness(mut fairness: Section<'_>) -> Result<Fairness, ConfigError> {
    let base = Fairness::default();
    let policy = Fairness {
        enable_round_robin: or(fairness.get("enable_round_robin"), base.enable_round_robin, |given| given.flag())?,
        max_jobs_per_tenant_batch: or(
            fairness.get("max_jobs_per_tenant_batch"),
            base.max_jobs_per_tenant_batch,
            count,
        )?,
        round_robin_base_priority: or(
            fairness.get("round_robin_base_priority"),
            base.round_robin_base_priority,
            count,
        )?,
        priority_increment_per_round: or(
            fairness.get("priority_increment_per_round"),
            base.priority_increment_per_round,
            count,
        )?,
        max_round_robin_priority: or(fairness.get("max_round_robin_priority"), base.max_round_robin_priority, count)?,
    };
    fairness.finish()?;
    Ok(policy)
}

fn read_dead_letters(mut dead: Section<'_>) -> Result<DeadLetterPolicy, ConfigError> {
    let base = DeadLetterPolicy::default();
    let policy = DeadLetterPolicy {
        ttl: or(dead.get("ttl"), base.ttl, |given| given.positive_duration())?,
        cap: or(dead.get("cap"), base.cap, count)?,
    };
    dead.finish()?;
    Ok(policy)
}

pub(super) fn read_rules(given: Given<'_>) -> Result<Vec<Rule>, ConfigError> {
    given.list()?.into_iter().map(|rule| read_rule(rule.section()?)).collect()
}

fn read_rule(mut rule: Section<'_>) -> Result<Rule, ConfigError> {
    let read = Rule {
        status: texts(rule.get("status"), |given| {
            let right = || given.must_be("an HTTP status or a range of them, such as \"503\" or \"500-599\"");
            Statuses::try_from(given.text_or_number()?).map_err(|_| right())
        })?,
        code: texts(rule.get("code"), |given| given.text())?,
        header: rule.get("header").map(|given| given.text()).transpose()?,
        message: rule.get("message").map(|given| given.text()).transpose()?,
        protocol: rule.get("protocol").map(|given| given.choice(&PROTOCOLS)).transpose()?,
        verdict: rule.need("verdict", "write verdict = \"success\", \"retry\" or \"permanent\"")?.choice(&VERDICTS)?,
    };
    rule.finish()?;
    Ok(read)
}

fn texts<T>(
    given: Option<Given<'_>>,
    read: impl Fn(&Given<'_>) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    or(given, Vec::new(), |given| given.list()?.iter().map(read).collect())
}
