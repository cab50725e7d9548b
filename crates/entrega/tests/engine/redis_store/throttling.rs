//! A throttle outlives its owner: the next one goes on where the last one was killed.

use std::time::Duration;

use entrega_core::policy::{LanePolicy, Scope, ThrottlePolicy};
use entrega_core::time::Time;

use super::world::{LEASE, TAKEN_OVER_WITHIN, World, bounded, claims, eventually, owns};
use crate::store::fixture::{Fixture, SECOND};
use entrega_testkit::redis;

const MAX: usize = 10;
/// Between the decision to start something and its start there is no more time than this; a start counts as made at its
/// end.
const FRESH: Duration = Duration::from_millis(100);

fn ten_per(per: Duration) -> LanePolicy {
    let throttle = ThrottlePolicy { max_requests: MAX as u32, per, scope: Scope::Lane };
    LanePolicy { concurrency: 1000, tenant_concurrency: 1000, throttle: Some(throttle), ..LanePolicy::http() }
}

/// Moves the clock until a node that stands by has given the owner up.
async fn give_up_the_owner(node: &Fixture) {
    let is_owner = async || {
        node.advance(SECOND / 10);
        if owns(node, "ten").await? { Ok(()) } else { Err("it does not own the lane".to_owned()) }
    };
    eventually(TAKEN_OVER_WITHIN, "it takes over", is_owner).await;
}

/// Moves the clock to a moment, and waits until the node has shown again that it lives: a whole lease may have passed.
async fn comes_to(node: &Fixture, at: Time) {
    node.advance(at.since(node.now()));
    node.add("http", "acme").await;
    node.done(claims(node, "http", TAKEN_OVER_WITHIN).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_a_minute_are_ten_a_minute_though_the_owner_is_killed() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let per = 60 * SECOND;
        let world = World::by_hand(redis::shared()).leased_for(LEASE).with_lane("ten", ten_per(per));
        let [gone, next] = world.nodes().await;
        gone.submit_all((0..40).map(|_| gone.job("ten", "acme")).collect()).await;
        let start = gone.now();
        assert_eq!(gone.claim("ten", 6).await.jobs.len(), 6);
        gone.advance(SECOND / 2);
        assert_eq!(gone.claim("ten", 100).await.jobs.len(), 4, "ten in all");
        drop(gone);
        give_up_the_owner(&next).await;
        assert!(next.now().since(start) < 30 * SECOND, "the minute is not over yet");
        comes_to(&next, start + per - Duration::from_millis(1)).await;
        let early = next.claim("ten", 100).await;
        assert!(early.jobs.is_empty(), "{} more than ten in a minute", early.jobs.len());
        let again_at = early.wake_at.expect("a throttle says when to come back");
        assert!(again_at <= start + per + FRESH, "no longer than the throttle asks: {again_at}");
        comes_to(&next, start + per + FRESH).await;
        assert_eq!(next.claim("ten", 100).await.jobs.len(), 6, "as many as were started a minute ago");
        comes_to(&next, start + per + SECOND / 2 + FRESH).await;
        assert_eq!(next.claim("ten", 100).await.jobs.len(), 4);
        assert_eq!(next.claim("ten", 100).await.jobs.len(), 0);
    })
    .await;
}

/// Claims all it can for so long, or until there are so many; when each was begun.
async fn claim_for(node: &Fixture, times: &mut Vec<Time>, limit: Duration, enough: usize, clock: &Fixture) {
    let until = clock.now() + limit;
    while clock.now() < until && times.len() < enough {
        let batch = node.claim("ten", 100).await;
        times.extend(batch.jobs.iter().map(|_| clock.now()));
        // reason: a throttle lets the next one through when its time has come
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_a_second_are_ten_a_second_though_the_owner_is_killed() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let gap = change_owners(async |gone| drop(gone)).await;
        assert!(gap <= LEASE + 2 * SECOND, "waited {} ms", gap.as_millis());
    })
    .await;
}

/// Within the same second, where a throttle that began anew would let twice as many through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_a_second_are_ten_a_second_though_the_owner_hands_over() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let gap = change_owners(async |gone: Fixture| gone.store.release().await.unwrap()).await;
        assert!(gap <= 2 * SECOND, "waited {} ms", gap.as_millis());
    })
    .await;
}

/// Two owners one after the other, of a lane with much to do; how long nothing was begun between them.
async fn change_owners(end: impl AsyncFnOnce(Fixture)) -> Duration {
    let world = World::by_server(redis::shared()).with_lane("ten", ten_per(SECOND));
    let [gone, next] = world.nodes().await;
    gone.submit_all((0..60).map(|_| gone.job("ten", "acme")).collect()).await;
    let mut times = Vec::new();
    // The last of them at the beginning of a second.
    claim_for(&gone, &mut times, TAKEN_OVER_WITHIN, 2 * MAX, &next).await;
    let before = times.len();
    assert_eq!(before, 2 * MAX);
    end(gone).await;
    claim_for(&next, &mut times, TAKEN_OVER_WITHIN, before + 2 * MAX, &next).await;
    let tightest = times.windows(MAX + 1).map(|window| window[MAX].since(window[0])).min().unwrap();
    assert!(times.len() >= before + 2 * MAX, "the next owner goes on: {} and {}", before, times.len() - before);
    let gap = times[before].since(times[before - 1]);
    println!("{} ms from owner to owner; {} within {} ms", gap.as_millis(), MAX + 1, tightest.as_millis());
    assert!(tightest + FRESH >= SECOND, "{} within {} ms", MAX + 1, tightest.as_millis());
    gap
}
