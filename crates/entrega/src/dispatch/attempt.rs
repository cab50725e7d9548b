//! One attempt, under one deadline and one lease.
//! Invariant: an attempt ends about its deadline, and one that panics ends as a fault.
//! Never: decides what comes of an attempt.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use entrega_call::Clock;
use entrega_core::outcome::{Fault, FaultKind, Outcome};
use futures_util::FutureExt as _;
use tokio::time::Sleep;

use crate::channel::Channel;
use crate::settle::Attempted;
use crate::store::{Carried, ClaimedJob};

/// What a channel has beyond its deadline to say what an attempt came to; one that says nothing by then is cut off.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

/// Attempts a job. A panic in a channel is that attempt's failure, not the process's. The job comes back if the lease
/// ended first: whoever owns the lane then attempts it again.
pub(super) async fn attempt(
    clock: &Clock,
    channel: &dyn Channel,
    timeout: Duration,
    alarm: Pin<&mut Sleep>,
    claimed: ClaimedJob,
) -> Result<Attempted, Box<ClaimedJob>> {
    let started_at = clock.now();
    let deadline = clock.instant(started_at + timeout);
    let attempt = async { (channel.attempt(&claimed, deadline).await, channel.rules(&claimed.job)) };
    let attempt = AssertUnwindSafe(attempt).catch_unwind();
    let (outcome, rules) = match claimed.lease.carry(alarm, deadline + DEADLINE_GRACE, attempt).await {
        Carried::Done(Ok(ended)) => ended,
        Carried::Done(Err(panic)) => (fault(FaultKind::Crashed, panic_text(&*panic)), Vec::new()),
        Carried::TooLate => (fault(FaultKind::Timeout, "no answer in time".into()), Vec::new()),
        Carried::LeaseOver => return Err(Box::new(claimed)),
    };
    Ok(Attempted { took: clock.now().since(started_at), claimed, started_at, outcome, rules })
}

fn fault(kind: FaultKind, message: String) -> Outcome {
    Outcome::Fault(Fault { kind, message })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the channel panicked: {}", text.unwrap_or("no message"))
}
