//! The engine and the store that ship, under simulated time, over a ledger, destinations and crashes that follow from a seed.
//!
//! Owns: the world of one run and what is checked in it. Intake, dispatch, `decide`, settling, upkeep, the lane machine and
//! the store are the real ones; time, ledger and destinations are simulated, in one thread.
//! Invariant: one seed, one trace, byte for byte: nothing here reads a clock or draws chance elsewhere.
//! Never: ships, or does I/O.
//!
//! # Layout
//! - `plan`: what a seed says; `life`: one life of the process; `drift`: how wrong its clock is; `pulse`: how it is cut
//!   short; `node`: the engine in it; `run`: one life after the other; `nodes`: several over one ledger, and `outside` of them those
//!   who come, and `rewind`: what their ledger loses
//! - `ledger`: where records are kept; `store`: the shipped store, watched; `disk`: what the records say
//! - `destination`: where jobs go; `route`, `upstream`: what the proxy asks, and whom; `api`: what connectors call
//! - `caller`: who hands jobs in, and who waits for answers
//! - `operator`: who pauses, cancels, unblocks, discards and replays in the middle of it
//! - `witness`, `seen`, `turns`, `starts`, `hands`, `breakers`, `passes`, `answers`, `events`, `orders`: who sees and judges;
//!   `troubles`: what there was to see
//! - `bug`: rules that are broken on purpose, to see that somebody notices; `bent`: those of the ledger, `bent_nodes`: of
//!   one that nodes share

mod api;
mod bent;
mod bent_nodes;
mod bug;
mod caller;
mod connector;
mod destination;
mod disk;
mod drift;
mod ledger;
mod life;
mod node;
mod nodes;
mod operator;
mod plan;
mod pulse;
mod rewind;
mod route;
mod run;
mod store;
mod troubles;
mod turns;
mod upstream;
mod witness;

pub use self::bug::Bug;
pub use self::plan::Cast;
pub use self::run::{Run, run, run_cast, run_with};
pub use self::troubles::Troubles;
pub use self::witness::Violation;
