//! Gates that several processes share: somebody else decides, here is waited.
//! Invariant: turns are asked for one after the other, in the order of asking; a task that goes away leaves the queue.
//! Never: decides whether a call may start.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use entrega_core::outcome::Lesson;
use tokio::time::{sleep_until, timeout_at};

use super::breaker::BreakerOpen;
use super::throttle::ThrottleWait;
use crate::clock::Clock;

/// What comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether a call may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may, and it counts.
    Given,
    /// Not before so much time has passed.
    After(Duration),
    /// The destination is known to be down, for so long where that is known.
    Down(Option<Duration>),
}

/// Whoever gives turns to several processes: a throttle, a breaker, or both.
pub trait SharedGate: fmt::Debug + Send + Sync {
    /// Asks for a turn, and takes it if there is one.
    fn ask(&self) -> Later<'_, Turn>;
    /// Counts a start that waits for no turn any more, unless the destination is down.
    fn start_anyway(&self) -> Later<'_, Turn>;
    /// Tells what came of a call.
    fn learn(&self, lesson: Lesson, took: Duration) -> Later<'_, ()>;
}

/// A shared gate, and the tasks of this process that wait before it.
#[derive(Debug)]
pub struct SharedTurns {
    gate: Box<dyn SharedGate>,
    line: tokio::sync::Mutex<()>,
    clock: Clock,
}

/// The shortest pause between two questions: a gate that says "at once" for ever must not spin.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// How long whoever has an answer, or waited long enough, is kept by a gate that does not answer.
const TELL_MAX: Duration = Duration::from_secs(1);
/// How long a call under way is waited for that decides whether the destination is up.
const PROBE_LOOK: Duration = Duration::from_millis(100);

impl SharedTurns {
    /// Turns from this gate.
    #[must_use]
    pub fn new(gate: Box<dyn SharedGate>, clock: Clock) -> SharedTurns {
        SharedTurns { gate, line: tokio::sync::Mutex::default(), clock }
    }

    /// Waits for a turn, at most for `max_wait`, and takes it. A destination that is down for longer than `down_max` is
    /// not waited for.
    ///
    /// # Errors
    /// [`BreakerOpen`] when the destination is down.
    pub async fn wait(&self, max_wait: Duration, down_max: Duration) -> Result<ThrottleWait, BreakerOpen> {
        let asked_at = self.clock.now();
        let until_down = asked_at + down_max;
        let in_turn = async {
            let _next = self.line.lock().await;
            loop {
                let now = self.clock.now();
                let pause = match self.gate.ask().await {
                    Turn::Given => return Ok(()),
                    Turn::After(pause) => pause,
                    Turn::Down(pause) => {
                        let pause = pause.unwrap_or(PROBE_LOOK);
                        if now + pause > until_down {
                            return Err(BreakerOpen { until: Some(now + pause) });
                        }
                        pause
                    }
                };
                sleep_until(self.clock.instant(now + pause.max(PAUSE_MIN))).await;
            }
        };
        let ended = timeout_at(self.clock.instant(asked_at + max_wait), in_turn).await;
        let took = self.clock.now().since(asked_at);
        match ended {
            Ok(turn) => turn.map(|()| ThrottleWait::Waited { took }),
            Err(_) => Ok(ThrottleWait::TimedOut { took }),
        }
    }

    /// Counts a start that waits for no turn any more. A gate that does not say soon that the destination is down lets it
    /// go.
    ///
    /// # Errors
    /// [`BreakerOpen`] when the destination is down.
    pub async fn start_anyway(&self) -> Result<(), BreakerOpen> {
        match self.soon(self.gate.start_anyway()).await {
            Some(Turn::Down(pause)) => Err(BreakerOpen { until: pause.map(|pause| self.clock.now() + pause) }),
            Some(Turn::Given | Turn::After(_)) | None => Ok(()),
        }
    }

    /// Tells what came of a call, if the gate can be told soon.
    pub async fn learn(&self, lesson: Lesson, took: Duration) {
        self.soon(self.gate.learn(lesson, took)).await;
    }

    async fn soon<T>(&self, answer: Later<'_, T>) -> Option<T> {
        timeout_at(self.clock.instant(self.clock.now() + TELL_MAX), answer).await.ok()
    }
}
