//! Leases: how long an owner may act.
//! Invariant: work under a lease is looked at before every step it takes; once the lease is over it takes none.
//! Never: asks anybody; the owner's own clock says when a lease ends, and whoever lost it says so.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use entrega_core::time::Time;
use tokio::sync::Notify;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};

use entrega_call::Clock;

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

    /// Carries work on while the lease lasts, and until a moment at the latest. After the end of either the work takes no
    /// step, however long the process stood still in between.
    ///
    /// The alarm is any timer of the caller's, which may be used again: to put one off costs next to nothing, to start and
    /// stop one takes the runtime's lock both times.
    pub async fn carry<T>(
        &self,
        mut alarm: Pin<&mut Sleep>,
        latest: Instant,
        work: impl Future<Output = T>,
    ) -> Carried<T> {
        let mut work = pin!(work);
        let Some(term) = &self.0 else {
            alarm.as_mut().reset(latest);
            return poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Carried::Done(done)),
                Poll::Pending => pin!(unconstrained(alarm.as_mut())).poll(cx).map(|()| Carried::TooLate),
            })
            .await;
        };
        // Whoever ends the lease from now on wakes this, whether or not it was asked before.
        let mut lost = pin!(term.lost.notified());
        // One timer for both ends: a beat may have moved that of the lease on by the time it rings.
        let next_end = || latest.min(term.clock.instant(term.end()));
        alarm.as_mut().reset(next_end());
        poll_fn(|cx| {
            if term.is_over() {
                return Poll::Ready(Carried::LeaseOver);
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Carried::Done(done));
            }
            // Work that uses the runtime's budget up must not keep the alarm from ringing.
            while pin!(unconstrained(alarm.as_mut())).poll(cx).is_ready() {
                if alarm.deadline() == latest {
                    return Poll::Ready(Carried::TooLate);
                }
                if term.is_over() {
                    return Poll::Ready(Carried::LeaseOver);
                }
                alarm.as_mut().reset(next_end());
            }
            pin!(unconstrained(lost.as_mut())).poll(cx).map(|()| Carried::LeaseOver)
        })
        .await
    }
}

/// What came of work under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried<T> {
    /// It ended by itself.
    Done(T),
    /// Its moment came first.
    TooLate,
    /// The lease ended first.
    LeaseOver,
}

impl Term {
    fn is_over(&self) -> bool {
        self.is_lost.load(Ordering::Acquire) || self.clock.now() >= self.end()
    }

    fn end(&self) -> Time {
        Time::from_micros(self.until.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep_until;

    use super::*;

    const START: Time = Time::from_millis(1_000_000);

    fn lease(clock: &Clock, seconds: u64) -> (Lease, Arc<AtomicU64>) {
        let until = Arc::new(AtomicU64::new((START + Duration::from_secs(seconds)).as_micros()));
        (Lease::until(clock.clone(), until.clone()), until)
    }

    async fn carry<T>(lease: &Lease, latest: Instant, work: impl Future<Output = T>) -> Carried<T> {
        lease.carry(pin!(sleep_until(latest)), latest, work).await
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_lease_and_not_before() {
        let clock = Clock::starting_at(START);
        let ((lease, until), far) = (lease(&clock, 5), clock.instant(START + Duration::from_hours(1)));
        // reason: the time of this runtime stands still, and passes at once when all wait.
        assert_eq!(carry(&lease, far, tokio::time::sleep(Duration::from_secs(4))).await, Carried::Done(()));
        let beat = async {
            // reason: the same.
            tokio::time::sleep(Duration::from_millis(500)).await;
            until.fetch_add(3_000_000, Ordering::Release);
        };
        // reason: the same.
        let late = carry(&lease, far, tokio::time::sleep(Duration::from_secs(9)));
        assert_eq!(tokio::join!(late, beat).0, Carried::LeaseOver);
        assert_eq!(clock.now(), START + Duration::from_secs(8), "moved on by a beat");
        assert!(lease.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_moment_whether_or_not_there_is_a_lease() {
        let clock = Clock::starting_at(START);
        for (lease, second) in [(lease(&clock, 3600).0, 2), (Lease::forever(), 4)] {
            let latest = START + Duration::from_secs(second);
            let carried = carry(&lease, clock.instant(latest), std::future::pending::<()>()).await;
            assert_eq!((carried, clock.now()), (Carried::TooLate, latest));
        }
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
        let far = clock.instant(START + Duration::from_hours(1));
        assert_eq!(carry(&lease, far, work).await, Carried::LeaseOver);
        assert_eq!(steps, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_lost_it_stops_at_once() {
        let clock = Clock::starting_at(START);
        let (lease, _) = lease(&clock, 3600);
        let losing = async {
            // reason: the time of this runtime stands still, and passes at once when all wait.
            tokio::time::sleep(Duration::from_millis(10)).await;
            lease.lose();
        };
        let far = clock.instant(START + Duration::from_hours(1));
        let (carried, ()) = tokio::join!(carry(&lease, far, std::future::pending::<()>()), losing);
        assert_eq!((carried, clock.now()), (Carried::LeaseOver, START + Duration::from_millis(10)));
    }
}
