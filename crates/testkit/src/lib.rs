//! What the tests of several crates need: real servers that are started, told how to behave, and ended again.
//! Never: ships.
//!
//! # Layout
//! - `http_server`, `receiver`: destinations; `responder`: one that answers byte for byte as told
//! - `redis` (`encrypted_redis`), `smtp_server`, `moto`: other people's servers, in processes of their own; `amazon`: what SNS would send
//! - `tool`: what a machine may lack; `log`: what was logged; `wait`: for what other processes do

#![allow(missing_docs, reason = "what a server of a test is told, the test says")]

pub mod amazon;
pub mod encrypted_redis;
pub mod http_server;
pub mod log;
pub mod moto;
pub mod receiver;
pub mod redis;
pub mod responder;
pub mod smtp_server;
pub mod tool;
pub mod wait;
