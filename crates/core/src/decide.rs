//! From an outcome to what becomes of the job.
//! Invariant: every failure that leaves the lane carries a reason and a code.
//! Never: reads a clock, draws chance, or changes anything.

use std::time::Duration;

use crate::classify::{Verdict, classify};
use crate::outcome::Outcome;
use crate::policy::{LanePolicy, OnExhausted, RETRY_AFTER_MAX};
use crate::time::Time;

/// Why an attempt did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// `http_503`, `timeout`, …
    pub code: String,
    /// In words; never empty.
    pub reason: String,
}

/// What becomes of a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Delivered.
    Done,
    /// Tried again.
    Retry {
        /// Not before this.
        at: Time,
        /// Why.
        failure: Failure,
    },
    /// Out of attempts, kept in place.
    Blocked {
        /// Why.
        failure: Failure,
    },
    /// Given up.
    DeadLetter {
        /// Why.
        failure: Failure,
    },
}

/// Decides about a job whose attempt number `attempt` (from 1) ended with `outcome`. `chance` is uniform in 0..1.
pub fn decide(
    now: Time,
    policy: &LanePolicy,
    attempt: u32,
    expires: Time,
    outcome: &Outcome,
    chance: f64,
) -> Transition {
    let verdict = classify(&policy.rules, outcome);
    if verdict == Verdict::Success {
        return Transition::Done;
    }
    let failure = Failure { code: outcome.code(), reason: outcome.reason() };
    match verdict {
        Verdict::Permanent => return Transition::DeadLetter { failure },
        Verdict::Hold => return Transition::Blocked { failure },
        Verdict::Success | Verdict::Retry => {}
    }
    let at = now + wait(policy, attempt, outcome, chance);
    if attempt < policy.retry.attempts && at < expires {
        return Transition::Retry { at, failure };
    }
    let why = match attempt < policy.retry.attempts {
        true => "its time to live would end before the next attempt",
        false => "no attempts left",
    };
    let failure = Failure { reason: format!("{} ({why})", failure.reason), ..failure };
    match policy.on_exhausted {
        OnExhausted::Dlq => Transition::DeadLetter { failure },
        OnExhausted::Blocked => Transition::Blocked { failure },
    }
}

/// The backoff, or what the destination asked for if that is longer (within the lane's TTL and a day).
fn wait(policy: &LanePolicy, attempt: u32, outcome: &Outcome, chance: f64) -> Duration {
    let asked = outcome.retry_after().unwrap_or(Duration::ZERO);
    let asked = asked.min(RETRY_AFTER_MAX).min(policy.ttl.unwrap_or(RETRY_AFTER_MAX));
    policy.retry.backoff.delay(attempt, chance).max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Fault, FaultKind};
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};
    use proptest::prelude::*;

    const NOW: Time = Time::from_millis(1_000_000);

    fn answer(status: u16, retry_after: Option<u64>) -> Outcome {
        Outcome::Answer(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            truncated: false,
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    fn decided(attempt: u32, outcome: &Outcome) -> Transition {
        decide(NOW, &LanePolicy::http(), attempt, Time::NEVER, outcome, 0.5)
    }

    #[test]
    fn success_is_done_and_a_permanent_failure_uses_no_more_attempts() {
        assert_eq!(decided(1, &answer(200, None)), Transition::Done);
        let Transition::DeadLetter { failure } = decided(1, &answer(404, None)) else { panic!("404 is final") };
        assert_eq!((failure.code.as_str(), failure.reason.as_str()), ("http_404", "HTTP 404 Not Found"));
    }

    #[test]
    fn the_last_attempt_ends_as_the_lane_says() {
        let outcome = answer(503, None);
        assert!(matches!(decided(4, &outcome), Transition::Retry { .. }));
        let Transition::DeadLetter { failure } = decided(5, &outcome) else { panic!("attempts were used up") };
        assert!(failure.reason.contains("no attempts left"));
        let policy = LanePolicy { on_exhausted: OnExhausted::Blocked, ..LanePolicy::http() };
        assert!(matches!(decide(NOW, &policy, 5, Time::NEVER, &outcome, 0.5), Transition::Blocked { .. }));
    }

    #[test]
    fn retry_after_makes_the_wait_longer_never_shorter() {
        for (seconds, wait) in [(0, 1), (2, 2), (10_000, 10_000), (1_000_000, 86_400)] {
            let Transition::Retry { at, .. } = decided(1, &answer(429, Some(seconds))) else {
                panic!("429 is retried")
            };
            assert_eq!(at, NOW + Duration::from_secs(wait), "asked for {seconds} s");
        }
        let policy = LanePolicy { ttl: Some(Duration::from_secs(60)), ..LanePolicy::http() };
        let Transition::Retry { at, .. } = decide(NOW, &policy, 1, Time::NEVER, &answer(429, Some(600)), 0.5) else {
            panic!()
        };
        assert_eq!(at, NOW + Duration::from_secs(60), "clamped to the lane's time to live");
    }

    #[test]
    fn a_retry_that_would_come_too_late_is_a_dead_letter_now() {
        let expires = NOW + Duration::from_millis(900);
        let Transition::DeadLetter { failure } = decide(NOW, &LanePolicy::http(), 1, expires, &answer(503, None), 0.5)
        else {
            panic!("a failed job is kept, not dropped")
        };
        assert!(failure.reason.contains("time to live"), "{}", failure.reason);
    }

    proptest! {
        #[test]
        fn every_end_has_a_reason(status in 100u16..1000, attempt in 1u32..10, chance in 0.0f64..1.0, is_fault: bool) {
            let outcome = match is_fault {
                true => Outcome::Fault(Fault { kind: FaultKind::Timeout, message: "no answer within 10s".into() }),
                false => answer(status, None),
            };
            match decide(NOW, &LanePolicy::http(), attempt, Time::NEVER, &outcome, chance) {
                Transition::Done => prop_assert!((200..300).contains(&status)),
                Transition::Retry { at, failure } => {
                    prop_assert!(at > NOW && attempt < 5);
                    prop_assert!(!failure.reason.is_empty() && !failure.code.is_empty());
                }
                Transition::DeadLetter { failure } | Transition::Blocked { failure } => {
                    prop_assert!(!failure.reason.is_empty() && !failure.code.is_empty());
                }
            }
        }
    }
}
