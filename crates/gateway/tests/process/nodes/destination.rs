//! Where jobs go: answers by path, and notes who came when.
//!
//! `/` answers at once, `/slow` after a while. The first call of a job to `/held` is answered after `release`, to
//! `/silent` never; later calls of the same job at once.

#![allow(dead_code, reason = "every test binary that names this module uses another part of it")]

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega_call::Clock;
use entrega_core::time::Time;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use entrega_testkit::http_server::serve;

pub const SLOW: Duration = Duration::from_millis(300);

/// The calls of one job.
pub struct Calls {
    /// What its URL says after the `?`.
    pub query: String,
    /// When they came.
    pub times: Vec<Time>,
}

/// A destination.
#[derive(Clone)]
pub struct Destination {
    address: SocketAddr,
    clock: Clock,
    by_job: Arc<Mutex<HashMap<String, Calls>>>,
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
        let query = request.uri().query().unwrap_or_default().to_owned();
        if request.into_body().collect().await.is_err() {
            // Cut off on the way: it did not arrive, and nobody waits for an answer.
            return Ok(Response::default());
        }
        let nth = self.note(id, query, at);
        match (path.as_str(), nth) {
            // reason: a destination that takes its time is what is asked for
            ("/slow", _) => tokio::time::sleep(SLOW).await,
            ("/held", 1) => self.released.cancelled().await,
            ("/silent", 1) => std::future::pending().await,
            _ => {}
        }
        Ok(Response::new(Full::from(format!("answer {nth}"))))
    }

    fn note(&self, id: String, query: String, at: Time) -> usize {
        let nth = {
            let mut by_job = self.by_job.lock();
            let calls = by_job.entry(id).or_insert_with(|| Calls { query, times: Vec::new() });
            calls.times.push(at);
            calls.times.len()
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

    /// The moment by which calls are noted.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Looks at the calls of every job that came.
    pub fn each_job(&self, mut look: impl FnMut(&str, &Calls)) {
        self.by_job.lock().iter().for_each(|(id, calls)| look(id, calls));
    }

    /// How many jobs came.
    pub fn jobs(&self) -> usize {
        self.by_job.lock().len()
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
        self.by_job.lock().values().map(|calls| calls.times.len() - 1).sum()
    }

    /// When this job came.
    pub fn times_of(&self, id: &str) -> Vec<Time> {
        self.by_job.lock().get(id).map(|calls| calls.times.clone()).unwrap_or_default()
    }

    /// When all calls came, in order.
    pub fn times(&self) -> Vec<Time> {
        let mut times: Vec<Time> = self.by_job.lock().values().flat_map(|calls| &calls.times).copied().collect();
        times.sort_unstable();
        times
    }

    /// Which of these never came.
    pub fn missing(&self, ids: &BTreeSet<String>) -> Vec<String> {
        let by_job = self.by_job.lock();
        ids.iter().filter(|id| !by_job.contains_key(*id)).cloned().collect()
    }
}
