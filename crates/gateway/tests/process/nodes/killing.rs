//! A node killed with -9: the others take work in all the while, and take over what it owned when its lease ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::local::UNSETTLED_SHARED_MAX;
use entrega_call::Clock;
use parking_lot::Mutex;
use serde_json::Value;

use super::cluster::{Node, SHORT_LEASES, TAKEN_OVER_WITHIN, all_arrive, alone, job};
use super::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::bounded;

const JOBS: usize = 20_000;
const TENANTS: usize = 50;
const PER_ARRAY: usize = 1000;
const SENDERS: usize = 4;
/// So many have arrived when the node is killed.
const KILL_AFTER: usize = JOBS / 4;
/// What one node can have claimed and not settled: a lane's concurrency, and those whose settlement is on its way.
const IN_FLIGHT_MAX: usize = 64 + UNSETTLED_SHARED_MAX;
/// The other node takes work in at once, whoever owns its lane.
const TAKES_WITHIN: Duration = Duration::from_secs(1);
const ARRIVES_WITHIN: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_under_load_loses_nothing_and_repeats_only_what_it_had_in_flight() {
    if redis::is_left_out() {
        return;
    }
    let _alone = alone();
    bounded(kill_one_of_two()).await;
}

async fn kill_one_of_two() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    // The first one owns the lane.
    let [dying, other] = [(); 2].map(|()| Arc::new(Node::start(&redis, SHORT_LEASES)));
    let accepted = Arc::new(Mutex::new(BTreeSet::new()));
    let send = |number: usize| {
        // Half of them start with the node that will die.
        let nodes =
            if number.is_multiple_of(2) { [dying.clone(), other.clone()] } else { [other.clone(), dying.clone()] };
        tokio::spawn(send_share(nodes, destination.url("/"), accepted.clone()))
    };
    let senders: Vec<_> = (0..SENDERS).map(send).collect();

    destination.arrived(KILL_AFTER, ARRIVES_WITHIN).await;
    let (by_dying, by_other) = (dying.attempts().await, other.attempts().await);
    assert!(by_dying > 0 && by_other == 0, "the owner works: {by_dying} and {by_other} attempts");
    dying.kill();
    let clock = Clock::system();
    let killed_at = clock.now();
    let taken = tokio::time::timeout(TAKES_WITHIN, other.send_one(&job(&destination.url("/"), "acme"))).await;
    accepted.lock().insert(taken.expect("the other node takes work in at once"));
    // What the dead node had sent may still come in; more than that is the other's work.
    destination.arrived(destination.count() + IN_FLIGHT_MAX + 1, TAKEN_OVER_WITHIN).await;
    println!("the other went on {} ms after the kill", clock.now().since(killed_at).as_millis());

    for sender in senders {
        sender.await.unwrap();
    }
    let accepted = accepted.lock().clone();
    assert_eq!(accepted.len(), JOBS + 1);
    all_arrive(&other, &destination, &accepted, ARRIVES_WITHIN).await;
    other.empty(TAKEN_OVER_WITHIN).await;
    let took = clock.now().since(killed_at);
    let repeats = destination.repeats();
    println!(
        "{JOBS} jobs accepted, all arrived; at the kill the node had made {by_dying} attempts; \
         {repeats} were repeated; the lane was empty {} ms after the kill",
        took.as_millis()
    );
    assert!(repeats <= IN_FLIGHT_MAX, "{repeats} attempts repeated, at most {IN_FLIGHT_MAX} were in flight");
}

/// Sends one sender's share. Jobs that a node did not answer for go to the other, as new ones.
async fn send_share(nodes: [Arc<Node>; 2], url: String, accepted: Arc<Mutex<BTreeSet<String>>>) {
    let jobs = (0..PER_ARRAY).map(|number| job(&url, &format!("tenant-{}", number % TENANTS))).collect();
    let jobs = Value::Array(jobs);
    for _ in 0..JOBS / PER_ARRAY / SENDERS {
        let taken = match nodes[0].send(&jobs).await {
            Ok(taken) => taken,
            Err(_) => {
                let taken = nodes[1].send(&jobs).await;
                taken.unwrap_or_else(|error| panic!("neither node answers: {}\n{}", error.reason(), nodes[1].log()))
            }
        };
        let refused = taken.problems.first();
        assert!(refused.is_none(), "{} jobs were refused: {refused:?}\n{}", taken.problems.len(), nodes[1].log());
        accepted.lock().extend(taken.ids);
    }
}
