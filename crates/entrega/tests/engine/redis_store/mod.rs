//! The store over Redis, against real servers: what only it promises. What every store promises is the suite of `store.rs`;
//! what several processes promise together is in `nodes.rs`.
//!
//! # Layout
//! - `world`: nodes over one server, by a clock in the hand or by the server's; `stoppable`: a node that stands still
//! - `owning`, `fencing`: a lane has one owner, and who was one before changes nothing; `throttling`: its limits outlive it
//! - `sharing`, `ordering`, `repeating`: what is asked of any other node
//! - `settling`: what comes of attempts, in bulk and in other lanes
//! - `hearing`: what nodes tell each other; `mailing`: what they know of mails; `endpoints`: where webhooks go
//! - `starting`: which servers are refused, and how; `tls`, `sentinels`: the other ways to reach one
//! - `filling`, `draining`: a server whose memory is full, for the store and through the API
//! - `restarting`, `hanging`, `losing`: a server that forgets, stands still, or dies between two syncs; `rewinding`: one that
//!   is put back
//! - `ledger`, `ledger_servers`: the ledger below the store

mod endpoints;
mod fencing;
mod filling;
mod hanging;
mod hearing;
mod ledger;
mod ledger_servers;
mod losing;
mod mailing;
mod ordering;
mod owning;
mod repeating;
mod restarting;
mod rewinding;
mod sentinels;
mod settling;
mod sharing;
mod starting;
mod stoppable;
mod throttling;
mod tls;
mod world;
