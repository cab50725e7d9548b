//! A full server, seen through the API: 503 for new work with when to come again, and deliveries that go on.

use std::time::Duration;

use serde_json::{Value, json};

use crate::nodes::cluster::{Node, job};
use crate::nodes::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::{bounded, eventually};

const JOBS: usize = 20;
const DELAY_MS: u64 = 1500;
const DELIVERED_WITHIN: Duration = Duration::from_secs(10);
const SEEN_WITHIN: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_a_503_for_new_work_while_accepted_work_is_delivered() {
    if redis::is_left_out() {
        return;
    }
    bounded(fill_behind_a_node()).await;
}

async fn fill_behind_a_node() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    let node = Node::start(&redis, "");
    let mut later = job(&destination.url("/"), "acme");
    later["delayMs"] = json!(DELAY_MS);
    let taken = node.send(&Value::Array(vec![later; JOBS])).await.unwrap();
    assert_eq!(taken.ids.len(), JOBS, "{:?}", taken.problems);
    redis.fill();
    assert_refuses(&node, &destination).await;
    let array = Value::Array(vec![job(&destination.url("/"), "acme"); 3]);
    let refused = node.send(&array).await.unwrap();
    assert!(refused.ids.is_empty() && !refused.problems.is_empty(), "{:?}", refused.problems);
    for problem in &refused.problems {
        assert_eq!(problem["status"], 503, "{problem}");
    }

    destination.arrived(JOBS, DELIVERED_WITHIN).await;
    node.empty(DELIVERED_WITHIN).await;
    for id in &taken.ids {
        node.done(id, DELIVERED_WITHIN).await;
    }
    is_reported(&node).await;

    redis.give_room();
    let id = node.send_one(&job(&destination.url("/"), "acme")).await;
    node.done(&id, DELIVERED_WITHIN).await;
    assert_eq!(destination.count(), JOBS + 1, "what was refused was not sent");
}

async fn assert_refuses(node: &Node, destination: &Destination) {
    let answer = node.call("POST", "/v1/jobs", &job(&destination.url("/"), "acme")).await.unwrap();
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, 503, "{text}\n{}", node.log());
    assert_eq!(answer.headers["content-type"], "application/problem+json", "{text}");
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    let problem: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&problem["status"], &problem["type"]), (&json!(503), &json!("urn:entrega:problem:store-full")));
}

/// Health and metrics say so; a node that drains is ready.
async fn is_reported(node: &Node) {
    let is_seen = async || {
        let answer = node.call("GET", "/health/ready", &Value::Null).await.map_err(|error| error.reason())?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let health: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let is_so = answer.status == 200
            && health["store"]["refuses"].is_string()
            && health["store"]["memory"]["level"] == "critical";
        if is_so { Ok(()) } else { Err(format!("{} {text}", answer.status)) }
    };
    eventually(SEEN_WITHIN, "health says that memory is full", is_seen).await;
    let answer = node.call("GET", "/metrics", &Value::Null).await.unwrap();
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let figure = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert!(figure("store_rejected_writes_total").is_some_and(|count| count >= 2.0), "{text}");
    assert_eq!(figure("store_memory_alert{level=\"critical\"}"), Some(1.0), "{text}");
    assert_eq!(figure("store_accepting"), Some(0.0), "{text}");
}
