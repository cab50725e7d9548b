//! Settlements that do not fit at once, and what they cause on nodes that are not set up alike.

use std::time::Duration;

use entrega::store::{LaneView, Settlement, StoreError};
use entrega_core::decide::Transition;
use entrega_core::policy::LanePolicy;

use super::world::{TAKEN_OVER_WITHIN, World, bounded, claims};
use crate::store::fixture::{Fixture, SECOND, lane};
use entrega_testkit::redis::{self, RedisServer};

/// More than the store lets be on their way at once.
const MANY: usize = 1500;
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

async fn view_of(node: &Fixture, name: &str) -> LaneView {
    let lanes = node.store.lanes().await.unwrap();
    lanes.into_iter().find(|view| view.name.as_str() == name).unwrap()
}

/// A lane with many slots stood still for ever after its server had: as many attempts ended meanwhile, and were
/// settled in one call that waited for room without ever sending what was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_settlements_than_may_be_on_their_way_are_taken_in_one_call() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let node = World::by_hand(redis::shared()).node().await;
        node.submit_all((0..MANY).map(|_| node.job("http", "acme")).collect()).await;
        let mut claimed = node.claim("http", MANY).await.jobs;
        claimed.extend(node.claim("http", MANY).await.jobs);
        assert_eq!(claimed.len(), MANY);
        let settlements = claimed.into_iter().map(|claimed| node.settlement(claimed, Transition::Done)).collect();
        let settled = tokio::time::timeout(TAKEN_WITHIN, node.store.settle(&lane("http"), settlements)).await;
        settled.expect("the call ends").unwrap();
        node.store.flush().await.unwrap();
        assert_eq!(view_of(&node, "http").await.sizes.running(), 0);
    })
    .await;
}

/// While nodes are changed one after the other, an old one does not know a new lane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_jobs_for_lanes_that_only_others_know() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let without = World::by_server(&server);
        let with = without.clone().with_lane("new", LanePolicy::http());
        let [old, new] = [without.node().await, with.node().await];
        let id = new.add("new", "acme").await;
        assert_eq!(old.store.job(id).await.unwrap().unwrap().lane, lane("new"), "it can be looked up anywhere");
        let unknown = old.store.submit(vec![old.job("new", "acme")]).await.unwrap_err();
        assert!(matches!(unknown, StoreError::UnknownLane { .. }), "{unknown}");
        // Between lanes of two owners jobs go both ways, where both are known.
        let claimed = claims(&new, "new", 2 * SECOND).await;
        let [there, here] = [new.job("single", "acme"), new.job("new", "acme")];
        let causes = vec![there.clone(), here.clone()];
        let settlement = Settlement { causes, ..new.settlement(claimed, Transition::Done) };
        new.store.settle(&lane("new"), vec![settlement]).await.unwrap();
        assert_eq!(claims(&old, "single", 2 * SECOND).await.job.id, there.id);
        new.store.flush().await.unwrap();
        assert!(old.store.job(here.id).await.unwrap().is_some());

        drop(new);
        old.store.sweep().await.unwrap();
        let next = with.node().await;
        assert_eq!(claims(&next, "new", TAKEN_OVER_WITHIN).await.job.id, here.id);
    })
    .await;
}
