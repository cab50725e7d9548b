//! Runs many seeds: `entrega-sim --seeds 100000 --from 0`. Ends with 1 at the first promise that is broken.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use entrega_sim::{Troubles, run};
use parking_lot::Mutex;

/// Without `--seeds`.
const SEEDS_DEFAULT: u64 = 10_000;

fn main() -> ExitCode {
    let (seeds, from) = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("error: {problem}; write --seeds <number> and --from <number>");
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
                    let ran = run(seed);
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

/// How many seeds, and from which on.
fn arguments(mut given: impl Iterator<Item = String>) -> Result<(u64, u64), String> {
    let (mut seeds, mut from) = (SEEDS_DEFAULT, 0);
    while let Some(flag) = given.next() {
        let number = given.next().and_then(|text| text.parse().ok()).ok_or(format!("{flag} needs a number"))?;
        match flag.as_str() {
            "--seeds" => seeds = number,
            "--from" => from = number,
            other => return Err(format!("{other} is unknown")),
        }
    }
    Ok((seeds, from))
}
