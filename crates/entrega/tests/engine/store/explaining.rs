//! Explaining: why a job has not run yet, gate by gate.

use std::time::Duration;

use entrega_core::breaker::{BreakerFigures, BreakerState};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::{Explanation, GateKind};
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;

use super::fixture::{Fixture, SECOND, failure, lane};

async fn explain(f: &Fixture, id: JobId) -> Explanation {
    f.store.explain(id).await.unwrap().expect("it waits")
}

async fn holds(f: &Fixture, id: JobId) -> Vec<(GateKind, Option<Time>)> {
    explain(f, id).await.holds.iter().map(|hold| (hold.gate, hold.until)).collect()
}

pub(crate) async fn a_job_that_nothing_holds_waits_for_its_turn(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let why = explain(f, id).await;
    assert_eq!((why.state, why.attempt, why.due), (JobState::Queued, 0, f.now()));
    assert_eq!(holds(f, id).await, [(GateKind::Turn, None)]);
}

pub(crate) async fn delay_and_pause_are_named(f: &Fixture) {
    let due_at = f.now() + 10 * SECOND;
    let id = f.accept(Job { due_at, ..f.job("http", "acme") }).await;
    assert_eq!(holds(f, id).await, [(GateKind::Delay, Some(due_at))]);
    f.store.set_paused(&lane("http"), true).await.unwrap();
    assert_eq!(holds(f, id).await, [(GateKind::Paused, None), (GateKind::Delay, Some(due_at))]);
    f.advance(10 * SECOND);
    assert_eq!(holds(f, id).await, [(GateKind::Paused, None)]);
}

pub(crate) async fn limits_on_concurrency_are_named(f: &Fixture) {
    let running = f.add("single", "a").await;
    let waiting = f.add("single", "b").await;
    f.claim_one("single").await;
    assert_eq!(holds(f, waiting).await, [(GateKind::Concurrency, None)]);
    let why = explain(f, running).await;
    assert_eq!((why.state, why.attempt, why.holds.len()), (JobState::Running, 1, 0), "nothing holds what runs");
    f.add("shared", "a").await;
    let second = f.add("shared", "a").await;
    let other = f.add("shared", "b").await;
    f.claim("shared", 1).await;
    assert_eq!(holds(f, second).await, [(GateKind::TenantConcurrency, None)]);
    assert_eq!(holds(f, other).await, [(GateKind::Turn, None)]);
}

pub(crate) async fn throttle_and_cadence_are_named_with_their_end(f: &Fixture) {
    let start = f.now();
    for _ in 0..2 {
        f.add("throttled", "acme").await;
    }
    let third = f.add("throttled", "acme").await;
    let batch = f.claim("throttled", 10).await;
    assert_eq!((batch.jobs.len(), batch.wake_at), (2, Some(start + 60 * SECOND)));
    assert_eq!(holds(f, third).await, [(GateKind::Throttle, Some(start + 60 * SECOND))]);

    f.add("paced", "acme").await;
    let second = f.add("paced", "acme").await;
    assert_eq!(f.claim("paced", 10).await.jobs.len(), 1);
    assert_eq!(holds(f, second).await, [(GateKind::Cadence, Some(start + SECOND))]);
    f.advance(SECOND);
    assert_eq!(f.claim_ids("paced").await, [second]);
}

pub(crate) async fn breaker_and_retry_after_are_named_with_their_end(f: &Fixture) {
    let start = f.now();
    f.add("broken", "acme").await;
    let claimed = f.claim_one("broken").await;
    let waiting = f.add("broken", "acme").await;
    f.retry(claimed, SECOND).await;
    assert_eq!(holds(f, waiting).await, [(GateKind::Breaker, Some(start + 30 * SECOND))]);
    let lanes = f.store.lanes().await.unwrap();
    let broken = lanes.iter().find(|view| view.name.as_str() == "broken").unwrap();
    let figures =
        BreakerFigures { state: BreakerState::Open(start + 30 * SECOND), opened: 1, half_opened: 0, closed: 0 };
    assert_eq!((broken.breaker, broken.cadence), (Some(figures), None));
    assert!(f.claim_ids("broken").await.is_empty());

    f.add("throttled", "acme").await;
    let retry = Transition::Retry { at: start + SECOND, failure: failure("http_429") };
    let mut settlement = f.settlement(f.claim_one("throttled").await, retry);
    settlement.lesson = Lesson::Slower(Some(Duration::from_secs(20)));
    f.store.settle(&lane("throttled"), vec![settlement]).await.unwrap();
    f.store.flush().await.unwrap();
    let waiting = f.add("throttled", "acme").await;
    assert_eq!(holds(f, waiting).await, [(GateKind::RetryAfter, Some(start + 20 * SECOND))]);
}

pub(crate) async fn what_does_not_wait_has_no_explanation(f: &Fixture) {
    let done = f.add("http", "acme").await;
    f.done(f.claim_one("http").await).await;
    let dead = f.add_dead("http", "acme", "http_404").await;
    let blocked = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    for id in [done, dead, blocked, f.job("http", "acme").id] {
        assert!(f.store.explain(id).await.unwrap().is_none());
    }
}
