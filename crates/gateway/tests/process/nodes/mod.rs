//! Several nodes over one Redis: what they promise together, with real processes, when one of them is killed, stopped
//! or slow, and when Redis itself goes away.
//!
//! # Layout
//! - `cluster`: nodes and what is asked of them; `destination`: where their jobs go
//! - `killing`, `stopping`: a node that is gone, and one that comes back too late
//! - `outage`: Redis is gone for a while
//! - `throttling`: one limit for all; `sharing`: what one node knows, the others know; `idling`: what rest costs

pub mod cluster;
pub mod destination;
mod draining;
mod idling;
mod killing;
mod outage;
mod sharing;
mod stopping;
mod throttling;
