//! The breaker, for many tasks: nobody calls what is down, and one asks whether it is back.
//! Invariant: whoever passed is counted until the passage is settled or dropped.
//! Never: counts an attempt that was broken off as a failure; it says nothing about the destination.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use entrega_core::breaker::{Breaker, BreakerPolicy, BreakerState, Pass};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::locked;
use crate::clock::Clock;

/// The breaker let nobody through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the destination is taken to be down; it is asked again later")]
pub struct BreakerOpen {
    /// From when on it is worth asking again, where that is known.
    pub until: Option<Time>,
}

/// Lets calls through to what is not down. Clones share it.
#[derive(Clone, Debug)]
pub struct BreakerGate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    running: u32,
}

impl BreakerGate {
    /// Closed: calls go through.
    #[must_use]
    pub fn new(policy: BreakerPolicy, clock: Clock) -> BreakerGate {
        let state = Mutex::new(State { breaker: Breaker::new(policy), running: 0 });
        BreakerGate { shared: Arc::new(Shared { clock, state, settled: Notify::new() }) }
    }

    /// Goes through, waiting at most for `max_wait` where it may open in that time.
    ///
    /// # Errors
    /// [`BreakerOpen`] when it does not.
    pub async fn pass(&self, max_wait: Duration) -> Result<Passage, BreakerOpen> {
        let give_up_at = self.shared.clock.now() + max_wait;
        loop {
            // Enlisted before looking: what is settled in between must not be missed.
            let settled = self.shared.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let until = match self.try_pass(give_up_at) {
                Ok(passage) => return Ok(passage),
                Err(Held { until, is_final: true }) => return Err(BreakerOpen { until }),
                Err(Held { until, .. }) => until,
            };
            let wake_at = until.unwrap_or(give_up_at).min(give_up_at);
            // Whether somebody settled or the moment came, it is looked at again.
            let _ = timeout_at(self.shared.clock.instant(wake_at), settled).await;
        }
    }

    /// Whether it would let nobody through within `max_wait`, so that there is no use in queueing elsewhere first.
    pub(crate) fn is_shut_for(&self, max_wait: Duration) -> bool {
        let now = self.shared.clock.now();
        matches!(locked(&self.shared.state).breaker.state(now), BreakerState::Open(until) if until > now + max_wait)
    }

    fn try_pass(&self, give_up_at: Time) -> Result<Passage, Held> {
        let now = self.shared.clock.now();
        let mut state = locked(&self.shared.state);
        let until = match state.breaker.pass(now, state.running) {
            Pass::Free => {
                state.running += 1;
                let is_probe = state.breaker.start(now);
                return Ok(Passage { shared: Arc::clone(&self.shared), is_probe, is_settled: false });
            }
            Pass::Until(at) => Some(at),
            Pass::AfterSettle => None,
        };
        // Only an open breaker surely stays shut until its time; a probe or a call under way may end sooner.
        let stays_open = matches!(state.breaker.state(now), BreakerState::Open(at) if at > give_up_at);
        Err(Held { until, is_final: stays_open || now >= give_up_at })
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        locked(&self.shared.state).breaker.state(self.shared.clock.now())
    }
}

/// Why nobody passes, and whether waiting is of any use.
struct Held {
    until: Option<Time>,
    is_final: bool,
}

/// A call on its way. Settle it with what it says about the destination; dropped, it says nothing.
#[derive(Debug)]
#[must_use]
pub struct Passage {
    shared: Arc<Shared>,
    is_probe: bool,
    is_settled: bool,
}

impl Passage {
    /// The call ended.
    pub fn settle(mut self, lesson: Lesson) {
        let now = self.shared.clock.now();
        let mut state = locked(&self.shared.state);
        match lesson {
            Lesson::Up | Lesson::Slower(_) => state.breaker.succeed(),
            Lesson::Down => {
                state.breaker.fail(now);
            }
            // As if it had been dropped.
            Lesson::Nothing | Lesson::Apart | Lesson::Unused => return,
        }
        drop(state);
        self.is_settled = true;
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        let mut state = locked(&self.shared.state);
        state.running = state.running.saturating_sub(1);
        if self.is_probe && !self.is_settled {
            state.breaker.give_up_probe(now);
        }
        drop(state);
        self.shared.settled.notify_waiters();
    }
}
