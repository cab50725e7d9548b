//! Adaptive throttle: finds out how fast a destination may be called, below a limit that is set.
//! Invariant: in no interval of the period are there more starts than the limit, whatever was learned; the estimate is
//! above zero and never above the limit.
//! Never: waits, reads headers or clocks; it says from when on the next start is allowed.
//!
//! Three things are learned. A refusal (429) cuts the estimate to a share of what was really started, at most once a
//! period, for one burst brings many refusals that say the same. Successes let it grow by a fixed step per period, but
//! only while it is used: a pace that nobody goes at proves nothing. And what the destination says of itself (so many
//! left until then, so many in any window) is kept to exactly.

use std::collections::VecDeque;
use std::time::Duration;

use crate::outcome::Lesson;
use crate::policy::RETRY_AFTER_MAX;
use crate::rate_limit::{Quota, RateLimit};
use crate::throttle::THROTTLE_MAX_REQUESTS_MAX;
use crate::time::Time;

/// What a refusal leaves of the pace.
const DECREASE: f64 = 0.7;
/// What a period of successes adds, as a share of the limit.
const STEP_SHARE: f64 = 0.05;
/// The slowest pace: one start in so many periods. A destination that wants less says so with `Retry-After`.
const PERIODS_PER_START_MAX: f64 = 64.0;
/// Resets come in whole seconds: two that differ by less are the same one.
const SAME_RESET: Duration = Duration::from_secs(1);

/// A pace that is learned.
#[derive(Clone, Debug)]
pub struct Adaptive {
    max: usize,
    per: Duration,
    estimate: f64,
    /// The last `max` starts, oldest first.
    starts: VecDeque<Time>,
    not_before: Time,
    quota: Option<Quota>,
    allowance: Option<Allowance>,
    decreased_at: Option<Time>,
}

/// So many starts until then.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    until: Time,
}

impl Adaptive {
    /// At most `max` starts per `per`; assumes at first that all of them are welcome.
    pub fn new(max: u32, per: Duration) -> Adaptive {
        let max = max.clamp(1, THROTTLE_MAX_REQUESTS_MAX);
        Adaptive {
            max: max as usize,
            per,
            estimate: f64::from(max),
            starts: VecDeque::new(),
            not_before: Time::ZERO,
            quota: None,
            allowance: None,
            decreased_at: None,
        }
    }

    /// How many starts per period it takes to be welcome.
    pub fn estimate(&self) -> f64 {
        self.estimate
    }

    /// From when on the next start is allowed.
    pub fn next_start(&self) -> Time {
        let by_estimate = match self.estimate {
            many if many >= 1.0 => self.window(many as usize, self.per),
            few => self.window(1, self.per.div_f64(few)),
        };
        let by_quota = match self.quota {
            // A larger one cannot be counted with these starts; what is left of it is announced as it runs out.
            Some(quota) if quota.calls <= self.max as u64 => self.window(quota.calls as usize, quota.window),
            _ => Time::ZERO,
        };
        let by_allowance = match self.allowance {
            Some(Allowance { left: 0, until }) => until,
            _ => Time::ZERO,
        };
        by_estimate.max(by_quota).max(by_allowance).max(self.not_before)
    }

    /// From when on there are fewer than `count` starts within `per`.
    fn window(&self, count: usize, per: Duration) -> Time {
        match self.starts.len().checked_sub(count.max(1)) {
            Some(index) => self.starts[index] + per,
            None => Time::ZERO,
        }
    }

    /// Records a start.
    pub fn start(&mut self, now: Time) {
        if self.starts.len() >= self.max {
            self.starts.pop_front();
        }
        // In order even when the clock was set back, for they are searched.
        let at = self.starts.back().map_or(now, |last| now.max(*last));
        self.starts.push_back(at);
        match &mut self.allowance {
            Some(allowance) if now < allowance.until => allowance.left = allowance.left.saturating_sub(1),
            over => *over = None,
        }
    }

    /// No start before `until`, as far as that is within a day: the destination asked for it.
    pub fn hold(&mut self, now: Time, until: Time) {
        self.not_before = self.not_before.max(until.min(now + RETRY_AFTER_MAX));
    }

    /// Learns from what an attempt says about the destination.
    pub fn learn(&mut self, now: Time, lesson: Lesson, said: Option<RateLimit>) {
        match lesson {
            Lesson::Slower(pause) => {
                self.decrease(now);
                self.hold(now, now + pause.unwrap_or(Duration::ZERO));
            }
            Lesson::Up => self.probe(now),
            // Whether it is down has nothing to do with the pace: that is the breaker's.
            Lesson::Down | Lesson::Nothing | Lesson::Apart | Lesson::Unused => {}
        }
        if let Some(said) = said {
            self.heed(now, said);
        }
    }

    fn decrease(&mut self, now: Time) {
        if self.decreased_at.is_some_and(|at| now < at + self.per) {
            return;
        }
        self.decreased_at = Some(now);
        let used = (self.recent_starts(now) as f64).max(1.0);
        self.estimate = (self.estimate.min(used) * DECREASE).max(1.0 / PERIODS_PER_START_MAX);
    }

    fn probe(&mut self, now: Time) {
        if (self.recent_starts(now) as f64) * 2.0 >= self.estimate {
            let max = self.max as f64;
            self.estimate = (self.estimate + STEP_SHARE * max / self.estimate.max(1.0)).min(max);
        }
    }

    fn heed(&mut self, now: Time, said: RateLimit) {
        if said.quota.is_some() {
            self.quota = said.quota;
        }
        let (Some(left), Some(reset)) = (said.remaining, said.reset) else { return };
        let until = now + reset.min(RETRY_AFTER_MAX);
        self.allowance = match self.allowance {
            // Calls under way were not counted yet when this was said, so within a window it only gets less.
            Some(known) if until <= known.until + SAME_RESET => Some(Allowance { left: left.min(known.left), ..known }),
            _ => Some(Allowance { left, until }),
        };
    }

    /// How many starts there were in the period that ends now.
    fn recent_starts(&self, now: Time) -> usize {
        self.starts.len() - self.starts.partition_point(|start| *start + self.per <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time::from_millis(1_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn said(remaining: u64, reset: Duration) -> Option<RateLimit> {
        Some(RateLimit { remaining: Some(remaining), reset: Some(reset), quota: None })
    }

    /// Starts as many as are allowed at `now`.
    fn start_all(adaptive: &mut Adaptive, now: Time) -> usize {
        let mut count = 0;
        while adaptive.next_start() <= now {
            adaptive.start(now);
            count += 1;
        }
        count
    }

    #[test]
    fn a_refusal_cuts_what_was_really_started_once_a_period() {
        let mut adaptive = Adaptive::new(1000, SECOND);
        for _ in 0..20 {
            adaptive.start(NOW);
        }
        for _ in 0..15 {
            adaptive.learn(NOW, Lesson::Slower(None), None);
        }
        assert_eq!(adaptive.estimate(), 14.0);
        adaptive.learn(NOW + SECOND, Lesson::Slower(None), None);
        assert!(adaptive.estimate() < 1.0, "nothing was started, and still it was refused: {}", adaptive.estimate());
    }

    #[test]
    fn it_grows_only_while_it_is_used_and_up_to_the_limit() {
        let mut adaptive = Adaptive::new(10, SECOND);
        adaptive.start(NOW);
        adaptive.learn(NOW, Lesson::Slower(None), None);
        let low = adaptive.estimate();
        for _ in 0..1000 {
            adaptive.learn(NOW + SECOND * 10, Lesson::Up, None);
        }
        assert_eq!(adaptive.estimate(), low, "nobody went at that pace");
        let mut now = NOW;
        for _ in 0..1000 {
            now = adaptive.next_start().max(now);
            adaptive.start(now);
            adaptive.learn(now, Lesson::Up, None);
        }
        assert_eq!(adaptive.estimate(), 10.0);
    }

    #[test]
    fn a_pause_holds_everybody_and_ends() {
        let mut adaptive = Adaptive::new(10, SECOND);
        adaptive.learn(NOW, Lesson::Slower(Some(SECOND * 30)), None);
        assert_eq!(adaptive.next_start(), NOW + SECOND * 30);
        adaptive.hold(NOW, Time::NEVER);
        assert_eq!(adaptive.next_start(), NOW + RETRY_AFTER_MAX);
    }

    #[test]
    fn what_is_left_is_not_exceeded_and_comes_back_with_the_reset() {
        let mut adaptive = Adaptive::new(100, SECOND);
        adaptive.learn(NOW, Lesson::Up, said(3, SECOND * 5));
        assert_eq!(start_all(&mut adaptive, NOW), 3);
        assert_eq!(adaptive.next_start(), NOW + SECOND * 5);
        // An answer that was on its way knows of fewer starts than there were.
        adaptive.learn(NOW, Lesson::Up, said(2, SECOND * 5));
        assert_eq!(adaptive.next_start(), NOW + SECOND * 5);
        let after = NOW + SECOND * 5;
        assert_eq!(start_all(&mut adaptive, after), 100);
    }

    #[test]
    fn a_quota_that_was_announced_holds_in_any_window() {
        let mut adaptive = Adaptive::new(100, SECOND);
        let quota = Some(Quota { calls: 5, window: SECOND * 2 });
        adaptive.learn(NOW, Lesson::Up, Some(RateLimit { quota, ..RateLimit::default() }));
        assert_eq!(start_all(&mut adaptive, NOW), 5);
        assert_eq!(adaptive.next_start(), NOW + SECOND * 2);
    }

    /// A destination that takes 20 calls in any second and says nothing but 429.
    #[test]
    fn it_finds_a_limit_that_it_is_not_told() {
        let mut adaptive = Adaptive::new(100, SECOND);
        let (mut taken, mut refused) = (VecDeque::new(), 0);
        let (mut now, mut total) = (NOW, 0);
        while now < NOW + SECOND * 60 {
            now = adaptive.next_start().max(now + Duration::from_millis(1));
            adaptive.start(now);
            total += 1;
            while taken.front().is_some_and(|start| *start + SECOND <= now) {
                taken.pop_front();
            }
            let lesson = if taken.len() < 20 { Lesson::Up } else { Lesson::Slower(None) };
            match lesson {
                Lesson::Up => taken.push_back(now),
                _ => refused += 1,
            }
            adaptive.learn(now, lesson, None);
        }
        let served_per_second = f64::from(total - refused) / 60.0;
        assert!(served_per_second > 14.0, "{served_per_second} of 20 per second were used");
        assert!(f64::from(refused) < f64::from(total) * 0.2, "{refused} of {total} were refused");
    }

    proptest! {
        #[test]
        fn whatever_is_learned_the_limit_holds(
            max in 1u32..20,
            steps in prop::collection::vec((0u64..400, 0u8..4, 0u64..30, 0u64..5, 1u64..30), 1..200),
        ) {
            let mut adaptive = Adaptive::new(max, SECOND);
            let mut now = NOW;
            let mut starts = Vec::new();
            for (gap_ms, kind, left, reset_s, calls) in steps {
                now = now + Duration::from_millis(gap_ms);
                if adaptive.next_start() <= now {
                    adaptive.start(now);
                    starts.push(now);
                }
                let quota = Some(Quota { calls, window: SECOND }).filter(|_| calls % 2 == 0);
                let limit = RateLimit { quota, ..said(left, SECOND * reset_s as u32).unwrap() };
                let lessons = [Lesson::Up, Lesson::Slower(None), Lesson::Slower(Some(SECOND)), Lesson::Down];
                let lesson = lessons[kind as usize];
                adaptive.learn(now, lesson, Some(limit).filter(|_| left % 3 == 0));
                prop_assert!(adaptive.estimate() > 0.0 && adaptive.estimate() <= f64::from(max));
                prop_assert!(adaptive.next_start() <= now + SECOND * 64, "it always comes back");
            }
            for (index, &first) in starts.iter().enumerate() {
                let within = starts[index..].iter().take_while(|&&start| start < first + SECOND).count();
                prop_assert!(within <= max as usize, "{within} starts within a second");
            }
        }
    }
}
