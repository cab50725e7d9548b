//! Runs many seeds: `entrega-sim --seeds 100000 --from 0`, with `--cast several` of nodes that share a ledger. Ends with 1 at
//! the first promise that is broken.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use entrega_sim::{Cast, Troubles, run_cast};
use parking_lot::Mutex;

/// Without `--seeds`.
const SEEDS_DEFAULT: u64 = 10_000;

fn main() -> ExitCode {
    let (seeds, from, cast) = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("error: {problem}; write --seeds <number>, --from <number> and --cast alone or several");
            return ExitCode::from(2);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let (all, is_broken) = (Mutex::new(Troubles::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (all, is_broken) = (&all, &is_broken);
            scope.spawn(move || {
                let mine = (from + first..from + seeds).step_by(threads as usize);
                for seed in mine.take_while(|_| !is_broken.load(Ordering::Relaxed)) {
                    let ran = run_cast(seed, cast, None);
                    all.lock().add(&ran.troubles);
                    if let Some(broken) = ran.violation {
                        is_broken.store(true, Ordering::Relaxed);
                        println!("{}", ran.trace.join("\n"));
                        println!("seed {seed} broke {}: {}", broken.checker, broken.detail);
                    }
                }
            });
        }
    });
    println!("{seeds} seeds from {from}: {:?}", *all.lock());
    match is_broken.load(Ordering::Relaxed) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// How many seeds, from which on, and with whom.
fn arguments(mut given: impl Iterator<Item = String>) -> Result<(u64, u64, Cast), String> {
    let (mut seeds, mut from, mut cast) = (SEEDS_DEFAULT, 0, Cast::Alone);
    while let Some(flag) = given.next() {
        let value = given.next().ok_or(format!("{flag} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{flag} needs a number, not {value}"));
        match (flag.as_str(), value.as_str()) {
            ("--seeds", _) => seeds = number()?,
            ("--from", _) => from = number()?,
            ("--cast", "alone") => cast = Cast::Alone,
            ("--cast", "several") => cast = Cast::Several,
            _ => return Err(format!("{flag} {value} is unknown")),
        }
    }
    Ok((seeds, from, cast))
}
