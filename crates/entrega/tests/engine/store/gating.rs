//! Gates before destinations that are called without a queue, and requests that must happen once.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::{GateName, Idempotency, RequestState};
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::lane::{GateKind, Hold};
use entrega_core::outcome::Lesson;
use entrega_core::policy::{LanePolicy, Scope, ThrottlePolicy};
use futures_util::future::join_all;

use super::fixture::{Fixture, HOUR, SECOND, lane, tenant};

fn gate(name: &str, max: u32) -> GateName {
    let throttle = ThrottlePolicy { max_requests: max, per: SECOND * 10, scope: Scope::Lane };
    let breaker =
        BreakerPolicy { failures: 2, open: SECOND * 30, probe_timeout: SECOND * 5, when_open: WhenOpen::Hold };
    let policy =
        LanePolicy { throttle: Some(throttle), breaker: Some((breaker, Scope::Lane)), ..LanePolicy::connector() };
    GateName { name: lane(name), policy: Arc::new(policy) }
}

fn held(f: &Fixture, hold: Option<Hold>) -> (GateKind, Duration) {
    match hold {
        Some(Hold { gate, until: Some(until) }) => (gate, until.since(f.now())),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_gate_lets_no_more_through_than_its_throttle(f: &Fixture) {
    let gate = gate("gate:erp", 2);
    // A store that nobody shares counts as used up when it is opened.
    f.advance(SECOND * 10);
    assert_eq!(f.store.pass(&gate).await.unwrap(), None);
    f.advance(SECOND);
    f.store.pass_anyway(&gate).await.unwrap();
    assert_eq!(held(f, f.store.pass(&gate).await.unwrap()), (GateKind::Throttle, SECOND * 9));
    f.advance(SECOND * 9);
    assert_eq!(f.store.pass(&gate).await.unwrap(), None);
    assert_eq!(held(f, f.store.pass(&gate).await.unwrap()), (GateKind::Throttle, SECOND));
}

pub(crate) async fn a_gate_learns_from_calls_and_each_is_its_own(f: &Fixture) {
    let (one, other) = (gate("gate:one", 100), gate("gate:other", 100));
    f.advance(SECOND * 10);
    for _ in 0..2 {
        assert_eq!(f.store.pass(&one).await.unwrap(), None);
        f.store.learn(&one, Lesson::Down, SECOND).await.unwrap();
    }
    assert_eq!(held(f, f.store.pass(&one).await.unwrap()), (GateKind::Breaker, SECOND * 30));
    assert_eq!(f.store.pass(&other).await.unwrap(), None);
    f.advance(SECOND * 30);
    assert_eq!(f.store.pass(&one).await.unwrap(), None, "one call decides");
    assert_eq!(held(f, f.store.pass(&one).await.unwrap()), (GateKind::Breaker, SECOND * 5));
    f.store.learn(&one, Lesson::Slower(Some(SECOND * 3)), SECOND).await.unwrap();
    assert_eq!(
        held(f, f.store.pass(&one).await.unwrap()),
        (GateKind::RetryAfter, SECOND * 3),
        "it is up, and asks for a pause"
    );
}

pub(crate) async fn who_waited_too_long_goes_through_a_throttle_but_not_to_what_is_down(f: &Fixture) {
    let gate = gate("gate:erp", 1);
    f.advance(SECOND * 10);
    for lesson in [Lesson::Down, Lesson::Nothing, Lesson::Down] {
        assert_eq!(f.store.pass_anyway(&gate).await.unwrap(), None, "a throttle does not hold it");
        f.store.learn(&gate, lesson, SECOND).await.unwrap();
    }
    assert_eq!(held(f, f.store.pass_anyway(&gate).await.unwrap()), (GateKind::Breaker, SECOND * 30));
    f.advance(SECOND * 30);
    assert_eq!(f.store.pass_anyway(&gate).await.unwrap(), None, "one call decides");
    assert_eq!(held(f, f.store.pass_anyway(&gate).await.unwrap()), (GateKind::Breaker, SECOND * 5), "one, and no more");
    f.store.learn(&gate, Lesson::Slower(Some(SECOND * 3)), SECOND).await.unwrap();
    assert_eq!(
        held(f, f.store.pass_anyway(&gate).await.unwrap()),
        (GateKind::RetryAfter, SECOND * 3),
        "it asked for it"
    );
}

/// Calls that had waited since before a change made the gate anew with every question, and it never opened.
pub(crate) async fn a_gate_whose_limits_change_knows_what_there_was(f: &Fixture) {
    let (old, new) = (gate("gate:erp", 3), gate("gate:erp", 2));
    f.advance(SECOND * 10);
    assert_eq!(f.store.pass(&old).await.unwrap(), None);
    f.advance(SECOND);
    assert_eq!(f.store.pass(&old).await.unwrap(), None);
    f.store.learn(&old, Lesson::Down, SECOND).await.unwrap();
    assert_eq!(
        held(f, f.store.pass(&new).await.unwrap()),
        (GateKind::Throttle, SECOND * 9),
        "of two there are none left"
    );
    assert_eq!(f.store.pass(&old).await.unwrap(), None, "of three there is one");
    f.store.learn(&new, Lesson::Down, SECOND).await.unwrap();
    assert_eq!(held(f, f.store.pass(&old).await.unwrap()), (GateKind::Breaker, SECOND * 30), "failures count on");
}

fn once(request: u8) -> Idempotency {
    Idempotency { key: "order-17".into(), request: [request; 32], lasts: HOUR }
}

pub(crate) async fn of_many_who_begin_a_request_one_makes_it(f: &Fixture) {
    let (ours, request) = (tenant("acme"), once(1));
    let until = f.now() + SECOND * 30;
    let begun = join_all((0..20).map(|_| f.store.begin_request(&ours, &request, until))).await;
    let made = begun.into_iter().filter(|begun| matches!(begun, Ok(RequestState::New))).count();
    assert_eq!(made, 1);
    assert_eq!(f.store.begin_request(&ours, &request, until).await.unwrap(), RequestState::Running(until));
    assert_eq!(f.store.begin_request(&ours, &once(2), until).await.unwrap(), RequestState::OtherRequest);
    assert_eq!(
        f.store.begin_request(&tenant("other"), &request, until).await.unwrap(),
        RequestState::New,
        "a tenant's own"
    );
    f.store.end_request(&ours, &request, Some(b"answer".to_vec())).await.unwrap();
    assert_eq!(f.store.begin_request(&ours, &request, until).await.unwrap(), RequestState::Ended(b"answer".to_vec()));
    assert_eq!(f.store.begin_request(&ours, &once(2), until).await.unwrap(), RequestState::OtherRequest);
}

pub(crate) async fn a_request_that_was_given_up_or_whose_maker_is_gone_may_be_made_again(f: &Fixture) {
    let (ours, request) = (tenant("acme"), once(1));
    let until = f.now() + SECOND * 30;
    assert_eq!(f.store.begin_request(&ours, &request, until).await.unwrap(), RequestState::New);
    f.store.end_request(&ours, &request, None).await.unwrap();
    assert_eq!(f.store.begin_request(&ours, &request, until).await.unwrap(), RequestState::New);
    f.advance(SECOND * 31);
    let until = f.now() + SECOND * 30;
    assert_eq!(
        f.store.begin_request(&ours, &request, until).await.unwrap(),
        RequestState::New,
        "nobody makes it any more"
    );
}
