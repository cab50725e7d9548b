//! Measuring Entrega side by side with what it is compared to.
//!
//! Owns: the sink, the load, the peers and the report of one run.
//! Invariant: a ratio is made of two figures of the same run on one machine.
//! Never: talks to anything but the loopback interface once it measures; runs
//! without an end in count and in time.
//!
//! # Layout
//! `frame` holds what the rows of a run share. `sink` is where requests end,
//! `load` where they come from. `bare`, `append` and `bullmq` (on `redis`) are
//! the peers; `client` is our client alone, which `post` runs as it runs the
//! bare one; `ours` is Entrega, measured by `drain` (embedded and on the same
//! `redis`), `intake`, `http_intake`, `choose`, `latency`, `hoard` and `smtp` (beside
//! Postfix's source). `rate` and `report` are the figures, `machine` says where they were seen, `process` keeps
//! the children.
#![expect(clippy::disallowed_methods, reason = "to measure is to read the clock; nothing here is simulated")]

pub mod append;
pub mod bare;
pub mod bullmq;
pub mod choose;
pub mod client;
pub mod drain;
pub mod frame;
pub mod hoard;
pub mod http_intake;
pub mod intake;
pub mod latency;
pub mod load;
pub mod machine;
pub mod ours;
pub mod post;
pub mod process;
pub mod rate;
pub mod redis;
pub mod report;
pub mod sink;
pub mod smtp;
