//! Entrega: an outbound gateway. Jobs go in, are made durable, and are delivered.
//!
//! # Layout
//! The way of a job:
//! - [`intake`]: validates, names, and has it stored; then the caller is answered
//! - [`store`]: where it is safe; the lane machines of `entrega-core` decide what goes next
//! - [`dispatch`]: claims it and makes an attempt
//! - [`channel`]: how it leaves
//! - [`settle`]: from the outcome to what becomes of it
//! - [`upkeep`]: retention, dead letters that leave, replays
//! - [`events`]: what is told of a mail, and how it becomes a webhook
//! - [`feedback`]: what is heard of a mail after it was sent, through [`sns`]
//!
//! Back from it: [`sns`] reads what SES tells later about the mails it took.
//!
//! Beside it: [`endpoint`] says where webhooks may go, [`proxy`] what may be asked of upstreams,
//! [`connector`] which third-party APIs there are, [`seal`] encrypts what must stay secret at rest.
//!
//! Around it: [`engine`] puts the parts together, [`api`] and [`cli`] let people in, [`config`] says how,
//! [`metrics`] counts, [`clock`] and [`chance`] are the only sources of time and randomness.

pub mod api;
pub mod chance;
pub mod channel;
pub mod cli;
pub mod clock;
pub mod config;
pub mod connector;
pub mod dispatch;
pub mod endpoint;
pub mod engine;
pub mod events;
pub mod feedback;
pub mod intake;
pub mod metrics;
pub mod proxy;
pub mod seal;
pub mod settle;
pub mod sns;
pub mod store;
pub mod upkeep;
