//! A server that stands still: callers are told in time, workers are not ended, and everything goes on afterwards.

use std::time::Duration;

use entrega::store::{StoreError, Submitted};
use entrega_core::id::JobId;
use entrega_core::job::JobState;

use super::world::{World, bounded, comes_back, eventually, info, signal};
use crate::store::fixture::{Fixture, SECOND};
use entrega_testkit::redis::{self, RedisServer};

const ANSWER_MAX: Duration = Duration::from_secs(10);
const GOES_ON_WITHIN: Duration = Duration::from_secs(5);
/// Leases of claims whose answer came too late must end before the test does.
const LEASE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_for_a_moment_is_waited_for() {
    if redis::is_left_out() {
        return;
    }
    bounded(stand_still(2 * SECOND)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_for_long_is_given_up_and_then_goes_on() {
    if redis::is_left_out() {
        return;
    }
    bounded(stand_still(7 * SECOND)).await;
}

/// Everything at once while the server stands still for so long.
async fn stand_still(pause: Duration) {
    let server = RedisServer::start(&[]);
    let node = World::by_server(&server).leased_for(LEASE).node().await;
    let before = node.add("http", "acme").await;
    let claimed = node.add("single", "acme").await;
    let running = node.claim_one("single").await;
    let pid = info(&server, "server", "process_id");
    signal("STOP", pid);
    let resume = async {
        // reason: how long the server stands still is what is tested
        tokio::time::sleep(pause).await;
        signal("CONT", pid);
    };
    let (submitted, claim_took, settled, looked, ()) =
        tokio::join!(submit(&node), claim(&node), settle(&node, running), node.store.job(before), resume);
    println!("{} s: submitted: {submitted:?}; claimed after {} ms", pause.as_secs(), claim_took.as_millis());
    assert!(settled <= ANSWER_MAX && claim_took <= ANSWER_MAX, "{settled:?} {claim_took:?}");
    let is_short = pause < 5 * SECOND;
    assert!(!is_short || submitted.is_ok(), "a short pause is waited for: {submitted:?}");
    match looked {
        Ok(view) => assert!(view.is_some_and(|view| view.job_id == before)),
        Err(StoreError::Unreachable { .. }) => assert!(!is_short),
        Err(error) => panic!("{error}"),
    }
    node.store.flush().await.unwrap();
    assert_eq!(node.state(claimed).await, JobState::Done, "the settlement was kept");
    let id = node.add("http", "acme").await;
    let mut expected = vec![before, id];
    expected.extend(submitted.ok());
    all_are_had(&node, expected).await;
}

/// A connection on which nothing was answered counted as good, so `/health/ready` called a node ready that could neither
/// take nor deliver anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_reported() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_server(&server).node().await;
        let pid = info(&server, "server", "process_id");
        signal("STOP", pid);
        let refused = node.store.submit(vec![node.job("http", "acme")]).await;
        let health = node.store.health();
        signal("CONT", pid);
        assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
        assert!(health.failure.is_some(), "{health:?}");
        let is_well = async || node.store.health().failure.map_or(Ok(()), Err);
        eventually(GOES_ON_WITHIN, "it is well again", is_well).await;
    })
    .await;
}

/// An outage ages nobody: whoever stands by heard nothing of the owner, but nothing of the server, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_for_four_leases_leaves_its_lanes_with_their_owner() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server).leased_for(2 * SECOND);
        let [owner, other] = world.nodes().await;
        let waiting = owner.add("http", "acme").await;
        owner.add("single", "acme").await;
        let running = owner.claim_one("single").await;
        let pid = info(&server, "server", "process_id");
        for pause in [8 * SECOND, 3 * SECOND, 2200 * SECOND / 1000] {
            signal("STOP", pid);
            // reason: how long the server stands still is what is tested
            tokio::time::sleep(pause).await;
            assert!(owner.claim("http", 1).await.jobs.is_empty(), "nothing is begun that could not be recorded");
            signal("CONT", pid);
            let is_well = async || owner.store.health().failure.or(other.store.health().failure).map_or(Ok(()), Err);
            eventually(GOES_ON_WITHIN, "both reach the server again", is_well).await;
            // reason: time in which a node that had given the owner up would take its lanes
            tokio::time::sleep(3 * SECOND).await;
            // One may have been handed over: it is not taken.
            let taken = [&owner, &other].map(|node| node.store.health().take_overs);
            assert_eq!(taken, [0, 0], "after {pause:?}");
        }
        assert_eq!(claimed_by_either([&owner, &other]).await, waiting);
        owner.done(running).await;
        assert_eq!(owner.store.health().stale_settlements, 0, "what runs is not handed over");
        let id = other.add("http", "acme").await;
        assert_eq!(claimed_by_either([&owner, &other]).await, id);
    })
    .await;
}

/// Whoever owns the lane by now claims.
async fn claimed_by_either(nodes: [&Fixture; 2]) -> JobId {
    let claim = async || {
        for node in nodes {
            if let Some(claimed) = node.claim("http", 1).await.jobs.pop() {
                return Ok(claimed.job.id);
            }
        }
        Err("nothing".to_owned())
    };
    eventually(GOES_ON_WITHIN, "a job can be claimed", claim).await
}

async fn submit(node: &Fixture) -> Result<JobId, String> {
    let (job, start) = (node.job("http", "acme"), node.now());
    let id = job.id;
    let submitted = node.store.submit(vec![job]).await;
    let took = node.now().since(start);
    assert!(took <= ANSWER_MAX, "answered after {took:?}");
    match submitted {
        Ok(submitted) => {
            assert_eq!(submitted, [Submitted::Accepted { pushed_out: None }]);
            Ok(id)
        }
        Err(StoreError::Unreachable { reason }) => Err(format!("after {} ms: {reason}", took.as_millis())),
        Err(error) => panic!("{error}"),
    }
}

/// A claim brings something, or a worker learns when to come back; it is no error.
async fn claim(node: &Fixture) -> Duration {
    let start = node.now();
    let mut batch = node.claim("http", 1).await;
    let took = node.now().since(start);
    match batch.jobs.pop() {
        Some(claimed) => node.retry(claimed, Duration::ZERO).await,
        None => comes_back(node, &batch).await,
    }
    took
}

async fn settle(node: &Fixture, running: entrega::store::ClaimedJob) -> Duration {
    let start = node.now();
    let lane = running.job.lane.clone();
    let settlement = node.settlement(running, entrega_core::decide::Transition::Done);
    node.store.settle(&lane, vec![settlement]).await.expect("a settlement is kept");
    node.now().since(start)
}

/// Whatever was accepted can be claimed, at the latest when a claim whose answer was lost has lost its leases.
async fn all_are_had(node: &Fixture, mut expected: Vec<JobId>) {
    let take = async || {
        for claimed in node.claim("http", 10).await.jobs {
            expected.retain(|id| *id != claimed.job.id);
            node.done(claimed).await;
        }
        if expected.is_empty() { Ok(()) } else { Err(format!("{} are missing", expected.len())) }
    };
    eventually(LEASE + GOES_ON_WITHIN, "everything is claimed", take).await;
}
