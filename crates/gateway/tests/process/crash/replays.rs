//! Replays of many dead letters, each of which a kill interrupts: none is left behind, and each counts once.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use entrega_testkit::http_server::serve;
use entrega_testkit::wait::eventually;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{seeded, setting};
use crate::server::Server;

const CYCLES: u64 = 3;
const LETTERS: usize = 500;
const RATE_PER_SEC: u32 = 1_000;
const WITHIN: Duration = Duration::from_secs(60);

/// A destination that wants nothing until it is mended.
async fn destination(is_mended: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, move |request: Request<Incoming>| {
        let is_mended = is_mended.clone();
        async move {
            // An error means that the caller was killed in the middle.
            drop(request.into_body().collect().await);
            let status = if is_mended.load(Ordering::SeqCst) { StatusCode::OK } else { StatusCode::NOT_FOUND };
            Ok::<_, Infallible>(Response::builder().status(status).body(Full::<Bytes>::default()).unwrap())
        }
    });
    address
}

async fn dead(server: &Server) -> u64 {
    let lanes = server.ok("GET", "/v1/lanes", &Value::Null).await;
    let http = lanes["items"].as_array().unwrap().iter().find(|lane| lane["lane"] == "http").unwrap().clone();
    http["deadLetters"].as_u64().unwrap()
}

async fn wait_for_dead(server: &Server, count: u64) {
    let is_there = async || match dead(server).await {
        now if now == count => Ok(()),
        now => Err(format!("{now} dead letters")),
    };
    eventually(WITHIN, &format!("there are {count} dead letters"), is_there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_replay_leaves_nothing_behind_and_counts_each_once() {
    let cycles = setting("ENTREGA_CRASH_CYCLES").unwrap_or(CYCLES);
    let (mut chance, folder) = (seeded(), tempfile::tempdir().unwrap());
    let is_mended = Arc::new(AtomicBool::new(false));
    let url = format!("http://{}/", destination(is_mended.clone()).await);
    let mut server = Server::start(folder.path());
    let mut interrupted = 0;
    for _ in 0..cycles {
        is_mended.store(false, Ordering::SeqCst);
        let jobs = Value::Array(vec![json!({"request": {"url": url, "body": "x"}}); LETTERS]);
        server.ok("POST", "/v1/jobs", &jobs).await;
        wait_for_dead(&server, LETTERS as u64).await;
        is_mended.store(true, Ordering::SeqCst);
        let asked = server.ok("POST", "/v1/dlq/replay", &json!({"ratePerSec": RATE_PER_SEC})).await;
        assert_eq!(asked["total"], LETTERS, "{asked}");
        let path = format!("/v1/replays/{}", asked["replayId"].as_str().unwrap());
        // reason: the kill must come at a moment that nobody chose
        tokio::time::sleep(Duration::from_millis(chance.u64(50..1_000))).await;
        server.kill();
        server = Server::start(folder.path());
        interrupted += u64::from(server.ok("GET", &path, &Value::Null).await["status"] == "running");
        let is_over = async || {
            let run = server.ok("GET", &path, &Value::Null).await;
            if run["status"] == "finished" { Ok(run) } else { Err(run.to_string()) }
        };
        let run = eventually(WITHIN, "the replay has finished", is_over).await;
        assert_eq!((&run["replayed"], &run["skipped"]), (&json!(LETTERS), &json!(0)), "{run}");
        wait_for_dead(&server, 0).await;
        let pending = server.ok("GET", "/v1/dlq?status=pending", &Value::Null).await;
        assert_eq!(pending["items"], json!([]));
    }
    println!(
        "{cycles} replays of {LETTERS}, {interrupted} of them in the middle of it when they were killed: all whole"
    );
}
