//! Calls against real servers on loopback.

mod plain;
mod server;
mod tls;
