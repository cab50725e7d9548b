//! Foreign bytes thrown at every parser of them: no panic, no hang, no memory beyond a bound.
//!
//! Owns: the loop that makes inputs of a corpus, runs them and judges each.
//! Invariant: the same seed over the same corpus makes the same inputs; an input that failed is kept, and shortened.
//! Never: ships.
//!
//! A loop of our own instead of a fuzzing engine: those that are guided by coverage need a nightly compiler. What an
//! input led to (which error, which status) guides this one instead: an input with a new result joins the pool.
//!
//! # Layout
//! - `mutate`: from one input to the next; `bounds`: time and memory; `corpus`: the inputs that are kept
//! - `targets`: what is thrown at what; `world`: a gateway for those that need one

mod bounds;
mod corpus;
mod mutate;
pub mod targets;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use entrega_call::Clock;

use crate::bounds::{Watch, memory};
use crate::mutate::Mutator;

/// The most bytes in an input.
pub const INPUT_BYTES_MAX: usize = 16 << 10;
/// Inputs whose results were new, beside the corpus.
const POOL_MAX: usize = 512;
/// Inputs between two looks at the memory.
const BATCH: u64 = 64;
/// What a batch of inputs may add to the memory of the process at its peak.
const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Tries at making an input that failed shorter.
const SHORTEN_TRIES: usize = 2000;

/// What bytes are thrown at.
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Inputs to begin with that cannot be kept in files, because they change with the program.
    pub seeds: Vec<Vec<u8>>,
    /// Takes an input and says what it led to. Panics where a promise is broken.
    pub attempt: Attempt,
}

/// From an input to the number of its [`result`].
pub type Attempt = Box<dyn FnMut(&[u8]) -> u64>;

/// What an input led to, as a number: equal for equal results.
pub fn result(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// How long to go on, and with which chance.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At least every input of the corpus is tried, however long that takes.
    pub time: Duration,
    /// The seed.
    pub seed: u64,
}

/// What a run saw.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Inputs tried.
    pub inputs: u64,
    /// Different results.
    pub results: usize,
    /// The longest that one input took.
    pub slowest: Duration,
    /// The most memory that a batch added.
    pub memory_bytes: u64,
}

/// Tries the corpus, then what can be made of it, until the time is up.
///
/// # Panics
/// With the input, shortened, where one panics, takes too long, or costs too much memory.
pub fn run(mut target: Target, limits: Limits) -> Report {
    let _alone = bounds::alone();
    let clock = Clock::system();
    let watch = Watch::start(target.name, clock.clone());
    let mut corpus = corpus::load(target.name);
    corpus.append(&mut target.seeds);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let mut mutator = Mutator::new(limits.seed, &corpus);
    let mut seen = HashSet::new();
    let mut report = Report { inputs: 0, results: 0, slowest: Duration::ZERO, memory_bytes: 0 };
    let until = clock.now() + limits.time;
    let (mut pool, mut waiting) = (corpus.clone(), corpus);
    while !waiting.is_empty() || clock.now() < until {
        let before = memory::settle();
        for _ in 0..BATCH {
            let input = waiting.pop().unwrap_or_else(|| mutator.next(&pool));
            let begun = clock.now();
            let result = attempt(&mut target, &watch, &input);
            report.slowest = report.slowest.max(clock.now().since(begun));
            report.inputs += 1;
            if seen.insert(result) && pool.len() < POOL_MAX {
                pool.push(input);
            }
        }
        let grown = memory::peak().saturating_sub(before);
        report.memory_bytes = report.memory_bytes.max(grown);
        assert!(grown <= MEMORY_BYTES_MAX, "{}: {BATCH} inputs took {grown} bytes of memory", target.name);
    }
    report.results = seen.len();
    report
}

fn attempt(target: &mut Target, watch: &Watch, input: &[u8]) -> u64 {
    watch.begin(input);
    let tried = catch_unwind(AssertUnwindSafe(|| (target.attempt)(input)));
    watch.end();
    match (tried, bounds::panics()) {
        (Ok(result), None) => result,
        (_, said) => {
            let shortest = shorten(target, input.to_vec());
            let path = corpus::keep(target.name, &shortest);
            let said = said.unwrap_or_default();
            panic!("{}: {said}\ninput: {:?}\nkept in {path}", target.name, String::from_utf8_lossy(&shortest));
        }
    }
}

/// Takes pieces away for as long as it still panics.
fn shorten(target: &mut Target, mut input: Vec<u8>) -> Vec<u8> {
    let (mut piece, mut tries) = (input.len() / 2, 0);
    while piece > 0 && tries < SHORTEN_TRIES {
        let mut at = 0;
        while at + piece <= input.len() && tries < SHORTEN_TRIES {
            let shorter = [&input[..at], &input[at + piece..]].concat();
            tries += 1;
            let tried = catch_unwind(AssertUnwindSafe(|| (target.attempt)(&shorter)));
            match tried.is_err() || bounds::panics().is_some() {
                true => input = shorter,
                false => at += piece,
            }
            bounds::panics();
        }
        piece /= 2;
    }
    input
}
