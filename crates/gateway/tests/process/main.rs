//! The gateway as a process of its own: killed, stopped, starved, its power cut, with strangers on both sides.
//!
//! # Layout
//! - `server`: a process, started and asked; `startup`: what it says when it starts and ends
//! - `crash`, `webhook_crash`, `power`: it is killed, the power is cut, the disk fails
//! - `nodes`: several over one Redis
//! - `rude`: peers that are slow, greedy or gone; `receivers`: programs that get its webhooks
//! - `schema`: calls made up from its own description

mod crash;
mod nodes;
mod power;
mod receivers;
mod rude;
mod schema;
mod server;
mod startup;
mod webhook_crash;
