//! Chance: the only place that draws it.
//! Invariant: a seed gives the same draws again; secrets come from the operating system.
//! Never: is asked by a rule; rules get a number.

use entrega_core::id::JobId;
use entrega_core::time::Time;
use parking_lot::Mutex;

/// Draws numbers and makes ids.
#[derive(Debug)]
pub struct Chance {
    draws: entrega_call::Chance,
    last_id: Mutex<(u64, u128)>,
    /// Whether somebody gave the seed, who wants the same secrets again: a simulation.
    is_seeded: bool,
}

/// The random bits of an id.
const ID_CHANCE_BITS: u32 = 80;

impl Chance {
    /// Seeded by the operating system.
    pub fn from_system() -> Chance {
        Chance { is_seeded: false, ..Chance::from_seed(u64::from_le_bytes(secret_bytes())) }
    }

    /// The same draws for the same seed.
    pub fn from_seed(seed: u64) -> Chance {
        Chance { draws: entrega_call::Chance::from_seed(seed), last_id: Mutex::new((0, 0)), is_seeded: true }
    }

    /// The same sequence, for calls that are made within an attempt.
    pub fn draws(&self) -> entrega_call::Chance {
        self.draws.clone()
    }

    /// Uniform in 0..1.
    pub fn roll(&self) -> f64 {
        self.draws.roll()
    }

    /// A new job id that nobody can guess.
    pub fn secret_id(&self, now: Time) -> JobId {
        let bits = match self.is_seeded {
            true => self.draws.id_bits(),
            false => u128::from_le_bytes(secret_bytes()),
        };
        JobId::from_parts(now, bits)
    }

    /// A new job id, larger than every one made before it in this process.
    pub fn job_id(&self, now: Time) -> JobId {
        let mut last = self.last_id.lock();
        let millis = now.as_millis();
        *last = match millis > last.0 {
            // One bit of room at the top, so that counting up within the millisecond cannot overflow.
            true => (millis, self.draws.id_bits() >> (128 - ID_CHANCE_BITS + 1)),
            false => (last.0, last.1 + 1),
        };
        JobId::from_parts(Time::from_millis(last.0), last.1)
    }
}

/// Bytes nobody can guess, from the operating system.
///
/// # Panics
/// If the operating system gives no randomness: no key or secret can be made then.
pub fn secret_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_even_when_the_clock_stands_still_or_goes_back() {
        let chance = Chance::from_seed(1);
        let times = [1000, 1000, 999, 1000, 1001, 1001];
        let ids: Vec<_> = times.iter().map(|&ms| chance.job_id(Time::from_millis(ms))).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }

    /// The draws of a small generator give away those that follow, so a secret must not be one of them.
    #[test]
    fn secret_ids_follow_from_a_seed_only_where_somebody_gave_it() {
        let now = Time::from_millis(1000);
        assert_eq!(Chance::from_seed(1).secret_id(now), Chance::from_seed(1).secret_id(now));
        let same_seed = Chance { is_seeded: false, ..Chance::from_seed(1) };
        assert_ne!(same_seed.secret_id(now), Chance::from_seed(1).secret_id(now));
        assert!(!Chance::from_system().is_seeded);
    }
}
