//! Calls against real servers on loopback, and what needs no server under paused time.

mod api;
mod gates;
mod kept;
mod names;
mod peer;
mod plain;
mod retry;
mod server;
mod shared;
mod tls;
mod world;
