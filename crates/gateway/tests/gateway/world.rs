//! A gateway as `serve` runs it, on a store of its own, before a real SMTP server; and a client for its API.

#![allow(dead_code, reason = "every test binary that names this module uses another part of it")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::EngineParts;
use entrega::dispatch::RunError;
use entrega_gateway::api::{ApiState, ServerLimits, hash_key, serve};
use entrega_gateway::config::{Config, ConfigFile, ConfigSources};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use entrega_testkit::redis::{self, RedisServer};

pub const ADMIN: &str = "ek_the-admin-key-of-mails";
/// Everything here ends sooner, or not at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Short waits, and none of the limits that protect a provider.
pub const QUICK: &str =
    "retry = { attempts = 5, base = \"50ms\", max = \"200ms\" }\nthrottle = \"none\"\nbreaker = \"none\"\n";

/// Where the gateway keeps its mails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Redis,
}

/// Every kind of store that can be had here.
pub fn kinds() -> Vec<Kind> {
    if redis::is_left_out() { vec![Kind::Memory] } else { vec![Kind::Memory, Kind::Redis] }
}

/// A running gateway.
pub struct Gateway {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), RunError>>,
    /// Kept for as long as the gateway runs.
    redis: Option<RedisServer>,
    _folder: TempDir,
}

/// What the API said.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub json: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.json);
        self.json
    }
}

impl Gateway {
    /// With one transport and quick retries.
    pub async fn start(kind: Kind, url: &str) -> Gateway {
        Gateway::with(kind, &format!("[transports.main]\nurl = \"{url}\"\n[lanes.\"email:send\"]\n{QUICK}")).await
    }

    /// With a configuration of its own; the store's is added.
    pub async fn with(kind: Kind, config: &str) -> Gateway {
        Gateway::changed(kind, config, |_, _| {}).await
    }

    /// The same, with an engine that was changed before it runs.
    pub async fn changed(kind: Kind, config: &str, change: impl FnOnce(&mut EngineParts, &Config)) -> Gateway {
        let redis = match kind {
            Kind::Memory => None,
            Kind::Redis => Some(RedisServer::start(&[])),
        };
        let store = redis.as_ref().map_or_else(|| "memory".to_owned(), RedisServer::url);
        Gateway { redis, ..Gateway::on_changed(&store, config, change).await }
    }

    /// The same on a store that is there.
    pub async fn on(store: &str, config: &str) -> Gateway {
        Gateway::on_changed(store, config, |_, _| {}).await
    }

    async fn on_changed(store: &str, config: &str, change: impl FnOnce(&mut EngineParts, &Config)) -> Gateway {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let text = format!("{config}\n[store]\nkind = \"{store}\"\ndata = {data:?}\n");
        let config = load(folder.path().join("entrega.toml"), &text);
        let mut parts = EngineParts::open(config.engine().unwrap()).await.unwrap();
        change(&mut parts, &config);
        let engine = Arc::new(parts.build());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let state = ApiState { open_metrics: true, ..ApiState::new(engine.clone(), hash_key(ADMIN)) };
        tokio::spawn(serve(listener, state, ServerLimits::default(), shutdown.clone()));
        let running = {
            let shutdown = shutdown.clone();
            tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        Gateway { address, client, shutdown, running, redis: None, _folder: folder }
    }

    pub async fn call(&self, method: &str, path: &str, key: &str, headers: &[(&str, &str)], body: String) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = self.client.request(request.body(Full::new(body.into())).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status: head.status, headers: head.headers, json }
    }

    pub async fn post(&self, path: &str, key: &str, body: Value) -> Answer {
        self.call("POST", path, key, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Value {
        self.call("GET", path, ADMIN, &[], String::new()).await.expect(200)
    }

    /// An answer that is no JSON.
    pub async fn text(&self, path: &str) -> String {
        let uri = format!("http://{}{path}", self.address).parse().unwrap();
        let response = self.client.get(uri).await.unwrap();
        String::from_utf8_lossy(&response.into_body().collect().await.unwrap().to_bytes()).into_owned()
    }

    /// A key of a tenant.
    pub async fn key(&self, tenant: &str) -> String {
        let made = self.post("/v1/keys", ADMIN, json!({ "tenant": tenant, "scopes": ["send", "read"] })).await;
        made.expect(201)["key"].as_str().unwrap().to_owned()
    }

    /// Sends a mail and gives its id.
    pub async fn send(&self, mail: Value) -> String {
        self.send_as(ADMIN, mail).await
    }

    pub async fn send_as(&self, key: &str, mail: Value) -> String {
        let taken = self.post("/v1/email/send", key, mail).await.expect(201);
        assert_eq!(taken["status"], "QUEUED", "{taken}");
        taken["outboxId"].as_str().unwrap().to_owned()
    }

    /// The mail once it is in this status.
    pub async fn mail_in(&self, id: &str, status: &str) -> Value {
        let look = async {
            loop {
                let mail = self.get(&format!("/v1/emails/{id}")).await;
                if mail["status"] == status {
                    return mail;
                }
                // reason: a mail has no signal for every status; it is looked at until it is there.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, look).await;
        let Ok(mail) = found else {
            panic!("{id} does not become {status}: {}", self.get(&format!("/v1/emails/{id}")).await)
        };
        mail
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.running).await.expect("it ends in time").unwrap().unwrap();
    }
}

fn load(file: PathBuf, text: &str) -> Config {
    std::fs::write(&file, text).unwrap();
    let key = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")];
    let env = key.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
    Config::load(ConfigSources { file: ConfigFile::At(file), env, ..ConfigSources::default() }).unwrap()
}

/// A mail to these recipients.
pub fn mail_to(recipients: &[&str]) -> Value {
    json!({ "from": "Shop <shop@example.com>", "to": recipients, "subject": "Invoice 17", "text": "Thank you!" })
}

/// The codes of a mail's attempts.
pub fn codes(mail: &Value) -> Vec<&str> {
    mail["attempts"].as_array().unwrap().iter().map(|attempt| attempt["code"].as_str().unwrap()).collect()
}

/// What came of the last attempt, by recipient.
pub fn results(mail: &Value) -> Vec<(&str, &str)> {
    let last = mail["attempts"].as_array().unwrap().last().unwrap();
    let rows = last["recipients"].as_array().unwrap().iter();
    rows.map(|row| (row["address"].as_str().unwrap(), row["result"].as_str().unwrap())).collect()
}
