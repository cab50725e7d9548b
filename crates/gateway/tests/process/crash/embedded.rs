//! One gateway over its own disk. Within one life of the process a job is delivered once, so that the only repeats are
//! those of jobs in flight at a kill, one each.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::local::UNSETTLED_MAX;
use entrega_core::time::Time;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{seeded, setting};
use crate::nodes::destination::Destination;
use crate::server::Server;

const CYCLES: u64 = 25;
const CONCURRENCY: usize = 64;
const SENDERS: usize = 4;
/// After so many kills the gateway may empty its lane: a backlog that only grows would make every start slower.
const KILLS_PER_DRAIN: u64 = 25;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_job_survives_kill_9() {
    let cycles = setting("ENTREGA_CRASH_CYCLES").unwrap_or(CYCLES);
    let mut chance = seeded();
    let folder = tempfile::tempdir().unwrap();
    let destination = Destination::start().await;
    let accepted = Arc::new(Mutex::new(BTreeSet::new()));
    let mut ends = Vec::new();
    let (mut extra_before, mut extra_most) = (0, 0);
    for cycle in 1..=cycles {
        let server = Arc::new(Server::start(folder.path()));
        let send = |_| tokio::spawn(send(server.clone(), destination.url("/"), accepted.clone()));
        let senders: Vec<_> = (0..SENDERS).map(send).collect();
        // reason: the kill must come at a moment that nobody chose
        tokio::time::sleep(Duration::from_millis(chance.u64(20..400))).await;
        server.kill();
        for sender in senders {
            sender.await.unwrap();
        }
        ends.push(destination.now());
        let extra = destination.repeats();
        let now = extra - extra_before;
        assert!(now <= CONCURRENCY + UNSETTLED_MAX, "{now} repeats after one kill");
        (extra_before, extra_most) = (extra, extra_most.max(now));
        if cycle.is_multiple_of(KILLS_PER_DRAIN) || cycle == cycles {
            ends.push(drain(folder.path(), &destination, &accepted).await);
            println!(
                "{cycle} kills: {} jobs accepted, all delivered; {} attempts repeated, at most {extra_most} after one",
                accepted.lock().len(),
                destination.repeats()
            );
        }
    }
    assert_once_a_life(&destination, &ends);
}

/// Lives end at these moments, and the next one has not begun.
fn assert_once_a_life(destination: &Destination, ends: &[Time]) {
    let life = |at: &Time| ends.partition_point(|end| end < at);
    destination.each_job(|id, calls| {
        let lives: Vec<_> = calls.times.iter().map(life).collect();
        assert!(lives.is_sorted_by(|a, b| a < b), "{id} was delivered twice in one life: {lives:?}");
    });
}

/// A life that is not cut short: afterwards everything accepted so far must have arrived. When it ended.
async fn drain(data: &Path, destination: &Destination, accepted: &Mutex<BTreeSet<String>>) -> Time {
    let server = Server::start(data);
    wait_until_empty(&server).await;
    server.kill();
    let accepted = accepted.lock();
    let lost = destination.missing(&accepted);
    let (count, some) = (lost.len(), &lost[..lost.len().min(5)]);
    assert!(lost.is_empty(), "{count} of {} accepted jobs never arrived: {some:?}", accepted.len());
    destination.now()
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
    let destination = Destination::start().await;
    let server = Server::start(folder.path());
    server.ok("POST", "/v1/lanes/http/pause", &Value::Null).await;
    let jobs = Value::Array(vec![json!({"request": {"url": destination.url("/")}}); 1000]);
    let taken = server.ok("POST", "/v1/jobs", &jobs).await;
    assert_eq!(taken.as_array().unwrap().len(), 1000);
    server.kill();
    let server = Server::start(folder.path());
    let lanes = server.ok("GET", "/v1/lanes", &Value::Null).await;
    let lane = http(&lanes);
    assert_eq!((&lane["paused"], &lane["sizes"]["idle"]), (&json!(true), &json!(1000)));
    assert_eq!(destination.jobs(), 0);
    server.ok("POST", "/v1/lanes/http/resume", &Value::Null).await;
    wait_until_empty(&server).await;
    assert_eq!(destination.jobs(), 1000);
}
