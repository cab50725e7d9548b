//! `throttle`, `breaker` and `cadence`: what holds jobs back.

use std::time::Duration;

use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::cadence::CadencePolicy;
use entrega_core::policy::{CADENCE_PENALTY_MAX, Scope, ThrottlePolicy};
use toml::Value;

use super::super::error::ConfigError;
use super::super::section::Section;
use super::super::value::{duration, keys, number, word};
use super::{count, or};

pub(super) const SCOPES: [(&str, Scope); 2] = [("lane", Scope::Lane), ("tenant", Scope::Tenant)];
const WHEN_OPEN: [(&str, WhenOpen); 2] =
    [(WhenOpen::Hold.as_str(), WhenOpen::Hold), (WhenOpen::Pass.as_str(), WhenOpen::Pass)];

fn scope(section: &mut Section<'_>) -> Result<Scope, ConfigError> {
    or(section.get("scope"), Scope::default(), |given| given.choice(&SCOPES))
}

pub(super) fn read_throttle(mut throttle: Section<'_>) -> Result<ThrottlePolicy, ConfigError> {
    let right = "write { max_requests = 100, per = \"60s\" }, or \"none\"";
    let policy = ThrottlePolicy {
        max_requests: count(throttle.need("max_requests", right)?)?,
        per: throttle.need("per", right)?.duration()?,
        scope: scope(&mut throttle)?,
    };
    throttle.finish()?;
    Ok(policy)
}

pub(super) fn throttle(throttle: &ThrottlePolicy) -> Value {
    keys([
        ("max_requests", number(throttle.max_requests)),
        ("per", duration(throttle.per)),
        ("scope", word(&SCOPES, throttle.scope)),
    ])
}

pub(super) fn read_breaker(mut breaker: Section<'_>, timeout: Duration) -> Result<(BreakerPolicy, Scope), ConfigError> {
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

pub(super) fn breaker((breaker, scope): &(BreakerPolicy, Scope)) -> Value {
    keys([
        ("failures", number(breaker.failures)),
        ("open", duration(breaker.open)),
        ("probe_timeout", duration(breaker.probe_timeout)),
        ("when_open", word(&WHEN_OPEN, breaker.when_open)),
        ("scope", word(&SCOPES, *scope)),
    ])
}

pub(super) fn read_cadence(mut cadence: Section<'_>) -> Result<CadencePolicy, ConfigError> {
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

pub(super) fn cadence(cadence: &CadencePolicy) -> Value {
    keys([
        ("initial", duration(cadence.initial)),
        ("min", duration(cadence.min)),
        ("max", duration(cadence.max)),
        ("slow_after", duration(cadence.slow_after)),
        ("step", duration(cadence.step)),
        ("penalty", Value::from(cadence.penalty)),
    ])
}

/// Durations in a configuration are whole milliseconds, derived ones too, so that a printed one reads back.
fn whole_ms(length: Duration) -> Duration {
    Duration::from_millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX).max(1))
}
