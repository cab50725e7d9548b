//! Gates that several processes share, as one of them waits before it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use entrega_call::{
    Answer, CallError, Clock, GateKind, Gates, Hold, Later, OnThrottleTimeout, Operation, Retrier, RetryPolicy,
    SharedGate, SharedTurns, Stopped, ThrottleGate, Time,
};
use entrega_core::outcome::Lesson;

use super::world::{START, answer, timed, world};

const SECOND: Duration = Duration::from_secs(1);

/// What a gate says, or that it says nothing.
type Says = Option<Option<Hold>>;

/// Nothing holds the call.
const FREE: Says = Some(None);
/// The throttle has no turn, and does not say when.
const FULL: Says = Some(Some(Hold { gate: GateKind::Throttle, until: None }));

/// Shut until a moment.
fn shut(gate: GateKind, until: Time) -> Says {
    Some(Some(Hold { gate, until: Some(until) }))
}

/// A gate that always says the same.
#[derive(Debug)]
struct Stubborn {
    to_who_asks: Says,
    to_who_goes_anyway: Says,
    hears: bool,
}

fn says<T: Copy + Send + 'static>(what: Option<T>) -> Later<'static, T> {
    Box::pin(async move {
        match what {
            Some(what) => what,
            None => std::future::pending().await,
        }
    })
}

impl SharedGate for Stubborn {
    fn ask(&self) -> Later<'_, Option<Hold>> {
        says(self.to_who_asks)
    }

    fn start_anyway(&self) -> Later<'_, Option<Hold>> {
        says(self.to_who_goes_anyway)
    }

    fn learn(&self, _: Lesson, _: Duration) -> Later<'_, ()> {
        says(self.hears.then_some(()))
    }
}

/// Calls once through a gate, waiting for two seconds and then going anyway: how that ended, after how many attempts and
/// how long.
async fn call_through(gate: Stubborn) -> (Result<(), Stopped>, u32, Duration) {
    call_through_both(None, gate).await
}

/// The same, with a throttle of this process before it.
async fn call_through_both(throttle: Option<ThrottleGate>, gate: Stubborn) -> (Result<(), Stopped>, u32, Duration) {
    let shared = Arc::new(SharedTurns::new(Arc::new(gate), Clock::starting_at(START)));
    let gates = Gates {
        throttle,
        shared: Some(shared),
        throttle_wait_max: SECOND * 2,
        on_throttle_timeout: OnThrottleTimeout::Proceed,
        ..Gates::default()
    };
    let world = Retrier { gates, ..world(1) };
    let (operation, policy, attempts) = (Operation::http("ask"), RetryPolicy::default(), AtomicU32::new(0));
    let run = world.run(&operation, &policy, |_| {
        attempts.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, CallError>(answer(200, &[])) }
    });
    let (ended, took) = timed(run).await;
    (ended.map(drop).map_err(|gave_up| gave_up.stopped), attempts.into_inner(), took)
}

#[tokio::test(start_paused = true)]
async fn whoever_has_an_answer_gets_it_although_the_gate_hears_nothing() {
    let deaf = Stubborn { to_who_asks: FREE, to_who_goes_anyway: None, hears: false };
    assert_eq!(call_through(deaf).await, (Ok(()), 1, SECOND));
}

#[tokio::test(start_paused = true)]
async fn whoever_waited_long_enough_goes_although_the_gate_does_not_answer() {
    let silent = Stubborn { to_who_asks: None, to_who_goes_anyway: None, hears: true };
    assert_eq!(call_through(silent).await, (Ok(()), 1, SECOND * 4));
    let full = Stubborn { to_who_asks: FULL, to_who_goes_anyway: FREE, hears: true };
    assert_eq!(call_through(full).await, (Ok(()), 1, SECOND * 2));
}

/// Whoever waited at the one for as long as it may waited as long again at the other.
#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_at_two_gates_than_at_one() {
    let throttle = ThrottleGate::new(1, SECOND * 3600, Clock::starting_at(START));
    throttle.wait(Duration::ZERO).await;
    let full = Stubborn { to_who_asks: FULL, to_who_goes_anyway: FREE, hears: true };
    assert_eq!(call_through_both(Some(throttle), full).await, (Ok(()), 1, SECOND * 2));
}

#[tokio::test(start_paused = true)]
async fn whoever_waited_long_enough_does_not_go_to_what_is_down() {
    let down = shut(GateKind::Breaker, START + SECOND * 3);
    let gate = Stubborn { to_who_asks: FULL, to_who_goes_anyway: down, hears: true };
    assert_eq!(call_through(gate).await, (Err(Stopped::BreakerOpen), 0, SECOND * 2));
    let pause = shut(GateKind::RetryAfter, START + SECOND * 60);
    let gate = Stubborn { to_who_asks: pause, to_who_goes_anyway: pause, hears: true };
    assert_eq!(call_through(gate).await, (Err(Stopped::ThrottleTimedOut), 0, SECOND * 2), "it asked for a pause");
}

/// A gate that writes down what it hears.
#[derive(Debug, Default)]
struct Listening {
    answers_after: Duration,
    heard: Mutex<Vec<Lesson>>,
}

impl SharedGate for Listening {
    fn ask(&self) -> Later<'_, Option<Hold>> {
        Box::pin(async {
            // reason: time is paused; the answer is on its way for so long.
            tokio::time::sleep(self.answers_after).await;
            None
        })
    }

    fn start_anyway(&self) -> Later<'_, Option<Hold>> {
        says(FREE)
    }

    fn learn(&self, lesson: Lesson, _: Duration) -> Later<'_, ()> {
        self.heard.lock().unwrap().push(lesson);
        says(Some(()))
    }
}

/// What a gate hears of one call that never ends, made with so much patience and given up after so long.
async fn heard_of(answers_after: Duration, patience: Duration, given_up_after: Duration) -> Vec<Lesson> {
    let gate = Arc::new(Listening { answers_after, ..Listening::default() });
    let shared = Arc::new(SharedTurns::new(gate.clone(), Clock::starting_at(START)));
    let world = Retrier { gates: Gates { shared: Some(shared), ..Gates::default() }, ..world(1) };
    let operation = Operation::http("ask").deadline(world.clock.instant(world.clock.now() + patience));
    let policy = RetryPolicy { timeout: SECOND * 10, ..RetryPolicy::never() };
    let run = world.run(&operation, &policy, |_| std::future::pending::<Result<Answer, CallError>>());
    drop(tokio::time::timeout(given_up_after, run).await);
    tokio::task::yield_now().await;
    gate.heard.lock().unwrap().clone()
}

/// An API that takes two seconds was called for five callers who had one: nobody called it for half a minute then.
#[tokio::test(start_paused = true)]
async fn who_has_no_patience_says_nothing_about_the_destination() {
    let long = SECOND * 60;
    assert_eq!(heard_of(Duration::ZERO, SECOND * 10, long).await, [Lesson::Down], "as long as it may take");
    assert_eq!(heard_of(Duration::ZERO, SECOND * 9, long).await, [Lesson::Nothing]);
    assert_eq!(heard_of(SECOND, SECOND / 2, long).await, [Lesson::Nothing], "a turn that comes too late is given up");
}

/// Whoever went away in the middle of the one call that decides left everybody waiting for its timeout.
#[tokio::test(start_paused = true)]
async fn who_goes_away_gives_up_the_turn() {
    assert_eq!(heard_of(Duration::ZERO, SECOND * 60, SECOND).await, [Lesson::Nothing]);
}
