//! Moments and durations as the rules see them.
//! Invariant: a `Time` is microseconds since the Unix epoch, in UTC.
//! Never: reads a clock; every moment comes in as an argument.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment. Fine enough (1 µs) that a throttle's window is exact, and the same number on disk as in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The epoch: before everything.
    pub const ZERO: Time = Time(0);
    /// Later than any moment that comes: "no expiry".
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `micros` microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Time {
        Time(micros)
    }

    /// The moment `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis.saturating_mul(1000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the epoch.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// How long after `earlier` this is; zero if it is not after.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// `None` for [`Time::NEVER`].
    pub fn finite(self) -> Option<Time> {
        (self != Time::NEVER).then_some(self)
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, length: Duration) -> Time {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(micros))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, length: Duration) -> Time {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(micros))
    }
}

/// ISO 8601 with milliseconds, in UTC.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_microsecond(micros) {
            Ok(moment) => write!(f, "{moment:.3}"),
            Err(_) => f.write_str("never"),
        }
    }
}

/// A text that is no moment.
#[derive(Debug, thiserror::Error)]
#[error("'{text}' is not a time; write it like 2026-01-31T09:30:00.000Z")]
pub struct BadTime {
    text: String,
}

impl FromStr for Time {
    type Err = BadTime;
    fn from_str(text: &str) -> Result<Time, BadTime> {
        let bad = || BadTime { text: text.chars().take(64).collect() };
        let moment: jiff::Timestamp = text.parse().map_err(|_| bad())?;
        u64::try_from(moment.as_microsecond()).map(Time).map_err(|_| bad())
    }
}

/// Text for people and APIs, a number for records.
impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            u64::deserialize(deserializer).map(Time)
        }
    }
}

/// A text that is no duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a duration; write a whole number with ms, s, m, h or d, such as 250ms, 5s or 24h")]
pub struct BadDuration {
    text: String,
}

/// Reads `250ms`, `5s`, `1m`, `24h`, `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration { text: text.chars().take(64).collect() };
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(bad)
}

/// Writes a duration in the largest unit that loses nothing; [`parse_duration`] reads it back.
pub fn format_duration(length: Duration) -> String {
    let ms = length.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.iter().find(|(unit_ms, _)| ms >= *unit_ms && ms.is_multiple_of(*unit_ms)) {
        Some((unit_ms, name)) => format!("{}{name}", ms / unit_ms),
        None => format!("{ms}ms"),
    }
}

/// `#[serde(with = "duration_text")]`: durations as the texts of [`parse_duration`].
pub mod duration_text {
    use super::*;

    /// Writes the text.
    pub fn serialize<S: Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*length))
    }

    /// Reads the text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_duration(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_as_iso_8601_in_milliseconds() {
        let time = Time::from_millis(1_700_000_000_123);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!("2023-11-14T22:13:20.123Z".parse::<Time>().unwrap(), time);
        assert!("yesterday".parse::<Time>().is_err());
    }

    #[test]
    fn durations_have_one_unit() {
        for (text, ms) in [("250ms", 250), ("5s", 5_000), ("1m", 60_000), ("24h", 86_400_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "1.5s", "5 s", "5sec", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_duration_reads_back(ms in 0u64..10_000_000_000) {
            let length = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(length)), Ok(length));
        }

        #[test]
        fn a_record_of_a_time_reads_back(micros: u64) {
            let time = Time::from_micros(micros);
            let bytes = postcard::to_stdvec(&time).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Time>(&bytes).unwrap(), time);
        }
    }
}
