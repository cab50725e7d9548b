//! Somebody else's API: a real HTTP server that answers as told, and notes who came when.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega_call::Clock;
use entrega_core::time::Time;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::world::{ADMIN, Gateway};
use entrega_testkit::http_server::{came, serve};

/// A call that it got.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Time,
    pub cpf: String,
}

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// 200 with a number that counts its calls.
    Well,
    /// This status.
    Says(u16),
    /// Nothing, until it is in another mood.
    Hangs,
}

/// An upstream.
#[derive(Clone)]
pub struct Upstream {
    pub address: SocketAddr,
    clock: Clock,
    calls: Arc<Mutex<Vec<Call>>>,
    mood: Arc<watch::Sender<Mood>>,
}

impl Upstream {
    pub async fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Upstream {
            address: listener.local_addr().unwrap(),
            clock: Clock::system(),
            calls: Arc::default(),
            mood: Arc::new(watch::Sender::new(Mood::Well)),
        };
        let answering = upstream.clone();
        serve(listener, move |request| answering.clone().answer(request));
        upstream
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let query = request.uri().query().unwrap_or_default();
        let params: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let number = {
            let mut calls = self.calls.lock();
            calls.push(Call { at: self.clock.now(), cpf: params.get("cpf").cloned().unwrap_or_default() });
            calls.len()
        };
        let mut mood = self.mood.subscribe();
        // The sender lives as long as this does.
        let mood = *mood.wait_for(|mood| *mood != Mood::Hangs).await.unwrap();
        let status = if let Mood::Says(status) = mood { status } else { 200 };
        let body = json!({ "score": 700, "call": number }).to_string();
        let response = Response::builder().status(status).header("content-type", "application/json");
        Ok(response.body(Full::from(body)).unwrap())
    }

    pub fn is(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    pub async fn wait_for(&self, calls: usize) -> Vec<Call> {
        came(&self.calls, calls).await
    }
}

/// How much later than another a call may arrive that left at the same moment, on a machine that is busy.
const DELAY_MAX: Duration = Duration::from_millis(150);

/// Fails if more calls came, in any stretch of time, than one per interval.
#[track_caller]
pub fn assert_paced(calls: &[Call], interval: Duration) {
    for (first, one) in calls.iter().enumerate() {
        for (later, other) in calls.iter().enumerate().skip(first) {
            let ticks = u32::try_from(later - first).unwrap();
            assert!(other.at.since(one.at) + DELAY_MAX >= interval * ticks, "{first} and {later} of {calls:?}");
        }
    }
}

/// The shipped route before this upstream; `cache` and `lane` are more of its tables.
pub fn config(upstream: &Upstream, route: &str, lane: &str) -> String {
    format!(
        "[outbound]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n\
         [proxy.score]\nupstream_url = \"{}\"\n{route}\n[lanes.\"proxy:score\"]\n{lane}\n",
        upstream.url()
    )
}

/// The n-th CPF of a row of valid ones.
pub fn cpf(number: u32) -> String {
    let base = format!("{:09}", 529_982_000 + number);
    let endings = (0..100).map(|ending| format!("{base}{ending:02}"));
    endings.into_iter().find(|text| entrega_core::cpf::Cpf::parse(text).is_ok()).unwrap()
}

/// Asks with a key; the job's id.
pub async fn ask(gateway: &Gateway, cpf: &str, priority: &str) -> String {
    let asked = gateway.post("/v1/proxy/score", ADMIN, json!({ "cpf": cpf, "priority": priority })).await.expect(202);
    asked["jobId"].as_str().unwrap().to_owned()
}

/// The job when it has ended.
pub async fn ended(gateway: &Gateway, id: &str) -> Value {
    let job = gateway.get(&format!("/v1/jobs/{id}?wait=20s")).await;
    assert!(["done", "dlq", "dropped"].contains(&job["state"].as_str().unwrap()), "{job}");
    job
}

/// One number of `/metrics`: the sum of the rows that begin so and hold all of these.
pub async fn metric(gateway: &Gateway, name: &str, labels: &[&str]) -> f64 {
    let text = gateway.text("/metrics").await;
    let rows = text.lines().filter(|line| {
        let rest = line.strip_prefix(name).unwrap_or("-");
        rest.starts_with(['{', ' ']) && labels.iter().all(|label| rest.contains(label))
    });
    rows.map(|row| row.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}
