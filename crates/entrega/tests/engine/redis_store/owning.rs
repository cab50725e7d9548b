//! Owners: a lane has one, for as long as that shows signs of life; what it had, the next one has.

use std::collections::BTreeMap;

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::policy::LanePolicy;

use super::stoppable::Stoppable;
use super::world::{LEASE, TAKEN_OVER_WITHIN, World, bounded, claims, eventually, owns, takes_over};
use crate::store::fixture::{Fixture, SECOND, lane};
use entrega_testkit::redis;

/// Many times in a lease.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_takes_three_leases_is_not_taken_over() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared());
        let [slow, other] = world.nodes().await;
        let ids = [slow.add("http", "acme").await, slow.add("http", "acme").await];
        let mut claimed = slow.claim("http", 2).await.jobs;
        let (epoch, until) = (world.epoch(redis::shared(), "http"), slow.now() + 3 * LEASE);
        while slow.now() < until {
            assert!(other.claim_ids("http").await.is_empty(), "its owner lives");
            assert!(!claimed[0].lease.is_over());
            // reason: an attempt that takes its time is what is tested
            tokio::time::sleep(LOOK_EVERY).await;
        }
        slow.done(claimed.remove(0)).await;
        assert_eq!(other.state(ids[0]).await, JobState::Done);
        assert_eq!(slow.store.health().stale_settlements, 0);
        assert_eq!(world.epoch(redis::shared(), "http"), epoch);

        drop((claimed, slow));
        let taken = claims(&other, "http", TAKEN_OVER_WITHIN).await;
        assert_eq!((taken.job.id, taken.attempt), (ids[1], 1));
    })
    .await;
}

/// Whatever was accepted, at the owner or elsewhere, waiting, running, for a retry or later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_an_owner_is_gone_all_it_had_is_claimed_elsewhere_under_the_same_numbers() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared());
        let [gone, other] = world.nodes().await;
        let mut attempts = BTreeMap::new();
        for _ in 0..3 {
            attempts.insert(gone.add("http", "acme").await, 1);
        }
        let retried = claims(&gone, "http", SECOND).await;
        attempts.insert(retried.job.id, 2);
        gone.retry(retried, SECOND / 2).await;
        let running = claims(&gone, "http", SECOND).await;
        attempts.insert(running.job.id, 1);
        attempts.extend(hand_in(&other, 3).await);
        let silent_since = gone.now();
        drop(gone);
        // Nobody is there to take it, and it is taken all the same.
        attempts.extend(hand_in(&other, 3).await);
        let mut taken = BTreeMap::new();
        let all_are_had = async || {
            for claimed in other.claim("http", 100).await.jobs {
                let after = other.now().since(silent_since);
                assert!(after >= LEASE, "taken over {} ms after the last sign of life", after.as_millis());
                assert!(taken.insert(claimed.job.id, claimed.attempt).is_none(), "claimed twice");
                other.done(claimed).await;
            }
            if taken.len() == attempts.len() { Ok(()) } else { Err(format!("{} of {}", taken.len(), attempts.len())) }
        };
        eventually(TAKEN_OVER_WITHIN, "everything is claimed", all_are_had).await;
        assert_eq!(taken, attempts);
        for id in attempts.keys() {
            assert_eq!(other.state(*id).await, JobState::Done);
        }
    })
    .await;
}

async fn hand_in(node: &Fixture, count: usize) -> Vec<(JobId, u32)> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push((node.add("http", "acme").await, 1));
    }
    ids
}

/// Whoever stands by sees an owner that has not moved for long. It could not, and that says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_ledger_ages_nobody() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared());
        let ledgers = [Stoppable::over(world.ledger().await), Stoppable::over(world.ledger().await)];
        let owner = world.node_over(ledgers[0].clone()).await;
        let _other = world.node_over(ledgers[1].clone()).await;
        let id = owner.add("http", "acme").await;
        let epoch = world.epoch(redis::shared(), "http");
        // reason: whoever stands by must have looked before the outage begins
        tokio::time::sleep(LEASE).await;
        ledgers.iter().for_each(|ledger| ledger.cut_off());
        // reason: how long the outage lasts is what is tested
        tokio::time::sleep(2 * LEASE).await;
        assert!(owner.claim_ids("http").await.is_empty(), "its lease is over by its own clock");
        ledgers[1].go_on();
        // reason: the owner comes back a little later than the other
        tokio::time::sleep(LEASE / 2).await;
        ledgers[0].go_on();
        assert_eq!(claims(&owner, "http", TAKEN_OVER_WITHIN).await.job.id, id);
        assert_eq!(world.epoch(redis::shared(), "http"), epoch, "nobody took it in between");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_releases_another_owns_within_a_second() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        // So long that nobody is given up for being silent.
        let world = World::by_server(redis::shared()).leased_for(300 * SECOND);
        let [first, second] = world.nodes().await;
        let ids = [first.add("http", "acme").await, second.add("http", "acme").await];
        let running = claims(&first, "http", SECOND).await;
        first.store.release().await.unwrap();
        let released_at = second.now();
        for name in world.setup.lanes.keys() {
            takes_over(&second, name.as_str(), SECOND).await;
        }
        println!("all lanes moved within {} ms", second.now().since(released_at).as_millis());
        assert!(running.lease.is_over(), "nothing is begun under what was given up");
        assert!(!owns(&first, "http").await.unwrap(), "who gives up does not take back");
        assert!(first.claim_ids("http").await.is_empty());
        let mut taken = second.claim_ids("http").await;
        taken.sort();
        assert_eq!(taken, ids);
        assert!(second.store.sweep().await.is_ok());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lanes_slots_are_counted_once_however_many_nodes_there_are() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let two = LanePolicy { concurrency: 2, tenant_concurrency: 100, ..LanePolicy::http() };
        let world = World::by_server(redis::shared()).with_lane("two", two);
        let ledger = Stoppable::over(world.ledger().await);
        let late = world.node_over(ledger.clone()).await;
        let other = world.node().await;
        late.submit_all((0..8).map(|_| late.job("two", "acme")).collect()).await;
        let mut lapsed = late.claim("two", 10).await.jobs;
        assert_eq!((lapsed.len(), running(&late).await), (2, 2));
        assert!(late.claim_ids("two").await.is_empty() && other.claim_ids("two").await.is_empty());
        late.done(lapsed.remove(0)).await;
        assert!(other.claim_ids("two").await.is_empty(), "the slot that got free is not this node's");
        lapsed.extend(late.claim("two", 10).await.jobs);
        assert_eq!((lapsed.len(), running(&late).await), (2, 2));

        ledger.stop();
        takes_over(&other, "two", TAKEN_OVER_WITHIN).await;
        assert!(late.claim_ids("two").await.is_empty(), "its lease is over, though it knows of nobody else");
        assert_eq!((other.claim_ids("two").await.len(), running(&other).await), (2, 2), "the dead hold no slot");
        ledger.go_on();
        for claimed in lapsed {
            late.done(claimed).await;
        }
        assert!(other.claim_ids("two").await.is_empty(), "a settlement that came too late frees no slot");
        assert_eq!(running(&other).await, 2);
    })
    .await;
}

async fn running(node: &Fixture) -> u32 {
    let lanes = node.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name == lane("two")).unwrap().sizes.running()
}
