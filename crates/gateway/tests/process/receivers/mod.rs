//! The receivers of `examples/receivers`, each run as a user would run it, and events signed by our own hand sent to it
//! over HTTP. Beside them, a library that is not ours reads our headers.
//!
//! # Layout
//! - `programs`: receivers that run; `receiving`: what they answer, and what they handle
//! - `standard`: the Standard form in the eyes of a foreign library; `commands`: `entrega webhook` as a process

mod commands;
mod programs;
mod receiving;
mod standard;
