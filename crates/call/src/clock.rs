//! Time for calls that have no engine around them: wall time for dates in headers, the runtime's clock for waits.
//! Invariant: time never goes back and never jumps; it is the wall time at start plus what the runtime says has passed.
//! Never: sleeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use entrega_core::time::Time;
use tokio::time::Instant;

/// Further away than any deadline; what lies beyond cannot be added to a moment everywhere.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// Tells the time; cheap to clone. It stands still where the runtime's clock is paused, so tests need not wait.
#[derive(Clone, Debug)]
pub struct Clock {
    wall_at_start: Time,
    start: Instant,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock::starting_at(Time::ZERO + since_epoch)
    }

    /// A clock that shows `wall` now and goes on with the runtime's.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn starting_at(wall: Time) -> Clock {
        Clock { wall_at_start: wall, start: Instant::now() }
    }

    /// The moment it is.
    #[must_use]
    pub fn now(&self) -> Time {
        self.wall_at_start + self.start.elapsed()
    }

    /// The same moment for the runtime's timers.
    #[must_use]
    pub fn instant(&self, at: Time) -> Instant {
        self.start + at.since(self.wall_at_start).min(FAR)
    }

    /// Whether an instant of the runtime is now or was before.
    #[must_use]
    pub fn has_passed(&self, at: Instant) -> bool {
        at.saturating_duration_since(self.start) <= self.start.elapsed()
    }

    /// The moment of an instant of the runtime; what was before this clock began counts as its beginning.
    #[must_use]
    pub fn time(&self, at: Instant) -> Time {
        self.wall_at_start + at.saturating_duration_since(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_with_the_runtime_and_both_ways_agree() {
        let clock = Clock::starting_at(Time::from_millis(1_000));
        assert_eq!(clock.now(), Time::from_millis(1_000));
        tokio::time::advance(Duration::from_secs(5)).await;
        let later = Time::from_millis(6_000);
        assert_eq!((clock.now(), clock.time(clock.instant(later))), (later, later));
        assert!(clock.instant(Time::NEVER) > clock.instant(later));
        let micro = Duration::from_micros(1);
        assert!(clock.has_passed(clock.instant(later)) && !clock.has_passed(clock.instant(later + micro)));
    }
}
