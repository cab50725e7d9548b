//! Gates that several processes share: somebody else decides, here is waited.
//! Invariant: turns are asked for one after the other; tenants take turns, and the tasks of one go in the order of asking. A
//! task that goes away leaves the line, and gives up the turn that it had.
//! Never: decides whether a call may start.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::lane::{GateKind, Hold};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use tokio::time::{sleep_until, timeout_at};

use super::breaker::BreakerOpen;
use super::line::Line;
use crate::clock::Clock;

/// What comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whoever gives turns to several processes: a throttle, a breaker, or both.
pub trait SharedGate: fmt::Debug + Send + Sync {
    /// Asks for a turn, and takes it if there is one: if nothing holds the call, it counts as started.
    fn ask(&self) -> Later<'_, Option<Hold>>;
    /// Takes a turn that is not waited for any more, unless the destination is down or asked for a pause.
    fn start_anyway(&self) -> Later<'_, Option<Hold>>;
    /// Tells what came of a call.
    fn learn(&self, lesson: Lesson, took: Duration) -> Later<'_, ()>;
}

/// A shared gate, and the tasks of this process that wait before it.
#[derive(Debug)]
pub struct SharedTurns {
    gate: Arc<dyn SharedGate>,
    line: Line,
    clock: Clock,
}

/// The shortest pause between two questions: a gate that says "at once" for ever must not spin.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// How long whoever has an answer, or waited long enough, is kept by a gate that does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a call under way is waited for that decides whether the destination is up.
const PROBE_LOOK: Duration = Duration::from_millis(100);
/// When a gate is asked again that does not say until when it holds.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How the wait for a turn ended.
#[derive(Debug)]
pub struct SharedWait {
    /// How long it took.
    pub took: Duration,
    /// The turn; `None` if it did not come in time.
    pub turn: Option<SharedTurn>,
}

/// A turn that was taken. Whoever goes away with it, and never tells what came of the call, gives it up: another may decide
/// whether the destination is up.
#[derive(Debug)]
pub struct SharedTurn {
    gate: Arc<dyn SharedGate>,
    clock: Clock,
    is_told: bool,
}

impl SharedTurn {
    /// Tells what came of the call, if the gate can be told soon.
    pub async fn learn(mut self, lesson: Lesson, took: Duration) {
        self.is_told = true;
        soon(&self.clock, self.gate.learn(lesson, took)).await;
    }
}

impl Drop for SharedTurn {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        // Without a runtime there is nobody left to tell it; a gate does not wait for such a call for ever.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (gate, clock) = (self.gate.clone(), self.clock.clone());
            runtime.spawn(async move { soon(&clock, gate.learn(Lesson::Nothing, Duration::ZERO)).await });
        }
    }
}

impl SharedTurns {
    /// Turns from this gate.
    #[must_use]
    pub fn new(gate: Arc<dyn SharedGate>, clock: Clock) -> SharedTurns {
        SharedTurns { gate, line: Line::default(), clock }
    }

    /// Waits for a turn for a tenant, at most for `max_wait`, and takes it. A destination that is down for longer than
    /// `down_max` is not waited for.
    ///
    /// # Errors
    /// [`BreakerOpen`] when the destination is down.
    pub async fn wait(&self, tenant: &str, max_wait: Duration, down_max: Duration) -> Result<SharedWait, BreakerOpen> {
        let asked_at = self.clock.now();
        let turn = self.wait_until(tenant, asked_at + max_wait, asked_at + down_max).await?;
        Ok(SharedWait { took: self.clock.now().since(asked_at), turn })
    }

    async fn wait_until(&self, tenant: &str, until: Time, until_down: Time) -> Result<Option<SharedTurn>, BreakerOpen> {
        let in_line = timeout_at(self.clock.instant(until), self.line.enter(tenant)).await;
        let Ok(_head) = in_line else { return Ok(None) };
        loop {
            let now = self.clock.now();
            // A question is not broken off at the last moment: a turn that is on its way would be lost.
            let answer = timeout_at(self.clock.instant(until + ANSWER_MAX), self.gate.ask()).await;
            let again = match answer {
                Ok(None) => return Ok(Some(self.taken())),
                Ok(Some(Hold { gate: GateKind::Breaker, until })) => {
                    let until = until.unwrap_or(now + PROBE_LOOK);
                    if until > until_down {
                        return Err(BreakerOpen { until: Some(until) });
                    }
                    until
                }
                Ok(Some(Hold { until, .. })) => until.unwrap_or(now + ASK_AGAIN),
                Err(_) => return Ok(None),
            };
            let again = again.max(now + PAUSE_MIN);
            sleep_until(self.clock.instant(again.min(until))).await;
            if again > until {
                return Ok(None);
            }
        }
    }

    /// Takes a turn that is not waited for any more. A gate that does not say soon that the destination holds it lets it go.
    ///
    /// # Errors
    /// [`Hold`] when the destination is down, or asked for a pause.
    pub async fn start_anyway(&self) -> Result<SharedTurn, Hold> {
        match soon(&self.clock, self.gate.start_anyway()).await.flatten() {
            None => Ok(self.taken()),
            Some(hold) => Err(hold),
        }
    }

    fn taken(&self) -> SharedTurn {
        SharedTurn { gate: self.gate.clone(), clock: self.clock.clone(), is_told: false }
    }
}

async fn soon<T>(clock: &Clock, answer: Later<'_, T>) -> Option<T> {
    timeout_at(clock.instant(clock.now() + ANSWER_MAX), answer).await.ok()
}
