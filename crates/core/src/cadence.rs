//! Cadence: one start per tick, at an interval that adapts to the destination.
//! Invariant: the interval stays within its bounds, and two starts are never closer than it.
//! Never: ticks by itself; it says from when on the next start is allowed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// How a cadence starts and adapts.
#[derive(Clone, Debug, PartialEq)]
pub struct CadencePolicy {
    /// The interval at first.
    pub initial: Duration,
    /// The fastest pace.
    pub min: Duration,
    /// The slowest pace.
    pub max: Duration,
    /// An answer that takes longer counts as a penalty.
    pub slow_after: Duration,
    /// What a success takes off the interval.
    pub step: Duration,
    /// What a penalty multiplies it by.
    pub penalty: f64,
}

impl CadencePolicy {
    /// Bounds of a tenth and of sixty times the initial interval; a success takes off a twentieth, a penalty doubles.
    pub fn starting_at(initial: Duration) -> CadencePolicy {
        CadencePolicy {
            initial,
            min: initial / 10,
            max: initial * 60,
            slow_after: Duration::from_secs(2),
            step: initial / 20,
            penalty: 2.0,
        }
    }
}

/// How fast a cadence goes, and how often it was slowed down since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CadenceFigures {
    /// The interval now.
    pub interval: Duration,
    /// How often it was slowed down.
    pub penalties: u64,
}

/// The pace of a lane.
#[derive(Clone, Debug)]
pub struct Cadence {
    policy: CadencePolicy,
    interval: Duration,
    next: Time,
    /// What `next` would be had the last start not been.
    without_last: Time,
    penalties: u64,
}

impl Cadence {
    /// At its initial interval, the first tick free.
    pub fn new(policy: CadencePolicy) -> Cadence {
        Cadence { interval: policy.initial, policy, next: Time::ZERO, without_last: Time::ZERO, penalties: 0 }
    }

    /// From when on the next start is allowed.
    pub fn next_start(&self) -> Time {
        self.next
    }

    /// The interval now.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The interval now, and the count.
    pub fn figures(&self) -> CadenceFigures {
        CadenceFigures { interval: self.interval, penalties: self.penalties }
    }

    /// Records a start.
    pub fn start(&mut self, now: Time) {
        self.without_last = self.next;
        self.next = now + self.interval;
    }

    /// Moves the last start, which was counted at `from`, to `now`: what was let through then began only now.
    pub fn restamp(&mut self, from: Time, now: Time) {
        if self.next == from + self.interval {
            self.next = now + self.interval;
        }
    }

    /// Forgets the last start: its tick may be taken again.
    pub fn give_back(&mut self) {
        self.next = self.without_last;
    }

    /// Goes on where another left off, with its next tick, but waits no longer than the longest interval from `now`: the
    /// clock may have been set back since.
    pub fn resume_with(&mut self, now: Time, next: Time) {
        self.next = next.min(now + self.policy.max);
        self.without_last = self.next;
    }

    /// Behaves as if a tick had been taken at `now`: after a restart nobody remembers the last one.
    pub fn assume_spent(&mut self, now: Time) {
        self.resume_with(now, now + self.interval);
    }

    /// Learns from an answer: additive faster, multiplicative slower.
    pub fn learn(&mut self, now: Time, asked_slower: bool, worked: bool, took: Duration) {
        if asked_slower || took > self.policy.slow_after {
            self.penalties += 1;
            self.interval = self.interval.mul_f64(self.policy.penalty).min(self.policy.max);
            self.next = self.next.max(now + self.interval);
            // A start that is given back does not take the penalty along.
            self.without_last = self.without_last.max(now + self.interval);
        } else if worked {
            self.interval = self.interval.saturating_sub(self.policy.step).max(self.policy.min);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slower_on_429_and_back_with_success() {
        let mut cadence = Cadence::new(CadencePolicy::starting_at(Duration::from_millis(1000)));
        let now = Time::from_millis(1_000_000);
        cadence.start(now);
        cadence.learn(now, true, false, Duration::ZERO);
        assert_eq!(cadence.interval(), Duration::from_millis(2000));
        assert_eq!(cadence.next_start(), now + Duration::from_millis(2000));
        for _ in 0..1000 {
            cadence.learn(now, false, true, Duration::ZERO);
        }
        assert_eq!(cadence.interval(), Duration::from_millis(100));
        assert_eq!(cadence.figures(), CadenceFigures { interval: Duration::from_millis(100), penalties: 1 });
    }

    #[test]
    fn a_tick_that_is_given_back_can_be_taken_again_but_a_penalty_stays() {
        let at = Time::from_millis;
        let mut cadence = Cadence::new(CadencePolicy::starting_at(Duration::from_secs(1)));
        cadence.start(at(5_000));
        cadence.start(at(6_000));
        cadence.give_back();
        assert_eq!(cadence.next_start(), at(6_000));
        cadence.start(at(6_500));
        cadence.learn(at(6_600), true, false, Duration::ZERO);
        cadence.give_back();
        assert_eq!((cadence.next_start(), cadence.interval()), (at(8_600), Duration::from_secs(2)));
    }

    #[test]
    fn a_cadence_that_is_resumed_waits_for_its_tick_but_no_longer_than_the_longest_interval() {
        let at = Time::from_millis;
        for (next, expected) in [(at(5_400), at(5_400)), (at(3_600_000), at(65_000)), (Time::ZERO, Time::ZERO)] {
            let mut cadence = Cadence::new(CadencePolicy::starting_at(Duration::from_secs(1)));
            cadence.resume_with(at(5_000), next);
            assert_eq!(cadence.next_start(), expected);
        }
        let mut cadence = Cadence::new(CadencePolicy::starting_at(Duration::from_secs(1)));
        cadence.assume_spent(at(5_000));
        assert_eq!(cadence.next_start(), at(6_000));
    }

    proptest! {
        #[test]
        fn never_two_starts_in_one_tick(lessons in prop::collection::vec((0u8..3, 0u64..4000), 1..100)) {
            let mut cadence = Cadence::new(CadencePolicy::starting_at(Duration::from_millis(500)));
            let mut now = Time::from_millis(1_000_000);
            for (kind, took_ms) in lessons {
                let interval = cadence.interval();
                cadence.start(now);
                cadence.learn(now, kind == 0, kind == 1, Duration::from_millis(took_ms));
                prop_assert!(cadence.next_start() >= now + interval);
                prop_assert!(cadence.interval() >= Duration::from_millis(50) && cadence.interval() <= Duration::from_secs(30));
                now = cadence.next_start();
            }
        }
    }
}
