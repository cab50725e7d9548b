//! Redis killed with -9 and started again: nodes refuse what they cannot keep, stay alive, and go on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::cluster::{LEASE, Node, SHORT_LEASES, all_arrive, alone, job};
use super::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::{bounded, eventually};

const JOBS: usize = 5000;
const PER_ARRAY: usize = 50;
const SENDERS: usize = 4;
/// So many are accepted when Redis is killed.
const KILL_AFTER: usize = JOBS / 3;
const OUTAGE: Duration = Duration::from_secs(2);
/// From a Redis that answers again to nodes that take and deliver again.
const GOES_ON_WITHIN: Duration = Duration::from_secs(5);
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

type Ids = Arc<Mutex<BTreeSet<String>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_outlive_a_redis_that_is_killed_and_deliver_everything_accepted() {
    if redis::is_left_out() {
        return;
    }
    let _alone = alone();
    bounded(kill_redis()).await;
}

async fn kill_redis() {
    let redis = RedisServer::start(&["--appendfsync", "always"]);
    let destination = Destination::start().await;
    let nodes = [(); 2].map(|()| Arc::new(Node::start(&redis, SHORT_LEASES)));
    let (accepted, refusals) = (Ids::default(), Arc::new(Mutex::new(0)));
    let send = |number: usize| {
        let node = nodes[number % nodes.len()].clone();
        tokio::spawn(send_until_enough(node, destination.url("/"), accepted.clone(), refusals.clone()))
    };
    let senders: Vec<_> = (0..SENDERS).map(send).collect();
    let is_under_way = async || match accepted.lock().len() {
        KILL_AFTER.. => Ok(()),
        count => Err(format!("{count} jobs accepted")),
    };
    eventually(ARRIVES_WITHIN, "a third is accepted", is_under_way).await;
    destination.arrived(KILL_AFTER / 4, ARRIVES_WITHIN).await;

    redis.kill();
    let clock = Clock::system();
    let killed_at = clock.now();
    for node in &nodes {
        assert_refuses(node, &destination).await;
        node.ok("GET", "/health/live", &Value::Null).await;
    }
    // reason: long enough for several attempts to reach Redis again to fail
    tokio::time::sleep(OUTAGE.saturating_sub(clock.now().since(killed_at))).await;
    let arrived = destination.count();
    redis.restart();
    let restarted_at = clock.now();
    for node in &nodes {
        let id = takes_again(node, &destination).await;
        accepted.lock().insert(id);
    }
    destination.arrived(arrived + 1, GOES_ON_WITHIN).await;
    let went_on = clock.now().since(restarted_at);

    for sender in senders {
        sender.await.unwrap();
    }
    let accepted = accepted.lock().clone();
    assert!(accepted.len() >= JOBS);
    all_arrive(&nodes[0], &destination, &accepted, ARRIVES_WITHIN).await;
    for node in &nodes {
        node.empty(2 * LEASE).await;
    }
    println!(
        "{} jobs accepted, all arrived; {} refused; {} attempts repeated; on again {} ms after the restart",
        accepted.len(),
        refusals.lock(),
        destination.repeats(),
        went_on.as_millis()
    );
}

/// One call while Redis is down. A call that gets no answer for ten seconds fails by itself.
async fn assert_refuses(node: &Node, destination: &Destination) {
    let answer = node.call("POST", "/v1/jobs", &job(&destination.url("/"), "acme")).await;
    let answer = answer.unwrap_or_else(|error| panic!("no answer without Redis: {}\n{}", error.reason(), node.log()));
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 503, "without Redis nothing is taken: {text}\n{}", node.log());
    assert_eq!(answer.headers["content-type"], "application/problem+json", "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["status"], 503, "{text}");
}

/// An urgent job that is taken again; its id.
async fn takes_again(node: &Node, destination: &Destination) -> String {
    let mut urgent = job(&destination.url("/"), "urgent");
    urgent["priority"] = json!("high");
    let take = async || {
        let answer = node.call("POST", "/v1/jobs", &urgent).await.map_err(|error| error.reason())?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let id = serde_json::from_str::<Value>(&text).ok().and_then(|json| Some(json["jobId"].as_str()?.to_owned()));
        id.ok_or_else(|| format!("{} {text}\n{}", answer.status, node.log()))
    };
    eventually(GOES_ON_WITHIN, "a job is taken again", take).await
}

/// Sends until all senders together have enough ids. What is refused is refused for want of a store.
async fn send_until_enough(node: Arc<Node>, url: String, accepted: Ids, refusals: Arc<Mutex<usize>>) {
    let jobs = Value::Array((0..PER_ARRAY).map(|number| job(&url, &format!("tenant-{}", number % 5))).collect());
    while accepted.lock().len() < JOBS {
        let taken = node.send(&jobs).await;
        let taken = taken.unwrap_or_else(|error| panic!("a node is silent: {}\n{}", error.reason(), node.log()));
        for problem in &taken.problems {
            assert_eq!(problem["status"], 503, "{problem}\n{}", node.log());
        }
        *refusals.lock() += taken.problems.len();
        accepted.lock().extend(taken.ids);
        if !taken.problems.is_empty() {
            // reason: a caller who is refused comes again, but not at once
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
