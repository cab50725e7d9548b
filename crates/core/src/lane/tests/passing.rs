//! Jobs that go past an open breaker, and starts that are given back.

use super::*;
use crate::breaker::BreakerState;
use crate::cadence::CadencePolicy;

/// A paced lane whose breaker opens with the first failure, for ten seconds, and lets jobs pass meanwhile.
fn passing() -> LanePolicy {
    let breaker = BreakerPolicy { when_open: WhenOpen::Pass, ..breaker(1, 10_000, 5_000) };
    LanePolicy {
        breaker: Some((breaker, Scope::Lane)),
        cadence: Some(CadencePolicy::starting_at(Duration::from_secs(1))),
        ..policy()
    }
}

fn end(lane: &mut Lane, now: Time, job: &Claimed, lesson: Lesson) {
    assert!(lane.settle(now, job.ticket, Next::Leave, lesson, Duration::ZERO));
}

/// Claims one job that goes through the gates.
fn call(lane: &mut Lane, now: Time) -> Claimed {
    let job = lane.claim(now, 1).jobs.pop().expect("a job may start");
    assert!(!job.past_breaker);
    job
}

/// A lane whose breaker opened at `NOW`, with this many jobs of `a` waiting.
fn opened(policy: LanePolicy, jobs: u32) -> Lane {
    let mut lane = lane(policy);
    put(&mut lane, (0..=jobs).map(|number| job(number, "a", Priority::Normal)));
    let first = call(&mut lane, NOW);
    end(&mut lane, NOW, &first, Lesson::Down);
    lane
}

fn passed(claims: &Claims) -> usize {
    assert!(claims.jobs.iter().all(|job| job.past_breaker), "{claims:?}");
    claims.jobs.len()
}

fn state(lane: &Lane, now: Time) -> BreakerState {
    lane.breaker(now).unwrap().state
}

#[test]
fn an_open_breaker_lets_jobs_pass_at_once_and_no_gate_counts_them() {
    let throttle = ThrottlePolicy { max_requests: 2, per: Duration::from_secs(60), scope: Scope::Lane };
    let mut lane = opened(LanePolicy { throttle: Some(throttle), ..passing() }, 6);
    assert_eq!(lane.held_by(after(1)), None);
    assert_eq!(lane.explain(after(1), id(1)).unwrap().holds[0].gate, GateKind::Turn);
    let claims = lane.claim(after(1), 5);
    assert_eq!((passed(&claims), claims.jobs[0].attempt), (5, 1));
    assert_eq!(state(&lane, after(1)), BreakerState::Open(after(10_000)));
    let probe = call(&mut lane, after(10_000));
    assert_eq!(probe.id, id(6), "throttle and cadence know of one start only");
}

#[test]
fn an_open_breaker_that_holds_still_holds() {
    let mut policy = passing();
    policy.breaker.as_mut().unwrap().0.when_open = WhenOpen::Hold;
    let mut lane = opened(policy, 1);
    assert_eq!(lane.claim(after(1), 5).wake_at, Some(after(10_000)));
}

#[test]
fn limits_pauses_and_ends_hold_for_jobs_that_pass() {
    let mut lane = opened(LanePolicy { concurrency: 3, tenant_concurrency: 2, ..passing() }, 4);
    put(&mut lane, [Waiting { expires: after(1), ..job(10, "b", Priority::High) }]);
    put(&mut lane, (11..15).map(|number| job(number, "b", Priority::Low)));
    lane.pause();
    assert!(lane.claim(after(1), 9).jobs.is_empty());
    lane.resume();
    let claims = lane.claim(after(1), 9);
    assert_eq!((passed(&claims), claims.expired.len()), (3, 1));
    assert_eq!(ids(&claims), [id(1), id(2), id(11)], "two of one tenant, three in all");
}

#[test]
fn once_the_window_is_over_one_probe_waits_for_its_tick_and_the_others_pass_meanwhile() {
    let slow = LanePolicy { cadence: Some(CadencePolicy::starting_at(Duration::from_secs(12))), ..passing() };
    let mut paced = opened(slow, 2);
    let held = paced.claim(after(10_000), 9);
    assert_eq!((held.jobs.len(), held.wake_at), (0, Some(after(12_000))), "nobody passes any more");

    let mut lane = opened(passing(), 6);
    let probe = call(&mut lane, after(10_000));
    assert_eq!(passed(&lane.claim(after(10_001), 2)), 2);
    end(&mut lane, after(10_002), &probe, Lesson::Down);
    assert_eq!(passed(&lane.claim(after(10_003), 2)), 2);
    let figures = lane.breaker(after(10_003)).unwrap();
    assert_eq!((figures.opened, figures.half_opened, figures.closed), (2, 1, 0));
}

#[test]
fn while_it_comes_back_gently_the_rest_passes_and_does_not_count_as_calls() {
    let mut lane = opened(LanePolicy { cadence: None, ..passing() }, 8);
    let probe = call(&mut lane, after(10_000));
    assert_eq!(passed(&lane.claim(after(10_001), 2)), 2);
    end(&mut lane, after(10_002), &probe, Lesson::Up);
    let claims = lane.claim(after(10_003), 3);
    assert_eq!(claims.jobs.iter().map(|job| job.past_breaker).collect::<Vec<_>>(), [false, true, true]);
    end(&mut lane, after(10_004), &claims.jobs[0], Lesson::Up);
    let claims = lane.claim(after(10_005), 9);
    assert_eq!(claims.jobs.iter().map(|job| job.past_breaker).collect::<Vec<_>>(), [false, false]);
    assert_eq!(lane.breaker(after(10_005)).unwrap().closed, 1);
}

#[test]
fn from_what_went_past_the_gates_learn_nothing_whatever_it_says() {
    let mut lane = opened(passing(), 6);
    let claims = lane.claim(after(1), 4);
    let probe = call(&mut lane, after(10_000));
    let before = (lane.breaker(after(10_001)), lane.cadence());
    let lessons = [Lesson::Apart, Lesson::Up, Lesson::Nothing, Lesson::Slower(Some(Duration::from_secs(60)))];
    for (job, lesson) in claims.jobs.iter().zip(lessons) {
        assert!(lane.settle(after(10_001), job.ticket, Next::Leave, lesson, Duration::from_secs(60)));
        assert_eq!((lane.breaker(after(10_001)), lane.cadence()), before, "{lesson:?}");
    }
    assert_eq!(passed(&lane.claim(after(10_001), 1)), 1, "the probe is still under way");
    end(&mut lane, after(10_002), &probe, Lesson::Up);
    put(&mut lane, [job(20, "a", Priority::Normal)]);
    assert_eq!(lane.claim(after(10_003), 1).wake_at, Some(after(11_000)), "the next start is a tick after the probe");
}

#[test]
fn from_an_attempt_apart_the_gates_learn_nothing_although_it_came_through() {
    let mut lane = opened(passing(), 3);
    let probe = call(&mut lane, after(10_000));
    let before = (lane.breaker(after(10_001)), lane.cadence());
    assert!(lane.settle(after(10_001), probe.ticket, Next::Leave, Lesson::Apart, Duration::from_secs(60)));
    assert_eq!((lane.breaker(after(10_001)), lane.cadence()), before);
    assert_eq!(passed(&lane.claim(after(10_002), 1)), 1, "a probe counts as under way until its time is over");
    call(&mut lane, after(15_000));
}

#[test]
fn a_retry_of_what_went_past_goes_through_when_it_may() {
    let mut lane = opened(passing(), 1);
    let first = lane.claim(after(1), 1).jobs.remove(0);
    assert!(first.past_breaker);
    assert!(lane.settle(after(2), first.ticket, Next::RetryAt(after(10_000)), Lesson::Apart, Duration::ZERO));
    let again = call(&mut lane, after(10_000));
    assert_eq!((again.id, again.attempt), (id(1), 2));
}

#[test]
fn an_unused_start_gives_its_tick_back_unless_another_was_taken_since() {
    let cadence = Some(CadencePolicy::starting_at(Duration::from_secs(1)));
    let mut lane = lane(LanePolicy { cadence, ..policy() });
    put(&mut lane, (0..6).map(|number| job(number, "a", Priority::Normal)));
    let first = call(&mut lane, NOW);
    end(&mut lane, after(5), &first, Lesson::Unused);
    let second = call(&mut lane, after(5));
    let third = call(&mut lane, after(1_005));
    end(&mut lane, after(1_006), &second, Lesson::Unused);
    assert_eq!(lane.claim(after(1_006), 1).wake_at, Some(after(2_005)), "the third started since");
    end(&mut lane, after(1_007), &third, Lesson::Unused);
    let fourth = call(&mut lane, after(1_007));
    assert_eq!(lane.cadence().unwrap().interval, Duration::from_secs(1), "nothing was learned");
    end(&mut lane, after(1_008), &fourth, Lesson::Slower(None));
    assert_eq!(lane.cadence().unwrap().penalties, 1);
}

#[test]
fn an_unused_start_counts_neither_at_the_lanes_throttle_nor_at_the_tenants() {
    for scope in [Scope::Lane, Scope::Tenant] {
        let throttle = ThrottlePolicy { max_requests: 1, per: Duration::from_secs(60), scope };
        let mut lane = lane(LanePolicy { throttle: Some(throttle), ..policy() });
        put(&mut lane, (0..3).map(|number| job(number, "a", Priority::Normal)));
        let first = call(&mut lane, NOW);
        assert!(lane.claim(after(1), 1).jobs.is_empty(), "{scope:?}");
        end(&mut lane, after(2), &first, Lesson::Unused);
        let second = call(&mut lane, after(3));
        end(&mut lane, after(4), &second, Lesson::Up);
        assert_eq!(lane.claim(after(5), 1).wake_at, Some(after(60_003)), "{scope:?}");
    }
}

#[test]
fn an_unused_probe_is_given_up_and_another_job_probes_at_once() {
    let mut lane = opened(LanePolicy { cadence: None, ..passing() }, 4);
    let straggler = lane.claim(after(1), 1).jobs.remove(0);
    let probe = call(&mut lane, after(10_000));
    end(&mut lane, after(10_001), &straggler, Lesson::Unused);
    assert_eq!(passed(&lane.claim(after(10_001), 1)), 1, "the probe is still under way");
    end(&mut lane, after(10_002), &probe, Lesson::Unused);
    let second = call(&mut lane, after(10_002));
    end(&mut lane, after(10_003), &second, Lesson::Up);
    let figures = lane.breaker(after(10_003)).unwrap();
    assert_eq!((figures.state, figures.half_opened, figures.closed), (BreakerState::Closed, 2, 1));
}
