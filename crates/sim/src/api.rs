//! The API behind the connector of every run: answers calls of jobs and of callers who wait, or does not.
//! Invariant: what it allows follows from the plan; every answer is told apart from every other.
//! Never: decides what an answer means.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::connector::Connector;
use entrega_call::{Answer, CallError, Client, Exchange, Later};
use http::Request;

use crate::connector::CONNECTOR;
use crate::destination::Mood;
use crate::life::Life;
use crate::upstream::{LATE, answer, request_id};

/// The only connector.
pub fn connector(life: &Life) -> Connector {
    Connector {
        id: CONNECTOR.into(),
        base_url: "https://erp.example.com/v1".into(),
        auth: None,
        tenant: None,
        limits: life.world.plan.limits.clone(),
        rules: Vec::new(),
    }
}

/// How it is reached.
pub fn client(life: &Arc<Life>) -> Client {
    Client::over(Arc::new(Api { life: life.clone() }), life.clock.clone())
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
            let takes = Duration::from_millis(life.world.rng.lock().u64(0..300));
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
