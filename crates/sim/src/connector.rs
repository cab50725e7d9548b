//! The connector of every run: its name, its lane, its limits, and the calls that are made of it.

use std::time::Duration;

use bytes::Bytes;
use entrega::connector::ConnectorCall;
use entrega::store::{ConnectorLimits, OnThrottleTimeout};
use entrega_core::body::Body;

/// The name of the connector.
pub const CONNECTOR: &str = "erp";
/// The lane of its jobs.
pub const CONNECTOR_LANE: &str = "connector:erp";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What chance says of the API's limits. Idempotency it has healed, it always answers in time.
pub fn limits(rng: &mut fastrand::Rng) -> ConnectorLimits {
    use OnThrottleTimeout::{Fail, Proceed, Requeue};
    ConnectorLimits {
        throttle: (rng.u32(0..4) > 0).then(|| (rng.u32(1..4), ms(rng.u64(200..1_000)))),
        adaptive: rng.bool(),
        throttle_wait: ms(rng.u64(300..3_000)),
        on_throttle_timeout: [Proceed, Fail, Requeue][rng.usize(0..3)],
        breaker: rng.bool().then(|| (rng.u32(2..5), ms(rng.u64(300..1_500)))),
        timeout: ms(rng.u64(350..900)),
    }
}

/// A call of the API.
pub fn call(number: u32) -> ConnectorCall {
    ConnectorCall {
        connector: CONNECTOR.into(),
        method: "POST".into(),
        relative_url: format!("orders/{number}"),
        headers: Vec::new(),
        params: Vec::new(),
        body: Body(Bytes::from_static(b"{}")),
    }
}
