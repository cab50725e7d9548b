//! A node that stands still past its lease and comes back: what it says then is too late, and changes nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{LEASE, Node, SHORT_LEASES, TAKEN_OVER_WITHIN, job};
use super::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::bounded;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_after_its_lease_ended_changes_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(come_back_late()).await;
}

async fn come_back_late() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    let late = Node::start(&redis, SHORT_LEASES);
    // When it comes back one attempt has succeeded and the other timed out, both too late.
    let mut ids = Vec::new();
    for path in ["/held", "/silent"] {
        ids.push(late.send_one(&job(&destination.url(path), "acme")).await);
    }
    destination.arrived(2, SOON).await;
    late.signal("STOP");

    let other = Node::start(&redis, SHORT_LEASES);
    let mut ends = Vec::new();
    for id in &ids {
        let end = other.done(id, TAKEN_OVER_WITHIN).await;
        assert_eq!(end["result"]["body"], "answer 2", "the other node's attempt counts: {end}");
        let times = destination.times_of(id);
        let apart = times[1].since(times[0]);
        assert!(apart >= LEASE, "taken over {} ms into the lease", apart.as_millis());
        ends.push(end);
    }

    destination.release();
    late.signal("CONT");
    // What it takes in now is written after anything it had to say of the old ones, and run by the owner.
    let taken = late.send_one(&job(&destination.url("/"), "acme")).await;
    late.done(&taken, SOON).await;
    assert_eq!(late.attempts().await, 0, "what it had under way ended with its lease");
    late.empty(SOON).await;
    other.empty(SOON).await;
    assert_ends(&late, &ids, &ends).await;
    assert_ends(&other, &ids, &ends).await;

    // Alone again, it goes on.
    other.kill();
    let next = late.send_one(&job(&destination.url("/"), "acme")).await;
    late.done(&next, TAKEN_OVER_WITHIN).await;
    late.empty(SOON).await;
    assert_ends(&late, &ids, &ends).await;
    let calls: Vec<usize> = ids.iter().chain([&taken, &next]).map(|id| destination.times_of(id).len()).collect();
    assert_eq!(calls, [2, 2, 1, 1], "nothing was sent again");
    let dead = late.ok("GET", "/v1/dlq", &Value::Null).await;
    assert_eq!(dead["items"], json!([]), "nobody gave up");
}

async fn assert_ends(node: &Node, ids: &[String], ends: &[Value]) {
    for (id, end) in ids.iter().zip(ends) {
        let now = node.job(id).await;
        assert_eq!(now, *end, "a settlement that came too late changed something\n{}", node.log());
    }
}
