//! Chance: draws for jitter and for ids that nobody else makes.
//! Invariant: a seed gives the same draws again.
//! Never: makes secrets; these draws can be guessed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Draws numbers; clones share one sequence.
#[derive(Clone, Debug)]
pub struct Chance(Arc<Mutex<fastrand::Rng>>);

impl Chance {
    /// Another sequence in every process.
    #[must_use]
    pub fn from_system() -> Chance {
        Chance(Arc::new(Mutex::new(fastrand::Rng::new())))
    }

    /// The same draws for the same seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Chance {
        Chance(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// Uniform in 0..1.
    #[must_use]
    pub fn roll(&self) -> f64 {
        self.rng().f64()
    }

    /// Enough bits for an id. Never zero, which is no id in a `traceparent`.
    #[must_use]
    pub fn id_bits(&self) -> u128 {
        self.rng().u128(1..)
    }

    fn rng(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
