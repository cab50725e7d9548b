//! How many in how long.
//!
//! Owns: the one figure most rows are made of.
//! Invariant: a rate of nothing, or over no time, is zero and not infinite.
//! Never: rounds; the report does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A count and the seconds it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// How many were done.
    pub count: u64,
    /// How long that took.
    pub seconds: f64,
}

impl Rate {
    /// `count` done in `took`.
    pub fn new(count: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self { count, seconds }
    }

    /// Done per second.
    pub fn per_second(self) -> f64 {
        if self.seconds > 0.0 { self.count as f64 / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_count_over_its_seconds() {
        assert_eq!(Rate::new(100, Duration::from_secs(4)).per_second(), 25.0);
        assert_eq!(Rate::new(100, Duration::ZERO).per_second(), 0.0);
    }
}
