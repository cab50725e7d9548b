//! The world of the end-to-end scenarios: a real HTTP destination that answers as told, and a running engine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::chance::Chance;
use entrega::channel::Channel;
use entrega::dispatch::RunError;
use entrega::env::Env;
use entrega::http::HttpRequest;
use entrega::store::JobView;
use entrega::store::local::tables::TABLES;
use entrega::store::local::{LocalOptions, LocalStore};
use entrega::submission::NewJob;
use entrega::{Engine, EngineParts};
use entrega_call::Clock;
use entrega_call::{AddressFilter, Client, ClientConfig};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use entrega_ledger::{HeapLedger, Ledger};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use entrega_testkit::http_server::serve;

/// One call that reached the destination.
#[derive(Clone, Debug)]
pub struct Hit {
    pub id: String,
    pub idempotency_key: String,
    pub path: String,
    pub body: Bytes,
    pub at: Time,
    /// How often this job has called, this one included.
    pub nth: usize,
}

/// What the destination does with a call.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    RetryAfter(u16, &'static str),
    Hang,
}

type Script = Box<dyn FnMut(&Hit) -> Reply + Send>;

/// A destination.
#[derive(Clone)]
pub struct Sink {
    pub address: SocketAddr,
    hits: Arc<Mutex<Vec<Hit>>>,
    script: Arc<Mutex<Script>>,
}

impl Sink {
    pub async fn start(script: impl FnMut(&Hit) -> Reply + Send + 'static) -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = Sink {
            address: listener.local_addr().unwrap(),
            hits: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(script))),
        };
        let (answering, clock) = (sink.clone(), Clock::system());
        serve(listener, move |request| answering.clone().answer(request, clock.now()));
        sink
    }

    async fn answer(self, request: Request<Incoming>, at: Time) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let id = header("x-request-id").unwrap_or_default();
        let idempotency_key = header("idempotency-key").unwrap_or_default();
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await?.to_bytes();
        let reply = {
            let mut hits = self.hits.lock();
            let nth = hits.iter().filter(|hit| hit.id == id).count() + 1;
            hits.push(Hit { id, idempotency_key, path, body, at, nth });
            (self.script.lock())(hits.last().unwrap())
        };
        let response = |status| Response::builder().status(status);
        let response = match reply {
            Reply::Status(status) => response(status),
            Reply::RetryAfter(status, value) => response(status).header("retry-after", value),
            Reply::Hang => std::future::pending().await,
        };
        Ok(response.body(Full::from("noted")).unwrap())
    }

    pub fn set(&self, script: impl FnMut(&Hit) -> Reply + Send + 'static) {
        *self.script.lock() = Box::new(script);
    }

    pub fn hits(&self) -> Vec<Hit> {
        self.hits.lock().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// A running engine.
pub struct World {
    pub engine: Arc<Engine>,
    pub sink: Sink,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), RunError>>,
}

pub fn lane() -> LaneName {
    LaneName::new("http").unwrap()
}

pub fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

/// The http lane with short waits, so that a scenario of several attempts takes a moment.
pub fn quick_policy() -> LanePolicy {
    let mut policy = LanePolicy::http();
    policy.retry.backoff =
        entrega_core::backoff::Backoff::exponential(Duration::from_millis(100), Duration::from_millis(400));
    policy
}

/// What a world is made of.
pub struct Parts {
    pub policy: LanePolicy,
    pub ledger: Arc<dyn Ledger>,
    pub channel: Option<Arc<dyn Channel>>,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts { policy: quick_policy(), ledger: Arc::new(HeapLedger::new(&TABLES)), channel: None }
    }
}

pub async fn engine(parts: Parts) -> Arc<Engine> {
    let clock = Clock::system();
    let lanes = BTreeMap::from([(lane(), Arc::new(parts.policy))]);
    let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
    let client = Client::new(ClientConfig { filter: filter.clone(), ..ClientConfig::default() }).unwrap();
    let store =
        Arc::new(LocalStore::open(parts.ledger, clock.clone(), LocalOptions::new(lanes.clone())).await.unwrap());
    let channels = parts.channel.map(|channel| ("http".to_owned(), channel)).into_iter().collect();
    let usual = EngineParts::over(store, clock, lanes);
    let env = Env { chance: Arc::new(Chance::from_seed(7)), ..usual.env.clone() };
    Arc::new(EngineParts { env, channels, client, filter, ..usual }.build())
}

impl World {
    pub async fn start(parts: Parts, script: impl FnMut(&Hit) -> Reply + Send + 'static) -> World {
        let engine = engine(parts).await;
        let shutdown = CancellationToken::new();
        let running = {
            let (engine, shutdown) = (engine.clone(), shutdown.clone());
            tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
        };
        World { engine, sink: Sink::start(script).await, shutdown, running }
    }

    pub fn job(&self, path: &str) -> NewJob {
        let request = HttpRequest::post(&self.sink.url(path), &b"{\"hello\":1}"[..]);
        NewJob::new(lane(), request)
    }

    pub async fn submit(&self, whose: &str, jobs: Vec<NewJob>) -> Vec<JobId> {
        let taken = self.engine.submit(&tenant(whose), jobs).await;
        taken.into_iter().map(|taken| taken.unwrap()).collect()
    }

    /// The job once it has ended; fails after ten seconds.
    pub async fn end_of(&self, id: JobId) -> JobView {
        let ended = tokio::time::timeout(Duration::from_secs(10), self.engine.store().ended(id)).await;
        ended.expect("the job ends within ten seconds").unwrap();
        self.engine.store().job(id).await.unwrap().unwrap()
    }

    /// Stops the engine and says how it ended.
    pub async fn stop(self) -> Result<(), RunError> {
        self.shutdown.cancel();
        self.ended().await
    }

    /// Waits for the engine to end by itself.
    pub async fn ended(self) -> Result<(), RunError> {
        tokio::time::timeout(Duration::from_secs(10), self.running).await.expect("the engine ends in time").unwrap()
    }
}
