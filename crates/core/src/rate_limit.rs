//! Rate limits as destinations announce them in the headers of their answers.
//! Invariant: whatever the headers say, a reset is at most a day away and a window at least a second long.
//! Never: waits or decides; [`crate::adaptive`] learns from what is read here.
//!
//! Four ways of saying it are in use, and all are read:
//! - `RateLimit: "default";r=50;t=30` with `RateLimit-Policy: "default";q=100;w=60` (the IETF draft as it is now)
//! - `RateLimit: limit=100, remaining=50, reset=30` with `RateLimit-Policy: 100;w=60` (older drafts)
//! - `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` (older still)
//! - `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset`, the reset in seconds from now or since 1970

use std::time::Duration;

use http::HeaderMap;

use crate::policy::RETRY_AFTER_MAX;
use crate::time::Time;

/// More than any honest header has; a stranger could otherwise make us read for long.
const VALUE_BYTES_MAX: usize = 1024;
/// The most limits of one header that are looked at.
const ITEMS_MAX: usize = 16;
/// A reset above this is a date in seconds since 1970, for no window is thirty years long.
const EPOCH_SECONDS_MIN: f64 = 1e9;
/// And above this one in milliseconds.
const EPOCH_MILLIS_MIN: f64 = 1e12;

/// So many calls in a window of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// How many.
    pub calls: u64,
    /// In how long.
    pub window: Duration,
}

/// What an answer says about its destination's limit. Of several limits, the one with the least left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// How many calls are left until the reset.
    pub remaining: Option<u64>,
    /// How long until there are more.
    pub reset: Option<Duration>,
    /// The rule behind it.
    pub quota: Option<Quota>,
}

impl RateLimit {
    /// Reads the headers of an answer that came at `now`; `None` when they say nothing that can be used.
    pub fn from_headers(headers: &HeaderMap, now: Time) -> Option<RateLimit> {
        let found = structured(headers)
            .or_else(|| separate(headers, ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"], now))
            .or_else(|| separate(headers, ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"], now))?;
        let quota = found.quota.or_else(|| policy(headers, None));
        let said = RateLimit { quota, ..found };
        (said != RateLimit::default()).then_some(said)
    }
}

/// `RateLimit` itself, in its present and its older form.
fn structured(headers: &HeaderMap) -> Option<RateLimit> {
    let value = text(headers, "ratelimit")?;
    if !value.trim_start().starts_with('"') {
        let field = |name| items(value).find_map(|item| number(parameter(item, name)?));
        let (remaining, reset) = (field("remaining").map(|left| left as u64), field("reset").map(bounded_seconds));
        let says_something = remaining.is_some() || reset.is_some();
        return says_something.then_some(RateLimit { remaining, reset, quota: None });
    }
    let left = |item: &&str| number(parameter(item, "r")?).map(|left| left as u64);
    // The least left; of equals the one that lasts longest.
    let tightest = items(value).filter(|item| left(item).is_some()).min_by_key(|item| {
        let reset = parameter(item, "t").and_then(number).map(bounded_seconds);
        (left(item), std::cmp::Reverse(reset))
    })?;
    Some(RateLimit {
        remaining: left(&tightest),
        reset: parameter(tightest, "t").and_then(number).map(bounded_seconds),
        quota: policy(headers, Some(name(tightest))),
    })
}

/// Three headers, one number each. A list in the first one holds the quota: `100, 100;w=60`.
fn separate(headers: &HeaderMap, names: [&str; 3], now: Time) -> Option<RateLimit> {
    let [limit, remaining, reset] = names.map(|name| text(headers, name));
    if limit.is_none() && remaining.is_none() && reset.is_none() {
        return None;
    }
    Some(RateLimit {
        remaining: remaining.and_then(number).map(|left| left as u64),
        reset: reset.and_then(number).map(|reset| reset_from(reset, now)),
        quota: limit.and_then(|limit| only(items(limit).filter_map(quota))),
    })
}

/// The quota of `RateLimit-Policy` under that name, or the only one there is. Of several without a name that fits, none
/// is known to be the one that counts.
fn policy(headers: &HeaderMap, wanted: Option<&str>) -> Option<Quota> {
    let value = text(headers, "ratelimit-policy")?;
    let named = || items(value).find(|item| Some(name(item)) == wanted).and_then(quota);
    named().or_else(|| only(items(value).filter_map(quota)))
}

/// `100;w=60` or `"name";q=100;w=60`.
fn quota(item: &str) -> Option<Quota> {
    let calls = parameter(item, "q").or_else(|| item.split(';').next()).and_then(number)? as u64;
    let window = parameter(item, "w").and_then(number).map(bounded_seconds)?.max(Duration::from_secs(1));
    (calls > 0).then_some(Quota { calls, window })
}

fn reset_from(reset: f64, now: Time) -> Duration {
    let since_epoch = match reset {
        millis if millis >= EPOCH_MILLIS_MIN => millis / 1000.0,
        seconds if seconds >= EPOCH_SECONDS_MIN => seconds,
        seconds => return bounded_seconds(seconds),
    };
    bounded_seconds((since_epoch - now.as_micros() as f64 / 1e6).max(0.0))
}

fn bounded_seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64()))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = headers.get(name)?.to_str().ok()?;
    (value.len() <= VALUE_BYTES_MAX).then_some(value)
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').take(ITEMS_MAX).map(str::trim)
}

fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The value of `key=value` among the parts of an item.
fn parameter<'a>(item: &'a str, key: &str) -> Option<&'a str> {
    let mut parts = item.split(';').filter_map(|part| part.split_once('='));
    parts.find(|(name, _)| name.trim().eq_ignore_ascii_case(key)).map(|(_, value)| value.trim())
}

/// What an item is called: its first part, without quotes.
fn name(item: &str) -> &str {
    item.split(';').next().unwrap_or_default().trim().trim_matches('"')
}

/// A number that is not negative, perhaps with a fraction. Exponents and signs are no numbers here.
fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_plain =
        text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    const NOW: Time = Time::from_millis(1_700_000_000_000);

    fn read(headers: &[(&str, &str)]) -> Option<RateLimit> {
        let map = headers
            .iter()
            .map(|(name, value)| (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap()));
        RateLimit::from_headers(&map.collect(), NOW)
    }

    fn said(remaining: u64, reset_seconds: u64, quota: Option<(u64, u64)>) -> Option<RateLimit> {
        Some(RateLimit {
            remaining: Some(remaining),
            reset: Some(Duration::from_secs(reset_seconds)),
            quota: quota.map(|(calls, window)| Quota { calls, window: Duration::from_secs(window) }),
        })
    }

    #[test]
    fn every_way_of_saying_it_is_read() {
        let table: [(&[(&str, &str)], _); 12] = [
            (&[("RateLimit", "limit=100, remaining=50, reset=30")], said(50, 30, None)),
            (
                &[("RateLimit", "limit=100,remaining=0,reset=5"), ("RateLimit-Policy", "100;w=60")],
                said(0, 5, Some((100, 60))),
            ),
            (&[("RateLimit", r#""default";r=50;t=30"#)], said(50, 30, None)),
            (
                &[("RateLimit", r#""default";r=50;t=30"#), ("RateLimit-Policy", r#""default";q=100;w=60"#)],
                said(50, 30, Some((100, 60))),
            ),
            (
                &[
                    ("RateLimit", r#""day";r=900;t=3600, "burst";r=2;t=1"#),
                    ("RateLimit-Policy", r#""day";q=1000;w=86400, "burst";q=10;w=1"#),
                ],
                said(2, 1, Some((10, 1))),
            ),
            (&[("RateLimit", r#""a";r=0;t=3, "b";r=0;t=9"#)], said(0, 9, None)),
            (&[("RateLimit-Limit", "10"), ("RateLimit-Remaining", "3"), ("RateLimit-Reset", "7")], said(3, 7, None)),
            (
                &[("RateLimit-Limit", "10, 10;w=60"), ("RateLimit-Remaining", "3"), ("RateLimit-Reset", "7")],
                said(3, 7, Some((10, 60))),
            ),
            (&[("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "7")], said(3, 7, None)),
            (&[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1700000030")], said(0, 30, None)),
            (&[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1700000030000")], said(0, 30, None)),
            (&[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "1600000000")], said(0, 0, None)),
        ];
        for (headers, expected) in table {
            assert_eq!(read(headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_left_alone() {
        for headers in [
            &[][..],
            &[("RateLimit", "soon")],
            &[("RateLimit", r#""default";r=-1;t=3"#)],
            &[("RateLimit-Limit", "many")],
            &[("X-RateLimit-Remaining", "1e3")],
            &[("X-RateLimit-Reset", "inf")],
            &[("RateLimit-Policy", "100;w=60")],
        ] {
            assert_eq!(read(headers), None, "{headers:?}");
        }
        // Two limits under names that nothing refers to: nobody knows which of them counts.
        let headers = [("RateLimit", r#""c";r=5;t=1"#), ("RateLimit-Policy", r#""a";q=1;w=1, "b";q=2;w=2"#)];
        assert_eq!(read(&headers), said(5, 1, None));
        let huge = "9".repeat(VALUE_BYTES_MAX + 1);
        assert_eq!(read(&[("X-RateLimit-Remaining", &huge)]), None);
    }

    proptest! {
        #[test]
        fn any_text_stays_in_bounds(value in "[ -~]{0,60}", policy in "[ -~]{0,60}", which in 0usize..4) {
            let name = ["ratelimit", "ratelimit-reset", "x-ratelimit-reset", "ratelimit-limit"][which];
            let headers = [(name, value.as_str()), ("ratelimit-policy", policy.as_str())];
            if let Some(said) = read(&headers) {
                prop_assert!(said.reset.is_none_or(|reset| reset <= RETRY_AFTER_MAX));
                prop_assert!(said.quota.is_none_or(|quota| quota.calls > 0 && quota.window >= Duration::from_secs(1)));
            }
        }

        #[test]
        fn any_numbers_are_read_back(
            left in 0u64..1_000_000,
            reset in 0u64..80_000,
            calls in 1u64..1_000_000,
            window in 1u64..80_000,
        ) {
            let limit = format!(r#""x";r={left};t={reset}"#);
            let policy = format!(r#""x";q={calls};w={window}"#);
            let found = read(&[("ratelimit", &limit), ("ratelimit-policy", &policy)]);
            prop_assert_eq!(found, said(left, reset, Some((calls, window))));
        }
    }
}
