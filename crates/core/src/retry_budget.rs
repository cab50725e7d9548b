//! Retry budget: keeps retries from multiplying the load on a destination that is down.
//! Invariant: with every retry that is granted, the retries of the window that ends there are at most the floor plus
//! their share of its calls. The window is counted in slices, so it is up to a tenth shorter than the policy says.
//! Never: holds back a first attempt.
//!
//! A call that fails and is tried twice more is three calls. When everything fails, everything is called three times,
//! just when the destination can bear it least. With a budget a fifth more is all it gets. The floor is for callers who
//! call seldom: a fifth of one call would be no retry at all.

use std::time::Duration;

use crate::time::Time;

/// The window is counted in so many slices: memory stays the same however much is called.
const SLICES: usize = 10;

/// How many retries there may be.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetPolicy {
    /// Retries as a share of calls.
    pub share: f64,
    /// So many in a window are free.
    pub floor: u32,
    /// What counts as recent.
    pub window: Duration,
}

impl Default for BudgetPolicy {
    fn default() -> BudgetPolicy {
        BudgetPolicy { share: 0.2, floor: 10, window: Duration::from_secs(10) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    calls: u64,
    retries: u64,
}

/// What was called and retried of late, for one destination.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    policy: BudgetPolicy,
    slices: [Slice; SLICES],
    /// The number of the newest slice, counted from the epoch.
    newest: u64,
}

impl RetryBudget {
    /// Nothing called yet.
    pub fn new(policy: BudgetPolicy) -> RetryBudget {
        RetryBudget { policy, slices: [Slice::default(); SLICES], newest: 0 }
    }

    /// Records a call's first attempt.
    pub fn call(&mut self, now: Time) {
        self.slice(now).calls += 1;
    }

    /// Takes a retry out of the budget; `false` when it is spent.
    pub fn retry(&mut self, now: Time) -> bool {
        let is_left = self.left_at(now) >= 1.0;
        if is_left {
            self.slice(now).retries += 1;
        }
        is_left
    }

    /// How many retries are left at `now`.
    pub fn left_at(&mut self, now: Time) -> f64 {
        self.slice(now);
        let calls: u64 = self.slices.iter().map(|slice| slice.calls).sum();
        let retries: u64 = self.slices.iter().map(|slice| slice.retries).sum();
        (f64::from(self.policy.floor) + self.policy.share * calls as f64 - retries as f64).max(0.0)
    }

    /// The slice of `now`, with those that are over emptied. A clock that was set back counts into the newest.
    fn slice(&mut self, now: Time) -> &mut Slice {
        let slice_micros = (self.policy.window.as_micros() as u64 / SLICES as u64).max(1);
        let number = (now.as_micros() / slice_micros).max(self.newest);
        let passed = (number - self.newest).min(SLICES as u64);
        for step in 1..=passed {
            self.slices[((number - passed + step) % SLICES as u64) as usize] = Slice::default();
        }
        self.newest = number;
        &mut self.slices[(number % SLICES as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time::from_millis(1_000_000);

    fn budget() -> RetryBudget {
        RetryBudget::new(BudgetPolicy::default())
    }

    #[test]
    fn a_lone_caller_lives_on_the_floor() {
        let mut budget = budget();
        budget.call(NOW);
        assert_eq!((0..100).filter(|_| budget.retry(NOW)).count(), 10);
        assert!(!budget.retry(NOW + Duration::from_millis(8_999)));
        assert!(budget.retry(NOW + Duration::from_secs(10)), "what is over is forgotten");
    }

    #[test]
    fn an_outage_gets_a_fifth_more_and_not_three_times_as_much() {
        let mut budget = budget();
        let mut retries = 0;
        for tick in 0..10_000 {
            let now = NOW + Duration::from_millis(tick);
            budget.call(now);
            retries += (0..2).filter(|_| budget.retry(now)).count();
        }
        assert!((2_000..=2_010).contains(&retries), "{retries} retries of 10000 calls");
    }

    #[test]
    fn a_clock_that_is_set_back_frees_nothing() {
        let mut budget = budget();
        while budget.retry(NOW) {}
        assert!(!budget.retry(NOW - Duration::from_secs(60)));
        assert!(!budget.retry(NOW));
    }

    proptest! {
        #[test]
        fn a_retry_that_is_granted_stays_in_the_share(
            share in 0.0f64..1.0,
            floor in 0u32..20,
            steps in prop::collection::vec((0u64..3_000, 0u32..5, 0u32..10), 1..100),
        ) {
            let policy = BudgetPolicy { share, floor, window: Duration::from_secs(10) };
            let mut budget = RetryBudget::new(policy);
            let (mut now, mut seen) = (NOW, Vec::new());
            for (gap_ms, calls, wanted) in steps {
                now = now + Duration::from_millis(gap_ms);
                (0..calls).for_each(|_| budget.call(now));
                let retries = (0..wanted).filter(|_| budget.retry(now)).count();
                seen.push((now, f64::from(calls), retries as f64));
                let since = |back_ms| now - Duration::from_millis(back_ms);
                let retried: f64 = seen.iter().filter(|(at, ..)| *at > since(9_000)).map(|(.., retries)| retries).sum();
                let called: f64 = seen.iter().filter(|(at, ..)| *at > since(10_000)).map(|(_, calls, _)| calls).sum();
                let allowed = f64::from(floor) + share * called;
                prop_assert!(retries == 0 || retried <= allowed + 1e-6, "{retried} retries of {called} calls");
            }
        }
    }
}
