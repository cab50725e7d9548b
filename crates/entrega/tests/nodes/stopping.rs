//! A node that stands still past its leases and comes back: what it says then is too late, and changes nothing.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{LEASE, Node, SHORT_LEASES, bounded, eventually, job};
use super::destination::Destination;
use crate::redis::{self, RedisServer};

const SOON: Duration = Duration::from_secs(5);
/// A lease begins when the job is claimed, a little before it arrives.
const CLAIM_TO_ARRIVAL_MAX: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_after_its_leases_ended_changes_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(come_back_late()).await;
}

async fn come_back_late() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    let late = Node::start(&redis, SHORT_LEASES);
    // It will see one attempt succeed and the other time out, both too late.
    let mut ids = Vec::new();
    for path in ["/held", "/silent"] {
        ids.push(late.send_one(&job(&destination.url(path), "acme")).await);
    }
    destination.arrived(2, SOON).await;
    late.signal("STOP");

    let other = Node::start(&redis, SHORT_LEASES);
    let mut ends = Vec::new();
    for id in &ids {
        let end = other.done(id, 2 * LEASE).await;
        assert_eq!(end["result"]["body"], "answer 2", "the other node's attempt counts: {end}");
        let times = destination.times_of(id);
        let apart = times[1].since(times[0]);
        assert!(apart + CLAIM_TO_ARRIVAL_MAX >= LEASE, "taken over {} ms into the lease", apart.as_millis());
        ends.push(end);
    }

    destination.release();
    late.signal("CONT");
    saw_both_end(&late).await;
    late.empty(SOON).await;
    other.empty(SOON).await;
    assert_ends(&late, &ids, &ends).await;
    assert_ends(&other, &ids, &ends).await;

    // Alone again, it goes on; what it writes for a new job comes after anything it had to say of the old ones.
    other.kill();
    let next = late.send_one(&job(&destination.url("/"), "acme")).await;
    late.done(&next, SOON).await;
    late.empty(SOON).await;
    assert_ends(&late, &ids, &ends).await;
    let calls: Vec<usize> = ids.iter().chain([&next]).map(|id| destination.times_of(id).len()).collect();
    assert_eq!(calls, [2, 2, 1], "nothing was sent again");
    let dead = late.ok("GET", "/v1/dlq", &Value::Null).await;
    assert_eq!(dead["items"], json!([]), "nobody gave up");
}

/// The late node counts an attempt when it is about to settle it.
async fn saw_both_end(late: &Node) {
    let saw = async || match late.attempts().await {
        2.. => Ok(()),
        attempts => Err(format!("{attempts} attempts ended")),
    };
    eventually(SOON, "the late node saw both attempts end", saw).await;
}

async fn assert_ends(node: &Node, ids: &[String], ends: &[Value]) {
    for (id, end) in ids.iter().zip(ends) {
        let now = node.job(id).await;
        assert_eq!(now, *end, "a settlement that came too late changed something\n{}", node.log());
    }
}
