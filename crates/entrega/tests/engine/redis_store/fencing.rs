//! A settlement names the ownership it was made under; an old one changes nothing.

use std::sync::Arc;

use entrega::store::{ClaimedJob, CountBy, DeadLetterFilter, JobFilter, Page, Settlement};
use entrega_core::decide::Transition;
use entrega_core::job::{Job, JobState};
use entrega_ledger::{Ledger as _, Owning, Shard};

use super::stoppable::Stoppable;
use super::world::{TAKEN_OVER_WITHIN, World, bounded, eventually, takes_over};
use crate::store::fixture::{Fixture, SECOND, failure, lane};
use entrega_testkit::redis;

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
}

/// A node that stands still with attempts under way, and another that has taken over and makes them again.
struct TakenOver {
    late: Fixture,
    ledger: Arc<Stoppable>,
    old: Vec<ClaimedJob>,
    other: Fixture,
    new: Vec<ClaimedJob>,
}

async fn take_over(count: usize) -> TakenOver {
    let world = World::by_server(redis::shared());
    let ledger = Stoppable::over(world.ledger().await);
    let late = world.node_over(ledger.clone()).await;
    let other = world.node().await;
    late.submit_all((0..count).map(|_| late.job(LANE, "acme")).collect()).await;
    let old = late.claim(LANE, count).await.jobs;
    assert_eq!((old.len(), other.claim_ids(LANE).await.len()), (count, 0), "one node owns the lane");
    ledger.stop();
    takes_over(&other, LANE, TAKEN_OVER_WITHIN).await;
    let new = other.claim(LANE, count).await.jobs;
    let made = |claimed: &[ClaimedJob]| claimed.iter().map(|one| (one.job.id, one.attempt)).collect::<Vec<_>>();
    assert_eq!(made(&new), made(&old), "the attempts are made again, under the same numbers");
    assert!(new.iter().zip(&old).all(|(new, old)| new.ticket != old.ticket && old.lease.is_over()));
    TakenOver { late, ledger, old, other, new }
}

/// Waits until a node that stood still knows what it has missed.
async fn is_on_time(node: &Fixture) {
    let knows = async || match super::world::owns(node, LANE).await? {
        true => Err("it takes the lane for its own".to_owned()),
        false => Ok(()),
    };
    eventually(5 * SECOND, "it knows that its lane is another's", knows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_ownership_has_ended_changes_nothing_and_the_new_one_counts() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let TakenOver { late, ledger, old, other, new } = take_over(4).await;
        let before = picture(&other).await;
        let never: Vec<Job> = (0..4).map(|_| late.job("single", "acme")).collect();
        // It does not know yet: what it writes is on its way, and refused where it arrives.
        for ((old, transition), never) in old.into_iter().zip(transitions(&late)).zip(&never) {
            settle_causing(&late, old, transition, never).await;
        }
        ledger.go_on();
        late.store.flush().await.unwrap();
        assert_eq!(picture(&other).await, before, "all of it came too late");
        assert_eq!(late.store.health().stale_settlements, 4, "and is counted");

        for new in new {
            let (id, caused) = (new.job.id, other.job("single", "acme"));
            settle_causing(&other, new, Transition::Done, &caused).await;
            other.store.flush().await.unwrap();
            assert_eq!(other.state(id).await, JobState::Done);
            assert_eq!(other.view(id).await.attempts.len(), 1, "of one attempt, made twice");
            assert_eq!(other.state(caused.id).await, JobState::Queued);
        }
        assert_eq!(other.store.health().stale_settlements, 0);
        for never in never {
            assert!(other.store.job(never.id).await.unwrap().is_none(), "what came too late has caused nothing");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_comes_after_the_new_one_changes_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let TakenOver { late, ledger, old, other, new } = take_over(16).await;
        let (first, second) = (transitions(&late), transitions(&late));
        for (number, new) in new.into_iter().enumerate() {
            other.settle(new, first[number % 4].clone()).await;
        }
        let before = picture(&other).await;
        ledger.go_on();
        is_on_time(&late).await;
        for (number, old) in old.into_iter().enumerate() {
            late.settle(old, second[number / 4].clone()).await;
        }
        assert_eq!(picture(&other).await, before);
        let stale = [late.store.health().stale_settlements, other.store.health().stale_settlements];
        assert_eq!(stale, [16, 0]);
    })
    .await;
}

/// The ticket is the attempt, not the job: one that was retried by its first owner has another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_made_again_after_the_job_moved_on_counts_once() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_server(redis::shared());
        let [one, other] = world.nodes().await;
        let id = one.add(LANE, "acme").await;
        let claimed = one.claim_one(LANE).await;
        let copy = ClaimedJob {
            job: claimed.job.clone(),
            history: claimed.history.clone(),
            lease: claimed.lease.clone(),
            ..claimed
        };
        let at = one.now();
        one.settle(copy, Transition::Retry { at, failure: failure("http_503") }).await;
        one.store.release().await.unwrap();
        takes_over(&other, LANE, TAKEN_OVER_WITHIN).await;
        // What the breaker has learned goes with its owner.
        let again = other.claim_one(LANE).await;
        assert_eq!(again.attempt, 2);
        let before = picture(&other).await;
        one.settle(claimed, Transition::Done).await;
        assert_eq!(picture(&other).await, before);
        assert_eq!(one.store.health().stale_settlements, 1);
        other.done(again).await;
        assert_eq!(other.view(id).await.attempts.len(), 2);
    })
    .await;
}

/// Whoever claimed in a lane that counts its starts wrote them down, was told that the lane had moved, and took that for the
/// end of the store: the whole node stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_moves_while_its_starts_are_written_down_begins_nothing_and_ends_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let world = World::by_hand(redis::shared());
        let owner = world.node().await;
        owner.add("throttled", "acme").await;
        owner.add("http", "acme").await;
        // Somebody takes the lane, as after a lease.
        let (ledger, shard) = (world.ledger().await, Shard::new("lane/throttled"));
        let held = ledger.own(&shard, 7, None).await.unwrap();
        let Owning::Held { token, beat } = held else { panic!("it has an owner: {held:?}") };
        let taken = ledger.own(&shard, 7, Some((token, beat))).await.unwrap();
        assert!(matches!(taken, Owning::Owned { .. }), "{taken:?}");
        assert!(owner.store.claim(&lane("throttled"), 1).await.unwrap().jobs.is_empty());
        assert_eq!(owner.claim_ids("http").await.len(), 1, "other lanes go on");
    })
    .await;
}
