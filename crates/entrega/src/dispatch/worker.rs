//! Workers: tasks that make attempts, one at a time each, for as long as their lane runs.
//! Invariant: an attempt ends about its deadline, and one that panics ends as a fault. A task made once serves many jobs.
//! Never: decides what comes of an attempt.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Weak;
use std::time::Duration;

use entrega_core::outcome::{Fault, FaultKind, Outcome};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

use super::desk::Desk;
use crate::settle::Attempted;
use crate::store::{Carried, ClaimedJob};

/// What a channel has beyond its deadline to say what an attempt came to; one that says nothing by then is cut off.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Works until the desk is gone: the desk owns its workers, not they the desk.
pub(super) async fn work(desk: Weak<Desk>, number: usize, mut jobs: mpsc::Receiver<ClaimedJob>) {
    let (mut next, mut alarm) = (None, pin!(sleep(Duration::ZERO)));
    loop {
        let job = match next.take() {
            Some(job) => job,
            None => match jobs.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        let Some(desk) = desk.upgrade() else { return };
        let attempted = attempt(&desk, alarm.as_mut(), job).await;
        next = desk.ended(number, attempted).await;
    }
}

/// One attempt under one deadline and one lease. A panic in a channel is that attempt's failure, not the process's. `None`
/// if the lease ended first: whoever owns the lane then attempts the job again.
async fn attempt(desk: &Desk, alarm: Pin<&mut Sleep>, claimed: ClaimedJob) -> Option<Attempted> {
    let clock = &desk.engine.clock;
    let started_at = clock.now();
    let deadline = clock.instant(started_at + desk.policy.timeout);
    let attempt = AssertUnwindSafe(desk.channel.attempt(&claimed, deadline)).catch_unwind();
    let outcome = match claimed.lease.carry(alarm, deadline + LAST_WORDS, attempt).await {
        Carried::Done(Ok(outcome)) => outcome,
        Carried::Done(Err(panic)) => fault(FaultKind::Crashed, panic_text(&*panic)),
        Carried::TooLate => fault(FaultKind::Timeout, "no answer in time".into()),
        Carried::LeaseOver => {
            desk.give_back(&claimed);
            return None;
        }
    };
    Some(Attempted { took: clock.now().since(started_at), claimed, started_at, outcome })
}

fn fault(kind: FaultKind, message: String) -> Outcome {
    Outcome::Fault(Fault { kind, message })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the channel panicked: {}", text.unwrap_or("no message"))
}
