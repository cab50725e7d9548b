//! From an outcome to what becomes of the job.
//! Invariant: every failure that leaves the lane carries a reason and a code.
//! Never: reads a clock, draws chance, or changes anything.

use std::time::Duration;

use crate::classify::Verdict;
use crate::job::Attempt;
use crate::outcome::{FaultKind, Outcome};
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
        /// The failure.
        failure: Failure,
    },
    /// Out of attempts, kept in place.
    Blocked {
        /// The failure.
        failure: Failure,
    },
    /// Given up.
    DeadLetter {
        /// The failure.
        failure: Failure,
    },
    /// Given up, and nobody would look after it.
    Dropped {
        /// The failure.
        failure: Failure,
    },
}

impl Transition {
    /// The same for a job that nobody would look after: where it would wait for somebody, it is dropped.
    #[must_use]
    pub fn without_dead_letter(self) -> Transition {
        match self {
            Transition::DeadLetter { failure } | Transition::Blocked { failure } => Transition::Dropped { failure },
            other @ (Transition::Done | Transition::Retry { .. } | Transition::Dropped { .. }) => other,
        }
    }
}

/// The attempts of a job, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// All of them: the number of the last.
    pub all: u32,
    /// Without those before it that called nobody, because the job waited for its destination.
    pub counted: u32,
}

impl Attempts {
    /// Number `number` (from 1) came after these; an operator who unblocks a job has it count from 1 again.
    pub fn after(history: &[Attempt], number: u32) -> Attempts {
        let mut next = number;
        let since_one =
            history.iter().rev().take_while(|earlier| earlier.number < std::mem::replace(&mut next, earlier.number));
        let earlier = since_one.filter(|earlier| FaultKind::counts(&earlier.code)).count();
        Attempts { all: number, counted: u32::try_from(earlier).unwrap_or(u32::MAX).saturating_add(1) }
    }
}

/// Decides about a job whose last attempt ended with `outcome`. `chance` is uniform in 0..1.
pub fn decide(
    now: Time,
    policy: &LanePolicy,
    attempts: Attempts,
    expires: Time,
    outcome: &Outcome,
    chance: f64,
) -> Transition {
    let verdict = outcome.verdict(&policy.rules);
    if verdict == Verdict::Success {
        return Transition::Done;
    }
    let failure = Failure { code: outcome.code(), reason: outcome.reason() };
    match verdict {
        Verdict::Permanent => return Transition::DeadLetter { failure },
        Verdict::Hold => return Transition::Blocked { failure },
        Verdict::Success | Verdict::Retry => {}
    }
    // Waiting for what is down uses up nothing, however long it takes.
    let counts = FaultKind::counts(&failure.code);
    let number = if counts { attempts.counted } else { attempts.all };
    let has_more = !counts || attempts.counted < policy.retry.attempts;
    let at = now + wait(policy, number, outcome, chance);
    if has_more && at < expires {
        return Transition::Retry { at, failure };
    }
    let why = match has_more {
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
    use crate::outcome::{Answer, Fault};
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

    fn attempt(number: u32) -> Attempts {
        Attempts { all: number, counted: number }
    }

    fn decided(number: u32, outcome: &Outcome) -> Transition {
        decide(NOW, &LanePolicy::http(), attempt(number), Time::NEVER, outcome, 0.5)
    }

    fn tried(number: u32, code: &str) -> Attempt {
        let (started_at, code) = (NOW, code.to_owned());
        Attempt { number, started_at, duration_ms: 1, code, reason: Some("so".into()), mail: None, answer: None }
    }

    #[test]
    fn what_waits_for_its_destination_uses_up_no_attempt() {
        let history = [tried(1, "http_503"), tried(7, "breaker_aberto"), tried(8, "http_503"), tried(20, "requeued")];
        let attempts = Attempts::after(&history, 21);
        assert_eq!(attempts, Attempts { all: 21, counted: 3 });
        let policy = LanePolicy::connector();
        for kind in [FaultKind::BreakerOpen, FaultKind::Requeued] {
            let down = Outcome::Fault(Fault { kind, message: "it is down".into() });
            let Transition::Retry { at, .. } = decide(NOW, &policy, attempts, Time::NEVER, &down, 0.5) else {
                panic!("a job waits for as long as it takes")
            };
            assert_eq!(at, NOW + Duration::from_secs(60), "longer each time, up to the longest backoff");
            let soon = NOW + Duration::from_secs(30);
            assert!(matches!(decide(NOW, &policy, attempts, soon, &down, 0.5), Transition::DeadLetter { .. }));
        }
        let throttled = Outcome::Fault(Fault { kind: FaultKind::Throttled, message: "no turn".into() });
        assert!(matches!(decide(NOW, &policy, attempts, Time::NEVER, &throttled, 0.5), Transition::DeadLetter { .. }));
    }

    #[test]
    fn an_operator_who_unblocks_a_job_has_it_count_from_one_again() {
        let history = [tried(1, "http_503"), tried(2, "http_503"), tried(1, "http_503")];
        assert_eq!(Attempts::after(&history, 2), attempt(2));
        assert_eq!(Attempts::after(&history[..2], 1), attempt(1));
        assert_eq!(Attempts::after(&[], 1), attempt(1));
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
        assert!(matches!(decide(NOW, &policy, attempt(5), Time::NEVER, &outcome, 0.5), Transition::Blocked { .. }));
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
        let Transition::Retry { at, .. } = decide(NOW, &policy, attempt(1), Time::NEVER, &answer(429, Some(600)), 0.5)
        else {
            panic!()
        };
        assert_eq!(at, NOW + Duration::from_secs(60), "clamped to the lane's time to live");
    }

    #[test]
    fn a_retry_that_would_come_too_late_is_a_dead_letter_now() {
        let expires = NOW + Duration::from_millis(900);
        let Transition::DeadLetter { failure } =
            decide(NOW, &LanePolicy::http(), attempt(1), expires, &answer(503, None), 0.5)
        else {
            panic!("a failed job is kept, not dropped")
        };
        assert!(failure.reason.contains("time to live"), "{}", failure.reason);
    }

    proptest! {
        #[test]
        fn every_end_has_a_reason(status in 100u16..1000, number in 1u32..10, chance in 0.0f64..1.0, is_fault: bool) {
            let outcome = match is_fault {
                true => Outcome::Fault(Fault { kind: FaultKind::Timeout, message: "no answer within 10s".into() }),
                false => answer(status, None),
            };
            match decide(NOW, &LanePolicy::http(), attempt(number), Time::NEVER, &outcome, chance) {
                Transition::Done => prop_assert!((200..300).contains(&status)),
                Transition::Retry { at, failure } => {
                    prop_assert!(at > NOW && number < 5);
                    prop_assert!(!failure.reason.is_empty() && !failure.code.is_empty());
                }
                ended @ (Transition::DeadLetter { .. } | Transition::Blocked { .. }) => {
                    let Transition::Dropped { failure } = ended.without_dead_letter() else {
                        return Err(TestCaseError::fail("nobody would look after it"));
                    };
                    prop_assert!(!failure.reason.is_empty() && !failure.code.is_empty());
                }
                Transition::Dropped { .. } => prop_assert!(false, "whether that may be is not for rules to say"),
            }
        }
    }
}
