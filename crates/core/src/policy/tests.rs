//! What a policy may say, and what the shipped ones do.

use super::*;

#[test]
fn shipped_policies_can_be_run() {
    for policy in [
        LanePolicy::http(),
        LanePolicy::mail(),
        LanePolicy::webhook(),
        LanePolicy::events(),
        LanePolicy::proxy(),
        LanePolicy::connector(),
    ] {
        assert_eq!(policy.check(), Ok(()), "{}", policy.channel);
    }
}

#[test]
fn a_bad_number_is_named() {
    let mut policy = LanePolicy::http();
    policy.concurrency = 0;
    assert!(policy.check().unwrap_err().to_string().starts_with("concurrency = 0"));
    let mut policy = LanePolicy::webhook();
    policy.fairness.enable_round_robin = false;
    assert_eq!(policy.check(), Err(BadPolicy::GatesNeedTurns));
}

#[test]
fn jobs_pass_only_the_gates_of_their_lane() {
    let mut policy = LanePolicy { throttle: LanePolicy::mail().throttle, ..LanePolicy::webhook() };
    let pass = |policy: &mut LanePolicy, breaker_scope, throttle_scope| {
        let (breaker, scope) = policy.breaker.as_mut().unwrap();
        (breaker.when_open, *scope) = (WhenOpen::Pass, breaker_scope);
        policy.throttle.as_mut().unwrap().scope = throttle_scope;
        policy.check()
    };
    assert_eq!(pass(&mut policy, Scope::Lane, Scope::Lane), Ok(()));
    assert_eq!(pass(&mut policy, Scope::Tenant, Scope::Lane), Err(BadPolicy::PassNeedsLane));
    assert_eq!(pass(&mut policy, Scope::Lane, Scope::Tenant), Err(BadPolicy::PassNeedsLane));
}

#[test]
fn a_cadence_stays_within_bounds_that_make_sense() {
    let checked = |change: fn(&mut CadencePolicy)| {
        let mut policy = LanePolicy::proxy();
        policy.cadence.iter_mut().for_each(change);
        policy.check()
    };
    assert_eq!(checked(|_| {}), Ok(()));
    assert_eq!(checked(|cadence| cadence.min = seconds(2)), Err(BadPolicy::CadenceBounds));
    assert_eq!(checked(|cadence| cadence.min = Duration::ZERO), Err(BadPolicy::CadenceBounds));
    assert_eq!(checked(|cadence| cadence.max = Duration::from_millis(999)), Err(BadPolicy::CadenceBounds));
    assert_eq!(checked(|cadence| cadence.penalty = 0.5), Err(BadPolicy::CadencePenalty));
    assert_eq!(checked(|cadence| cadence.penalty = f64::NAN), Err(BadPolicy::CadencePenalty));
    assert!(matches!(checked(|cadence| cadence.initial = Duration::ZERO), Err(BadPolicy::OutOfRange { .. })));
    assert!(matches!(checked(|cadence| cadence.max = seconds(86_401)), Err(BadPolicy::OutOfRange { .. })));
}

#[test]
fn waiting_makes_a_tenant_more_urgent() {
    let fairness = Fairness::default();
    for (rounds, priority) in [(0, 5), (1, 4), (3, 2), (4, 1), (1000, 1), (u64::MAX, 1)] {
        assert_eq!(fairness.priority(rounds), priority, "{rounds} rounds");
    }
}

#[test]
fn the_webhook_attempts_span_a_day_and_more() {
    let policy = LanePolicy::webhook();
    let total: Duration = (1..policy.retry.attempts).map(|attempt| policy.retry.backoff.delay(attempt, 0.5)).sum();
    assert_eq!(total, Duration::from_secs(26 * 3600 + 36 * 60));
}
