//! The gateway killed with -9 at random moments, under load, again and again.
//!
//! What must hold: every job whose 201 was seen is delivered; within one life of the process a job is delivered once,
//! so that the only repeats are those of jobs in flight at a kill, one each.
//!
//! `ENTREGA_CRASH_CYCLES` sets how often (25), `ENTREGA_CRASH_SEED` which moments.

mod http_server;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use entrega::store::local::UNSETTLED_MAX;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::http_server::serve;
use self::process::Server;

const CONCURRENCY: usize = 64;
const SENDERS: usize = 4;
/// After so many kills the gateway may empty its lane: a backlog that only grows would make every start slower.
const KILLS_PER_DRAIN: u64 = 25;

/// What arrived: for each job, in which lives of the gateway.
#[derive(Default)]
struct Arrivals {
    life: AtomicU32,
    by_job: Mutex<BTreeMap<String, Vec<u32>>>,
}

async fn destination(arrivals: Arc<Arrivals>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, move |request| answer(request, arrivals.clone()));
    address
}

async fn answer(request: Request<Incoming>, arrivals: Arc<Arrivals>) -> Result<Response<Full<Bytes>>, Infallible> {
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let is_whole = request.into_body().collect().await.is_ok();
    if is_whole {
        let life = arrivals.life.load(Ordering::SeqCst);
        arrivals.by_job.lock().entry(id).or_default().push(life);
    }
    Ok(Response::new(Full::from("ok")))
}

/// The lane of the jobs, in a listing.
fn http(lanes: &Value) -> &Value {
    lanes["items"].as_array().unwrap().iter().find(|lane| lane["lane"] == "http").expect("the lane is there")
}

/// Sends jobs until the server is gone; keeps the ids it was given.
async fn send(server: Arc<Server>, url: String, accepted: Arc<Mutex<BTreeSet<String>>>) {
    let job = json!({"request": {"url": url, "body": "x".repeat(200)}});
    let many = Value::Array(vec![job; 20]);
    while let Ok(answer) = server.call("POST", "/v1/jobs", &many).await {
        if answer.status != 201 {
            continue;
        }
        let rows: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
        let ids = rows.iter().map(|row| row["jobId"].as_str().unwrap().to_owned());
        accepted.lock().extend(ids);
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_job_survives_kill_9() {
    let cycles = setting("ENTREGA_CRASH_CYCLES").unwrap_or(25);
    let seed = setting("ENTREGA_CRASH_SEED").unwrap_or_else(|| u64::from_le_bytes(entrega::chance::secret_bytes()));
    println!("ENTREGA_CRASH_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let arrivals = Arc::new(Arrivals::default());
    let url = format!("http://{}/", destination(arrivals.clone()).await);
    let accepted = Arc::new(Mutex::new(BTreeSet::new()));
    let (mut extra_before, mut extra_most) = (0, 0);
    for cycle in 0..cycles {
        let server = Arc::new(Server::start(folder.path()));
        let senders: Vec<_> =
            (0..SENDERS).map(|_| tokio::spawn(send(server.clone(), url.clone(), accepted.clone()))).collect();
        // reason: the kill must come at a moment that nobody chose
        tokio::time::sleep(Duration::from_millis(chance.u64(20..400))).await;
        server.kill();
        for sender in senders {
            sender.await.unwrap();
        }
        drop(server);
        arrivals.life.fetch_add(1, Ordering::SeqCst);
        let extra = extra_attempts(&arrivals);
        let now = extra - extra_before;
        assert!(now <= CONCURRENCY + UNSETTLED_MAX, "{now} repeats after one kill");
        (extra_before, extra_most) = (extra, extra_most.max(now));
        if (cycle + 1) % KILLS_PER_DRAIN == 0 {
            drain(folder.path(), &arrivals, &accepted).await;
            println!(
                "cycle {}: {} accepted, {extra} attempts repeated, at most {extra_most} after a kill",
                cycle + 1,
                accepted.lock().len()
            );
        }
    }
    drain(folder.path(), &arrivals, &accepted).await;
    let arrived = arrivals.by_job.lock();
    for (id, lives) in arrived.iter() {
        assert!(lives.is_sorted_by(|a, b| a < b), "{id} was delivered twice in one life: {lives:?}");
    }
    println!(
        "{cycles} kills: {} jobs accepted, all delivered; {} attempts repeated, at most {extra_most} after a kill",
        accepted.lock().len(),
        arrived.values().map(|lives| lives.len() - 1).sum::<usize>()
    );
}

/// A life that is not cut short: afterwards everything accepted so far must have arrived.
async fn drain(data: &Path, arrivals: &Arrivals, accepted: &Mutex<BTreeSet<String>>) {
    let server = Server::start(data);
    wait_until_empty(&server).await;
    server.kill();
    arrivals.life.fetch_add(1, Ordering::SeqCst);
    let (arrived, accepted) = (arrivals.by_job.lock(), accepted.lock());
    let lost: Vec<_> = accepted.iter().filter(|id| !arrived.contains_key(*id)).collect();
    let (count, some) = (lost.len(), &lost[..lost.len().min(5)]);
    assert!(lost.is_empty(), "{count} of {} accepted jobs never arrived: {some:?}", accepted.len());
}

fn extra_attempts(arrivals: &Arrivals) -> usize {
    arrivals.by_job.lock().values().map(|lives| lives.len() - 1).sum()
}

async fn wait_until_empty(server: &Server) {
    for _ in 0..1200 {
        let lanes = server.ok("GET", "/v1/lanes", &Value::Null).await;
        let sizes = &http(&lanes)["sizes"];
        if sizes.as_object().unwrap().values().all(|count| count == 0) {
            return;
        }
        // reason: another process decides when it is done; it is asked, not told
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the lane is not empty after a minute");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_lane_keeps_its_thousand_jobs_over_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let arrivals = Arc::new(Arrivals::default());
    let url = format!("http://{}/", destination(arrivals.clone()).await);
    let server = Server::start(folder.path());
    server.ok("POST", "/v1/lanes/http/pause", &Value::Null).await;
    let jobs = Value::Array(vec![json!({"request": {"url": url}}); 1000]);
    let taken = server.ok("POST", "/v1/jobs", &jobs).await;
    assert_eq!(taken.as_array().unwrap().len(), 1000);
    server.kill();
    let server = Server::start(folder.path());
    let lanes = server.ok("GET", "/v1/lanes", &Value::Null).await;
    let lane = http(&lanes);
    assert_eq!((&lane["paused"], &lane["sizes"]["idle"]), (&json!(true), &json!(1000)));
    assert!(arrivals.by_job.lock().is_empty());
    server.ok("POST", "/v1/lanes/http/resume", &Value::Null).await;
    wait_until_empty(&server).await;
    assert_eq!(arrivals.by_job.lock().len(), 1000);
}
