//! The engine against real servers: its store over every ledger, deliveries, and the ways out of mails.
//!
//! # Layout
//! - `store`: what every store promises; `redis_store`: what only the one over Redis does
//! - `delivery`: from submission to destination, in the `world` of an engine with one lane
//! - `slow`: destinations that hang
//! - `smtp`, `ses`: transports; `sns`: what Amazon reports

mod delivery;
mod redis_store;
mod ses;
mod slow;
mod smtp;
mod sns;
mod store;
mod world;
