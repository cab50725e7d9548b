//! Retries: an operation is attempted until it works, cannot work, or has used up what it may use.
//! Invariant: no attempt starts after the caller has gone, after the deadline, or earlier than the destination asked.
//! Never: repeats what the classifier calls permanent.

mod classifier;
mod end;
mod log;
mod observe;
mod operation;
mod policy;
mod run;

use std::fmt;
use std::sync::Arc;

pub use classifier::{Classifier, Description, Judgement, Rules};
pub(crate) use end::counted;
pub use end::{AttemptError, Completed, GaveUp, Stopped};
pub use observe::{AttemptEnded, GivenUp, Observer, ThrottleWaited, Waiting};
pub use operation::{AttemptContext, LogFields, Operation};
pub use policy::RetryPolicy;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::gate::Gates;

/// Attempts `operation` as `policy` says; `attempt` makes one attempt.
///
/// An attempt that is still going at `ctx.deadline` is cut off and counts as a timeout, which is retried. The last
/// answer is given back, success or not; an error only where the last attempt had no answer.
///
/// To cancel, drop the future (`tokio::select!` and `tokio::time::timeout` do): an attempt under way is broken off, and
/// none starts after that.
///
/// ```
/// use entrega_call::{Judgement, Operation, RetryPolicy, with_retry};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let refused_is_retried = |result: &Result<&str, std::io::Error>| match result {
///     Ok(_) => Judgement::Success,
///     Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Judgement::Retry { after: None },
///     Err(_) => Judgement::Permanent,
/// };
/// let operation = Operation::new("ask", refused_is_retried);
/// let done = with_retry(operation, &RetryPolicy::default(), |ctx| async move {
///     if ctx.attempt < 3 { Err(std::io::ErrorKind::ConnectionRefused.into()) } else { Ok("hello") }
/// })
/// .await
/// .unwrap();
/// assert_eq!((done.value, done.attempts), ("hello", 3));
/// # }
/// ```
///
/// # Errors
/// [`GaveUp`] when the last attempt had no answer.
pub async fn with_retry<T, E, C, F, Fut>(
    operation: impl Into<Operation<C>>,
    policy: &RetryPolicy,
    attempt: F,
) -> Result<Completed<T>, GaveUp<E>>
where
    C: Classifier<T, E>,
    F: FnMut(AttemptContext) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    Retrier::default().run(&operation.into(), policy, attempt).await
}

/// What retries need of the world: time, chance, the gates before the destination, and somebody who counts.
#[derive(Clone)]
pub struct Retrier {
    /// Time.
    pub clock: Clock,
    /// Chance.
    pub chance: Chance,
    /// Asked before every attempt.
    pub gates: Gates,
    /// Is told what happens.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for Retrier {
    /// The system's time and chance, no gates, no observer.
    fn default() -> Retrier {
        Retrier { clock: Clock::system(), chance: Chance::from_system(), gates: Gates::default(), observer: None }
    }
}

impl fmt::Debug for Retrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrier").field("gates", &self.gates).finish_non_exhaustive()
    }
}

impl Retrier {
    /// The same as [`with_retry`], in this world.
    ///
    /// # Errors
    /// [`GaveUp`] when the last attempt had no answer.
    pub async fn run<T, E, C, F, Fut>(
        &self,
        operation: &Operation<C>,
        policy: &RetryPolicy,
        attempt: F,
    ) -> Result<Completed<T>, GaveUp<E>>
    where
        C: Classifier<T, E>,
        F: FnMut(AttemptContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        run::Run::new(self, operation, policy).until_it_ends(attempt).await
    }
}
