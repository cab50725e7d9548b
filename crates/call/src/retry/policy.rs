//! Retry policies: how often, how patiently, how long in all.
//! Invariant: there is always a first attempt, and every attempt has an end.
//! Never: judges an answer; that is the classifier's.

use std::time::Duration;

use entrega_core::backoff::Backoff;

/// How one operation is repeated. The default: 3 attempts of 10 s each, 250 ms to 5 s between them, ±25 %.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// How many attempts in all, the first included; zero counts as one.
    pub attempts: u32,
    /// The waits between them.
    pub backoff: Backoff,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How long everything may take: attempts, waits, and waiting for a turn. Without it a destination's `Retry-After`
    /// can hold the caller for up to a day.
    pub total: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts: 3,
            backoff: Backoff::exponential(Duration::from_millis(250), Duration::from_secs(5)),
            timeout: Duration::from_secs(10),
            total: None,
        }
    }
}

impl RetryPolicy {
    /// For somebody else's API: 4 attempts of 30 s each, 1 s to 4 s between them, never under 100 ms.
    #[must_use]
    pub fn connector() -> RetryPolicy {
        let backoff = Backoff::Exponential {
            base: Duration::from_secs(1),
            max: Duration::from_secs(4),
            jitter: 0.25,
            floor: Duration::from_millis(100),
        };
        RetryPolicy { attempts: 4, backoff, timeout: Duration::from_secs(30), total: None }
    }

    /// One attempt: what fails is not repeated.
    #[must_use]
    pub fn never() -> RetryPolicy {
        RetryPolicy { attempts: 1, ..RetryPolicy::default() }
    }

    pub(crate) fn attempts_max(&self) -> u32 {
        self.attempts.max(1)
    }
}
