//! A settlement names the lease it was made under; an old lease changes nothing.

use entrega::store::{ClaimedJob, CountBy, DeadLetterFilter, JobFilter, Page, Settlement};
use entrega_core::decide::Transition;
use entrega_core::job::{Job, JobState};

use super::world::{LEASE, World, bounded, eventually};
use crate::fixture::{Fixture, SECOND, failure, lane};
use crate::redis;

/// A lane that would show a lesson: one failure opens its breaker.
const LANE: &str = "broken";

/// Every way in which an attempt can end.
fn transitions(node: &Fixture) -> [Transition; 4] {
    [
        Transition::Done,
        Transition::Retry { at: node.now() + SECOND, failure: failure("http_503") },
        Transition::DeadLetter { failure: failure("http_404") },
        Transition::Blocked { failure: failure("http_503") },
    ]
}

/// Everything that a settlement could change.
async fn picture(node: &Fixture) -> String {
    let store = &node.store;
    let jobs = store.jobs(&JobFilter::default(), Page { after: None, limit: 100 }).await.unwrap().items;
    let page = Page { after: None, limit: 100 };
    let dead = store.dead_letters(&DeadLetterFilter::default(), page).await.unwrap().items;
    let counts = store.dead_letter_counts(CountBy::Code, None).await.unwrap();
    let (lanes, tenants) = (store.lanes().await.unwrap(), store.tenants().await.unwrap());
    format!("{jobs:#?}\n{dead:#?}\n{counts:?}\n{lanes:#?}\n{tenants:#?}")
}

/// Settles, and causes a job on the way.
async fn settle_causing(node: &Fixture, claimed: ClaimedJob, transition: Transition, cause: &Job) {
    let settlement = Settlement { causes: vec![cause.clone()], ..node.settlement(claimed, transition) };
    node.store.settle(&lane(LANE), vec![settlement]).await.unwrap();
    node.store.flush().await.unwrap();
}

/// The same job, claimed by one node and, when its lease has ended, by another.
async fn taken_over(late: &Fixture, other: &Fixture) -> (ClaimedJob, ClaimedJob) {
    let id = late.add(LANE, "acme").await;
    let old = late.claim_one(LANE).await;
    assert!(other.claim_ids(LANE).await.is_empty(), "it is leased");
    late.advance(LEASE);
    let new = other.claim_one(LANE).await;
    assert_eq!((new.job.id, new.attempt), (id, old.attempt), "the attempt is made again, under the same number");
    assert_ne!(new.ticket, old.ticket);
    (old, new)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_lease_has_ended_changes_nothing_and_the_new_one_counts() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        for number in 0..4 {
            let world = World::by_hand(redis::shared());
            let [late, other] = world.nodes().await;
            settle_too_late(&late, &other, number).await;
        }
    })
    .await;
}

async fn settle_too_late(late: &Fixture, other: &Fixture, number: usize) {
    let (old, new) = taken_over(late, other).await;
    let (id, transition) = (new.job.id, transitions(late)[number].clone());
    let how = format!("{transition:?}");
    let before = picture(other).await;
    let never = late.job("single", "acme");
    settle_causing(late, old, transition, &never).await;
    assert_eq!(picture(other).await, before, "{how} came too late");
    assert_eq!(late.store.health().stale_settlements, 1, "{how} is counted");

    let caused = other.job("single", "acme");
    settle_causing(other, new, Transition::Done, &caused).await;
    assert_eq!(other.state(id).await, JobState::Done);
    assert_eq!(other.view(id).await.attempts.len(), 1, "of one attempt, made twice");
    assert_eq!(other.store.health().stale_settlements, 0);
    let is_there = async || other.store.job(caused.id).await.unwrap().map(drop).ok_or_else(String::new);
    eventually(5 * SECOND, "what the settlement caused is there", is_there).await;
    assert!(other.store.job(never.id).await.unwrap().is_none(), "what came too late has caused nothing: {how}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_comes_after_the_new_one_changes_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        for number in 0..16 {
            let world = World::by_hand(redis::shared());
            let [late, other] = world.nodes().await;
            let (old, new) = taken_over(&late, &other).await;
            let (first, second) = (transitions(&late)[number % 4].clone(), transitions(&late)[number / 4].clone());
            let how = format!("{second:?} after {first:?}");
            other.settle(new, first).await;
            let before = picture(&other).await;
            late.settle(old, second).await;
            assert_eq!(picture(&other).await, before, "{how}");
            let stale = [late.store.health().stale_settlements, other.store.health().stale_settlements];
            assert_eq!(stale, [1, 0], "{how}");
        }
    })
    .await;
}

/// The ticket is the lease, not the attempt: a job that came back has another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_made_twice_counts_once() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_hand(redis::shared());
        let [one, other] = world.nodes().await;
        let id = one.add(LANE, "acme").await;
        let claimed = one.claim_one(LANE).await;
        let copy = ClaimedJob { job: claimed.job.clone(), history: claimed.history.clone(), ..claimed };
        let at = one.now() + 60 * SECOND;
        one.settle(claimed, Transition::Retry { at, failure: failure("http_503") }).await;
        one.advance(60 * SECOND);
        let again = other.claim_one(LANE).await;
        assert_eq!(again.attempt, 2);
        let before = picture(&other).await;
        one.settle(copy, Transition::Done).await;
        assert_eq!(picture(&other).await, before);
        other.done(again).await;
        assert_eq!(other.view(id).await.attempts.len(), 2);
    })
    .await;
}
