//! A server with an engine of its own, and a client for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega::chance::Chance;
use entrega::channel::Channel;
use entrega::env::Env;
use entrega::mail::MAIL;
use entrega::proxy::Routes;
use entrega::settle::{Attempted, Settler};
use entrega::store::ClaimedJob;
use entrega::store::local::tables::TABLES;
use entrega::store::local::{LocalOptions, LocalStore};
use entrega::{Engine, EngineParts, PRODUCTS};
use entrega_call::Clock;
use entrega_core::name::LaneName;
use entrega_core::outcome::{Answer as DestinationAnswer, Fault, FaultKind, Outcome};
use entrega_core::policy::{LanePolicy, OnExhausted, Retry};
use entrega_core::time::Time;
use entrega_gateway::api::{ApiState, ServerLimits, hash_key, serve};
use entrega_gateway::config::{Config, ConfigSources};
use entrega_ledger::HeapLedger;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const ADMIN: &str = "ek_the-admin-key";

/// A server on a port of its own.
pub struct World {
    pub address: SocketAddr,
    pub engine: Arc<Engine>,
    pub clock: Clock,
    pub shutdown: CancellationToken,
    pub server: JoinHandle<()>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What the server said.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {:?}", self.text))
    }

    /// The body, once the status was as expected.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    #[track_caller]
    pub fn expect_success(&self) {
        assert!(self.status.is_success(), "{self:?}");
    }

    /// The problem document, once it is a whole one.
    #[track_caller]
    pub fn problem(&self, status: u16) -> Value {
        let problem = self.expect(status);
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        assert_eq!(problem["status"], status, "{problem}");
        assert!(problem["type"].as_str().is_some_and(|kind| kind.starts_with("urn:entrega:problem:")), "{problem}");
        for field in ["title", "detail"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {problem}");
        }
        problem
    }
}

fn lanes() -> BTreeMap<LaneName, Arc<LanePolicy>> {
    let tiny = LanePolicy { capacity: 1, ..LanePolicy::http() };
    let once = Retry { attempts: 1, ..LanePolicy::http().retry };
    let stuck = LanePolicy { on_exhausted: OnExhausted::Blocked, retry: once, ..LanePolicy::http() };
    let mail = LanePolicy::mail();
    [
        ("http", LanePolicy::http()),
        ("tiny", tiny),
        ("stuck", stuck),
        ("paced", LanePolicy::proxy()),
        ("proxy:score", LanePolicy::proxy()),
        ("connector", LanePolicy::connector()),
        ("email:send", mail),
        ("webhook", LanePolicy::webhook()),
    ]
    .map(|(name, policy)| (LaneName::new(name).unwrap(), Arc::new(policy)))
    .into()
}

/// The shipped route, closed to callers without a key.
fn routes() -> Routes {
    let env = [("UPSTREAM_URL", "https://score.example.com"), ("ENTREGA_PROXY__SCORE__PUBLIC", "false")];
    let env = env.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
    Config::load(ConfigSources { env, ..ConfigSources::default() }).unwrap().routes
}

/// Mails are taken; none is sent.
struct Nobody;

#[async_trait]
impl Channel for Nobody {
    async fn attempt(&self, _: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
        std::future::pending().await
    }
}

pub async fn engine(clock: &Clock) -> Engine {
    let ledger = Arc::new(HeapLedger::new(&TABLES));
    let store = LocalStore::open(ledger, clock.clone(), LocalOptions::new(lanes())).await.unwrap();
    let usual = EngineParts::over(Arc::new(store), clock.clone(), lanes());
    let env = Env { chance: Arc::new(Chance::from_seed(7)), ..usual.env.clone() };
    EngineParts { env, routes: routes(), ..usual }.channel(MAIL.name, Nobody).build()
}

impl World {
    pub async fn new() -> World {
        World::with(ServerLimits::default(), false).await
    }

    pub async fn with(limits: ServerLimits, open_metrics: bool) -> World {
        let clock = Clock::manual(Time::from_millis(1_700_000_000_000));
        let engine = Arc::new(engine(&clock).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let state = ApiState { open_metrics, ..ApiState::new(engine.clone(), hash_key(ADMIN)) };
        let server = tokio::spawn(serve(listener, state, limits, shutdown.clone()));
        let client = Client::builder(TokioExecutor::new()).build_http();
        World { address, engine, clock, shutdown, server, client }
    }

    pub async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Answer {
        let request = request.body(Full::new(body.into())).unwrap();
        let response = self.client.request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub fn request(&self, method: &str, path: &str, key: &str) -> http::request::Builder {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if key.is_empty() { request } else { request.header("authorization", format!("Bearer {key}")) }
    }

    /// A call with or without a JSON body (`Value::Null`: without).
    pub async fn call(&self, method: &str, path: &str, key: &str, body: Value) -> Answer {
        let request = self.request(method, path, key);
        match body {
            Value::Null => self.send(request, "").await,
            body => self.send(request.header("content-type", "application/json"), body.to_string()).await,
        }
    }

    pub async fn get(&self, path: &str, key: &str) -> Answer {
        self.call("GET", path, key, Value::Null).await
    }

    pub async fn post(&self, path: &str, key: &str, body: Value) -> Answer {
        self.call("POST", path, key, body).await
    }

    /// A new key.
    pub async fn key(&self, tenant: &str, scopes: &[&str]) -> String {
        let made = self.post("/v1/keys", ADMIN, json!({ "tenant": tenant, "scopes": scopes })).await.expect(201);
        made["key"].as_str().unwrap().to_owned()
    }

    /// A job that waits, by its id.
    pub async fn job(&self, tenant: &str, lane: &str) -> String {
        let body = json!({
            "lane": lane, "tenant": tenant, "labels": {"runId": "r1"},
            "request": {"url": "https://example.com/orders", "body": {"n": 1}},
        });
        self.post("/v1/jobs", ADMIN, body).await.expect(201)["jobId"].as_str().unwrap().to_owned()
    }

    /// A mail that waits, by its id.
    pub async fn mail(&self, tenant: &str) -> String {
        let body = json!({
            "tenant": tenant, "from": "shop@example.com", "to": "ann@example.com", "subject": "Hello", "text": "Hello!",
        });
        self.post("/v1/email/send", ADMIN, body).await.expect(201)["outboxId"].as_str().unwrap().to_owned()
    }

    /// A dead letter: a job that the destination answered with 404.
    pub async fn dead_letter(&self, tenant: &str) -> String {
        let id = self.job(tenant, "http").await;
        self.answer("http", 404).await;
        id
    }

    /// Attempts everything in a lane; the destination answers with this status.
    pub async fn answer(&self, lane: &str, status: u16) {
        let outcome = Outcome::Answer(DestinationAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"{\"ok\":true}"),
            truncated: false,
            retry_after: None,
        });
        self.attempt(lane, &outcome).await;
    }

    /// Attempts everything in a lane, to no avail: the destination is switched off.
    pub async fn hold(&self, lane: &str) {
        let fault = Fault { kind: FaultKind::Held, message: "the endpoint is paused".into() };
        self.attempt(lane, &Outcome::Fault(fault)).await;
    }

    async fn attempt(&self, lane: &str, outcome: &Outcome) {
        let lane = LaneName::new(lane).unwrap();
        let policy = self.engine.env().policy(&lane).unwrap();
        let claimed = self.engine.store().claim(&lane, 1000).await.unwrap().jobs;
        assert!(!claimed.is_empty(), "something to attempt in {lane}");
        let settle = |claimed| {
            let outcome = outcome.clone();
            let attempted = Attempted {
                claimed,
                started_at: self.clock.now(),
                took: Duration::from_millis(5),
                outcome,
                rules: Vec::new(),
            };
            Settler::new(self.engine.env().clone(), PRODUCTS).settlement(&policy, attempted)
        };
        let settlements = claimed.into_iter().map(settle).collect();
        self.engine.store().settle(&lane, settlements).await.unwrap();
        self.engine.store().flush().await.unwrap();
        // Entries of different moments are told apart.
        self.clock.advance(Duration::from_secs(1));
    }
}
