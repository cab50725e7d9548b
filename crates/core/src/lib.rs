//! The rules of Entrega, as pure values and functions.
//!
//! # Layout
//! The way of a job through the rules:
//! - [`id`], [`name`], [`job`]: what a job is and which moves it may make; [`payload`], [`body`]: what it carries
//! - [`policy`]: what a lane may be told
//! - [`lane`]: admission, order, gates, delays ([`throttle`], [`cadence`], [`breaker`] are its gates)
//! - [`facts`] of an [`outcome`] → [`classify`] (by a [`dialect`]) → [`decide`] (with [`backoff`]): what becomes of an
//!   attempt
//! - [`retry_budget`], [`rate_limit`] → [`adaptive`]: how often a destination is called, for callers without a lane
//! - [`idempotency`]: names under which repeating something is safe
//! - [`trace`]: by which a job and what follows from it are found together
//! - [`dead_letter`]: what is kept of a job that gave up
//! - [`mail`]: what came of a mail for each recipient; [`mask`]: addresses as they may be shown
//! - [`cpf`]: a number that proxies are asked about
//! - [`webhook`]: secrets, and signatures as they are made and checked; [`excerpt`]: what a receiver answered
//!
//! Nothing here reads a clock, draws chance, does I/O or knows an async runtime: moments ([`time::Time`]) and chance
//! (a number in 0..1) are arguments, so every rule is tested without waiting.

pub mod adaptive;
pub mod backoff;
pub mod body;
pub mod breaker;
pub mod cadence;
pub mod classify;
pub mod cpf;
pub mod dead_letter;
pub mod decide;
pub mod dialect;
pub mod excerpt;
pub mod facts;
pub mod id;
pub mod idempotency;
pub mod job;
pub mod lane;
pub mod mail;
pub mod mask;
pub mod name;
pub mod outcome;
pub mod payload;
pub mod policy;
pub mod quota;
pub mod rate_limit;
pub mod retry_budget;
pub mod sender;
pub mod throttle;
pub mod time;
pub mod trace;
pub mod webhook;
