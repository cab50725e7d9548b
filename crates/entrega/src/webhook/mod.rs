//! Webhooks: events, signed, for the endpoints of each tenant.
//! Invariant: an endpoint that exists was checked, whoever said it; its secret is stored sealed.
//! Never: calls an endpoint that is paused or disabled; what waits for one can go on, or be given up.
//!
//! # Layout
//! - `endpoint`: what may be said of one; `registry`: set up and changed by callers; `configured`: by the configuration;
//!   `change`: by several at once
//! - `event`: an event as receivers get it; `channel`: how it leaves
//! - `waiting`: what waited for one goes on; `discard`: what waits for one is given up

mod change;
mod channel;
mod configured;
mod discard;
mod endpoint;
pub(crate) mod event;
mod registry;
mod waiting;

use entrega_core::policy::LanePolicy;

pub use self::change::change_endpoint;
pub use self::channel::{FAILING_MAX, WebhookChannel};
pub use self::configured::{ConfiguredError, EndpointConfig, put_configured};
pub use self::discard::{Discarded, discard_waiting};
pub use self::endpoint::*;
pub use self::event::{EventBody, event_id};
pub use self::registry::{EndpointError, EndpointPut, EndpointRequest, Webhooks};
pub(crate) use self::waiting::{LaneScope, Waiting};

use crate::product::Product;

/// The lane in which events are delivered.
pub const WEBHOOK_LANE: &str = "webhook";

/// Webhooks. An endpoint takes turns as tenants do, so a lane's share is that of one endpoint.
pub const WEBHOOK: Product = Product {
    tenant_share: |policy| match policy.fairness.enable_round_robin {
        true => LanePolicy::webhook().tenant_concurrency.min(policy.concurrency),
        false => policy.concurrency,
    },
    keeps_excerpt: true,
    ..Product::new::<EventBody>(LanePolicy::webhook, |_| "carries events that the gateway makes by itself".into())
};
