//! The upstream of the proxy route: answers questions over a client that opens no connection, or does not.
//! Invariant: every answer is told apart from every other; after the world has healed it answers at once.
//! Never: decides what an answer means.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use entrega_call::{Answer, CallError, Exchange, Later};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Request, StatusCode};

use crate::destination::Mood;
use crate::life::Life;

/// A late answer comes after this, if anybody still waits.
pub const LATE: Duration = Duration::from_millis(800);

/// The upstream as the engine reaches it.
pub struct Upstream {
    /// The life that calls it.
    pub life: Arc<Life>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upstream")
    }
}

impl Exchange for Upstream {
    fn exchange(&self, request: Request<Bytes>) -> Later<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let life = &self.life;
            let question = request.uri().path().trim_start_matches('/').to_owned();
            life.reach().await;
            let job = request_id(&request);
            let call = life.world.witness.lock().asking(life.clock.now(), life.number(), job, &question);
            let _under_way = UnderWay { life, call };
            let mood = Mood::draw(life);
            let takes = Duration::from_millis(life.world.rng.lock().u64(0..300));
            match mood {
                Mood::Hangs | Mood::NeverReturns => std::future::pending().await,
                Mood::TakesLate => life.wait(LATE).await,
                _ => life.wait(takes).await,
            }
            life.reach().await;
            let answer = answer(&mood, &question, call);
            if let Ok(answer) = &answer {
                life.world.witness.lock().answering(life.clock.now(), call, &answer.body);
            }
            answer
        })
    }
}

/// A call that somebody waits for, however that ends.
struct UnderWay<'a> {
    life: &'a Life,
    call: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.life.world.witness.lock().asking_over(self.call);
    }
}

/// For whom a request is made.
pub fn request_id(request: &Request<Bytes>) -> &str {
    request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default()
}

/// What comes of a call: the body names the question and the call.
pub fn answer(mood: &Mood, question: &str, call: usize) -> Result<Answer, CallError> {
    let mut headers = HeaderMap::new();
    let status = match mood {
        Mood::RefusesConnection => {
            let address = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 443));
            let source = Arc::new(io::Error::from(io::ErrorKind::ConnectionRefused));
            return Err(CallError::Connect { address, source });
        }
        Mood::Fails(status) => *status,
        Mood::AsksForPatience(length) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(length.as_secs()));
            429
        }
        _ => 200,
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    Ok(Answer {
        status,
        headers,
        body: Bytes::from(format!("{question}: answer {call}")),
        truncated: false,
        retry_after: None,
    })
}
