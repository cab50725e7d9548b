//! Somebody else's API: a real HTTP server that answers as told, and notes who came when.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega_call::Clock;
use entrega_core::time::Time;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::world::{ADMIN, Answer, Gateway};
use entrega_testkit::http_server::{came, serve};

/// A call that it got.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Time,
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An answer: a status, and how long the caller should wait, if it says so.
type Says = (u16, Option<&'static str>);

/// A third-party API.
#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    clock: Clock,
    calls: Arc<Mutex<Vec<Call>>>,
    says: Arc<Mutex<VecDeque<Says>>>,
    always: Arc<Mutex<u16>>,
    takes: Arc<Mutex<Duration>>,
}

impl Api {
    pub async fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Api {
            address: listener.local_addr().unwrap(),
            clock: Clock::system(),
            calls: Arc::default(),
            says: Arc::default(),
            always: Arc::new(Mutex::new(200)),
            takes: Arc::default(),
        };
        let answering = api.clone();
        serve(listener, move |request| answering.clone().answer(request));
        api
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let at = self.clock.now();
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().unwrap().to_string();
        let body = body.collect().await?.to_bytes();
        let number = {
            let mut calls = self.calls.lock();
            calls.push(Call { at, method: head.method.to_string(), path, headers: head.headers, body });
            calls.len()
        };
        let takes = *self.takes.lock();
        // reason: an API that takes its time.
        tokio::time::sleep(takes).await;
        let (status, retry_after) = self.says.lock().pop_front().unwrap_or((*self.always.lock(), None));
        let mut response = Response::builder().status(status).header("content-type", "application/json");
        if let Some(seconds) = retry_after {
            response = response.header("retry-after", seconds);
        }
        Ok(response.body(Full::from(json!({ "call": number }).to_string())).unwrap())
    }

    /// The next answers; then what it says always.
    pub fn says(&self, answers: &[Says]) {
        *self.says.lock() = answers.iter().copied().collect();
    }

    pub fn says_always(&self, status: u16) {
        *self.always.lock() = status;
    }

    pub fn takes(&self, length: Duration) {
        *self.takes.lock() = length;
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    pub async fn wait_for(&self, calls: usize) -> Vec<Call> {
        came(&self.calls, calls).await
    }
}

/// The connector `erp` before this API; `more` are more of its keys.
pub fn config(api: &Api, more: &str) -> String {
    format!(
        "[outbound]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n\
         [connectors.erp]\nbase_url = \"http://{}/v1\"\n{more}\n",
        api.address
    )
}

pub const JSON: (&str, &str) = ("content-type", "application/json");

/// Sends a request and waits for it.
pub async fn send(gateway: &Gateway, body: Value) -> Answer {
    gateway.post("/v1/connectors/erp/requests", ADMIN, body).await
}

/// Sends a request with these headers.
pub async fn send_with(gateway: &Gateway, headers: &[(&str, &str)], body: &Value) -> Answer {
    let headers = [&[JSON][..], headers].concat();
    gateway.call("POST", "/v1/connectors/erp/requests", ADMIN, &headers, body.to_string()).await
}
