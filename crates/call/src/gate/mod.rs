//! Gates before a destination: the rules of `entrega-core`, for many tasks of one process at once.
//! Invariant: a task that goes away while it waits takes nothing with it.
//! Never: lets a lock outlive the rule it guards; waiting is done without one.

mod breaker;
mod budget;
mod line;
mod shared;
mod throttle;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use breaker::{BreakerGate, BreakerOpen, Passage};
pub use budget::BudgetGate;
pub use shared::{Later, SharedGate, SharedTurn, SharedTurns, SharedWait};
pub use throttle::{ThrottleGate, ThrottleWait};

/// What happens to a call that waited too long for its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnThrottleTimeout {
    /// It goes anyway, with a warning.
    #[default]
    Proceed,
    /// It is given up.
    Fail,
}

/// The gates that every attempt passes, retries included.
#[derive(Clone, Debug)]
pub struct Gates {
    /// Limits starts.
    pub throttle: Option<ThrottleGate>,
    /// How long a turn is waited for.
    pub throttle_wait_max: Duration,
    /// What happens then.
    pub on_throttle_timeout: OnThrottleTimeout,
    /// Stops calling what is down.
    pub breaker: Option<BreakerGate>,
    /// How long a breaker that is about to close is waited for. One that stays open for longer is not waited for.
    pub breaker_wait_max: Duration,
    /// Limits retries. First attempts are never held back by it.
    pub budget: Option<BudgetGate>,
    /// Limits that hold over several processes; asked last.
    pub shared: Option<Arc<SharedTurns>>,
}

impl Default for Gates {
    /// None: everything goes at once.
    fn default() -> Gates {
        Gates {
            throttle: None,
            throttle_wait_max: Duration::from_secs(60),
            on_throttle_timeout: OnThrottleTimeout::Proceed,
            breaker: None,
            breaker_wait_max: Duration::from_secs(1),
            budget: None,
            shared: None,
        }
    }
}

/// A panic elsewhere leaves a rule whole: each change to one is a single call.
fn locked<T>(rule: &Mutex<T>) -> MutexGuard<'_, T> {
    rule.lock().unwrap_or_else(PoisonError::into_inner)
}
