//! Time: the only place that reads a clock.
//! Invariant: within a process time never goes back and never jumps; it is the wall time at start plus what a
//! monotonic clock says has passed since.
//! Never: sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use entrega_core::time::Time;

/// Tells the time; cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { wall_at_start: Time, start: Instant },
    Manual(Arc<AtomicU64>),
    Runtime { wall_at_start: Time, start: tokio::time::Instant },
}

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock(Source::System { wall_at_start: Time::ZERO + since_epoch, start: Instant::now() })
    }

    /// A clock that stands still until [`Clock::advance`]; for tests and simulation.
    pub fn manual(start: Time) -> Clock {
        Clock(Source::Manual(Arc::new(AtomicU64::new(start.as_micros()))))
    }

    /// A clock that goes as the runtime's does, from this moment on: where that is paused, timers and this clock agree,
    /// which is what simulation needs. Called within a runtime.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn of_runtime(start: Time) -> Clock {
        Clock(Source::Runtime { wall_at_start: start, start: tokio::time::Instant::now() })
    }

    /// The moment it is.
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::System { wall_at_start, start } => *wall_at_start + start.elapsed(),
            Source::Manual(micros) => Time::from_micros(micros.load(Ordering::SeqCst)),
            Source::Runtime { wall_at_start, start } => *wall_at_start + start.elapsed(),
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

    /// Moves a manual clock on; no other can be moved.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(micros) = &self.0 {
            micros.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }
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
}
