//! Drift: how far the clock that the process reads is from the time that really passes.
//! Invariant: constant for a life, as the engine's clock never jumps; from one life to the next the clock may be set.

use entrega_core::time::Time;

/// How far ahead a clock is, or behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// In milliseconds; below zero if it is behind.
    pub ms: i64,
}

impl Drift {
    /// What the clock shows at a moment.
    pub fn shown(self, moment: Time) -> Time {
        Time::from_micros(moment.as_micros().saturating_add_signed(self.ms * 1_000))
    }

    /// The moment at which the clock shows this.
    pub fn moment(self, shown: Time) -> Time {
        Time::from_micros(shown.as_micros().saturating_add_signed(-self.ms * 1_000))
    }
}
