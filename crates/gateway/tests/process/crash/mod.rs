//! The gateway, or the Redis under it, killed with -9 at random moments under load, again and again.
//!
//! What must hold: every job whose 201 was seen is delivered; a submission that is sent again is the same job; the only
//! repeats are those of jobs in flight at a kill. `cargo xtask crash` runs it for longer.
//!
//! `ENTREGA_CRASH_CYCLES` sets how often, `ENTREGA_CRASH_SEED` which moments, `ENTREGA_CRASH_NODES` how many nodes.
//!
//! # Layout
//! - `embedded`: one process over its own disk; `replays`: the same while it replays dead letters
//! - `shared`: nodes over one Redis, and what is killed of them; `world`: those nodes; `senders`: who gives them work
//!   all the while; `ledger`: what was sent, what was accepted, and what must have come of it

mod embedded;
mod ledger;
mod replays;
mod senders;
mod shared;
mod world;

/// What the environment asks for, if it does.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Chance that can be had again: its seed is printed.
fn seeded() -> fastrand::Rng {
    let seed = setting("ENTREGA_CRASH_SEED").unwrap_or_else(|| u64::from_le_bytes(entrega::chance::secret_bytes()));
    println!("ENTREGA_CRASH_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
