//! The gateway: the engine with an HTTP API, a command line and a configuration around it.
//! Never: decides; that is the engine's.
//!
//! # Layout
//! - [`api`]: callers come in over HTTP; [`cli`]: people do from a shell
//! - [`config`]: from texts in several places to what an engine is opened with
//! - [`handles`]: how many file handles there are, and for whom
//! - [`log`]: lines on their way to stderr

pub mod api;
pub mod cli;
pub mod config;
pub mod handles;
pub mod log;
