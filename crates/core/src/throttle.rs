//! Throttle: at most `max` starts in any interval of length `per`.
//! Invariant: the start of call n is not before the start of call n − max plus `per`. Exact: there is no window edge
//! at which twice as many get through.
//! Never: waits; it says from when on the next start is allowed.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The most starts a throttle can remember, and so the largest `max_requests`.
pub const THROTTLE_MAX_REQUESTS_MAX: u32 = 100_000;

/// So many starts in any interval of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// How many starts.
    pub max_requests: u32,
    /// In an interval of this length.
    pub per_ms: u64,
}

impl Rate {
    /// The interval.
    pub const fn per(self) -> Duration {
        Duration::from_millis(self.per_ms)
    }
}

/// The last `max` starts, and for a while some more after it was made smaller.
#[derive(Clone, Debug)]
pub struct Throttle {
    max: usize,
    per: Duration,
    starts: VecDeque<Time>,
}

impl Throttle {
    /// At most `max` starts per `per`.
    pub fn new(max: u32, per: Duration) -> Throttle {
        Throttle { max: max.clamp(1, THROTTLE_MAX_REQUESTS_MAX) as usize, per, starts: VecDeque::new() }
    }

    /// At most so many starts from now on; those there were count on.
    pub fn change(&mut self, rate: Rate) {
        let Throttle { max, per, .. } = Throttle::new(rate.max_requests, rate.per());
        (self.max, self.per) = (max, per);
    }

    /// What it allows, in whole milliseconds.
    pub fn rate(&self) -> Rate {
        let per_ms = u64::try_from(self.per.as_millis()).unwrap_or(u64::MAX);
        Rate { max_requests: self.max as u32, per_ms }
    }

    /// From when on the next start is allowed.
    pub fn next_start(&self) -> Time {
        let oldest = self.starts.len().checked_sub(self.max).and_then(|index| self.starts.get(index));
        oldest.map_or(Time::ZERO, |&oldest| oldest + self.per)
    }

    /// Records a start.
    pub fn start(&mut self, now: Time) {
        while self.starts.len() >= self.max {
            self.starts.pop_front();
        }
        self.starts.push_back(now);
    }

    /// Forgets the last start. One that had to leave for it was a period ago and holds nobody back.
    pub fn give_back(&mut self) {
        self.starts.pop_back();
    }

    /// Moves the last starts, which were counted at `from`, to `now`: what was let through then began only now.
    pub fn restamp(&mut self, from: Time, now: Time) {
        self.starts.iter_mut().rev().take_while(|start| **start == from).for_each(|start| *start = now);
    }

    /// The starts that still count at `now`, oldest first.
    pub fn starts(&self, now: Time) -> impl Iterator<Item = Time> + '_ {
        self.starts.iter().copied().filter(move |start| *start + self.per > now)
    }

    /// Goes on where another left off, with its last starts, oldest first. None counts as later than `now`: the clock
    /// may have been set back since.
    pub fn resume_with(&mut self, now: Time, starts: &[Time]) {
        let last = &starts[starts.len().saturating_sub(self.max)..];
        self.starts = last.iter().map(|start| (*start).min(now)).collect();
    }

    /// Behaves as if all `max` starts had been used at `now`: after a restart nobody remembers the last ones.
    pub fn assume_spent(&mut self, now: Time) {
        self.starts.clear();
        self.starts.resize(self.max, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_window_holds_more_than_max(max in 1u32..20, per_ms in 1u64..500, gaps in prop::collection::vec(0u64..200_000, 1..300)) {
            let per = Duration::from_millis(per_ms);
            let mut throttle = Throttle::new(max, per);
            let mut now = Time::from_millis(1_000_000);
            let mut starts = Vec::new();
            for gap in gaps {
                now = now + Duration::from_micros(gap);
                if throttle.next_start() <= now {
                    throttle.start(now);
                    starts.push(now);
                }
            }
            for (index, &first) in starts.iter().enumerate() {
                let within = starts[index..].iter().take_while(|&&start| start < first + per).count();
                prop_assert!(within <= max as usize, "{within} starts within {per:?}");
            }
        }

        #[test]
        fn it_never_waits_longer_than_it_must(max in 1u32..10, per_ms in 1u64..500) {
            let per = Duration::from_millis(per_ms);
            let mut throttle = Throttle::new(max, per);
            let begin = Time::from_millis(1_000_000);
            let mut now = begin;
            for _ in 0..max * 3 {
                now = now.max(throttle.next_start());
                throttle.start(now);
            }
            prop_assert_eq!(now, begin + per * 2, "three batches take two periods");
        }
    }

    #[test]
    fn a_throttle_that_is_resumed_goes_on_as_if_nothing_had_happened() {
        let at = Time::from_millis;
        let mut stopped = Throttle::new(3, Duration::from_secs(1));
        [1_000, 1_500, 1_700].into_iter().for_each(|start| stopped.start(at(start)));
        let kept: Vec<_> = stopped.starts(at(2_000)).collect();
        assert_eq!(kept, [at(1_500), at(1_700)], "the first has been a period ago");
        let mut resumed = Throttle::new(3, Duration::from_secs(1));
        resumed.resume_with(at(2_100), &kept);
        assert_eq!(resumed.next_start(), Time::ZERO, "one is left");
        resumed.start(at(2_100));
        assert_eq!(resumed.next_start(), at(2_500));
        let mut smaller = Throttle::new(1, Duration::from_secs(1));
        smaller.resume_with(at(2_100), &kept);
        assert_eq!(smaller.next_start(), at(2_700), "of a smaller throttle the last start counts");
    }

    #[test]
    fn a_clock_set_back_costs_a_resumed_throttle_one_period_at_most() {
        let mut throttle = Throttle::new(1, Duration::from_secs(1));
        throttle.resume_with(Time::from_millis(5_000), &[Time::from_millis(3_600_000)]);
        assert_eq!(throttle.next_start(), Time::from_millis(6_000));
    }

    #[test]
    fn a_start_that_is_given_back_can_be_made_again() {
        let at = Time::from_millis;
        let mut throttle = Throttle::new(2, Duration::from_secs(1));
        [1_000, 1_500, 2_000].into_iter().for_each(|start| throttle.start(at(start)));
        assert_eq!(throttle.next_start(), at(2_500));
        throttle.give_back();
        assert_eq!(throttle.next_start(), Time::ZERO);
        throttle.start(at(2_100));
        assert_eq!(throttle.next_start(), at(2_500), "the one before it counts as it did");
    }

    #[test]
    fn a_throttle_that_is_changed_counts_the_starts_there_were() {
        let at = Time::from_millis;
        let mut throttle = Throttle::new(3, Duration::from_secs(1));
        [1_000, 1_100, 1_200].into_iter().for_each(|start| throttle.start(at(start)));
        for (max_requests, per_ms, next) in [(3, 1_000, 2_000), (2, 1_000, 2_100), (1, 5_000, 6_200), (4, 5_000, 0)] {
            throttle.change(Rate { max_requests, per_ms });
            assert_eq!(throttle.next_start(), at(next), "{max_requests} in {per_ms} ms");
        }
        throttle.change(Rate { max_requests: 1, per_ms: 1_000 });
        throttle.start(at(2_200));
        assert_eq!(throttle.starts(at(2_200)).count(), 1);
    }

    #[test]
    fn spent_means_one_whole_period() {
        let mut throttle = Throttle::new(3, Duration::from_secs(1));
        throttle.assume_spent(Time::from_millis(5_000));
        assert_eq!(throttle.next_start(), Time::from_millis(6_000));
    }
}
