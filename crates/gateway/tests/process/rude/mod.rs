//! Rude peers, over real sockets, against a real process: callers and destinations that are slow, greedy, or gone.
//! What must hold each time: memory stays bounded, the slot is free again, the next one is served, and the reason says
//! what happened.
//!
//! # Layout
//! - `callers`: towards the API; `destinations`: what a job meets; `handles`: too few file handles;
//!   `log`: a log that nobody reads; `bomb`: much in little

mod bomb;
mod callers;
mod destinations;
mod handles;
mod log;
