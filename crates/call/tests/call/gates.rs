//! Gates under many tasks at once. Time is paused: nothing here waits.

use std::time::Duration;

use entrega_call::{BreakerGate, Clock, ThrottleGate, ThrottleWait};
use entrega_core::breaker::{BreakerPolicy, BreakerState, WhenOpen};
use entrega_core::outcome::Lesson;
use entrega_core::rate_limit::RateLimit;
use entrega_core::time::Time;
use tokio::task::JoinSet;

use crate::world::{START, timed};

const SECOND: Duration = Duration::from_secs(1);

fn most_in_one_second(starts: &[Time]) -> usize {
    let within = |first: Time| starts.iter().filter(|&&start| start >= first && start < first + SECOND).count();
    starts.iter().map(|&first| within(first)).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_start_ten_per_second_in_the_order_of_asking() {
    for gate in [ThrottleGate::new, ThrottleGate::adaptive] {
        let clock = Clock::starting_at(START);
        let throttle = gate(10, SECOND, clock.clone());
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            let (throttle, clock) = (throttle.clone(), clock.clone());
            tasks.spawn(async move {
                let waited = throttle.wait(SECOND * 60).await;
                assert!(matches!(waited, ThrottleWait::Waited { .. }), "{waited:?}");
                (clock.now(), number)
            });
        }
        let mut starts = tasks.join_all().await;
        starts.sort();
        assert!(starts.is_sorted_by_key(|(_, number)| *number), "first come, first served: {starts:?}");
        let times: Vec<Time> = starts.iter().map(|(at, _)| *at).collect();
        assert_eq!(most_in_one_second(&times), 10);
        let took = times[99].since(times[0]);
        assert!(took >= SECOND * 9 && took < SECOND.mul_f64(9.05), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_takes_no_turn() {
    let throttle = ThrottleGate::new(1, SECOND * 10, Clock::starting_at(START));
    throttle.wait(Duration::ZERO).await;
    let timed_out = ThrottleWait::TimedOut { took: SECOND };
    assert_eq!(throttle.wait(SECOND).await, timed_out);
    let gone = tokio::spawn({
        let throttle = throttle.clone();
        async move { throttle.wait(SECOND * 60).await }
    });
    // reason: paused time; it lets the task queue up before it is ended.
    tokio::time::sleep(SECOND).await;
    gone.abort();
    // Two of the ten seconds are over, and nobody stands before this one.
    assert_eq!(throttle.wait(SECOND * 60).await, ThrottleWait::Waited { took: SECOND * 8 });
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_the_task_that_waited_first() {
    let throttle = ThrottleGate::new(1, SECOND * 10, Clock::starting_at(START));
    throttle.wait(Duration::ZERO).await;
    let first = tokio::spawn({
        let throttle = throttle.clone();
        async move { throttle.wait(SECOND * 60).await }
    });
    tokio::task::yield_now().await;
    tokio::time::advance(SECOND * 10).await;
    // The turn is free and its owner has not woken up yet.
    assert_eq!(throttle.wait(Duration::ZERO).await, ThrottleWait::TimedOut { took: Duration::ZERO });
    assert_eq!(first.await.unwrap(), ThrottleWait::Waited { took: SECOND * 10 });
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_one_call_is_asked_for_holds_the_others_too() {
    for gate in [ThrottleGate::new, ThrottleGate::adaptive] {
        let throttle = gate(10, SECOND, Clock::starting_at(START));
        throttle.learn(Lesson::Slower(None), Some(SECOND * 20), None);
        assert_eq!(throttle.wait(SECOND * 60).await, ThrottleWait::Waited { took: SECOND * 20 });
    }
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_throttle_keeps_to_what_it_is_told_and_shows_its_estimate() {
    let throttle = ThrottleGate::adaptive(100, SECOND, Clock::starting_at(START));
    assert_eq!(throttle.estimate(), 100.0);
    let said = RateLimit { remaining: Some(2), reset: Some(SECOND * 7), quota: None };
    throttle.learn(Lesson::Up, None, Some(said));
    let (_, took) = timed(async {
        for _ in 0..3 {
            throttle.wait(SECOND * 60).await;
        }
    })
    .await;
    assert_eq!(took, SECOND * 7);
    throttle.learn(Lesson::Slower(None), None, None);
    assert!(throttle.estimate() < 1.0, "one start, and that was too many: {}", throttle.estimate());
}

fn breaker() -> BreakerGate {
    let policy =
        BreakerPolicy { failures: 1, open: SECOND * 30, probe_timeout: SECOND * 10, when_open: WhenOpen::Hold };
    BreakerGate::new(policy, Clock::starting_at(START))
}

#[tokio::test(start_paused = true)]
async fn many_tasks_send_one_probe_and_come_back_gently() {
    let breaker = breaker();
    breaker.pass(Duration::ZERO).await.unwrap().settle(Lesson::Down);
    let (shut, took) = timed(breaker.pass(SECOND * 29)).await;
    assert_eq!((shut.unwrap_err().until, took), (Some(START + SECOND * 30), Duration::ZERO), "no use in waiting");
    tokio::time::advance(SECOND * 30).await;

    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let breaker = breaker.clone();
        tasks.spawn(async move {
            let passage = breaker.pass(SECOND * 9).await.expect("the destination is back");
            // reason: paused time; the call takes a second, so that passing together shows.
            tokio::time::sleep(SECOND).await;
            passage.settle(Lesson::Up);
        });
    }
    let (_, took) = timed(tasks.join_all()).await;
    // A probe, then one, two, four, eight and more at a time.
    assert!(took >= SECOND * 4 && took <= SECOND * 8, "{took:?}");
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_broken_off_lets_the_next_one_go() {
    let breaker = breaker();
    breaker.pass(Duration::ZERO).await.unwrap().settle(Lesson::Down);
    tokio::time::advance(SECOND * 30).await;
    let probe = breaker.pass(Duration::ZERO).await.unwrap();
    assert!(breaker.pass(Duration::ZERO).await.is_err());
    drop(probe);
    breaker.pass(Duration::ZERO).await.unwrap().settle(Lesson::Nothing);
    breaker.pass(Duration::ZERO).await.unwrap().settle(Lesson::Up);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

/// Whoever asked first went first: a tenant with three hundred calls made another's wait for all of them.
#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_tasks_lets_the_others_in_between() {
    let throttle = ThrottleGate::new(1, SECOND, Clock::starting_at(START));
    let mut tasks = JoinSet::new();
    for _ in 0..300 {
        let throttle = throttle.clone();
        tasks.spawn(async move { throttle.wait_for("many", SECOND * 600).await });
    }
    tokio::task::yield_now().await;
    let waited = throttle.wait_for("few", SECOND * 600).await;
    // Behind the one at the head, and one more that was before it in the order of turns.
    assert!(matches!(waited, ThrottleWait::Waited { took } if took <= SECOND * 3), "{waited:?}");
    tasks.abort_all();
}
