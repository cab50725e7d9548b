//! Leases: how long an owner may act.
//! Invariant: work under a lease is looked at before every step it takes; once the lease is over it takes none.
//! Never: asks anybody; the owner's own clock says when a lease ends, and whoever lost it says so.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use entrega_core::time::Time;
use tokio::sync::Notify;

use crate::clock::Clock;

/// The right to act for a lane, for as long as it lasts.
#[derive(Clone, Debug)]
pub struct Lease(Option<Arc<Term>>);

#[derive(Debug)]
struct Term {
    clock: Clock,
    /// In microseconds; every beat that is answered moves it on.
    until: Arc<AtomicU64>,
    is_lost: AtomicBool,
    lost: Notify,
}

impl Lease {
    /// Where nobody else can own anything.
    pub const fn forever() -> Lease {
        Lease(None)
    }

    /// Until a moment that others move on.
    pub(super) fn until(clock: Clock, until: Arc<AtomicU64>) -> Lease {
        Lease(Some(Arc::new(Term { clock, until, is_lost: AtomicBool::new(false), lost: Notify::new() })))
    }

    /// Ends it now.
    pub(super) fn lose(&self) {
        if let Some(term) = &self.0 {
            term.is_lost.store(true, Ordering::Release);
            term.lost.notify_waiters();
        }
    }

    /// Whether it was ended, and does not come back.
    pub(super) fn is_lost(&self) -> bool {
        self.0.as_ref().is_some_and(|term| term.is_lost.load(Ordering::Acquire))
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|term| term.is_over())
    }

    /// Carries work on while the lease lasts. `None` if it ended before the work did; then the work took no step after
    /// the end, however long the process stood still in between.
    pub async fn hold<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let Some(term) = &self.0 else { return Some(work.await) };
        let (mut work, mut over) = (pin!(work), pin!(term.over()));
        poll_fn(|cx| {
            if term.is_over() || over.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

impl Term {
    fn is_over(&self) -> bool {
        self.is_lost.load(Ordering::Acquire) || self.clock.now() >= self.end()
    }

    fn end(&self) -> Time {
        Time::from_micros(self.until.load(Ordering::Acquire))
    }

    async fn over(&self) {
        loop {
            let lost = self.lost.notified();
            if self.is_over() {
                return;
            }
            // A beat may have moved the end on by then.
            drop(tokio::time::timeout_at(self.clock.instant(self.end()), lost).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Time = Time::from_millis(1_000_000);

    fn lease(clock: &Clock, seconds: u64) -> (Lease, Arc<AtomicU64>) {
        let until = Arc::new(AtomicU64::new((START + Duration::from_secs(seconds)).as_micros()));
        (Lease::until(clock.clone(), until.clone()), until)
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_lease_and_not_before() {
        let clock = Clock::of_runtime(START);
        let (lease, until) = lease(&clock, 5);
        // reason: the time of this runtime stands still, and passes at once when all wait.
        assert_eq!(lease.hold(tokio::time::sleep(Duration::from_secs(4))).await, Some(()));
        until.fetch_add(3_000_000, Ordering::Release);
        // reason: the same.
        assert_eq!(lease.hold(tokio::time::sleep(Duration::from_secs(9))).await, None);
        assert_eq!(clock.now(), START + Duration::from_secs(8), "moved on by a beat");
        assert!(lease.is_over());
    }

    /// The process stood still between two steps, and the timer had not been looked at yet when it went on.
    #[tokio::test]
    async fn no_step_is_taken_after_the_end_even_before_any_timer_fires() {
        let clock = Clock::manual(START);
        let (lease, _) = lease(&clock, 5);
        let mut steps = 0;
        let work = poll_fn(|cx| {
            steps += 1;
            clock.advance(Duration::from_secs(6));
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert_eq!(lease.hold(work).await, None);
        assert_eq!(steps, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_lost_it_stops_at_once() {
        let clock = Clock::of_runtime(START);
        let (lease, _) = lease(&clock, 3600);
        let losing = async {
            // reason: the time of this runtime stands still, and passes at once when all wait.
            tokio::time::sleep(Duration::from_millis(10)).await;
            lease.lose();
        };
        let (held, ()) = tokio::join!(lease.hold(std::future::pending::<()>()), losing);
        assert_eq!((held, clock.now()), (None, START + Duration::from_millis(10)));
    }
}
