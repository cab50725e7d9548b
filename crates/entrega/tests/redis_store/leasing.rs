//! Leases: renewed while an attempt is under way, and ended when its node is gone, with the slots it had.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::job::JobState;
use entrega_core::policy::LanePolicy;

use super::world::{LEASE, World, bounded, eventually};
use crate::fixture::{Fixture, lane};
use crate::redis;

const SHORT_LEASE: Duration = Duration::from_millis(900);
/// How much later than its lease ends a job may be taken over by a node that asks all the time.
const SLACK: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_takes_three_leases_is_not_taken_over() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared()).leased_for(SHORT_LEASE);
        let [slow, other] = world.nodes().await;
        let ids = [slow.add("http", "acme").await, slow.add("http", "acme").await];
        let mut claimed = slow.claim("http", 2).await.jobs;
        let until = slow.now() + 3 * SHORT_LEASE;
        while slow.now() < until {
            assert!(other.claim_ids("http").await.is_empty(), "their leases are renewed");
            // reason: an attempt that takes its time is what is tested
            tokio::time::sleep(LOOK_EVERY).await;
        }
        slow.done(claimed.remove(0)).await;
        assert_eq!(other.state(ids[0]).await, JobState::Done);
        assert_eq!(slow.store.health().stale_settlements, 0);

        drop((claimed, slow));
        let take = async || other.claim("http", 2).await.jobs.pop().ok_or_else(|| "nothing".to_owned());
        let taken = eventually(SHORT_LEASE + SLACK, "a renewed lease ends as well", take).await;
        assert_eq!((taken.job.id, taken.attempt), (ids[1], 1));
    })
    .await;
}

/// One lease is for all jobs of a claim, and outlives those that have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_claimed_again_is_not_given_back_with_its_first_claim() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [one, other] = World::by_hand(redis::shared()).nodes().await;
        let ids = [one.add("http", "acme").await, one.add("http", "acme").await, one.add("http", "acme").await];
        let mut claimed = one.claim("http", 3).await.jobs;
        one.done(claimed.remove(0)).await;
        one.retry(claimed.remove(0), Duration::from_secs(1)).await;
        one.advance(LEASE / 2);
        assert_eq!(one.claim_ids("http").await, [ids[1]]);
        one.advance(LEASE / 2);
        assert_eq!(other.claim_ids("http").await, [ids[2]], "only this one was abandoned");
        one.advance(LEASE / 2);
        assert_eq!(other.claim_ids("http").await, [ids[1]]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_is_attempted_no_lease_is_kept() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = redis::shared();
        let world = World::by_hand(server);
        let node = world.node().await;
        let leases = format!("{}:{{http}}:leases", world.options.prefix);
        node.submit_all((0..20).map(|_| node.job("http", "acme")).collect()).await;
        let claimed = node.claim("http", 20).await.jobs;
        assert_eq!((claimed.len(), server.command(&["ZCARD", &leases]).as_str()), (20, "1"));
        for claimed in claimed {
            node.done(claimed).await;
        }
        assert!(node.claim_ids("http").await.is_empty());
        assert_eq!(server.command(&["ZCARD", &leases]), "0");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_node_is_gone_is_taken_over_when_its_lease_ends() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared()).leased_for(SHORT_LEASE);
        let [gone, other] = world.nodes().await;
        let id = gone.add("http", "acme").await;
        let claimed_at = gone.now();
        assert_eq!(gone.claim_ids("http").await, [id]);
        drop(gone);
        let take = async || other.claim("http", 1).await.jobs.pop().ok_or_else(|| "nothing".to_owned());
        let taken = eventually(SHORT_LEASE + SLACK, "the job is taken over", take).await;
        let after = other.now().since(claimed_at);
        println!("taken over {} ms after the claim, with a lease of {} ms", after.as_millis(), SHORT_LEASE.as_millis());
        assert!(after >= SHORT_LEASE, "not before its lease ended: {after:?}");
        assert_eq!((taken.job.id, taken.attempt), (id, 1));
        other.done(taken).await;
        assert_eq!(other.state(id).await, JobState::Done);
    })
    .await;
}

/// A world whose lane `two` lets each node run two jobs.
fn two_slots() -> World {
    let mut world = World::by_hand(redis::shared());
    let policy = LanePolicy { concurrency: 2, tenant_concurrency: 100, ..LanePolicy::http() };
    world.options.lanes.insert(lane("two"), Arc::new(policy));
    world.setup.lanes = world.options.lanes.clone();
    world
}

async fn running(node: &Fixture) -> u32 {
    let lanes = node.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name.as_str() == "two").unwrap().sizes.running()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_has_the_slots_of_a_lane_for_itself() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [one, other] = two_slots().nodes().await;
        one.submit_all((0..6).map(|_| one.job("two", "acme")).collect()).await;
        let mut first = one.claim("two", 10).await.jobs;
        let second = other.claim_ids("two").await;
        assert_eq!((first.len(), second.len(), running(&one).await), (2, 2, 4));
        assert!(one.claim_ids("two").await.is_empty() && other.claim_ids("two").await.is_empty());
        one.done(first.remove(0)).await;
        assert!(other.claim_ids("two").await.is_empty(), "the slot that got free is not this node's");
        assert_eq!((one.claim_ids("two").await.len(), running(&one).await), (1, 4));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_whose_leases_ended_are_free_again_and_are_freed_once() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = two_slots();
        let [late, other] = world.nodes().await;
        late.submit_all((0..8).map(|_| late.job("two", "acme")).collect()).await;
        let lapsed = late.claim("two", 10).await.jobs;
        assert_eq!(lapsed.len(), 2);
        late.advance(LEASE);
        assert_eq!(other.claim_ids("two").await.len(), 2);
        let again = late.claim_ids("two").await;
        assert_eq!((again.len(), running(&other).await), (2, 4), "what had lapsed holds no slot");
        for claimed in lapsed {
            late.done(claimed).await;
        }
        assert!(late.claim_ids("two").await.is_empty(), "a settlement that came too late frees no slot");
        assert_eq!(world.node().await.claim_ids("two").await.len(), 2, "nor is one taken from another node");
    })
    .await;
}
