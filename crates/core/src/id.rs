//! Job ids: ULIDs, so that they sort by the time they were made.
//! Invariant: the text form is `job_` or, for a mail, `out_`, and 26 characters; one of its bits says which, so that the
//! two never mix. The binary form, 16 bytes, sorts like the characters.
//! Never: makes an id of its own; time and chance are arguments.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ulid::Ulid;

use crate::time::Time;

const JOB: &str = "job_";
const MAIL: &str = "out_";
/// Set in the id of a mail: the first of the 80 random bits.
const MAIL_BIT: u128 = 1 << 79;

/// Names one job for its whole life, replays included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId([u8; 16]);

impl JobId {
    /// The smallest id.
    pub const MIN: JobId = JobId([0; 16]);
    /// The largest id.
    pub const MAX: JobId = JobId([0xff; 16]);

    /// An id made at `time`; of `chance` the low 79 bits count.
    pub fn from_parts(time: Time, chance: u128) -> JobId {
        JobId(Ulid::from_parts(time.as_millis(), chance & !MAIL_BIT).to_bytes())
    }

    /// The same id for a mail: its text begins with `out_`.
    pub fn of_mail(self) -> JobId {
        JobId((u128::from_be_bytes(self.0) | MAIL_BIT).to_be_bytes())
    }

    /// The id of a job that follows from this one; the same `salt` gives the same id.
    pub fn derive(self, salt: &[u8]) -> JobId {
        // FNV-1a, 128 bits wide: it need not be secret, only spread out.
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let hash = salt.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
        JobId::from_parts(self.made_at(), u128::from_be_bytes(self.0) ^ hash)
    }

    /// Whether it names a mail.
    pub const fn is_mail(&self) -> bool {
        u128::from_be_bytes(self.0) & MAIL_BIT != 0
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
        let prefix = if self.is_mail() { MAIL } else { JOB };
        write!(f, "{prefix}{}", Ulid::from_bytes(self.0).array_to_str(&mut text))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no job id.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a job id; one looks like job_01J9Z3K5V84NQW6R7T2Y0X1ABC")]
pub struct BadJobId {
    text: String,
}

impl FromStr for JobId {
    type Err = BadJobId;
    fn from_str(text: &str) -> Result<JobId, BadJobId> {
        let named = |prefix| text.strip_prefix(prefix).and_then(|rest| Ulid::from_string(rest).ok());
        let job = named(JOB).map(|ulid| JobId(ulid.to_bytes())).filter(|id| !id.is_mail());
        let mail = || named(MAIL).map(|ulid| JobId(ulid.to_bytes())).filter(JobId::is_mail);
        job.or_else(mail).ok_or_else(|| BadJobId { text: text.chars().take(64).collect() })
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
            "01J9Z3K5V84NQW6R7T2Y0X1ABC",
            "job_01J9Z3K5V84NQW6R7T2Y0X1AB",
            "job_!!!!!!!!!!!!!!!!!!!!!!!!!!",
        ] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }

    #[test]
    fn mails_and_other_jobs_never_mix() {
        let id = JobId::from_parts(Time::from_millis(5), u128::MAX);
        assert!(!id.is_mail() && id.of_mail().is_mail());
        let (job, mail) = (id.to_string(), id.of_mail().to_string());
        assert!(job.starts_with("job_") && mail.starts_with("out_"), "{job} {mail}");
        assert_eq!(mail.parse::<JobId>().unwrap(), id.of_mail());
        assert!(job.replace("job_", "out_").parse::<JobId>().is_err());
        assert!(mail.replace("out_", "job_").parse::<JobId>().is_err());
        assert_eq!(id.of_mail().made_at(), id.made_at());
    }

    #[test]
    fn what_follows_from_a_job_has_an_id_of_its_own_and_always_the_same() {
        let parents: Vec<JobId> = (0..50).map(|n| JobId::from_parts(Time::from_millis(9), n).of_mail()).collect();
        let mut seen = std::collections::BTreeSet::new();
        for parent in &parents {
            for salt in ["1", "2", "3", "default", "hooks"] {
                let id = parent.derive(salt.as_bytes());
                assert_eq!((id, id.is_mail(), id.made_at()), (parent.derive(salt.as_bytes()), false, parent.made_at()));
                assert!(seen.insert(id), "{parent} {salt}");
            }
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
