//! The limits of a connector: what they may be.
//! Invariant: limits that pass can be kept and waited for, whoever set them.

use std::time::Duration;

use super::{BadConnector, PutConnectorError, RULES_MAX};
use crate::store::ConnectorLimits;

/// Starts in one interval.
pub const THROTTLE_MAX: u32 = 100_000;
/// The longest interval of a throttle, wait for a turn, and pause of a breaker.
pub const SECONDS_MAX: u64 = 86_400;
/// The longest attempt.
pub const TIMEOUT_MS_MAX: u64 = 300_000;
/// Failures in a row after which a breaker opens.
pub const BREAKER_FAILURES_MAX: u32 = 1_000_000;

/// Refuses limits, or a number of rules, that no connector may have.
pub(super) fn check(limits: &ConnectorLimits, rules: usize) -> Result<(), PutConnectorError> {
    let (day, least) = (Duration::from_secs(SECONDS_MAX), Duration::from_secs(1));
    let longest = Duration::from_millis(TIMEOUT_MS_MAX);
    if let Some((max, per)) = limits.throttle {
        within("throttleMaxRequests", (1..=THROTTLE_MAX).contains(&max), 1, THROTTLE_MAX.into())?;
        within("throttlePerSeconds", (least..=day).contains(&per), 1, SECONDS_MAX)?;
    }
    if let Some((failures, open)) = limits.breaker {
        within("breaker.failures", (1..=BREAKER_FAILURES_MAX).contains(&failures), 1, BREAKER_FAILURES_MAX.into())?;
        within("breaker.openSeconds", !open.is_zero() && open <= day, 1, SECONDS_MAX)?;
    }
    within("throttleWaitSeconds", limits.throttle_wait <= day, 0, SECONDS_MAX)?;
    within("timeoutMs", !limits.timeout.is_zero() && limits.timeout <= longest, 1, TIMEOUT_MS_MAX)?;
    within("classify", rules <= RULES_MAX, 0, RULES_MAX as u64)
}

fn within(field: &'static str, is_within: bool, least: u64, most: u64) -> Result<(), PutConnectorError> {
    match is_within {
        true => Ok(()),
        false => Err(PutConnectorError::Invalid { field, source: BadConnector::Limit { least, most } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_nobody_could_keep_are_refused_with_their_field() {
        let base = ConnectorLimits::default;
        assert!(check(&base(), RULES_MAX).is_ok());
        let second = Duration::from_secs(1);
        let bad = [
            (ConnectorLimits { throttle: Some((0, second)), ..base() }, "throttleMaxRequests"),
            (ConnectorLimits { throttle: Some((1, Duration::ZERO)), ..base() }, "throttlePerSeconds"),
            (ConnectorLimits { throttle_wait: second * 86_401, ..base() }, "throttleWaitSeconds"),
            (ConnectorLimits { breaker: Some((0, second)), ..base() }, "breaker.failures"),
            (ConnectorLimits { breaker: Some((1, Duration::ZERO)), ..base() }, "breaker.openSeconds"),
            (ConnectorLimits { timeout: Duration::ZERO, ..base() }, "timeoutMs"),
        ];
        for (limits, field) in bad {
            let error = check(&limits, 0).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{field}: must be from ")), "{error}");
        }
        assert!(check(&base(), RULES_MAX + 1).is_err());
    }
}
