//! A tenant's endpoint: a real HTTP server that answers as told, and keeps what it got.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use entrega_call::Clock;
use entrega_core::time::Time;
use entrega_core::webhook::{WebhookSecret, verify};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::http_server::{came, serve};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// What it says unless it was told what.
pub const THANKS: &str = "thank you";
/// A call that it got.
#[derive(Clone, Debug)]
pub struct Got {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub at: Time,
}

impl Got {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    #[track_caller]
    pub fn check_signature(&self, secret: &str) {
        let secret: WebhookSecret = secret.parse().unwrap();
        verify(&[secret], &self.body, Some(self.header("x-signature"))).unwrap();
    }
}

/// An endpoint.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    clock: Clock,
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    location: Arc<Mutex<Option<String>>>,
}

impl Receiver {
    pub async fn start() -> Receiver {
        Receiver::start_at("127.0.0.1").await
    }

    /// At an address of its own.
    pub async fn start_at(address: &str) -> Receiver {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let receiver = Receiver {
            address: listener.local_addr().unwrap(),
            clock: Clock::system(),
            got: Arc::default(),
            answers: Arc::default(),
            location: Arc::default(),
        };
        let answering = receiver.clone();
        serve(listener, move |request| answering.clone().answer(request));
        receiver
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let at = self.clock.now();
        let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
        let body = request.into_body().collect().await?.to_bytes();
        self.got.lock().push(Got { path, headers, body, at });
        let (status, said) = self.answers.lock().pop_front().unwrap_or((200, THANKS.into()));
        let mut response = Response::builder().status(status);
        if let Some(location) = self.location.lock().as_deref() {
            response = response.header("location", location);
        }
        Ok(response.body(Full::from(said)).unwrap())
    }

    /// The next answers; then 200.
    pub fn answers(&self, statuses: &[u16]) {
        self.says(&statuses.iter().map(|status| (*status, THANKS)).collect::<Vec<_>>());
    }

    /// The next answers with what they say; then 200.
    pub fn says(&self, answers: &[(u16, &str)]) {
        *self.answers.lock() = answers.iter().map(|(status, said)| (*status, (*said).to_owned())).collect();
    }

    /// Names another place in every answer from now on.
    pub fn points_to(&self, url: &str) {
        *self.location.lock() = Some(url.to_owned());
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn got(&self) -> Vec<Got> {
        self.got.lock().clone()
    }

    /// What it got, once it is so much.
    pub async fn wait_for(&self, calls: usize) -> Vec<Got> {
        came(&self.got, calls).await
    }
}

/// What a gateway needs to call endpoints here, with short waits.
pub fn open(smtp: &str, endpoints: &str) -> String {
    format!(
        "[outbound]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n[transports.main]\nurl = \"{smtp}\"\n\
         [lanes.webhook]\nretry = {{ attempts = 6, delays = [\"50ms\"] }}\n{endpoints}\n\
         [lanes.\"email:send\"]\nretry = {{ attempts = 5, base = \"300ms\", max = \"600ms\" }}\nthrottle = \"none\"\n\
         breaker = \"none\"\n"
    )
}

pub fn endpoint(tenant: &str, name: &str, url: &str, more: &str) -> String {
    format!("[tenants.{tenant}.endpoints.{name}]\nurl = \"{url}\"\nsecret = \"{SECRET}\"\n{more}\n")
}
