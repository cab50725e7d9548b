//! What the engine really sends, in the eyes of a receiver that is not ours; and with somebody on the way who changes it.

use entrega_testkit::tool;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::world::{ADMIN, Gateway, kinds};
use entrega_testkit::http_server::serve;
use entrega_testkit::receiver::{SECRET, open};
use entrega_testkit::smtp_server::{self};

const PATH: &str = "/v1/tenants/ours/endpoints/hooks";
const BELIEVED: &str = "believed";
const REFUSED: [&str; 2] = ["No matching signature found", "not what HMAC makes of it"];

/// A receiver in Python; `stranger.py` beside this file says what it does.
struct Stranger {
    process: Child,
    port: u16,
}

impl Stranger {
    fn start() -> Stranger {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/webhook/stranger.py");
        let mut command = Command::new(tool::python());
        command.arg(program).env("WEBHOOK_SECRET", SECRET).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| {
            panic!("{} does not run: {error}; `cargo xtask test` installs it", tool::python().display())
        });
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let port = port.trim().parse().unwrap_or_else(|_| panic!("the receiver does not start: {port:?}"));
        Stranger { process, port }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Which byte of a body of this length is flipped on its way.
type Flip = fn(usize) -> usize;

/// Passes calls on, and flips one bit of the next bodies as it was told.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    to: u16,
    flips: Arc<Mutex<Vec<Flip>>>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Proxy {
    async fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let proxy = Proxy { address, to, flips: Arc::default(), client };
        let passing = proxy.clone();
        serve(listener, move |request| passing.clone().pass_on(request));
        proxy
    }

    async fn pass_on(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let (mut head, body) = request.into_parts();
        let mut body = body.collect().await?.to_bytes().to_vec();
        if let Some(flip) = self.flips.lock().pop() {
            let place = flip(body.len());
            body[place] ^= 1;
        }
        head.uri = format!("http://127.0.0.1:{}{}", self.to, head.uri.path()).parse::<Uri>().unwrap();
        let answer = self.client.request(Request::from_parts(head, Full::from(body))).await.unwrap();
        let (head, body) = answer.into_parts();
        Ok(Response::builder().status(head.status).body(Full::new(body.collect().await?.to_bytes())).unwrap())
    }

    /// Flips these in the next bodies.
    fn flips(&self, flips: &[Flip]) {
        *self.flips.lock() = flips.iter().rev().copied().collect();
    }
}

async fn start(kind: crate::world::Kind) -> (Stranger, Proxy, Gateway) {
    let stranger = Stranger::start();
    let proxy = Proxy::start(stranger.port).await;
    let gateway = Gateway::with(kind, &open("smtp://127.0.0.1:9", "")).await;
    let body = json!({ "url": format!("http://{}/hooks", proxy.address), "secret": SECRET }).to_string();
    gateway.call("PUT", PATH, ADMIN, &[("content-type", "application/json")], body).await.expect(201);
    (stranger, proxy, gateway)
}

/// A test of the endpoint, once it is delivered or given up: the code of each attempt, and what the library and plain HMAC
/// said to it.
async fn verdicts(gateway: &Gateway) -> Vec<(String, [String; 2])> {
    let asked = gateway.post(&format!("{PATH}/test"), ADMIN, Value::Null).await.expect(202);
    let job = gateway.get(&format!("/v1/jobs/{}?wait=20s", asked["jobId"].as_str().unwrap())).await;
    let read = |attempt: &Value| {
        let answer: Value = serde_json::from_str(attempt["answer"].as_str().unwrap()).unwrap();
        let said = |who: &str| answer[who].as_str().unwrap().to_owned();
        (attempt["code"].as_str().unwrap().to_owned(), [said("standard"), said("plain")])
    };
    job["attempts"].as_array().unwrap().iter().map(read).collect()
}

fn verdict(code: &str, said: [&str; 2]) -> (String, [String; 2]) {
    (code.to_owned(), said.map(str::to_owned))
}

#[tokio::test]
async fn a_stranger_believes_what_we_send_and_refuses_it_with_one_flipped_bit() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let (_stranger, proxy, gateway) = start(kind).await;
        assert_eq!(verdicts(&gateway).await, [verdict("ok", [BELIEVED; 2])], "{kind:?}");
        proxy.flips(&[|_| 0, |length| length / 2, |length| length - 1]);
        let refused = || verdict("http_401", REFUSED);
        let expected = [refused(), refused(), refused(), verdict("ok", [BELIEVED; 2])];
        assert_eq!(verdicts(&gateway).await, expected, "{kind:?}: the same event, believed once it comes whole");
        gateway.stop().await;
    }
}

/// `X-Signature` has room for one signature, and the newest secret makes it; the Standard form has room for both.
#[tokio::test]
async fn a_stranger_who_knows_the_old_secret_believes_the_standard_form_during_a_rotation() {
    if smtp_server::is_left_out() {
        return;
    }
    let (_stranger, _proxy, gateway) = start(crate::world::Kind::Memory).await;
    gateway.post(&format!("{PATH}/rotate"), ADMIN, Value::Null).await.expect(200);
    let first = verdicts(&gateway).await.remove(0);
    assert_eq!(first, verdict("http_401", [BELIEVED, REFUSED[1]]));
    gateway.post(&format!("{PATH}/forget-old-secret"), ADMIN, Value::Null).await.expect(200);
    let first = verdicts(&gateway).await.remove(0);
    assert_eq!(first, verdict("http_401", REFUSED));
    gateway.stop().await;
}
