//! Where jobs go: answers by path, and notes who came when.
//!
//! `/` answers at once, `/slow` after a while. The first call of a job to `/held` is answered after `release`, to
//! `/silent` never; later calls of the same job at once.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::clock::Clock;
use entrega_core::time::Time;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::http_server::serve;

pub const SLOW: Duration = Duration::from_millis(300);

/// A destination.
#[derive(Clone)]
pub struct Destination {
    address: SocketAddr,
    clock: Clock,
    by_job: Arc<Mutex<HashMap<String, Vec<Time>>>>,
    count: Arc<watch::Sender<usize>>,
    released: CancellationToken,
}

impl Destination {
    pub async fn start() -> Destination {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let destination = Destination {
            address: listener.local_addr().unwrap(),
            clock: Clock::system(),
            by_job: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            released: CancellationToken::new(),
        };
        let answering = destination.clone();
        serve(listener, move |request| answering.clone().answer(request));
        destination
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let at = self.clock.now();
        let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let path = request.uri().path().to_owned();
        if request.into_body().collect().await.is_err() {
            // Cut off on the way: it did not arrive, and nobody waits for an answer.
            return Ok(Response::default());
        }
        let nth = self.note(id, at);
        match (path.as_str(), nth) {
            // reason: a destination that takes its time is what is asked for
            ("/slow", _) => tokio::time::sleep(SLOW).await,
            ("/held", 1) => self.released.cancelled().await,
            ("/silent", 1) => std::future::pending().await,
            _ => {}
        }
        Ok(Response::new(Full::from(format!("answer {nth}"))))
    }

    fn note(&self, id: String, at: Time) -> usize {
        let nth = {
            let mut by_job = self.by_job.lock();
            let times = by_job.entry(id).or_default();
            times.push(at);
            times.len()
        };
        self.count.send_modify(|count| *count += 1);
        nth
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers what was held.
    pub fn release(&self) {
        self.released.cancel();
    }

    /// How many calls came.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until so many calls came.
    pub async fn arrived(&self, count: usize, limit: Duration) {
        let mut watched = self.count.subscribe();
        let arrived = tokio::time::timeout(limit, watched.wait_for(|so_far| *so_far >= count)).await;
        assert!(arrived.is_ok(), "{} calls came, not {count}, within {} ms", self.count(), limit.as_millis());
    }

    /// Calls beyond the first of each job.
    pub fn repeats(&self) -> usize {
        self.by_job.lock().values().map(|times| times.len() - 1).sum()
    }

    /// When this job came.
    pub fn times_of(&self, id: &str) -> Vec<Time> {
        self.by_job.lock().get(id).cloned().unwrap_or_default()
    }

    /// When all calls came, in order.
    pub fn times(&self) -> Vec<Time> {
        let mut times: Vec<Time> = self.by_job.lock().values().flatten().copied().collect();
        times.sort_unstable();
        times
    }

    /// Which of these never came.
    pub fn missing(&self, ids: &BTreeSet<String>) -> Vec<String> {
        let by_job = self.by_job.lock();
        ids.iter().filter(|id| !by_job.contains_key(*id)).cloned().collect()
    }
}
