//! Orders: what a node does not own it has done by its owner, and it is as if it were done there.

use std::time::Duration;

use entrega::store::StoreError;
use entrega::store::{ChangeError, CountBy};
use entrega_core::id::JobId;
use entrega_core::job::JobState;

use super::stoppable::Stoppable;
use super::world::{World, bounded, claims, eventually};
use crate::store::fixture::{Fixture, SECOND};
use entrega_testkit::redis;

/// How long an order may be carried out, and how long its answer is waited for beyond that.
const ORDER_LASTS: Duration = Duration::from_secs(10);
const LAST_ANSWER: Duration = Duration::from_millis(500);
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_gets_the_same_answers_at_every_node() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let (at_owner, elsewhere) = (told_at(0).await, told_at(1).await);
        println!("{at_owner:#?}");
        for (number, (owner, other)) in at_owner.iter().zip(&elsewhere).enumerate() {
            assert_eq!(owner, other, "answer {number}");
        }
        assert_eq!(at_owner.len(), elsewhere.len());
    })
    .await;
}

/// All that an operator can do with jobs, done at one of two nodes of a world of its own, whose clock stands still and
/// whose ids are those of all such worlds; what is answered.
async fn told_at(place: usize) -> Vec<String> {
    let nodes: [Fixture; 2] = World::by_hand(redis::shared()).nodes().await;
    let (owner, desk) = (&nodes[0], &nodes[place]);
    let unknown = owner.job("http", "acme").id;
    let mut told = cancel(owner, desk, unknown).await;
    told.extend(unblock(owner, desk, unknown).await);
    told.extend(bury(owner, desk, unknown).await);
    told.extend(look(owner, desk, unknown).await);
    told
}

async fn cancel(owner: &Fixture, desk: &Fixture, unknown: JobId) -> Vec<String> {
    let [running, waiting] = [owner.add("http", "acme").await, owner.add("http", "acme").await];
    let claimed = owner.claim_one("http").await;
    assert_eq!(claimed.job.id, running);
    let mut told = Vec::new();
    for id in [waiting, waiting, running, unknown] {
        told.push(format!("{:?}", desk.store.cancel(id, "not wanted").await));
    }
    assert_eq!(owner.state(waiting).await, JobState::Cancelled);
    owner.done(claimed).await;
    assert_eq!(owner.state(running).await, JobState::Done);
    told
}

async fn unblock(owner: &Fixture, desk: &Fixture, unknown: JobId) -> Vec<String> {
    let id = owner.add("http", "acme").await;
    owner.block(owner.claim_one("http").await).await;
    let mut told = Vec::new();
    for id in [id, id, unknown] {
        told.push(format!("{:?}", desk.store.unblock(id).await));
    }
    let claimed = owner.claim_one("http").await;
    assert_eq!((claimed.job.id, claimed.attempt), (id, 1), "it has all its attempts again");
    owner.block(claimed).await;
    told.push(format!("{:?}", desk.store.cancel(id, "not wanted").await));
    told
}

async fn bury(owner: &Fixture, desk: &Fixture, unknown: JobId) -> Vec<String> {
    let (id, other) =
        (owner.add_dead("http", "acme", "http_404").await, owner.add_dead("http", "acme", "timeout").await);
    let mut told = Vec::new();
    for id in [id, id, unknown] {
        told.push(format!("{:?}", desk.store.replay(id).await));
    }
    let claimed = owner.claim_one("http").await;
    assert_eq!((claimed.job.id, claimed.generation), (id, 1));
    owner.done(claimed).await;
    for id in [other, other, id, unknown] {
        told.push(format!("{:?}", desk.store.discard(id, "not wanted").await));
    }
    told.push(format!("{:?}", desk.store.replay(other).await));
    told.push(format!("{:?}", desk.store.dead_letter(other).await));
    told.push(format!("{:?}", desk.store.dead_letter_counts(CountBy::Code, None).await));
    told
}

async fn look(owner: &Fixture, desk: &Fixture, unknown: JobId) -> Vec<String> {
    let mut told = Vec::new();
    for (lane, count) in [("http", 1), ("throttled", 3), ("single", 2)] {
        let mut ids = Vec::new();
        for number in 0..count {
            ids.push(owner.add(lane, ["acme", "zeta"][number % 2]).await);
        }
        if lane != "http" {
            owner.claim(lane, 10).await;
        }
        for id in ids {
            told.push(format!("{lane}: {:?}", desk.store.explain(id).await));
        }
    }
    told.push(format!("{:?}", desk.store.explain(unknown).await));
    told.push(format!("{:?}", desk.store.tenants().await));
    told
}

/// Its owner is silent, and nobody has given it up yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_nobody_took_in_time_is_an_error_and_is_never_carried_out() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_hand(redis::shared());
        let ledger = Stoppable::over(world.ledger().await);
        let owner = world.node_over(ledger.clone()).await;
        let desk = world.node().await;
        let id = owner.add("http", "acme").await;
        ledger.stop();
        let store = desk.store.clone();
        let mut ordered = tokio::spawn(async move { store.cancel(id, "not wanted").await });
        // Idempotency it is in the inbox it is late by the clock alone.
        let is_there = async || match redis::shared().command(&["XLEN", &world.key("inbox:lane/http")]).as_str() {
            "1" => Ok(()),
            other => Err(other.to_owned()),
        };
        eventually(ANSWERED_WITHIN, "the order is in the inbox", is_there).await;
        desk.advance(ORDER_LASTS);
        let early = tokio::time::timeout(SECOND, &mut ordered).await;
        assert!(early.is_err(), "an answer may still be on its way: {early:?}");
        desk.advance(LAST_ANSWER);
        let answer = tokio::time::timeout(ANSWERED_WITHIN, ordered).await.expect("it is answered in time").unwrap();
        let Err(ChangeError::Store(StoreError::Unreachable { reason })) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("'http'") && reason.contains("was not carried out"), "{reason}");

        ledger.go_on();
        let is_empty = async || match redis::shared().command(&["XLEN", &world.key("inbox:lane/http")]).as_str() {
            "0" => Ok(()),
            other => Err(other.to_owned()),
        };
        eventually(ANSWERED_WITHIN, "the owner has seen the order", is_empty).await;
        assert_eq!(owner.claim_ids("http").await, [id], "and has left it");
        assert_eq!(desk.store.cancel(id, "not wanted").await.unwrap_err().to_string(), running_hint());
    })
    .await;
}

fn running_hint() -> String {
    ChangeError::WrongState {
        state: JobState::Running,
        hint: "an attempt is under way; try again when it has ended".into(),
    }
    .to_string()
}

/// The next owner finds it in the inbox, long before its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_whose_owner_is_gone_is_carried_out_by_the_next() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [gone, desk] = World::by_server(redis::shared()).nodes().await;
        let [cancelled, kept] = [gone.add("http", "acme").await, gone.add("http", "acme").await];
        drop(gone);
        let view = desk.store.cancel(cancelled, "not wanted").await.unwrap();
        assert_eq!(view.state, JobState::Cancelled);
        assert_eq!(claims(&desk, "http", ANSWERED_WITHIN).await.job.id, kept);
    })
    .await;
}
