//! Settlements that do not fit at once, and what they cause on nodes that are not set up alike.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::{LaneView, Settlement};
use entrega_core::decide::Transition;
use entrega_core::job::JobState;
use entrega_core::policy::LanePolicy;

use super::world::{World, becomes, bounded};
use crate::fixture::{Fixture, SECOND, lane};
use crate::redis::{self, RedisServer};

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

/// While nodes are changed one after the other, an old one does not know a new lane. It threw jobs for it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_leaves_jobs_for_lanes_that_only_others_know() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let old = World::by_server(&server);
        let mut new = old.clone();
        new.options.lanes.insert(lane("new"), Arc::new(LanePolicy::http()));
        new.setup.lanes = new.options.lanes.clone();
        let state = format!("{}:{{new}}:state", new.options.prefix);
        let [new, old] = [new.node().await, old.node().await];

        // As long as the new lane cannot be read, what is caused for it stays in the outbox.
        assert_eq!(server.command(&["SET", &state, "not a lane's state"]), "OK");
        new.add("http", "acme").await;
        let caused = new.job("new", "acme");
        let claimed = new.claim_one("http").await;
        let settlement = Settlement { causes: vec![caused.clone()], ..new.settlement(claimed, Transition::Done) };
        new.store.settle(&lane("http"), vec![settlement]).await.unwrap();
        new.store.flush().await.unwrap();
        // The old node causes something as well, and looks at all outboxes.
        old.add("http", "acme").await;
        let other = old.job("single", "acme");
        let claimed = old.claim_one("http").await;
        let settlement = Settlement { causes: vec![other.clone()], ..old.settlement(claimed, Transition::Done) };
        old.store.settle(&lane("http"), vec![settlement]).await.unwrap();
        becomes(&old, other.id, JobState::Queued, 5 * SECOND).await;
        assert_eq!(server.command(&["DEL", &state]), "1");
        becomes(&new, caused.id, JobState::Queued, 15 * SECOND).await;
    })
    .await;
}
