//! HTTP jobs: a request that a caller wants made.
//! Invariant: a request that was taken can be sent as it stands.
//!
//! # Layout
//! - `request`: the rules for it; `channel`: how it leaves

mod channel;
mod request;

pub use self::channel::HttpChannel;
pub(crate) use self::channel::{IDEMPOTENCY_KEY, OUR_NAME, REQUEST_ID, TRACEPARENT, outcome};
pub use self::request::{BODY_BYTES_MAX, HttpRequest};

use entrega_core::policy::LanePolicy;

use crate::product::Product;

/// HTTP jobs. A quarter of a lane's slots is out of any one tenant's reach.
pub const HTTP: Product = Product {
    tenant_share: |policy| match policy.fairness.enable_round_robin {
        true => (policy.concurrency - policy.concurrency.div_ceil(4)).max(1),
        false => policy.concurrency,
    },
    ..Product::new::<HttpRequest>(LanePolicy::http, |_| "takes HTTP requests; submit one with POST /v1/jobs".into())
};
