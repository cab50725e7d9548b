//! Runs many seeds: `entrega-sim --seeds 100000 --from 0`, with `--cast several` of nodes that share a ledger, and with
//! `--bug TwoOwners` a rule broken on purpose. Ends with 1 at the first promise that is broken.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use entrega_sim::{Bug, Cast, Troubles, run_cast};
use parking_lot::Mutex;

/// Without `--seeds`.
const SEEDS_DEFAULT: u64 = 10_000;

fn main() -> ExitCode {
    let Arguments { seeds, from, cast, bug } = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!(
                "error: {problem}; write --seeds <number>, --from <number>, --cast alone, several or rewound, and --bug <name>"
            );
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
                    let ran = run_cast(seed, cast, bug);
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

/// How many seeds, from which on, with whom, and what is broken.
struct Arguments {
    seeds: u64,
    from: u64,
    cast: Cast,
    bug: Option<Bug>,
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut wanted = Arguments { seeds: SEEDS_DEFAULT, from: 0, cast: Cast::Alone, bug: None };
    let find = |name: &str| Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    while let Some(flag) = given.next() {
        let value = given.next().ok_or(format!("{flag} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{flag} needs a number, not {value}"));
        match (flag.as_str(), value.as_str()) {
            ("--seeds", _) => wanted.seeds = number()?,
            ("--from", _) => wanted.from = number()?,
            ("--cast", "alone") => wanted.cast = Cast::Alone,
            ("--cast", "several") => wanted.cast = Cast::Several,
            ("--cast", "rewound") => wanted.cast = Cast::Rewound,
            ("--bug", name) if find(name).is_some() => wanted.bug = find(name),
            _ => return Err(format!("{flag} {value} is unknown")),
        }
    }
    Ok(wanted)
}
