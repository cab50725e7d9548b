//! Jobs that go past an open breaker, and starts that are given back.

use entrega::store::{ClaimedJob, LaneView};
use entrega_core::breaker::BreakerState;
use entrega_core::decide::Transition;
use entrega_core::outcome::Lesson;

use super::fixture::{Fixture, SECOND, lane};

async fn end(f: &Fixture, claimed: ClaimedJob, lesson: Lesson) {
    let name = claimed.job.lane.clone();
    let mut settlement = f.settlement(claimed, Transition::Done);
    settlement.lesson = lesson;
    f.store.settle(&name, vec![settlement]).await.unwrap();
    f.store.flush().await.unwrap();
}

async fn view(f: &Fixture, name: &str) -> LaneView {
    f.store.lanes().await.unwrap().into_iter().find(|view| view.name == lane(name)).unwrap()
}

/// Opens the breaker of `passing` for 30 seconds, with so many jobs waiting.
async fn open(f: &Fixture, jobs: usize) {
    f.add("passing", "acme").await;
    let first = f.claim_one("passing").await;
    assert!(!first.past_breaker);
    end(f, first, Lesson::Down).await;
    f.submit_all((0..jobs).map(|_| f.job("passing", "acme")).collect()).await;
    assert!(view(f, "passing").await.hold.is_none(), "nothing holds what passes");
}

pub(crate) async fn jobs_pass_an_open_breaker_at_once_and_no_gate_counts_them(f: &Fixture) {
    let start = f.now();
    open(f, 5).await;
    let batch = f.claim("passing", 4).await;
    assert_eq!(batch.jobs.iter().map(|claimed| claimed.past_breaker).collect::<Vec<_>>(), [true; 4]);
    for (claimed, lesson) in batch.jobs.into_iter().zip([Lesson::Apart, Lesson::Up, Lesson::Down, Lesson::Unused]) {
        end(f, claimed, lesson).await;
    }
    let breaker = view(f, "passing").await.breaker.unwrap();
    assert_eq!((breaker.state, breaker.opened), (BreakerState::Open(start + 30 * SECOND), 1));
    f.advance(30 * SECOND);
    assert!(!f.claim_one("passing").await.past_breaker, "one probe goes through");
}

pub(crate) async fn while_a_probe_is_under_way_the_others_pass_and_teach_nothing(f: &Fixture) {
    open(f, 4).await;
    f.advance(30 * SECOND);
    let mut jobs = f.claim("passing", 3).await.jobs;
    assert_eq!(jobs.iter().map(|claimed| claimed.past_breaker).collect::<Vec<_>>(), [false, true, true]);
    let probe = jobs.remove(0);
    for claimed in jobs {
        end(f, claimed, Lesson::Nothing).await;
    }
    assert!(f.claim_one("passing").await.past_breaker, "the probe is still under way");
    end(f, probe, Lesson::Up).await;
    let breaker = view(f, "passing").await.breaker.unwrap();
    assert_eq!(breaker.state, BreakerState::Closed);
    assert_eq!((breaker.opened, breaker.half_opened, breaker.closed), (1, 1, 1));
}

pub(crate) async fn a_start_that_called_nobody_is_given_back(f: &Fixture) {
    f.submit_all((0..3).map(|_| f.job("paced", "acme")).collect()).await;
    end(f, f.claim_one("paced").await, Lesson::Unused).await;
    end(f, f.claim_one("paced").await, Lesson::Slower(None)).await;
    assert!(f.claim("paced", 1).await.jobs.is_empty(), "the second kept its tick");
    let cadence = view(f, "paced").await.cadence.unwrap();
    assert_eq!((cadence.interval, cadence.penalties), (2 * SECOND, 1));

    f.submit_all((0..3).map(|_| f.job("throttled", "acme")).collect()).await;
    end(f, f.claim_one("throttled").await, Lesson::Unused).await;
    assert_eq!(f.claim("throttled", 3).await.jobs.len(), 2, "two in a minute");
}

pub(crate) async fn a_start_that_is_given_back_does_not_take_a_penalty_along(f: &Fixture) {
    f.submit_all((0..3).map(|_| f.job("paced", "acme")).collect()).await;
    let first = f.claim_one("paced").await;
    f.advance(SECOND);
    let second = f.claim_one("paced").await;
    end(f, first, Lesson::Slower(None)).await;
    end(f, second, Lesson::Unused).await;
    let held = f.claim("paced", 1).await;
    assert_eq!((held.jobs.len(), held.wake_at), (0, Some(f.now() + 2 * SECOND)));
}

pub(crate) async fn a_probe_that_called_nobody_lets_another_probe_at_once(f: &Fixture) {
    open(f, 3).await;
    f.advance(30 * SECOND);
    end(f, f.claim_one("passing").await, Lesson::Unused).await;
    assert!(!f.claim_one("passing").await.past_breaker);
    assert!(f.claim_one("passing").await.past_breaker);
    assert_eq!(view(f, "passing").await.breaker.unwrap().half_opened, 2);
}
