//! Job ids: ULIDs, so that they sort by the time they were made.
//! Invariant: the text form is `job_` and 26 characters; the binary form, 16 bytes, sorts like the text.
//! Never: makes an id of its own; time and chance are arguments.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ulid::Ulid;

use crate::time::Time;

const PREFIX: &str = "job_";

/// Names one job for its whole life, replays included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 16]);

impl JobId {
    /// The smallest id.
    pub const MIN: JobId = JobId([0; 16]);
    /// The largest id.
    pub const MAX: JobId = JobId([0xff; 16]);

    /// An id made at `time`; of `chance` the low 80 bits count.
    pub fn from_parts(time: Time, chance: u128) -> JobId {
        JobId(Ulid::from_parts(time.as_millis(), chance).to_bytes())
    }

    /// The id of these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> JobId {
        JobId(bytes)
    }

    /// The bytes, in sort order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// When it was made, to the millisecond.
    pub fn made_at(&self) -> Time {
        Time::from_millis(Ulid::from_bytes(self.0).timestamp_ms())
    }

    /// A well-mixed hash: ids made in one millisecond differ only in their last bits.
    pub(crate) fn hash(&self) -> u64 {
        let number = u128::from_be_bytes(self.0);
        let folded = (number as u64) ^ ((number >> 64) as u64);
        let mixed = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 32)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; ulid::ULID_LEN];
        write!(f, "{PREFIX}{}", Ulid::from_bytes(self.0).array_to_str(&mut text))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no job id.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a job id; one looks like job_01J9Z3K5V8N4QW6R7T2Y0X1ABC")]
pub struct BadJobId {
    text: String,
}

impl FromStr for JobId {
    type Err = BadJobId;
    fn from_str(text: &str) -> Result<JobId, BadJobId> {
        text.strip_prefix(PREFIX)
            .and_then(|rest| Ulid::from_string(rest).ok())
            .map(|ulid| JobId(ulid.to_bytes()))
            .ok_or_else(|| BadJobId { text: text.chars().take(64).collect() })
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobId, D::Error> {
        match deserializer.is_human_readable() {
            true => String::deserialize(deserializer)?.parse().map_err(D::Error::custom),
            false => <[u8; 16]>::deserialize(deserializer).map(JobId),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_is_no_id() {
        for text in [
            "",
            "job_",
            "01J9Z3K5V8N4QW6R7T2Y0X1ABC",
            "job_01J9Z3K5V8N4QW6R7T2Y0X1AB",
            "job_!!!!!!!!!!!!!!!!!!!!!!!!!!",
        ] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn texts_and_bytes_read_back_and_sort_by_time(a in 0u64..1 << 47, b in 0u64..1 << 47, chance: u128) {
            let (first, second) = (JobId::from_parts(Time::from_millis(a), chance), JobId::from_parts(Time::from_millis(b), chance));
            prop_assert_eq!(first.to_string().parse::<JobId>().unwrap(), first);
            prop_assert_eq!(first.made_at(), Time::from_millis(a));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            prop_assert_eq!(first.to_string().cmp(&second.to_string()), a.cmp(&b));
        }
    }
}
