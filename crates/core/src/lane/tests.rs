//! The promises of the lane machine, one by one; under random histories in `histories`, those of jobs that go past the
//! gates or give their start back in `passing`, those of a tenant's own throttle in `own_throttles`, those of slow
//! attempts in `slow`, those of priorities in `urgent`, those of quotas in `quotas`.

mod histories;
mod idle;
mod own_throttles;
mod passing;
mod quotas;
mod slow;
mod urgent;

use std::time::Duration;

use super::*;
use crate::breaker::{BreakerPolicy, WhenOpen};
use crate::policy::{Destinations, Fairness, OnFull, ThrottlePolicy};
use crate::quota::{Quota, Quotas};

pub(super) const NOW: Time = Time::from_millis(1_000_000);

pub(super) fn after(ms: u64) -> Time {
    NOW + Duration::from_millis(ms)
}

fn id(number: u32) -> JobId {
    JobId::from_parts(NOW, number.into())
}

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

pub(super) fn job(number: u32, whose: &str, priority: Priority) -> Waiting {
    Waiting {
        id: id(number),
        tenant: tenant(whose),
        priority,
        due: NOW,
        expires: Time::NEVER,
        attempt: 0,
        generation: 0,
        bytes: 100,
    }
}

pub(super) fn policy() -> LanePolicy {
    LanePolicy { concurrency: 1000, tenant_concurrency: 1000, destinations: Destinations::One, ..LanePolicy::http() }
}

pub(super) fn breaker(failures: u32, open_ms: u64, probe_ms: u64) -> BreakerPolicy {
    let [open, probe_timeout] = [open_ms, probe_ms].map(Duration::from_millis);
    BreakerPolicy { failures, open, probe_timeout, when_open: WhenOpen::Hold }
}

pub(super) fn lane(policy: LanePolicy) -> Lane {
    policy.check().unwrap();
    Lane::new(Arc::new(policy))
}

pub(super) fn put(lane: &mut Lane, jobs: impl IntoIterator<Item = Waiting>) {
    for job in jobs {
        assert_eq!(lane.admit(&job), Admission::Admitted);
    }
    lane.publish(NOW);
}

fn ids(claims: &Claims) -> Vec<JobId> {
    claims.jobs.iter().map(|job| job.id).collect()
}

/// A claim looks at a bounded number of expired jobs; whoever claimed slept although a job behind them could go.
#[test]
fn a_claim_that_met_many_expired_jobs_asks_to_be_called_again() {
    let mut lane = lane(policy());
    let count = MOVES_PER_CLAIM_MAX as u32;
    put(&mut lane, (0..count).map(|number| Waiting { expires: after(1), ..job(number, "a", Priority::Normal) }));
    put(&mut lane, [job(count, "a", Priority::Normal)]);
    let first = lane.claim(after(1), 10);
    assert_eq!((first.jobs.len(), first.expired.len(), first.wake_at), (0, count as usize, Some(after(1))));
    let second = lane.claim(after(1), 10);
    assert_eq!((ids(&second), second.wake_at), (vec![id(count)], None));
}

/// Whoever reads ahead what jobs carry reads what is claimed next.
#[test]
fn upcoming_jobs_are_those_that_are_claimed_next() {
    let mut lane = lane(policy());
    lane.set_weight(&tenant("b"), 2);
    put(&mut lane, (0..20).map(|number| job(number, "a", Priority::Normal)));
    put(&mut lane, (20..40).map(|number| job(number, "b", Priority::Normal)));
    put(&mut lane, (40..43).map(|number| job(number, "c", Priority::High)));
    put(&mut lane, [Waiting { attempt: 1, ..job(43, "c", Priority::High) }]);
    let upcoming = lane.upcoming(24);
    assert_eq!(lane.upcoming(24), upcoming, "a look changes nothing");
    let claimed: Vec<JobId> =
        lane.claim(NOW, 24).jobs.iter().filter(|job| job.attempt == 1).map(|job| job.id).collect();
    assert_eq!(upcoming, claimed);
    assert_eq!(lane.upcoming(1000).len(), 20, "all that are left");
    assert!(lane.is_waiting(id(39)) && !lane.is_waiting(id(0)) && !lane.is_waiting(id(99)));
}

fn settle_ok(lane: &mut Lane, now: Time, job: &Claimed) {
    assert!(lane.settle(now, job.ticket, Next::Leave, Lesson::Up, Duration::ZERO));
}

#[test]
fn a_staged_job_is_not_claimed_before_it_is_published() {
    let mut lane = lane(policy());
    lane.admit(&job(1, "a", Priority::Normal));
    assert!(lane.claim(NOW, 10).jobs.is_empty());
    lane.publish(NOW);
    assert_eq!(ids(&lane.claim(NOW, 10)), [id(1)]);
}

/// It tripped an assertion, and with it the thread that writes the store.
#[test]
fn an_id_that_is_in_the_lane_is_not_let_in_again() {
    let mut lane = lane(LanePolicy { capacity: 2, on_full: OnFull::Preempt, ..policy() });
    lane.admit(&job(1, "a", Priority::Low));
    assert_eq!(lane.admit(&job(1, "a", Priority::High)), Admission::Duplicate, "staged");
    put(&mut lane, [job(2, "a", Priority::Low)]);
    assert_eq!(lane.admit(&job(1, "b", Priority::High)), Admission::Duplicate, "waiting, and nobody is pushed out");
    let claimed = lane.claim(NOW, 10).jobs;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), [id(1), id(2)]);
    assert_eq!(lane.admit(&job(1, "a", Priority::High)), Admission::Duplicate, "running");
    settle_ok(&mut lane, NOW, &claimed[0]);
    assert_eq!(lane.admit(&job(1, "a", Priority::High)), Admission::Admitted, "its id is free again");
}

#[test]
fn high_goes_before_normal_before_low_each_first_in_first_out() {
    let mut lane = lane(policy());
    let order = [
        (1, Priority::Low),
        (2, Priority::Low),
        (3, Priority::Normal),
        (4, Priority::Normal),
        (5, Priority::High),
        (6, Priority::High),
    ];
    put(&mut lane, order.map(|(number, priority)| job(number, "a", priority)));
    assert_eq!(ids(&lane.claim(NOW, 10)), [5, 6, 3, 4, 1, 2].map(id));
}

#[test]
fn tenants_take_turns_of_three_times_their_weight() {
    let mut lane = lane(policy());
    put(&mut lane, (0..12).map(|n| job(n, "a", Priority::Normal)));
    put(&mut lane, (20..32).map(|n| job(n, "b", Priority::Normal)));
    lane.set_weight(&tenant("b"), 2);
    let order: String = lane.claim(NOW, 100).jobs.iter().map(|job| job.tenant.to_string()).collect();
    assert_eq!(order, "aaabbbbbbaaabbbbbbaaaaaa");
}

#[test]
fn a_late_small_tenant_does_not_wait_for_a_big_one() {
    let mut lane = lane(policy());
    put(&mut lane, (0..10_000).map(|n| job(n, "big", Priority::Normal)));
    put(&mut lane, (10_000..10_010).map(|n| job(n, "small", Priority::Normal)));
    let mut order = Vec::new();
    while let Some(claimed) = lane.claim(NOW, 1).jobs.pop() {
        settle_ok(&mut lane, NOW, &claimed);
        order.push(claimed.tenant);
    }
    let last = order.iter().rposition(|name| name.as_str() == "small").unwrap();
    assert!(last < 30, "the small tenant's last job came {last}th");
}

#[test]
fn figures_follow_the_turns() {
    let mut lane = lane(policy());
    for whose in ["a", "b", "c", "d", "e"] {
        let first = whose.as_bytes()[0] as u32 * 100;
        put(&mut lane, (first..first + 6).map(|n| job(n, whose, Priority::Normal)));
    }
    lane.claim(NOW, 12);
    let priorities = ["a", "b", "c", "d", "e"].map(|whose| lane.tenant(&tenant(whose)).unwrap().current_priority);
    assert_eq!(priorities, [2, 3, 4, 5, 1], "a was served three turns ago, d just now, e never");
    let d = lane.tenant(&tenant("d")).unwrap();
    assert_eq!((d.total_processed, d.consecutive_batch_count, d.last_processed_at), (3, 3, Some(NOW)));
}

#[test]
fn preemption_pushes_out_the_newest_of_the_least_urgent() {
    let mut lane = lane(LanePolicy { capacity: 4, ..LanePolicy::proxy() });
    put(
        &mut lane,
        [
            job(1, "a", Priority::Low),
            job(2, "a", Priority::Normal),
            job(3, "b", Priority::Low),
            job(4, "b", Priority::Normal),
        ],
    );
    let victim = |admission: Admission| match admission {
        Admission::Preempted(left) => Some(left.id),
        _ => None,
    };
    assert_eq!(lane.admit(&job(5, "a", Priority::Low)), Admission::Full);
    assert_eq!(victim(lane.admit(&job(6, "c", Priority::High))), Some(id(3)));
    assert_eq!(victim(lane.admit(&job(7, "c", Priority::Normal))), Some(id(1)));
    assert_eq!(lane.admit(&job(8, "c", Priority::Normal)), Admission::Full, "a normal never pushes out a normal");
    assert_eq!(victim(lane.admit(&job(9, "c", Priority::High))), Some(id(7)), "a staged job can be pushed out too");
    lane.publish(NOW);
    assert_eq!(lane.sizes().waiting(), 4);
    assert_eq!(ids(&lane.claim(NOW, 10)), [id(6)], "one at a time");
}

#[test]
fn a_lane_that_refuses_keeps_what_it_accepted() {
    let mut lane = lane(LanePolicy { capacity: 1, ..policy() });
    put(&mut lane, [job(1, "a", Priority::Low)]);
    assert_eq!(lane.admit(&job(2, "a", Priority::High)), Admission::Full);
}

#[test]
fn delays_and_expiry_hold_to_the_moment() {
    let mut lane = lane(policy());
    put(&mut lane, [Waiting { due: after(50), expires: after(60), ..job(1, "a", Priority::Normal) }]);
    let early = lane.claim(after(49), 10);
    assert_eq!((early.jobs.len(), early.wake_at), (0, Some(after(50))));
    assert_eq!(lane.explain(NOW, id(1)).unwrap().state, JobState::Idle);
    let late = lane.claim(after(60), 10);
    assert_eq!((late.jobs.len(), late.expired.len()), (0, 1));
    assert_eq!(lane.sizes().waiting(), 0);
}

#[test]
fn a_paused_lane_starts_nothing_and_says_so() {
    let mut lane = lane(policy());
    put(&mut lane, [job(1, "a", Priority::Normal)]);
    lane.pause();
    let claims = lane.claim(NOW, 10);
    assert_eq!((claims.jobs.len(), claims.wake_at), (0, None));
    let why = lane.explain(NOW, id(1)).unwrap();
    assert_eq!((why.state, why.holds[0].gate), (JobState::Idle, GateKind::Paused));
    assert_eq!(lane.sizes().in_state(JobState::Idle), 1);
    lane.resume();
    assert_eq!(lane.claim(NOW, 10).jobs.len(), 1);
    assert_eq!(lane.explain(NOW, id(1)).unwrap().holds, []);
}

#[test]
fn a_tenant_at_its_limit_steps_aside_and_comes_back() {
    let mut lane = lane(LanePolicy { tenant_concurrency: 2, ..policy() });
    put(&mut lane, (0..5).map(|n| job(n, "a", Priority::Normal)));
    put(&mut lane, [job(10, "b", Priority::Normal)]);
    let first = lane.claim(NOW, 10);
    assert_eq!(ids(&first), [id(0), id(1), id(10)]);
    assert_eq!(lane.explain(NOW, id(2)).unwrap().holds[0].gate, GateKind::TenantConcurrency);
    settle_ok(&mut lane, NOW, &first.jobs[0]);
    assert_eq!(ids(&lane.claim(NOW, 10)), [id(2)]);
}

#[test]
fn a_throttled_tenant_costs_others_nothing() {
    let throttle = ThrottlePolicy { max_requests: 1, per: Duration::from_secs(1), scope: Scope::Tenant };
    let mut lane = lane(LanePolicy { throttle: Some(throttle), ..policy() });
    put(&mut lane, (0..3).map(|n| job(n, "a", Priority::Normal)));
    put(&mut lane, [job(10, "b", Priority::Low)]);
    let claims = lane.claim(NOW, 10);
    assert_eq!((ids(&claims), claims.wake_at), (vec![id(0), id(10)], Some(after(1000))));
    assert_eq!(lane.explain(NOW, id(1)).unwrap().holds, [Hold { gate: GateKind::Throttle, until: Some(after(1000)) }]);
    assert_eq!(ids(&lane.claim(after(1000), 10)), [id(1)]);
}

#[test]
fn an_open_breaker_holds_without_using_up_attempts() {
    let mut lane = lane(LanePolicy { breaker: Some((breaker(2, 30_000, 10_000), Scope::Lane)), ..policy() });
    put(&mut lane, (0..4).map(|n| job(n, "a", Priority::Normal)));
    for claimed in lane.claim(NOW, 2).jobs {
        lane.settle(NOW, claimed.ticket, Next::RetryAt(after(1)), Lesson::Down, Duration::ZERO);
    }
    let held = lane.claim(after(29_999), 10);
    assert_eq!((held.jobs.len(), held.wake_at), (0, Some(after(30_000))));
    let probe = lane.claim(after(30_000), 10);
    assert_eq!(probe.jobs.len(), 1, "one probe");
    settle_ok(&mut lane, after(30_001), &probe.jobs[0]);
    assert_eq!(lane.claim(after(30_001), 10).jobs.len(), 1, "it comes back gently");
    assert_eq!(lane.sizes().in_state(JobState::RetryWait) + lane.sizes().running(), 3);
}

#[test]
fn a_429_makes_the_gate_patient_for_as_long_as_asked() {
    let throttle = ThrottlePolicy { max_requests: 100, per: Duration::from_secs(1), scope: Scope::Lane };
    let mut lane = lane(LanePolicy { throttle: Some(throttle), ..policy() });
    put(&mut lane, (0..2).map(|n| job(n, "a", Priority::Normal)));
    let claimed = lane.claim(NOW, 1).jobs.remove(0);
    lane.settle(NOW, claimed.ticket, Next::Leave, Lesson::Slower(Some(Duration::from_secs(2))), Duration::ZERO);
    let held = lane.claim(NOW, 1);
    assert_eq!((held.jobs.len(), held.wake_at), (0, Some(after(2000))));
}

#[test]
fn an_old_ticket_changes_nothing() {
    let mut lane = lane(policy());
    put(&mut lane, [job(1, "a", Priority::Normal)]);
    let claimed = lane.claim(NOW, 1).jobs.remove(0);
    settle_ok(&mut lane, NOW, &claimed);
    assert!(!lane.settle(NOW, claimed.ticket, Next::Leave, Lesson::Up, Duration::ZERO));
    put(&mut lane, [job(2, "a", Priority::Normal)]);
    assert!(!lane.settle(NOW, claimed.ticket, Next::Leave, Lesson::Up, Duration::ZERO));
    assert_eq!(lane.remove(id(1)), Err(NotRemoved::Unknown));
}

#[test]
fn after_a_restart_a_throttle_waits_one_period() {
    let throttle = ThrottlePolicy { max_requests: 5, per: Duration::from_secs(60), scope: Scope::Lane };
    let mut lane = lane(LanePolicy { throttle: Some(throttle), ..policy() });
    put(&mut lane, [job(1, "a", Priority::Normal)]);
    lane.assume_spent(NOW);
    assert_eq!(lane.claim(NOW, 1).wake_at, Some(after(60_000)));
}

#[test]
fn without_turns_it_is_first_in_first_out_over_all_tenants() {
    let mut policy = policy();
    policy.fairness.enable_round_robin = false;
    let mut lane = lane(policy);
    put(&mut lane, (0..20).map(|n| job(n, if n % 3 == 0 { "a" } else { "b" }, Priority::Normal)));
    assert_eq!(ids(&lane.claim(NOW, 100)), (0..20).map(id).collect::<Vec<_>>());
}

#[test]
fn a_start_that_is_undone_has_its_number_and_its_place_in_the_counts_again() {
    let mut lane = lane(policy());
    put(&mut lane, [job(1, "a", Priority::Normal)]);
    let before = lane.sizes();
    let claimed = lane.claim(NOW, 1).jobs.remove(0);
    assert!(lane.give_back(NOW, claimed.ticket, after(200)));
    assert!(!lane.give_back(NOW, claimed.ticket, after(200)), "it does not run any more");
    assert_eq!(lane.sizes().waiting(), before.waiting());
    assert!(lane.claim(after(199), 1).jobs.is_empty());
    let again = lane.claim(after(200), 1).jobs.remove(0);
    assert_eq!((again.id, again.attempt), (claimed.id, 1));
}

/// An attempt that was cut off when its lease ended had its start given back, and the same call was made again at once: the
/// destination saw two where its throttle allows one.
#[test]
fn an_attempt_that_is_cut_off_has_used_its_start() {
    let throttle = ThrottlePolicy { max_requests: 1, per: Duration::from_secs(1), scope: Scope::Lane };
    let mut lane = lane(LanePolicy { throttle: Some(throttle), ..policy() });
    put(&mut lane, [job(1, "a", Priority::Normal)]);
    let claimed = lane.claim(NOW, 1).jobs.remove(0);
    assert!(lane.cut_off(after(300), claimed.ticket, after(300)));
    assert!(!lane.cut_off(after(300), claimed.ticket, after(300)), "it does not run any more");
    assert!(lane.claim(after(999), 1).jobs.is_empty(), "it was called less than a second ago");
    let again = lane.claim(after(1_000), 1).jobs.remove(0);
    assert_eq!((again.id, again.attempt), (claimed.id, 1));
}

/// Claims whose starts took too long to write down were given back, and their tenants had used up their turns: with a ledger
/// that was slow for a while, one tenant's jobs went again and again while another's had their turn and never began.
#[test]
fn a_claim_that_is_given_back_leaves_turns_as_they_were() {
    let fairness = Fairness { max_jobs_per_tenant_batch: 2, ..policy().fairness };
    let ids = |claims: &Claims| claims.jobs.iter().map(|claimed| claimed.id).collect::<Vec<_>>();
    for size in 1..=7 {
        let jobs = ["a", "a", "a", "b", "b", "b", "c"].into_iter().enumerate();
        let mut lane = lane(LanePolicy { fairness: fairness.clone(), ..policy() });
        put(&mut lane, jobs.map(|(number, tenant)| job(number as u32 + 1, tenant, Priority::Normal)));
        let first = lane.claim(NOW, 1);
        let given_up = lane.claim(NOW, size);
        // Somebody who comes meanwhile changes nothing among those who were there.
        put(&mut lane, [job(9, "d", Priority::Normal)]);
        for claimed in given_up.jobs.iter().rev() {
            assert!(lane.give_back(NOW, claimed.ticket, NOW));
        }
        let mut again = ids(&lane.claim(NOW, size + 1));
        again.retain(|other| *other != id(9));
        assert_eq!(again[..given_up.jobs.len()], ids(&given_up), "{size} after {:?}", ids(&first));
    }
}

/// Whoever was alone had begun its next turn within the claim: undone, both turns were one, and went on before others.
#[test]
fn turns_that_are_undone_are_no_longer_than_they_were() {
    let fairness = Fairness { max_jobs_per_tenant_batch: 2, ..policy().fairness };
    let mut lane = lane(LanePolicy { fairness, ..policy() });
    put(&mut lane, (1..=9).map(|number| job(number, "a", Priority::Normal)));
    let given_up = lane.claim(NOW, 5);
    put(&mut lane, [job(20, "b", Priority::Normal)]);
    for claimed in given_up.jobs.iter().rev() {
        assert!(lane.give_back(NOW, claimed.ticket, NOW));
    }
    let again: Vec<JobId> = lane.claim(NOW, 3).jobs.iter().map(|claimed| claimed.id).collect();
    assert!(again.contains(&id(20)), "b waits for one turn of a: {again:?}");
}
