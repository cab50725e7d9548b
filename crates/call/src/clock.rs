//! Time: the only place that reads a clock.
//! Invariant: within a process time never goes back and never jumps; it is the wall time at start, or that of a server which
//! several processes share, plus what a monotonic clock says has passed since. What others compare with clocks of their own
//! is dated by [`Clock::wall`], which follows corrections.
//! Never: sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use entrega_core::time::Time;
use tokio::time::Instant;

/// Further away than any deadline; what lies beyond cannot be added to a moment everywhere.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
/// How far a clock is moved at a time to agree with another, in microseconds; that happens about once a second.
const SLEW_US: i64 = 2_000;

/// Tells the time; cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Manual { micros: Arc<AtomicU64>, correction: Arc<AtomicI64> },
    Runtime { wall_at_start: Time, start: Instant, offset: Arc<AtomicI64>, is_system: bool },
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn system() -> Clock {
        let start = Instant::now();
        Clock(Source::Runtime { wall_at_start: system_time(), start, offset: Arc::default(), is_system: true })
    }

    /// A clock that shows `wall` now and goes on as the runtime's does: where that is paused, timers and this clock
    /// agree, which is what tests and simulation need.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn starting_at(wall: Time) -> Clock {
        let start = Instant::now();
        Clock(Source::Runtime { wall_at_start: wall, start, offset: Arc::default(), is_system: false })
    }

    /// A clock that stands still until [`Clock::advance`]; for tests.
    #[must_use]
    pub fn manual(start: Time) -> Clock {
        Clock(Source::Manual { micros: Arc::new(AtomicU64::new(start.as_micros())), correction: Arc::default() })
    }

    /// The moment it is.
    #[must_use]
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::Manual { micros, .. } => Time::from_micros(micros.load(Ordering::SeqCst)),
            Source::Runtime { wall_at_start, start, offset, .. } => shifted(*wall_at_start + start.elapsed(), offset),
        }
    }

    /// What the machine's clock shows, corrections since the start included: for whatever somebody else compares with a clock
    /// of their own, such as the moment in a signature. It may jump, so nothing here waits by it.
    #[must_use]
    pub fn wall(&self) -> Time {
        match &self.0 {
            Source::Manual { correction, .. } => shifted(self.now(), correction),
            Source::Runtime { is_system: true, .. } => system_time(),
            Source::Runtime { is_system: false, .. } => self.now(),
        }
    }

    /// Goes on from a moment that was written down, if it is later than what this clock shows; by how much it was behind.
    /// Called before anybody reads the time: the machine's clock was set back since.
    pub fn go_on_from(&self, written: Time) -> Duration {
        let behind = written.since(self.now());
        let micros = i64::try_from(behind.as_micros()).unwrap_or(i64::MAX);
        match &self.0 {
            Source::Manual { .. } => self.advance(behind),
            Source::Runtime { offset, .. } => drop(offset.fetch_add(micros, Ordering::Relaxed)),
        }
        behind
    }

    /// The same moment on the runtime's clock, for its timers.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    #[must_use]
    pub fn instant(&self, at: Time) -> Instant {
        Instant::now() + at.since(self.now()).min(FAR)
    }

    /// Whether an instant of the runtime is now or was before.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn has_passed(&self, at: Instant) -> bool {
        at <= Instant::now()
    }

    /// The moment of an instant of the runtime; what has passed counts as now.
    #[must_use]
    pub fn time(&self, at: Instant) -> Time {
        self.now() + self.until(at)
    }

    /// How long it is until a moment of the runtime's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    #[must_use]
    pub fn until(&self, at: Instant) -> Duration {
        at.saturating_duration_since(Instant::now())
    }

    /// Agrees with a clock that others go by as well, which showed `theirs` between `asked_at` and now: at once the first
    /// time, and from then on so slowly that nothing goes back or jumps. A manual clock stays as it is.
    pub fn agree(&self, theirs: Time, asked_at: Time, is_first: bool) {
        let Source::Runtime { offset, .. } = &self.0 else { return };
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
        if let Source::Manual { micros, .. } = &self.0 {
            micros.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
    }

    /// Corrects what a manual clock shows as the machine's, by so many milliseconds; no other can be.
    pub fn correct_wall(&self, ms: i64) {
        if let Source::Manual { correction, .. } = &self.0 {
            correction.fetch_add(ms.saturating_mul(1_000), Ordering::SeqCst);
        }
    }
}

/// What the machine's clock shows now.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_time() -> Time {
    Time::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
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
        let clock = Clock::starting_at(start);
        tokio::time::sleep_until(clock.instant(start + wait)).await;
        assert_eq!(clock.now(), start + wait);
    }

    #[tokio::test(start_paused = true)]
    async fn moments_and_instants_agree_both_ways() {
        let clock = Clock::starting_at(Time::from_millis(1_000));
        let later = Time::from_millis(6_000);
        assert_eq!(clock.time(clock.instant(later)), later);
        assert!(clock.instant(Time::NEVER) > clock.instant(later));
        tokio::time::advance(Duration::from_secs(5)).await;
        let micro = Duration::from_micros(1);
        assert!(clock.has_passed(clock.instant(later)) && !clock.has_passed(clock.instant(later + micro)));
    }

    /// Signatures kept the moment that the process had begun with: after a correction of ten minutes nobody took them.
    #[tokio::test(start_paused = true)]
    async fn the_wall_clock_may_be_corrected_and_nothing_else_moves() {
        let clock = Clock::manual(Time::from_millis(1_000_000));
        let due = clock.now() + Duration::from_secs(5);
        clock.correct_wall(600_000);
        assert_eq!((clock.now(), clock.wall()), (Time::from_millis(1_000_000), Time::from_millis(1_600_000)));
        assert_eq!(due.since(clock.now()), Duration::from_secs(5));
        clock.correct_wall(-700_000);
        assert_eq!(clock.wall(), Time::from_millis(900_000));
        let simulated = Clock::starting_at(Time::from_millis(1_000));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(simulated.wall(), simulated.now());
        // The runtime stands still here; the machine's clock does not.
        let system = Clock::system();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert!(system.now().since(system.wall()) > Duration::from_mins(59));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_goes_on_from_the_later_of_what_was_written_and_what_is() {
        let (wall, written) = (Time::from_millis(1_000_000), Time::from_millis(4_600_000));
        for clock in [Clock::starting_at(wall), Clock::manual(wall)] {
            assert_eq!(clock.go_on_from(wall - Duration::from_secs(1)), Duration::ZERO);
            assert_eq!(clock.now(), wall);
            assert_eq!(clock.go_on_from(written), Duration::from_hours(1));
            assert_eq!(clock.now(), written);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_agrees_at_once_the_first_time_and_slowly_from_then_on() {
        let (wrong, right) = (Time::from_millis(2_000_000), Time::from_millis(1_000_000));
        let clock = Clock::starting_at(wrong);
        clock.agree(right, wrong, true);
        assert_eq!(clock.now(), right);
        clock.agree(right + Duration::from_secs(9), right, false);
        assert_eq!(clock.now(), right + Duration::from_micros(SLEW_US.unsigned_abs()));
    }
}
