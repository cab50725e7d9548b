//! The API behind the connector of every run: answers calls of jobs and of callers who wait, or does not.
//! Invariant: what it allows follows from the plan; every answer is told apart from every other.
//! Never: decides what an answer means.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::connector::{Connector, Connectors, Outside};
use entrega::engine::Engine;
use entrega::store::{ConnectorLimits, OnThrottleTimeout};
use entrega_call::{AddressFilter, Answer, CallError, Chance, Client, Clock, Exchange, Later};
use entrega_core::job::{Body, ConnectorCall};
use http::Request;

use crate::destination::Mood;
use crate::life::Life;
use crate::upstream::{LATE, answer, request_id};

/// The name of the connector.
pub const CONNECTOR: &str = "erp";
/// The lane of its jobs.
pub const CONNECTOR_LANE: &str = "connector:erp";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What chance says of the API's limits. Once it has healed, it always answers in time.
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

/// The connectors of an engine: one.
pub fn connectors(life: &Arc<Life>, engine: &Engine) -> Connectors {
    let connector = Connector {
        id: CONNECTOR.into(),
        base_url: "https://erp.example.com/v1".into(),
        auth: None,
        tenant: None,
        limits: life.world.plan.limits.clone(),
        rules: Vec::new(),
    };
    let outside = Outside {
        client: Client::over(Arc::new(Api { life: life.clone() })),
        filter: AddressFilter::default(),
        clock: Clock::starting_at(life.clock.now()),
        chance: Chance::from_seed(life.world.rng.lock().u64(..)),
    };
    Connectors::new(vec![connector], engine.store.clone(), engine.seal.clone(), outside, engine.metrics.clone())
}

/// The API as the engine reaches it.
struct Api {
    life: Arc<Life>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Exchange for Api {
    fn exchange(&self, request: Request<Bytes>) -> Later<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let life = &self.life;
            life.reach().await;
            let call = life.world.witness.lock().calling(life.clock.now(), life.number(), request_id(&request));
            let mood = Mood::draw(life);
            let takes = ms(life.world.rng.lock().u64(0..300));
            match mood {
                Mood::Hangs | Mood::NeverReturns => std::future::pending().await,
                Mood::TakesLate => life.wait(LATE).await,
                _ => life.wait(takes).await,
            }
            life.reach().await;
            if matches!(mood, Mood::TakesAndIsForgotten) {
                life.hurry_crash(2);
            }
            if let Mood::AsksForPatience(length) = mood {
                life.world.witness.lock().asked_for_patience(call, life.clock.now() + length);
            }
            answer(&mood, CONNECTOR, call)
        })
    }
}
