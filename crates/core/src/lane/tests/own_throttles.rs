//! Throttles of one tenant's own.

use super::*;

const SLOW: Rate = Rate { max_requests: 1, per_ms: 60_000 };

fn jobs_of(whose: &str, numbers: std::ops::Range<u32>) -> impl Iterator<Item = Waiting> {
    numbers.map(move |number| job(number, whose, Priority::Normal))
}

/// `a` is slow and has three jobs, `b` has three.
fn throttled(policy: LanePolicy) -> Lane {
    let mut lane = lane(policy);
    lane.set_throttle(&tenant("a"), Some(SLOW));
    put(&mut lane, jobs_of("a", 0..3));
    put(&mut lane, jobs_of("b", 10..13));
    lane
}

#[test]
fn a_tenant_with_a_throttle_leaves_the_turns_until_its_next_start_and_costs_nobody_anything() {
    let mut lane = throttled(policy());
    let claims = lane.claim(NOW, 10);
    assert_eq!((ids(&claims), claims.wake_at), (vec![id(0), id(10), id(11), id(12)], Some(after(60_000))));
    let held = [Hold { gate: GateKind::Throttle, until: Some(after(60_000)) }];
    assert_eq!(lane.explain(after(1), id(1)).unwrap().holds, held);
    settle_ok(&mut lane, after(1), &claims.jobs[0]);
    assert!(lane.claim(after(59_999), 10).jobs.is_empty());
    assert_eq!(ids(&lane.claim(after(60_000), 10)), [id(1)]);
}

#[test]
fn a_throttle_that_is_relaxed_or_taken_away_lets_its_tenant_go_at_once() {
    for rate in [Some(Rate { max_requests: 2, per_ms: 60_000 }), Some(Rate { max_requests: 1, per_ms: 1 }), None] {
        let mut lane = throttled(policy());
        lane.claim(NOW, 10);
        lane.set_throttle(&tenant("a"), rate);
        assert_eq!(lane.claim(after(1), 10).jobs.first().map(|job| job.id), Some(id(1)), "{rate:?}");
    }
    let mut lane = throttled(policy());
    lane.claim(NOW, 10);
    lane.set_throttle(&tenant("a"), Some(SLOW));
    assert_eq!(lane.claim(after(1), 10).wake_at, Some(after(60_000)), "the same again changes nothing");
}

#[test]
fn a_throttle_made_stricter_counts_the_starts_there_were() {
    let mut lane = lane(policy());
    lane.set_throttle(&tenant("a"), Some(Rate { max_requests: 3, per_ms: 60_000 }));
    put(&mut lane, jobs_of("a", 0..5));
    assert_eq!(lane.claim(NOW, 2).jobs.len(), 2);
    lane.set_throttle(&tenant("a"), Some(Rate { max_requests: 2, per_ms: 10_000 }));
    assert_eq!(lane.claim(after(1), 9).wake_at, Some(after(10_000)));
}

#[test]
fn of_two_throttles_both_hold() {
    let throttle = ThrottlePolicy { max_requests: 1, per: Duration::from_secs(90), scope: Scope::Tenant };
    let mut lane = throttled(LanePolicy { throttle: Some(throttle), ..policy() });
    assert_eq!(ids(&lane.claim(NOW, 10)), [id(0), id(10)]);
    let held = lane.claim(after(60_000), 10);
    assert_eq!((held.jobs.len(), held.wake_at), (0, Some(after(90_000))), "the lane's is longer");
    lane.set_throttle(&tenant("a"), Some(Rate { max_requests: 1, per_ms: 120_000 }));
    assert_eq!(ids(&lane.claim(after(90_000), 10)), [id(11)], "the tenant's is longer");
}

#[test]
fn an_unused_start_is_given_back_to_a_tenants_own_throttle() {
    let mut lane = throttled(policy());
    let first = lane.claim(NOW, 1).jobs.remove(0);
    assert!(lane.settle(after(1), first.ticket, Next::Leave, Lesson::Unused, Duration::ZERO));
    assert!(ids(&lane.claim(after(2), 10)).contains(&id(1)));
}

/// One queue for all cannot hold back one tenant; holding back all would be worse.
#[test]
fn without_turns_a_tenants_own_throttle_holds_nobody() {
    let mut policy = policy();
    policy.fairness.enable_round_robin = false;
    assert_eq!(throttled(policy).claim(NOW, 10).jobs.len(), 6);
}

#[test]
fn after_an_orderly_stop_a_tenants_own_throttle_goes_on_and_after_a_crash_it_is_spent() {
    let rate = Rate { max_requests: 2, per_ms: 60_000 };
    let started = |rate: Rate| {
        let mut lane = lane(policy());
        lane.set_throttle(&tenant("a"), Some(rate));
        put(&mut lane, jobs_of("a", 0..4));
        lane
    };
    let mut stopped = started(rate);
    assert_eq!(stopped.claim(NOW, 1).jobs.len(), 1);
    let starts = stopped.starts(after(1_000)).unwrap();
    let claim = |mut lane: Lane| {
        let claims = lane.claim(after(1_000), 9);
        (claims.jobs.len(), claims.wake_at)
    };

    let mut resumed = started(rate);
    assert!(resumed.resume_with(after(1_000), &starts));
    assert_eq!(claim(resumed), (1, Some(after(60_000))), "one is left");
    let mut crashed = started(rate);
    crashed.assume_spent(after(1_000));
    let starts = crashed.starts(after(1_000)).unwrap();
    assert_eq!(claim(crashed), (0, Some(after(61_000))));
    let mut resumed = started(rate);
    assert!(resumed.resume_with(after(1_000), &starts));
    assert_eq!(claim(resumed), (0, Some(after(61_000))), "what the crash hid stays hidden");
    let mut longer = started(Rate { per_ms: 70_000, ..rate });
    assert!(longer.resume_with(after(1_000), &stopped.starts(after(1_000)).unwrap()));
    assert_eq!(claim(longer), (0, Some(after(71_000))), "older starts would count");
}
