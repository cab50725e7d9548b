//! The power is cut, or the disk fails, under a real `entrega serve`: what was acknowledged before is there afterwards.
//!
//! The process runs under `strace`. Its log says what was written where, what was synced, and what callers were told, in
//! order; from it the files are made as a power cut would leave them at any moment.
//!
//! `ENTREGA_POWER_CUTS` sets at how many moments (40 in the suite), `ENTREGA_POWER_JOBS` how many jobs are sent,
//! `ENTREGA_POWER_BYTES` how large each is: enough of both make the store rotate its files. `ENTREGA_POWER_FAULTS` sets
//! at how many calls the disk fails (4).
//!
//! # Layout
//! - `trace`: the log, read; `platter`: what of it has reached the disk; `cuts`: power cuts; `faults`: a disk that fails

mod cuts;
mod faults;
mod platter;
mod trace;

use entrega_testkit::tool;

/// Whether this run goes without strace; a test that needs it then returns.
fn is_left_out() -> bool {
    tool::is_left_out("strace")
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}
