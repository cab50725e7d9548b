//! Breaker: stops calling what is down, asks again with one probe, comes back gently.
//! Invariant: while open nobody is called; half-open, one probe at a time, and a probe that never comes back times out.
//! Never: counts what says nothing about the destination (4xx, our own refusals).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// What becomes of jobs whose destination is not to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenOpen {
    /// They wait until it may be called again.
    #[default]
    Hold,
    /// They are handed out at once, for a channel that can answer them without a call.
    Pass,
}

impl WhenOpen {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            WhenOpen::Hold => "hold",
            WhenOpen::Pass => "pass",
        }
    }
}

/// When to open and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open.
    pub open: Duration,
    /// How long a probe may take.
    pub probe_timeout: Duration,
    /// What becomes of jobs meanwhile.
    pub when_open: WhenOpen,
}

/// The state, as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BreakerState {
    /// Calls go through.
    Closed,
    /// No calls until this moment.
    Open(Time),
    /// One probe decides.
    HalfOpen,
}

impl BreakerState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open(_) => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Closed { failures: u32 },
    Open { until: Time },
    Probing { deadline: Time },
}

/// Whether a call may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It may.
    Free,
    /// Not before this moment.
    Until(Time),
    /// Not before a call that is under way has ended.
    AfterSettle,
}

/// How a breaker stands, and how often it has changed since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerFigures {
    /// The state now.
    pub state: BreakerState,
    /// How often it opened.
    pub opened: u64,
    /// How often a probe was started.
    pub half_opened: u64,
    /// How often a probe closed it.
    pub closed: u64,
}

/// What a breaker knows beside its policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerMemory {
    state: State,
    ramp: u32,
    opened: u64,
    half_opened: u64,
    closed: u64,
}

/// One destination's health.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
    /// How many may run at once while it recovers; doubles with each success.
    ramp: u32,
    opened: u64,
    half_opened: u64,
    closed: u64,
}

impl Breaker {
    /// Closed.
    pub fn new(policy: BreakerPolicy) -> Breaker {
        let state = State::Closed { failures: 0 };
        Breaker { policy, state, ramp: u32::MAX, opened: 0, half_opened: 0, closed: 0 }
    }

    /// The same, by other rules from now on.
    pub fn with_policy(self, policy: BreakerPolicy) -> Breaker {
        Breaker { policy, ..self }
    }

    /// What it must know to go on elsewhere.
    pub fn memory(&self) -> BreakerMemory {
        let Breaker { state, ramp, opened, half_opened, closed, .. } = self.clone();
        BreakerMemory { state, ramp, opened, half_opened, closed }
    }

    /// Goes on where another left off.
    pub fn resume_with(&mut self, memory: BreakerMemory) {
        let BreakerMemory { state, ramp, opened, half_opened, closed } = memory;
        *self = Breaker { policy: self.policy.clone(), state, ramp, opened, half_opened, closed };
    }

    /// Whether a call may start at `now` with `running` others under way.
    pub fn pass(&self, now: Time, running: u32) -> Pass {
        match self.state {
            State::Closed { .. } if running >= self.ramp => Pass::AfterSettle,
            State::Closed { .. } => Pass::Free,
            State::Open { until } | State::Probing { deadline: until } if now < until => Pass::Until(until),
            State::Open { .. } | State::Probing { .. } => Pass::Free,
        }
    }

    /// Records a start. Returns whether it is a probe.
    pub fn start(&mut self, now: Time) -> bool {
        let is_probe = !matches!(self.state, State::Closed { .. });
        if is_probe {
            self.state = State::Probing { deadline: now + self.policy.probe_timeout };
            self.half_opened += 1;
        }
        is_probe
    }

    /// The destination answered.
    pub fn succeed(&mut self) {
        match self.state {
            State::Closed { .. } => {
                self.ramp = self.ramp.saturating_mul(2);
                self.state = State::Closed { failures: 0 };
            }
            State::Probing { .. } => {
                self.ramp = 1;
                self.state = State::Closed { failures: 0 };
                self.closed += 1;
            }
            // A straggler from before it opened says nothing about now.
            State::Open { .. } => {}
        }
    }

    /// The destination is down. Returns whether this opened the breaker.
    pub fn fail(&mut self, now: Time) -> bool {
        let opens = match self.state {
            State::Closed { failures } => failures + 1 >= self.policy.failures || self.ramp != u32::MAX,
            State::Probing { .. } => true,
            State::Open { .. } => false,
        };
        match (opens, &mut self.state) {
            (true, state) => {
                *state = State::Open { until: now + self.policy.open };
                self.opened += 1;
            }
            (false, State::Closed { failures }) => *failures += 1,
            (false, _) => {}
        }
        opens
    }

    /// A probe ended without saying anything about the destination: another may go.
    pub fn give_up_probe(&mut self, now: Time) {
        if let State::Probing { .. } = self.state {
            self.state = State::Open { until: now };
        }
    }

    /// The state at `now`.
    pub fn state(&self, now: Time) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open(until),
            State::Open { .. } | State::Probing { .. } => BreakerState::HalfOpen,
        }
    }

    /// What becomes of jobs while it lets nobody through.
    pub fn when_open(&self) -> WhenOpen {
        self.policy.when_open
    }

    /// The state at `now`, and the counts.
    pub fn figures(&self, now: Time) -> BreakerFigures {
        let Breaker { opened, half_opened, closed, .. } = *self;
        BreakerFigures { state: self.state(now), opened, half_opened, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(1_000_000);

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy {
            failures: 3,
            open: Duration::from_secs(30),
            probe_timeout: Duration::from_secs(10),
            when_open: WhenOpen::Hold,
        })
    }

    fn opened() -> Breaker {
        let mut breaker = breaker();
        assert!(!breaker.fail(NOW) && !breaker.fail(NOW) && breaker.fail(NOW));
        breaker
    }

    #[test]
    fn opens_after_failures_in_a_row_only() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.fail(NOW);
            breaker.fail(NOW);
            breaker.succeed();
        }
        assert_eq!(breaker.state(NOW), BreakerState::Closed);
        assert_eq!(opened().pass(NOW, 0), Pass::Until(NOW + Duration::from_secs(30)));
    }

    #[test]
    fn one_probe_at_a_time_and_it_decides() {
        let later = NOW + Duration::from_secs(30);
        let mut breaker = opened();
        assert_eq!(breaker.pass(later, 0), Pass::Free);
        assert!(breaker.start(later));
        assert_eq!(breaker.pass(later, 1), Pass::Until(later + Duration::from_secs(10)));
        assert!(breaker.fail(later));
        assert_eq!(breaker.state(later), BreakerState::Open(later + Duration::from_secs(30)));
    }

    #[test]
    fn a_lost_probe_does_not_close_the_door_for_ever() {
        let later = NOW + Duration::from_secs(30);
        let mut breaker = opened();
        breaker.start(later);
        assert_eq!(breaker.pass(later + Duration::from_secs(10), 1), Pass::Free);
        breaker.give_up_probe(later);
        assert_eq!(breaker.pass(later, 0), Pass::Free);
    }

    #[test]
    fn it_comes_back_gently_and_one_failure_on_the_way_opens_it_again() {
        let later = NOW + Duration::from_secs(30);
        let mut breaker = opened();
        breaker.start(later);
        breaker.succeed();
        for allowed in [1, 2, 4, 8] {
            assert_eq!(breaker.pass(later, allowed - 1), Pass::Free);
            assert_eq!(breaker.pass(later, allowed), Pass::AfterSettle);
            breaker.succeed();
        }
        assert!(breaker.fail(later));
    }

    #[test]
    fn a_straggler_changes_nothing_while_open() {
        let mut breaker = opened();
        breaker.succeed();
        assert!(!breaker.fail(NOW));
        assert!(matches!(breaker.state(NOW), BreakerState::Open(_)));
    }

    #[test]
    fn every_change_of_state_is_counted_once() {
        let later = NOW + Duration::from_secs(30);
        let mut breaker = opened();
        breaker.fail(NOW);
        breaker.start(later);
        breaker.fail(later);
        let latest = later + Duration::from_secs(30);
        breaker.start(latest);
        breaker.give_up_probe(latest);
        breaker.start(latest);
        breaker.succeed();
        breaker.succeed();
        let counted = BreakerFigures { state: BreakerState::Closed, opened: 2, half_opened: 3, closed: 1 };
        assert_eq!(breaker.figures(latest), counted);
    }
}
