//! Ends: what a caller gets when no further attempt is made.
//! Invariant: an answer is given back as an answer, whatever it says; an error says how often it was tried, and why not
//! once more.
//! Never: hides the last answer or error behind one of its own.

use std::error::Error as StdError;

use thiserror::Error;

use crate::error::with_causes;

/// Why no further attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    /// Another attempt would end the same.
    #[error("another attempt would not help")]
    Permanent,
    /// The policy's attempts are used up.
    #[error("no attempts are left")]
    AttemptsUsedUp,
    /// The next attempt could only begin after the deadline.
    #[error("its deadline would pass before another attempt")]
    DeadlineTooClose,
    /// Too many of the destination's calls are retries already.
    #[error("the retry budget of its destination is spent")]
    BudgetSpent,
    /// The destination is known to be down.
    #[error("the breaker of its destination is open")]
    BreakerOpen,
    /// The throttle let it wait for too long.
    #[error("the throttle gave it no turn in time")]
    ThrottleTimedOut,
}

/// An operation that ended with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed<T> {
    /// The last answer: a success, or what the classifier did not take for one.
    pub value: T,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why an answer that is no success was not asked for again; `None` for a success.
    pub stopped: Option<Stopped>,
}

/// `1 attempt`, `4 attempts`.
pub(crate) fn counted(attempts: u32) -> String {
    format!("{attempts} attempt{}", if attempts == 1 { "" } else { "s" })
}

/// How the last attempt failed.
#[derive(Clone, Debug, Error)]
pub enum AttemptError<E> {
    /// With an error of its own.
    #[error(transparent)]
    Failed(E),
    /// It was cut off at its deadline.
    #[error("the attempt was cut off at its deadline")]
    TimedOut,
}

/// An operation that ended without an answer.
#[derive(Clone, Debug, Error)]
#[error("{operation} failed after {}: {stopped}", counted(*attempts))]
pub struct GaveUp<E> {
    /// The operation's name.
    pub operation: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why there was no further one.
    pub stopped: Stopped,
    /// How the last one failed; `None` when there was none.
    #[source]
    pub last: Option<AttemptError<E>>,
}

impl<E: StdError + 'static> GaveUp<E> {
    /// The message and its causes on one line, for people.
    #[must_use]
    pub fn reason(&self) -> String {
        with_causes(self)
    }
}
