//! Conformance of the stores: one suite of scenarios that every store passes, and what only one of them promises.
//!
//! # Layout
//! - `fixture`: the world of a scenario; `worlds`: one line per store; `two_nodes`: one that owns, and one that is asked
//! - `quotas`: what one tenant may use up
//! - `admission`, `repeating`, `claiming`, `retrying`, `blocking`, `cancelling`: the way of a job; `causing`: jobs that it makes;
//!   `passing`: jobs that go past an open breaker
//! - `dead_letters`, `replaying`, `sweeping`: what gave up
//! - `listing`, `explaining`, `registry`: what people see and set; `mail`: what is known of addresses and mails;
//!   `endpoints`: where webhooks go; `answering`: cached answers;
//!   `gating`: gates without a queue, and requests that happen once
//! - `restart`, `damage`, `random_damage`, `salvaging`: the embedded store alone; `ledger`, `writing`, `crash`, `failing`, `moving`: the store over a ledger
//!   that can be stopped, broken, copied and taken away; `prefetching`: what is read from one that is
//!   far away; `arriving`: what another node took in

mod admission;
mod answering;
mod arriving;
mod blocking;
mod cancelling;
mod causing;
mod claiming;
mod crash;
mod damage;
mod dead_letters;
mod endpoints;
mod explaining;
mod failing;
pub mod fixture;
mod gating;
mod ledger;
mod listing;
mod mail;
mod moving;
mod passing;
mod prefetching;
mod quotas;
mod random_damage;
mod registry;
mod repeating;
mod replaying;
mod restart;
mod retrying;
mod salvaging;
mod sweeping;
mod two_nodes;
mod worlds;
mod writing;
