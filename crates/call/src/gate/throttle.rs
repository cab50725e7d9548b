//! The throttle, for many tasks: tenants take turns, and of one tenant's who comes first goes first.
//! Invariant: in no interval of the period do more than the limit start, save those that went anyway.
//! Never: takes a start for a task that stopped waiting.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use entrega_core::adaptive::Adaptive;
use entrega_core::outcome::Lesson;
use entrega_core::policy::RETRY_AFTER_MAX;
use entrega_core::rate_limit::RateLimit;
use entrega_core::throttle::Throttle;
use entrega_core::time::Time;
use tokio::time::{sleep_until, timeout_at};

use super::line::Line;
use super::locked;
use crate::clock::Clock;

/// Whoever names no tenant takes turns as this one.
const NOBODY: &str = "";

/// How waiting for a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleWait {
    /// With a turn: the start is recorded, and the call should begin now.
    Waited {
        /// After this long.
        took: Duration,
    },
    /// Without one; nothing is recorded.
    TimedOut {
        /// After this long.
        took: Duration,
    },
}

/// Lets calls start at the pace of a throttle. Clones share it.
#[derive(Clone, Debug)]
pub struct ThrottleGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    line: Line,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
enum Pace {
    Fixed { throttle: Throttle, not_before: Time, max: u32 },
    Adaptive(Adaptive),
}

impl Pace {
    fn next_start(&self) -> Time {
        match self {
            Pace::Fixed { throttle, not_before, .. } => throttle.next_start().max(*not_before),
            Pace::Adaptive(adaptive) => adaptive.next_start(),
        }
    }

    fn start(&mut self, now: Time) {
        match self {
            Pace::Fixed { throttle, .. } => throttle.start(now),
            Pace::Adaptive(adaptive) => adaptive.start(now),
        }
    }

    fn hold(&mut self, now: Time, pause: Duration) {
        let until = now + pause.min(RETRY_AFTER_MAX);
        match self {
            Pace::Fixed { not_before, .. } => *not_before = until.max(*not_before),
            Pace::Adaptive(adaptive) => adaptive.hold(now, until),
        }
    }
}

impl ThrottleGate {
    /// At most `max_requests` starts in any interval of `per`.
    #[must_use]
    pub fn new(max_requests: u32, per: Duration, clock: Clock) -> ThrottleGate {
        let throttle = Throttle::new(max_requests, per);
        ThrottleGate::with_pace(Pace::Fixed { throttle, not_before: Time::ZERO, max: max_requests }, clock)
    }

    /// The same, and slower where the destination asks for it: see [`entrega_core::adaptive`].
    #[must_use]
    pub fn adaptive(max_requests: u32, per: Duration, clock: Clock) -> ThrottleGate {
        ThrottleGate::with_pace(Pace::Adaptive(Adaptive::new(max_requests, per)), clock)
    }

    fn with_pace(pace: Pace, clock: Clock) -> ThrottleGate {
        let shared = Shared { clock, line: Line::default(), pace: Mutex::new(pace) };
        ThrottleGate { shared: Arc::new(shared) }
    }

    /// Waits for a turn, at most for `max_wait`, and takes it. Turns are given in the order of asking. Dropping the
    /// future leaves the line.
    pub async fn wait(&self, max_wait: Duration) -> ThrottleWait {
        self.wait_for(NOBODY, max_wait).await
    }

    /// The same for a tenant: tenants take turns, however many tasks wait for one of them.
    pub async fn wait_for(&self, tenant: &str, max_wait: Duration) -> ThrottleWait {
        let Shared { clock, line, .. } = &*self.shared;
        let asked_at = clock.now();
        let in_turn = async {
            let _head = line.enter(tenant).await;
            while let Err(at) = self.try_start() {
                // What is learned meanwhile may put the start off, so it is asked again after every sleep.
                sleep_until(clock.instant(at)).await;
            }
        };
        let ended = timeout_at(clock.instant(asked_at + max_wait), in_turn).await;
        let took = clock.now().since(asked_at);
        match ended {
            Ok(()) => ThrottleWait::Waited { took },
            Err(_) => ThrottleWait::TimedOut { took },
        }
    }

    fn try_start(&self) -> Result<(), Time> {
        let now = self.shared.clock.now();
        let mut pace = locked(&self.shared.pace);
        let at = pace.next_start();
        if now < at {
            return Err(at);
        }
        pace.start(now);
        Ok(())
    }

    /// Records the start of a call that goes without a turn, so that those after it wait the longer.
    pub fn start_anyway(&self) {
        locked(&self.shared.pace).start(self.shared.clock.now());
    }

    /// Learns from an attempt. Every throttle heeds a pause that was asked for; an adaptive one learns its pace.
    pub fn learn(&self, lesson: Lesson, pause: Option<Duration>, said: Option<RateLimit>) {
        let now = self.shared.clock.now();
        let mut pace = locked(&self.shared.pace);
        if let Some(pause) = pause {
            pace.hold(now, pause);
        }
        if let Pace::Adaptive(adaptive) = &mut *pace {
            adaptive.learn(now, lesson, said);
        }
    }

    /// How many starts per period it allows for now.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        match &*locked(&self.shared.pace) {
            Pace::Fixed { max, .. } => f64::from(*max),
            Pace::Adaptive(adaptive) => adaptive.estimate(),
        }
    }
}
