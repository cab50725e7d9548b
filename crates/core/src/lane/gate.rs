//! A gate: whatever may hold jobs back, before a lane or before one tenant.
//! Invariant: a shut gate holds; it uses up no attempt and loses nothing.
//! Never: polls; a hold says until when, or that a settlement will open it.

use std::time::Duration;

use crate::breaker::{Breaker, BreakerState, Pass};
use crate::cadence::Cadence;
use crate::outcome::Lesson;
use crate::policy::{LanePolicy, RETRY_AFTER_MAX, Scope};
use crate::throttle::Throttle;
use crate::time::Time;

/// What holds a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateKind {
    /// The lane is paused.
    Paused,
    /// The job is not due yet.
    Delay,
    /// The lane's or tenant's limit on starts.
    Throttle,
    /// One start per tick.
    Cadence,
    /// The destination is down.
    Breaker,
    /// The destination asked for a pause.
    RetryAfter,
    /// All slots are taken.
    Concurrency,
    /// All of the tenant's slots are taken.
    TenantConcurrency,
    /// Others go first.
    Turn,
}

impl GateKind {
    /// All gates.
    pub const ALL: [GateKind; 9] = [
        GateKind::Paused,
        GateKind::Delay,
        GateKind::Throttle,
        GateKind::Cadence,
        GateKind::Breaker,
        GateKind::RetryAfter,
        GateKind::Concurrency,
        GateKind::TenantConcurrency,
        GateKind::Turn,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            GateKind::Paused => "paused",
            GateKind::Delay => "delay",
            GateKind::Throttle => "throttle",
            GateKind::Cadence => "cadence",
            GateKind::Breaker => "breaker",
            GateKind::RetryAfter => "retry_after",
            GateKind::Concurrency => "concurrency",
            GateKind::TenantConcurrency => "tenant_concurrency",
            GateKind::Turn => "turn",
        }
    }
}

/// A gate that is shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which.
    pub gate: GateKind,
    /// Until when, where that is known.
    pub until: Option<Time>,
}

/// Throttle, cadence, breaker and a pause the destination asked for.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    throttle: Option<Throttle>,
    cadence: Option<Cadence>,
    breaker: Option<Breaker>,
    not_before: Time,
}

impl Gate {
    /// The gate that `policy` puts at `scope`; `None` where nothing can ever be held.
    pub(super) fn new(policy: &LanePolicy, scope: Scope) -> Option<Gate> {
        let throttle = policy.throttle.as_ref().filter(|throttle| throttle.scope == scope);
        let throttle = throttle.map(|throttle| Throttle::new(throttle.max_requests, throttle.per));
        let breaker = policy.breaker.as_ref().filter(|(_, breaker_scope)| *breaker_scope == scope);
        let breaker = breaker.map(|(breaker, _)| Breaker::new(breaker.clone()));
        let cadence = policy.cadence.clone().filter(|_| scope == Scope::Lane).map(Cadence::new);
        let holds = throttle.is_some() || breaker.is_some() || cadence.is_some();
        holds.then_some(Gate { throttle, cadence, breaker, not_before: Time::ZERO })
    }

    /// What holds a start at `now`, if anything.
    pub(super) fn hold(&self, now: Time, running: u32) -> Option<Hold> {
        let until = |gate, time: Time| (now < time).then_some(Hold { gate, until: Some(time) });
        let breaker = || match self.breaker.as_ref()?.pass(now, running) {
            Pass::Free => None,
            Pass::Until(time) => until(GateKind::Breaker, time),
            Pass::AfterSettle => Some(Hold { gate: GateKind::Breaker, until: None }),
        };
        breaker()
            .or_else(|| until(GateKind::RetryAfter, self.not_before))
            .or_else(|| until(GateKind::Throttle, self.throttle.as_ref()?.next_start()))
            .or_else(|| until(GateKind::Cadence, self.cadence.as_ref()?.next_start()))
    }

    /// Records a start.
    pub(super) fn start(&mut self, now: Time) {
        if let Some(throttle) = &mut self.throttle {
            throttle.start(now);
        }
        if let Some(cadence) = &mut self.cadence {
            cadence.start(now);
        }
        if let Some(breaker) = &mut self.breaker {
            breaker.start(now);
        }
    }

    /// Learns from an outcome.
    pub(super) fn learn(&mut self, now: Time, lesson: Lesson, took: Duration) {
        if let Lesson::Slower(Some(pause)) = lesson {
            self.not_before = self.not_before.max(now + pause.min(RETRY_AFTER_MAX));
        }
        if let Some(cadence) = &mut self.cadence {
            cadence.learn(now, matches!(lesson, Lesson::Slower(_)), lesson == Lesson::Up, took);
        }
        if let Some(breaker) = &mut self.breaker {
            match lesson {
                Lesson::Up | Lesson::Slower(_) => breaker.succeed(),
                Lesson::Down => {
                    breaker.fail(now);
                }
                Lesson::Nothing => breaker.give_up_probe(now),
            }
        }
    }

    pub(super) fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    pub(super) fn throttle_mut(&mut self) -> Option<&mut Throttle> {
        self.throttle.as_mut()
    }

    pub(super) fn assume_spent(&mut self, now: Time) {
        if let Some(throttle) = &mut self.throttle {
            throttle.assume_spent(now);
        }
    }

    pub(super) fn breaker_state(&self, now: Time) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state(now))
    }

    pub(super) fn interval(&self) -> Option<Duration> {
        self.cadence.as_ref().map(Cadence::interval)
    }
}
