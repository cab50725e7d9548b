//! Entrega's engine: jobs go in, are made durable, and are delivered.
//!
//! # Layout
//! The way of a job:
//! - [`submission`]: what callers hand in, with its [`content`]; [`refusal`]: why it was not taken
//! - [`intake`]: validates, names, and has it stored; then the caller is answered
//! - [`store`]: where it is safe; the lane machines of `entrega-core` decide what goes next
//! - [`dispatch`]: claims it and makes an attempt, through its [`channel`]
//! - [`settle`]: from the outcome to what becomes of it
//! - [`upkeep`]: retention, dead letters that leave, replays
//!
//! The products, one folder each; a [`product`] says of itself what the rest must know:
//! [`http`], [`mail`], [`webhook`], [`events`], [`proxy`], [`connector`].
//!
//! Around it: [`engine`] puts the parts together, [`open`] from a configuration; [`env`] is what they share;
//! [`metrics`] counts; [`chance`] makes ids, [`seal`] encrypts what must stay [`secret`] at rest.

pub mod chance;
pub mod channel;
pub mod connector;
pub mod content;
pub mod dispatch;
pub mod engine;
pub mod env;
pub mod events;
pub mod http;
pub mod intake;
pub mod mail;
pub mod metrics;
pub mod open;
pub mod product;
pub mod proxy;
pub mod refusal;
pub mod seal;
pub mod secret;
pub mod settle;
pub mod store;
pub mod submission;
pub mod upkeep;
pub mod webhook;

pub use self::engine::{Engine, EngineParts, PRODUCTS, Running};
pub use self::open::{EngineConfig, OpenError, StoreConfig, StoreKind};
