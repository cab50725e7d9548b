//! What happens on one node is known on the others.

use std::time::Duration;

use entrega_call::Clock;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::cluster::{Node, job};
use super::destination::{Destination, SLOW};
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::{bounded, eventually};

const JOBS: usize = 20;
/// Few slots, so that not all jobs run at once.
const FEW_SLOTS: &str = "[lanes.http]\nconcurrency = 4\ntenant_concurrency = 8\n";
/// All jobs together take five rounds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_on_one_node_hears_of_jobs_that_another_ran() {
    if redis::is_left_out() {
        return;
    }
    bounded(wait_elsewhere()).await;
}

async fn wait_elsewhere() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    // The first one owns the lane.
    let [other, asked] = [(); 2].map(|()| Node::start(&redis, FEW_SLOTS));
    let jobs = Value::Array(vec![job(&destination.url("/slow"), "acme"); JOBS]);
    let taken = other.send(&jobs).await.unwrap();
    assert_eq!(taken.ids.len(), JOBS, "{:?}", taken.problems);
    let clock = Clock::system();
    let start = clock.now();
    let wait = async |id: &String| {
        // Less than the client's own patience.
        let view = asked.ok("GET", &format!("/v1/jobs/{id}?wait=9s"), &Value::Null).await;
        (clock.now().since(start), view)
    };
    let mut slowest = Duration::ZERO;
    for (took, view) in join_all(taken.ids.iter().map(wait)).await {
        assert_eq!(view["state"], "done", "after {} ms: {view}\n{}", took.as_millis(), asked.log());
        assert!(took < ANSWERED_WITHIN, "answered after {} ms: {view}\n{}", took.as_millis(), asked.log());
        slowest = slowest.max(took);
    }
    let by_other = other.attempts().await;
    println!("the last of {JOBS} answers came after {} ms; {by_other} jobs ran elsewhere", slowest.as_millis());
    assert_eq!(by_other, JOBS as u64, "the other node ran them, or this shows nothing");
    assert!(slowest >= SLOW, "the jobs took their time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_made_or_removed_on_one_node_is_known_on_the_other() {
    if redis::is_left_out() {
        return;
    }
    bounded(make_and_remove_a_key()).await;
}

async fn make_and_remove_a_key() {
    let redis = RedisServer::start(&[]);
    let [maker, other] = [(); 2].map(|()| Node::start(&redis, ""));
    let made = maker.ok("POST", "/v1/keys", &json!({"tenant": "acme", "scopes": ["read"]})).await;
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    answers(&other, key, 200, KNOWN_WITHIN).await;
    maker.ok("DELETE", &format!("/v1/keys/{id}"), &Value::Null).await;
    answers(&maker, key, 401, Duration::ZERO).await;
    answers(&other, key, 401, FORGOTTEN_WITHIN).await;
    let keys = other.ok("GET", "/v1/keys", &Value::Null).await;
    assert_eq!(keys["items"], json!([]));
}

/// Waits until a call with this key is answered with this status.
async fn answers(node: &Node, key: &str, status: u16, limit: Duration) {
    let is_so = async || {
        let answer = node.call_as(key, "GET", "/v1/jobs", &Value::Null).await.map_err(|error| error.reason())?;
        if answer.status == status { Ok(()) } else { Err(format!("{} {}", answer.status, node.log())) }
    };
    eventually(limit, &format!("the key is answered with {status}"), is_so).await;
}
