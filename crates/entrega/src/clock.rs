//! Time: the only place that reads a clock.
//! Invariant: within a process time never goes back and never jumps; it is the wall time at start, or that of a server which
//! several processes share, plus what a monotonic clock says has passed since.
//! Never: sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use entrega_core::time::Time;

/// How far a clock is moved at a time to agree with another, in microseconds; that happens about once a second.
const SLEW_US: i64 = 2_000;

/// Tells the time; cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { wall_at_start: Time, start: Instant, offset: Arc<AtomicI64> },
    Manual(Arc<AtomicU64>),
    Runtime { wall_at_start: Time, start: tokio::time::Instant, offset: Arc<AtomicI64> },
}

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (wall_at_start, offset) = (Time::ZERO + since_epoch, Arc::default());
        Clock(Source::System { wall_at_start, start: Instant::now(), offset })
    }

    /// A clock that stands still until [`Clock::advance`]; for tests and simulation.
    pub fn manual(start: Time) -> Clock {
        Clock(Source::Manual(Arc::new(AtomicU64::new(start.as_micros()))))
    }

    /// A clock that goes as the runtime's does, from this moment on: where that is paused, timers and this clock agree,
    /// which is what simulation needs. Called within a runtime.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn of_runtime(start: Time) -> Clock {
        Clock(Source::Runtime { wall_at_start: start, start: tokio::time::Instant::now(), offset: Arc::default() })
    }

    /// The moment it is.
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System { wall_at_start, start, offset } => shifted(*wall_at_start + start.elapsed(), offset),
            Source::Manual(micros) => Time::from_micros(micros.load(Ordering::SeqCst)),
            Source::Runtime { wall_at_start, start, offset } => shifted(*wall_at_start + start.elapsed(), offset),
        }
    }

    /// The same moment on the runtime's clock, for its timers.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn instant(&self, at: Time) -> tokio::time::Instant {
        tokio::time::Instant::now() + at.since(self.now())
    }

    /// How long it is until a moment of the runtime's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn until(&self, at: tokio::time::Instant) -> Duration {
        at.saturating_duration_since(tokio::time::Instant::now())
    }

    /// Agrees with a clock that others go by as well, which showed `theirs` between `asked_at` and now: at once the first
    /// time, and from then on so slowly that nothing goes back or jumps. A manual clock stays as it is.
    pub fn agree(&self, theirs: Time, asked_at: Time, is_first: bool) {
        let (Source::System { offset, .. } | Source::Runtime { offset, .. }) = &self.0 else { return };
        let now = self.now();
        let here = asked_at + now.since(asked_at) / 2;
        let behind = i64::try_from(theirs.as_micros()).unwrap_or(0) - i64::try_from(here.as_micros()).unwrap_or(0);
        let step = match is_first {
            true => behind,
            false => behind.clamp(-SLEW_US, SLEW_US),
        };
        offset.fetch_add(step, Ordering::Relaxed);
    }

    /// Moves a manual clock on; no other can be moved.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(micros) = &self.0 {
            micros.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }
}

fn shifted(time: Time, offset: &AtomicI64) -> Time {
    Time::from_micros(time.as_micros().saturating_add_signed(offset.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_of_the_runtime_agrees_with_its_timers() {
        let (start, wait) = (Time::from_millis(1_000_000), Duration::from_hours(1));
        let clock = Clock::of_runtime(start);
        tokio::time::sleep_until(clock.instant(start + wait)).await;
        assert_eq!(clock.now(), start + wait);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_agrees_at_once_the_first_time_and_slowly_from_then_on() {
        let (wrong, right) = (Time::from_millis(2_000_000), Time::from_millis(1_000_000));
        let clock = Clock::of_runtime(wrong);
        clock.agree(right, wrong, true);
        assert_eq!(clock.now(), right);
        clock.agree(right + Duration::from_secs(9), right, false);
        assert_eq!(clock.now(), right + Duration::from_micros(SLEW_US.unsigned_abs()));
    }
}
