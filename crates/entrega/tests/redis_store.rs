//! The Redis store against real servers: what only it promises. What every store promises is the suite of `store.rs`;
//! what several processes promise together is in `nodes.rs`.
//!
//! # Layout
//! - `world`: nodes over one server, by a clock in the hand or by the server's
//! - `fencing`, `leasing`: at most one node holds a job; `settling`: what comes of attempts, in bulk and in other lanes
//! - `starting`: which servers are refused, and how; `tls`, `sentinels`: the other ways to reach one
//! - `filling`, `draining`: a server whose memory is full, for the store and through the API
//! - `restarting`, `hanging`, `losing`: a server that forgets, stands still, or dies between two syncs
//! - `ledger`: the ledger on Redis, which the store does not use yet
//! - `hearing`: what nodes tell each other; `mailing`: what they know of mails; `endpoints`: where
//!   webhooks go

mod process;
mod redis;

// The words of the other suites; only some are needed here.
#[path = "nodes/cluster.rs"]
mod cluster;
#[path = "nodes/destination.rs"]
mod destination;
#[allow(dead_code, reason = "the conformance suite uses the rest")]
#[path = "store/fixture.rs"]
mod fixture;
mod http_server;

mod redis_store {
    mod draining;
    mod endpoints;
    mod fencing;
    mod filling;
    mod hanging;
    mod hearing;
    mod leasing;
    mod ledger;
    mod losing;
    mod mailing;
    mod restarting;
    mod sentinels;
    mod settling;
    mod starting;
    mod tls;
    mod world;
}
