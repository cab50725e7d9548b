//! `Retry-After`: how long a destination asks to be left alone.
//! Invariant: the answer lies between zero and [`RETRY_AFTER_MAX`], whatever the header says.
//! Never: reads the clock; the caller says what time it is.

use std::time::{Duration, UNIX_EPOCH};

/// The longest wait a destination can ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads a `Retry-After` value, seconds or an HTTP date in any of its three forms, as a wait from
/// `now_ms` (Unix milliseconds). `None` when it is neither.
#[must_use]
pub fn parse_retry_after(value: &str, now_ms: u64) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // Digits alone fail to parse only when they are too many, which is a very long wait.
        value.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let at = httpdate::parse_http_date(value).ok()?;
        let at = at.duration_since(UNIX_EPOCH).ok()?;
        at.saturating_sub(Duration::from_millis(now_ms))
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT, the date of the RFC's own examples.
    const RFC_DATE_MS: u64 = 784_111_777_000;

    #[test]
    fn seconds_and_dates_are_read() {
        let seconds = Duration::from_secs;
        for (value, wait) in [
            ("0", Some(seconds(0))),
            ("120", Some(seconds(120))),
            (" 7 ", Some(seconds(7))),
            ("86400", Some(seconds(86_400))),
            ("86401", Some(RETRY_AFTER_MAX)),
            ("99999999999999999999999999", Some(RETRY_AFTER_MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(seconds(60))),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(seconds(60))),
            ("Sun Nov  6 08:49:37 1994", Some(seconds(60))),
            ("Sun, 06 Nov 1994 08:48:36 GMT", Some(Duration::ZERO)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(RETRY_AFTER_MAX)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("+5", None),
            ("soon", None),
            ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ] {
            assert_eq!(parse_retry_after(value, RFC_DATE_MS - 60_000), wait, "{value:?}");
        }
    }

    #[test]
    fn a_wait_is_exact_to_the_millisecond() {
        let wait = parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT", RFC_DATE_MS - 1);
        assert_eq!(wait, Some(Duration::from_millis(1)));
    }

    proptest! {
        #[test]
        fn any_text_at_any_time_stays_in_bounds(value: String, now_ms: u64) {
            let wait = parse_retry_after(&value, now_ms);
            prop_assert!(wait.is_none_or(|wait| wait <= RETRY_AFTER_MAX));
        }

        #[test]
        fn any_date_like_text_stays_in_bounds(
            value in "(Sun|Fri|Mon), [0-9]{2} (Jan|Feb|Dec) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
            now_ms: u64,
        ) {
            let wait = parse_retry_after(&value, now_ms);
            prop_assert!(wait.is_none_or(|wait| wait <= RETRY_AFTER_MAX));
        }
    }
}
