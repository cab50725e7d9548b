//! How long to wait before the next attempt.
//! Invariant: within ±jitter of `min(max, base · 2^(attempt−1))`, in whole milliseconds, never under the floor.
//! Never: draws chance of its own.

use std::time::Duration;

/// The waits between attempts.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// Doubling from `base` up to `max`.
    Exponential {
        /// After the first attempt.
        base: Duration,
        /// The cap, before jitter.
        max: Duration,
        /// The share of the delay that chance may add or take away.
        jitter: f64,
        /// Never less than this.
        floor: Duration,
    },
    /// One delay after each attempt, as listed; the last repeats.
    Listed(Vec<Duration>),
}

impl Backoff {
    /// Doubling with the usual ±25 %.
    pub const fn exponential(base: Duration, max: Duration) -> Backoff {
        Backoff::Exponential { base, max, jitter: 0.25, floor: Duration::ZERO }
    }

    /// The wait after `attempt` (from 1) has failed. `chance` is uniform in 0..1.
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        match self {
            Backoff::Exponential { base, max, jitter, floor } => {
                let doublings = attempt.saturating_sub(1).min(63);
                let full_ms = (base.as_millis() as f64 * 2f64.powi(doublings as i32)).min(max.as_millis() as f64);
                let factor = 1.0 + jitter * (2.0 * chance.clamp(0.0, 1.0) - 1.0);
                Duration::from_millis((full_ms * factor).round().max(0.0) as u64).max(*floor)
            }
            Backoff::Listed(delays) => {
                let index = (attempt.max(1) as usize - 1).min(delays.len().saturating_sub(1));
                delays.get(index).copied().unwrap_or(Duration::ZERO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EMAIL: Backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));

    #[test]
    fn the_email_waits_are_the_promised_ones() {
        let bounds = [
            (1, 750, 1250),
            (2, 1500, 2500),
            (3, 3000, 5000),
            (4, 6000, 10_000),
            (5, 12_000, 20_000),
            (7, 45_000, 75_000),
            (400, 45_000, 75_000),
        ];
        for (attempt, least_ms, most_ms) in bounds {
            assert_eq!(EMAIL.delay(attempt, 0.0), Duration::from_millis(least_ms), "attempt {attempt}");
            assert_eq!(EMAIL.delay(attempt, 1.0), Duration::from_millis(most_ms), "attempt {attempt}");
        }
    }

    #[test]
    fn a_list_is_taken_as_written() {
        let list = Backoff::Listed([60, 300, 1800].map(Duration::from_secs).to_vec());
        for (attempt, seconds) in [(1, 60), (2, 300), (3, 1800), (9, 1800)] {
            assert_eq!(list.delay(attempt, 0.3), Duration::from_secs(seconds));
        }
        assert_eq!(Backoff::Listed(Vec::new()).delay(1, 0.5), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn jitter_stays_in_its_bounds(base in 0u64..100_000, max in 0u64..1_000_000, attempt in 0u32..10_000, chance in 0.0f64..1.0) {
            let backoff = Backoff::exponential(Duration::from_millis(base), Duration::from_millis(max));
            let full = (base as f64 * 2f64.powi(attempt.saturating_sub(1).min(63) as i32)).min(max as f64);
            let delay = backoff.delay(attempt, chance).as_millis() as f64;
            prop_assert!(delay >= (full * 0.75).round() && delay <= (full * 1.25).round(), "{delay} around {full}");
        }

        #[test]
        fn the_floor_holds(chance in 0.0f64..1.0) {
            let floor = Duration::from_millis(100);
            let backoff = Backoff::Exponential { base: Duration::from_millis(1), max: Duration::from_secs(4), jitter: 0.25, floor };
            prop_assert!(backoff.delay(1, chance) >= floor);
        }
    }
}
