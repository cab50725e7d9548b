//! Retries: how often, how long apart, and what the caller gets in the end. Time is paused: nothing here waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use entrega_call::{
    Answer, AttemptError, BreakerGate, BudgetGate, CallError, Clock, Gates, Judgement, LogFields, OnThrottleTimeout,
    Operation, Retrier, RetryPolicy, Rules, Stopped, ThrottleGate, ThrottleWait, with_retry,
};
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::retry_budget::BudgetPolicy;

use crate::world::{Log, Notes, START, answer, timed, world};

const SECOND: Duration = Duration::from_secs(1);

fn refused() -> CallError {
    CallError::Connect {
        address: "192.0.2.1:443".parse().unwrap(),
        source: Arc::new(io::ErrorKind::ConnectionRefused.into()),
    }
}

async fn must_not_begin() -> Result<Answer, CallError> {
    panic!("it began")
}

#[tokio::test(start_paused = true)]
async fn the_wait_a_destination_asks_for_is_kept() {
    let asks = [("2", 2.0), ("Tue, 14 Nov 2023 22:13:25 GMT", 5.0)];
    for (value, seconds) in asks {
        let world = world(1);
        let policy = RetryPolicy::default();
        let operation = Operation::http("ask");
        let run = world.run(&operation, &policy, |ctx| async move {
            Ok::<_, CallError>(if ctx.attempt == 1 { answer(429, &[("retry-after", value)]) } else { answer(200, &[]) })
        });
        let (done, took) = timed(run).await;
        let done = done.unwrap();
        assert_eq!((done.value.status.as_u16(), done.attempts, done.stopped), (200, 2, None));
        assert!(took.as_secs_f64() >= seconds && took.as_secs_f64() < seconds + 0.1, "{value}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_permanent_is_given_back_at_once() {
    for status in [400, 401, 403, 404, 409, 422] {
        let policy = RetryPolicy::default();
        let run = with_retry("ask", &policy, |_| async move { Ok::<_, CallError>(answer(status, &[])) });
        let (done, took) = timed(run).await;
        let done = done.unwrap();
        assert_eq!((done.value.status.as_u16(), done.attempts, took), (status, 1, Duration::ZERO));
        assert_eq!(done.stopped, Some(Stopped::Permanent));
    }
    let created = Operation::new("create", Rules::http().create_if_absent());
    let done = with_retry(created, &RetryPolicy::default(), |_| async { Ok::<_, CallError>(answer(409, &[])) }).await;
    assert_eq!(done.unwrap().stopped, None, "what was to be created is there");
}

#[tokio::test(start_paused = true)]
async fn after_four_answers_of_503_the_fourth_is_given_back() {
    for seed in 0..50 {
        let notes = Arc::new(Notes::default());
        let budget = BudgetGate::new(BudgetPolicy::default(), Clock::starting_at(START));
        let gates = Gates { budget: Some(budget), ..Gates::default() };
        let world = Retrier { observer: Some(notes.clone()), gates, ..world(seed) };
        let (operation, policy) = (Operation::connector("ask"), RetryPolicy::connector());
        let run = world.run(&operation, &policy, |ctx| async move {
            let number = ctx.attempt.to_string();
            Ok::<_, CallError>(answer(503, &[("x-number", &number)]))
        });
        let (done, took) = timed(run).await;
        let done = done.unwrap();
        assert_eq!((done.value.headers["x-number"].to_str().unwrap(), done.attempts), ("4", 4));
        assert_eq!(done.stopped, Some(Stopped::AttemptsUsedUp));
        assert!(took >= SECOND.mul_f64(5.25) && took <= SECOND.mul_f64(8.75), "{took:?}");
        let failed = |number| format!("attempt {number} Some(503) retryable=true success=false");
        let waited = |seconds| format!("waiting around {seconds}s");
        let expected = [
            failed(1),
            waited(1),
            failed(2),
            waited(2),
            failed(3),
            waited(4),
            failed(4),
            "ask gave up after 4: no attempts are left".into(),
        ];
        assert_eq!(notes.all(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn after_four_refused_connections_the_error_names_them() {
    let policy = RetryPolicy::connector();
    let run = with_retry(Operation::connector("ask"), &policy, |_| async { Err::<Answer, _>(refused()) });
    let gave_up = run.await.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.stopped), (4, Stopped::AttemptsUsedUp));
    assert_eq!(
        gave_up.reason(),
        "ask failed after 4 attempts: no attempts are left: cannot connect: connection refused"
    );
}

#[tokio::test(start_paused = true)]
async fn the_default_is_three_attempts_of_ten_seconds() {
    let started = AtomicU32::new(0);
    let policy = RetryPolicy::default();
    let run = with_retry("ask", &policy, |ctx| {
        started.store(ctx.attempt, Ordering::SeqCst);
        std::future::pending::<Result<Answer, CallError>>()
    });
    let (gave_up, took) = timed(run).await;
    let gave_up = gave_up.unwrap_err();
    assert!(matches!(gave_up.last, Some(AttemptError::TimedOut)), "{gave_up:?}");
    assert_eq!((gave_up.attempts, started.load(Ordering::SeqCst)), (3, 3));
    // 30 s of attempts, 250 ms and 500 ms between them, each within a quarter.
    assert!(took >= Duration::from_millis(30_562) && took <= Duration::from_millis(30_940), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn once_the_caller_has_gone_no_attempt_starts() {
    let started = Arc::new(AtomicU32::new(0));
    let counted = started.clone();
    let caller = tokio::spawn(async move {
        with_retry("ask", &RetryPolicy::connector(), |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Err::<Answer, _>(refused()) }
        })
        .await
    });
    // reason: paused time; it puts the caller into the middle of its first wait.
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(started.load(Ordering::SeqCst), 1);
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    // reason: paused time; long enough for every attempt there could have been.
    tokio::time::sleep(SECOND * 600).await;
    assert_eq!(started.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_whole_ends_with_its_deadline() {
    // The next attempt would start too late: it is not waited for.
    let policy = RetryPolicy { total: Some(SECOND * 5), ..RetryPolicy::connector() };
    let operation = Operation::connector("ask");
    let world = world(1);
    let run = world.run(&operation, &policy, |_| async { Ok::<_, CallError>(answer(503, &[("retry-after", "60")])) });
    let (done, took) = timed(run).await;
    assert_eq!((done.unwrap().stopped, took), (Some(Stopped::DeadlineTooClose), Duration::ZERO));

    // An attempt under way is cut off at it.
    let run = world.run(&operation, &policy, |_| std::future::pending::<Result<Answer, CallError>>());
    let (gave_up, took) = timed(run).await;
    assert_eq!((gave_up.unwrap_err().attempts, took), (1, SECOND * 5));

    // And after it nothing begins at all.
    let late = operation.deadline(world.clock.instant(world.clock.now()));
    let gave_up = world.run(&late, &policy, |_| must_not_begin()).await.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.stopped), (0, Stopped::DeadlineTooClose));
}

#[tokio::test(start_paused = true)]
async fn every_attempt_carries_the_same_key_and_its_own_deadline() {
    let seen = std::sync::Mutex::new(Vec::new());
    let given = Operation::http("ask").idempotency_key("workflow:u:r:resume:v1");
    let fields = LogFields { job_id: Some("job_1".into()), ..LogFields::default() };
    for operation in [given, Operation::http("ask")].map(|operation| operation.fields(fields.clone())) {
        let world = world(7);
        let policy = RetryPolicy::default();
        let run = world.run(&operation, &policy, |ctx| {
            let left = world.clock.time(ctx.deadline).since(world.clock.now());
            assert_eq!((left, ctx.attempts_max), (SECOND * 10, 3));
            assert_eq!((&*ctx.operation, ctx.fields.job_id.as_deref()), ("ask", Some("job_1")));
            seen.lock().unwrap().push(ctx.idempotency_key);
            async { Ok::<_, CallError>(answer(503, &[])) }
        });
        run.await.unwrap();
    }
    let seen = seen.into_inner().unwrap();
    assert_eq!(&*seen[0], "workflow:u:r:resume:v1");
    assert!(seen[..3].windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    assert_eq!((seen[3].len(), seen[3] == seen[4], seen[3] == seen[5]), (32, true, true));
}

#[tokio::test(start_paused = true)]
async fn a_closure_can_judge_anything() {
    let operation = Operation::new("count", |result: &Result<u32, String>| match result {
        Ok(7) => Judgement::Success,
        Ok(_) => Judgement::Retry { after: Some(SECOND * 3) },
        Err(_) => Judgement::Permanent,
    });
    let (done, took) =
        timed(with_retry(operation, &RetryPolicy::default(), |ctx| async move { Ok(5 + ctx.attempt) })).await;
    assert_eq!((done.unwrap().value, took), (7, SECOND * 3));
}

#[tokio::test(start_paused = true)]
async fn an_outage_gets_no_more_than_the_budget() {
    let clock = Clock::starting_at(START);
    let budget = BudgetGate::new(BudgetPolicy::default(), clock);
    let world = Retrier { gates: Gates { budget: Some(budget), ..Gates::default() }, ..world(3) };
    let attempts = Arc::new(AtomicU32::new(0));
    let mut callers = Vec::new();
    for _ in 0..1000 {
        let (world, attempts) = (world.clone(), attempts.clone());
        callers.push(tokio::spawn(async move {
            let (operation, policy) = (Operation::http("ask"), RetryPolicy::default());
            let run = world.run(&operation, &policy, |_| {
                attempts.fetch_add(1, Ordering::SeqCst);
                async { Err::<Answer, _>(refused()) }
            });
            run.await.unwrap_err().stopped
        }));
    }
    let mut spent = 0;
    for caller in callers {
        spent += usize::from(caller.await.unwrap() == Stopped::BudgetSpent);
    }
    let attempts = attempts.load(Ordering::SeqCst);
    assert!((1200..=1210).contains(&attempts), "{attempts} attempts of 1000 calls");
    assert!(spent > 800, "{spent}");
}

#[tokio::test(start_paused = true)]
async fn what_is_down_is_not_called_until_its_breaker_lets_a_probe_through() {
    let clock = Clock::starting_at(START);
    let policy =
        BreakerPolicy { failures: 2, open: SECOND * 30, probe_timeout: SECOND * 10, when_open: WhenOpen::Hold };
    let breaker = BreakerGate::new(policy, clock);
    let world = Retrier { gates: Gates { breaker: Some(breaker), ..Gates::default() }, ..world(3) };
    let (operation, policy) = (Operation::http("ask"), RetryPolicy::default());
    let down = || world.run(&operation, &policy, |_| async { Ok::<_, CallError>(answer(503, &[])) });
    let done = down().await.unwrap();
    assert_eq!((done.attempts, done.stopped), (2, Some(Stopped::BreakerOpen)), "the last answer is given back");
    let gave_up = down().await.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.stopped), (0, Stopped::BreakerOpen));
    tokio::time::advance(SECOND * 30).await;
    let done = world.run(&operation, &policy, |_| async { Ok::<_, CallError>(answer(200, &[])) }).await.unwrap();
    assert_eq!((done.attempts, done.stopped), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_does_not_come_is_not_waited_for_longer_than_a_minute() {
    let log = Log::listen();
    for (on_timeout, ended) in [(OnThrottleTimeout::Proceed, true), (OnThrottleTimeout::Fail, false)] {
        let throttle = ThrottleGate::new(1, SECOND * 3600, Clock::starting_at(START));
        let gates = Gates { throttle: Some(throttle.clone()), on_throttle_timeout: on_timeout, ..Gates::default() };
        let world = Retrier { gates, ..world(1) };
        let fields = LogFields { connector_id: Some("netsuite".into()), ..LogFields::default() };
        let (operation, policy) = (Operation::connector("ask").fields(fields), RetryPolicy::connector());
        let call = || world.run(&operation, &policy, |_| async { Ok::<_, CallError>(answer(200, &[])) });
        assert_eq!(timed(call()).await.1, Duration::ZERO);
        let (done, took) = timed(call()).await;
        assert_eq!((done.is_ok(), took), (ended, SECOND * 60));
        // Who went anyway counts like the others; who did not, does not.
        let next = if ended { SECOND * 3600 } else { SECOND * 3540 };
        assert_eq!(throttle.wait(SECOND * 7200).await, ThrottleWait::Waited { took: next });
    }
    let warned = log.with("Throttle wait timeout exceeded");
    assert_eq!(warned.len(), 2);
    let first = &warned[0];
    assert_eq!((&first["level"], &first["connector_id"]), (&"WARN".into(), &"netsuite".into()));
    assert_eq!((first["wait_seconds"].as_f64(), first["max_wait_seconds"].as_f64()), (Some(60.0), Some(60.0)));
    assert_eq!((&first["action"], &warned[1]["action"]), (&"proceeding_anyway".into(), &"failing".into()));
}

#[tokio::test(start_paused = true)]
async fn the_log_says_what_operators_search_for_and_no_body() {
    let log = Log::listen();
    let fields = LogFields { request_id: Some("req_1".into()), job_id: Some("job_1".into()), ..LogFields::default() };
    let operation = Operation::http("ask").idempotency_key("k").fields(fields);
    let (world, policy) = (world(1), RetryPolicy::default());
    world.run(&operation, &policy, |_| async { Ok::<_, CallError>(answer(503, &[])) }).await.unwrap();
    world.run(&operation, &policy, |_| async { Err::<Answer, _>(refused()) }).await.unwrap_err();

    let attempts = log.with("Outbound attempt ended");
    assert_eq!(attempts.len(), 6, "one line each");
    assert_eq!((attempts[0]["httpStatus"].as_u64(), attempts[0]["attempt"].as_u64()), (Some(503), Some(1)));
    assert_eq!((&attempts[3]["errorCode"], &attempts[3]["isRetryable"]), (&"connect".into(), &true.into()));
    let retried = log.with("Retrying request due to retriable response");
    assert_eq!((retried.len(), &retried[0]["level"], &retried[0]["requestId"]), (2, &"WARN".into(), &"req_1".into()));
    assert!(retried[0]["nextRetryDelay"].as_u64().is_some_and(|ms| (187..=313).contains(&ms)), "{retried:?}");
    let excepted = log.with("Retrying request due to retriable exception");
    assert!(excepted[0]["errorReason"].as_str().is_some_and(|reason| reason.contains("refused")), "{excepted:?}");
    let waiting = log.with("Waiting before retry");
    assert_eq!((waiting.len(), &waiting[0]["level"], &waiting[0]["base_delay_ms"]), (4, &"DEBUG".into(), &250.into()));
    assert!(waiting[0]["final_delay_ms"].is_u64());
    for message in
        ["API request failed after all retries (response)", "API request failed after all retries (exception)"]
    {
        let failed = log.with(message);
        assert_eq!((failed.len(), &failed[0]["level"], &failed[0]["jobId"]), (1, &"ERROR".into(), &"job_1".into()));
        assert_eq!((failed[0]["attempt"].as_u64(), failed[0]["maxAttempts"].as_u64()), (Some(3), Some(3)));
        assert_eq!(failed[0]["idempotencyKey"], "k");
    }
    assert!(!log.text().contains("a body that no log may show"));
}
