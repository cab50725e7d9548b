//! A gate: whatever may hold jobs back, before a lane or before one tenant.
//! Invariant: a shut gate holds; it uses up no attempt and loses nothing.
//! Never: polls; a hold says until when, or that a settlement will open it. Counts what went past it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::breaker::{Breaker, BreakerFigures, BreakerMemory, BreakerState, Pass, WhenOpen};
use crate::cadence::{Cadence, CadenceFigures};
use crate::id::JobId;
use crate::outcome::Lesson;
use crate::policy::{LanePolicy, RETRY_AFTER_MAX, Scope};
use crate::throttle::{Rate, Throttle};
use crate::time::Time;

/// What holds a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The gate.
    pub gate: GateKind,
    /// Until when, where that is known.
    pub until: Option<Time>,
}

/// How a job leaves, if it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the gate, which counts it.
    Through,
    /// Past it: the destination is down and is not going to be called.
    Past,
    /// Not now.
    Held(Hold),
}

impl Way {
    pub(super) fn hold(self) -> Option<Hold> {
        match self {
            Way::Held(hold) => Some(hold),
            Way::Through | Way::Past => None,
        }
    }
}

/// Throttle, cadence, breaker and a pause the destination asked for.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    throttle: Option<Throttle>,
    /// The tenant's own, beside the lane's.
    own_throttle: Option<Throttle>,
    cadence: Option<Cadence>,
    breaker: Option<Breaker>,
    not_before: Time,
    /// Whose the last start is.
    last: Option<JobId>,
}

/// What a gate without a cadence must know to go on elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateMemory {
    starts: Vec<Time>,
    not_before: Time,
    breaker: Option<BreakerMemory>,
}

impl Gate {
    /// The gate that `policy` puts at `scope`; `None` where nothing can ever be held.
    pub fn new(policy: &LanePolicy, scope: Scope) -> Option<Gate> {
        let throttle = policy.throttle.as_ref().filter(|throttle| throttle.scope == scope);
        let throttle = throttle.map(|throttle| Throttle::new(throttle.max_requests, throttle.per));
        let breaker = policy.breaker.as_ref().filter(|(_, breaker_scope)| *breaker_scope == scope);
        let breaker = breaker.map(|(breaker, _)| Breaker::new(breaker.clone()));
        let cadence = policy.cadence.clone().filter(|_| scope == Scope::Lane).map(Cadence::new);
        let gate = Gate { throttle, cadence, breaker, ..Gate::default() };
        gate.can_hold().then_some(gate)
    }

    /// Goes on with the limits of another policy at the same scope; starts and failures that there were count on.
    pub fn change(&mut self, policy: &LanePolicy, scope: Scope) {
        let new = Gate::new(policy, scope).unwrap_or_default();
        self.throttle = match (self.throttle.take(), new.throttle) {
            (Some(mut throttle), Some(new)) => {
                throttle.change(new.rate());
                Some(throttle)
            }
            (_, new) => new,
        };
        self.breaker = match (self.breaker.take(), policy.breaker.as_ref().filter(|(_, of)| *of == scope)) {
            (Some(breaker), Some((policy, _))) => Some(breaker.with_policy(policy.clone())),
            _ => new.breaker,
        };
        self.cadence = new.cadence.map(|new| self.cadence.take().unwrap_or(new));
    }

    /// Whether the tenant has a throttle of its own.
    pub(super) fn has_own_throttle(&self) -> bool {
        self.own_throttle.is_some()
    }

    /// Whether it can ever hold anything.
    pub(super) fn can_hold(&self) -> bool {
        self.throttles().next().is_some() || self.breaker.is_some() || self.cadence.is_some()
    }

    /// Whether it may be forgotten: nothing it knows would hold anything at `now`.
    pub(super) fn is_fresh(&self, now: Time) -> bool {
        let counts_nothing = self.throttle.as_ref().is_none_or(|throttle| throttle.starts(now).next().is_none());
        let is_closed = self.breaker.as_ref().is_none_or(|breaker| breaker.state(now) == BreakerState::Closed);
        counts_nothing && is_closed && self.own_throttle.is_none() && self.not_before <= now
    }

    /// Sets or takes away the tenant's own throttle; whether that changed anything.
    pub(super) fn set_own_throttle(&mut self, rate: Option<Rate>) -> bool {
        let before = self.own_throttle.as_ref().map(Throttle::rate);
        match (&mut self.own_throttle, rate) {
            (Some(own), Some(rate)) => own.change(rate),
            (own, rate) => *own = rate.map(|rate| Throttle::new(rate.max_requests, rate.per())),
        }
        before != rate
    }

    fn throttles(&self) -> impl Iterator<Item = &Throttle> {
        self.throttle.iter().chain(&self.own_throttle)
    }

    fn throttles_mut(&mut self) -> impl Iterator<Item = &mut Throttle> {
        self.throttle.iter_mut().chain(&mut self.own_throttle)
    }

    /// How a job may leave at `now` with `running` others under way that came through here.
    pub fn way(&self, now: Time, running: u32) -> Way {
        let until = |gate, time: Time| (now < time).then_some(Hold { gate, until: Some(time) });
        let breaker = || match self.breaker.as_ref()?.pass(now, running) {
            Pass::Free => None,
            Pass::Until(time) => until(GateKind::Breaker, time),
            Pass::AfterSettle => Some(Hold { gate: GateKind::Breaker, until: None }),
        };
        let passes = || self.breaker.as_ref().is_some_and(|breaker| breaker.when_open() == WhenOpen::Pass);
        let hold = match breaker() {
            Some(_) if passes() => return Way::Past,
            hold => hold
                .or_else(|| until(GateKind::RetryAfter, self.not_before))
                .or_else(|| until(GateKind::Throttle, self.throttles().map(Throttle::next_start).max()?))
                .or_else(|| until(GateKind::Cadence, self.cadence.as_ref()?.next_start())),
        };
        hold.map_or(Way::Through, Way::Held)
    }

    /// Lets a call start that is no job, or says what holds it. One that waits no longer for its turn is held by a
    /// destination that is down, or asked for a pause, only.
    pub fn call(&mut self, now: Time, waits: bool) -> Option<Hold> {
        let held = match self.way(now, 0) {
            Way::Held(hold) => Some(hold),
            Way::Through | Way::Past => None,
        };
        let held = held.filter(|hold| waits || matches!(hold.gate, GateKind::Breaker | GateKind::RetryAfter));
        if held.is_none() {
            self.start(now, JobId::MIN);
        }
        held
    }

    /// Records the start of a job.
    pub fn start(&mut self, now: Time, id: JobId) {
        self.last = Some(id);
        self.throttles_mut().for_each(|throttle| throttle.start(now));
        if let Some(cadence) = &mut self.cadence {
            cadence.start(now);
        }
        if let Some(breaker) = &mut self.breaker {
            breaker.start(now);
        }
    }

    /// Moves starts that were counted at `from` to `now`, when what was let through began.
    pub(super) fn restamp(&mut self, from: Time, now: Time) {
        self.throttles_mut().for_each(|throttle| throttle.restamp(from, now));
        if let Some(cadence) = &mut self.cadence {
            cadence.restamp(from, now);
        }
    }

    /// What it must know to go on elsewhere.
    pub fn memory(&self, now: Time) -> GateMemory {
        let starts = self.throttle.as_ref().map(|throttle| throttle.starts(now).collect()).unwrap_or_default();
        GateMemory { starts, not_before: self.not_before, breaker: self.breaker.as_ref().map(Breaker::memory) }
    }

    /// Goes on where another of the same policy left off.
    pub fn resume_with(&mut self, now: Time, memory: GateMemory) {
        if let Some(throttle) = &mut self.throttle {
            throttle.resume_with(now, &memory.starts);
        }
        if let (Some(breaker), Some(memory)) = (&mut self.breaker, memory.breaker) {
            breaker.resume_with(memory);
        }
        self.not_before = memory.not_before;
    }

    /// Learns from the outcome of a job.
    pub fn learn(&mut self, now: Time, id: JobId, lesson: Lesson, took: Duration) {
        match lesson {
            Lesson::Apart => {}
            Lesson::Unused => self.give_back(now, id),
            Lesson::Up | Lesson::Down | Lesson::Slower(_) | Lesson::Nothing => self.learn_from_call(now, lesson, took),
        }
    }

    fn learn_from_call(&mut self, now: Time, lesson: Lesson, took: Duration) {
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
                _ => breaker.give_up_probe(now),
            }
        }
    }

    /// Gives back the start of a job that called nobody, unless others started since: what they waited for cannot be
    /// undone. A probe is the last start for as long as it is under way.
    fn give_back(&mut self, now: Time, id: JobId) {
        if self.last != Some(id) {
            return;
        }
        self.throttles_mut().for_each(Throttle::give_back);
        if let Some(cadence) = &mut self.cadence {
            cadence.give_back();
        }
        if let Some(breaker) = &mut self.breaker {
            breaker.give_up_probe(now);
        }
    }

    pub(super) fn cadence(&self) -> Option<&Cadence> {
        self.cadence.as_ref()
    }

    pub(super) fn cadence_mut(&mut self) -> Option<&mut Cadence> {
        self.cadence.as_mut()
    }

    pub(super) fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    pub(super) fn throttle_mut(&mut self) -> Option<&mut Throttle> {
        self.throttle.as_mut()
    }

    pub(super) fn own_throttle(&self) -> Option<&Throttle> {
        self.own_throttle.as_ref()
    }

    pub(super) fn own_throttle_mut(&mut self) -> Option<&mut Throttle> {
        self.own_throttle.as_mut()
    }

    /// Counts as used up at `now`: nobody remembers the last starts.
    pub fn assume_spent(&mut self, now: Time) {
        self.throttles_mut().for_each(|throttle| throttle.assume_spent(now));
        if let Some(cadence) = &mut self.cadence {
            cadence.assume_spent(now);
        }
    }

    pub(super) fn breaker_figures(&self, now: Time) -> Option<BreakerFigures> {
        self.breaker.as_ref().map(|breaker| breaker.figures(now))
    }

    pub(super) fn cadence_figures(&self) -> Option<CadenceFigures> {
        self.cadence.as_ref().map(Cadence::figures)
    }
}
