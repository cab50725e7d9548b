//! The promises of the lane machine, one by one and under random histories.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::breaker::BreakerPolicy;
use crate::policy::ThrottlePolicy;

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
    }
}

pub(super) fn policy() -> LanePolicy {
    LanePolicy { concurrency: 1000, tenant_concurrency: 1000, ..LanePolicy::http() }
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
    let breaker = BreakerPolicy { failures: 2, open: Duration::from_secs(30), probe_timeout: Duration::from_secs(10) };
    let mut lane = lane(LanePolicy { breaker: Some((breaker, Scope::Lane)), ..policy() });
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

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Admit { tenant: u8, priority: u8, delay_ms: u64, ttl_ms: u64 },
    Publish,
    Claim(usize),
    Settle { which: usize, retry_ms: Option<u64>, lesson: u8 },
    Cancel(usize),
    Pause,
    Resume,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..5, 0u8..3, prop_oneof![Just(0), 0u64..500], 200u64..5000)
            .prop_map(|(tenant, priority, delay_ms, ttl_ms)| Step::Admit { tenant, priority, delay_ms, ttl_ms }),
        3 => Just(Step::Publish),
        4 => (1usize..6).prop_map(Step::Claim),
        4 => (any::<usize>(), prop::option::of(0u64..800), 0u8..4).prop_map(|(which, retry_ms, lesson)| Step::Settle { which, retry_ms, lesson }),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        2 => (1u64..400).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..250)
}

fn gated_policy() -> LanePolicy {
    LanePolicy {
        capacity: 20,
        concurrency: 6,
        tenant_concurrency: 3,
        on_full: OnFull::Preempt,
        throttle: Some(ThrottlePolicy { max_requests: 3, per: Duration::from_millis(100), scope: Scope::Tenant }),
        breaker: Some((
            BreakerPolicy { failures: 3, open: Duration::from_millis(300), probe_timeout: Duration::from_millis(500) },
            Scope::Tenant,
        )),
        ..LanePolicy::http()
    }
}

/// What an observer knows of the lane: every job in exactly one of these places.
#[derive(Default)]
struct Observed {
    waiting: BTreeSet<JobId>,
    running: BTreeMap<JobId, Claimed>,
    left: BTreeSet<JobId>,
    starts: BTreeMap<TenantName, Vec<Time>>,
    made: u32,
}

impl Observed {
    fn leaves(&mut self, left: Left) {
        assert!(self.waiting.remove(&left.id), "{} left without waiting", left.id);
        assert!(left.state.may_become(JobState::Dropped), "{:?} may not be dropped", left.state);
        assert!(self.left.insert(left.id), "{} left twice", left.id);
    }

    fn claims(&mut self, now: Time, claims: Claims) {
        for job in claims.jobs {
            assert!(self.waiting.remove(&job.id), "{} claimed without waiting", job.id);
            self.starts.entry(job.tenant.clone()).or_default().push(now);
            assert!(self.running.insert(job.id, job).is_none());
        }
        for left in claims.expired {
            self.leaves(left);
        }
    }

    fn step(&mut self, lane: &mut Lane, now: Time, step: Step) {
        match step {
            Step::Admit { tenant: whose, priority, delay_ms, ttl_ms } => {
                self.made += 1;
                let due = now + Duration::from_millis(delay_ms);
                let priority = Priority::ALL[priority as usize];
                let new = Waiting {
                    due,
                    expires: now + Duration::from_millis(ttl_ms),
                    ..job(self.made, &format!("t{whose}"), priority)
                };
                match lane.admit(&new) {
                    Admission::Admitted => assert!(self.waiting.insert(new.id)),
                    Admission::Preempted(left) => {
                        assert!(left.priority > new.priority);
                        self.leaves(left);
                        assert!(self.waiting.insert(new.id));
                    }
                    Admission::Full => assert!(lane.sizes().waiting() >= 20, "refused with room left"),
                    Admission::Duplicate => panic!("{} is new", new.id),
                }
            }
            Step::Publish => lane.publish(now),
            Step::Claim(max) => {
                let claims = lane.claim(now, max);
                self.claims(now, claims);
            }
            Step::Settle { which, retry_ms, lesson } => self.settle(lane, now, which, retry_ms, lesson),
            Step::Cancel(which) if !self.waiting.is_empty() => {
                let id = *self.waiting.iter().nth(which % self.waiting.len()).unwrap();
                self.leaves(lane.remove(id).unwrap());
            }
            Step::Pause => lane.pause(),
            Step::Resume => lane.resume(),
            Step::Cancel(_) | Step::Wait(_) => {}
        }
        assert_eq!(lane.sizes().waiting() as usize, self.waiting.len());
        assert_eq!(lane.sizes().running() as usize, self.running.len());
    }

    fn settle(&mut self, lane: &mut Lane, now: Time, which: usize, retry_ms: Option<u64>, lesson: u8) {
        if self.running.is_empty() {
            return;
        }
        let id = *self.running.keys().nth(which % self.running.len()).unwrap();
        let job = self.running.remove(&id).unwrap();
        let lesson = [Lesson::Up, Lesson::Down, Lesson::Slower(None), Lesson::Nothing][lesson as usize];
        let next = retry_ms.map_or(Next::Leave, |ms| Next::RetryAt(now + Duration::from_millis(ms)));
        assert!(lane.settle(now, job.ticket, next, lesson, Duration::ZERO));
        match next {
            Next::Leave => assert!(self.left.insert(id)),
            Next::RetryAt(_) => assert!(self.waiting.insert(id)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, no job is lost or doubled, and everything comes out once the gates are open.
    #[test]
    fn no_job_is_lost_or_doubled(steps in steps()) {
        let mut lane = lane(gated_policy());
        let mut observed = Observed::default();
        let mut now = NOW;
        for step in steps {
            if let Step::Wait(ms) = step {
                now = now + Duration::from_millis(ms);
            }
            observed.step(&mut lane, now, step);
        }
        lane.resume();
        lane.publish(now);
        for _ in 0..10_000 {
            if observed.waiting.is_empty() && observed.running.is_empty() {
                break;
            }
            while !observed.running.is_empty() {
                observed.settle(&mut lane, now, 0, None, 0);
            }
            let claims = lane.claim(now, 100);
            let wake_at = claims.wake_at;
            let is_idle = claims.jobs.is_empty();
            observed.claims(now, claims);
            if is_idle && !observed.waiting.is_empty() {
                let wake_at = wake_at.expect("waiting jobs, all gates open, yet nobody says when to come back");
                now = now.max(wake_at);
            }
        }
        prop_assert!(observed.waiting.is_empty() && observed.running.is_empty(), "stuck: {:?}", observed.waiting);
        for starts in observed.starts.values() {
            for (index, &first) in starts.iter().enumerate() {
                let within = starts[index..].iter().take_while(|&&start| start < first + Duration::from_millis(100)).count();
                prop_assert!(within <= 3, "{within} starts within the window");
            }
        }
    }

    /// A tenant with a ready job waits at most one quantum of each other tenant.
    #[test]
    fn nobody_starves(backlogs in prop::collection::vec(1u32..60, 2..12)) {
        let mut lane = lane(policy());
        let mut number = 0;
        for (index, &count) in backlogs.iter().enumerate() {
            put(&mut lane, (number..number + count).map(|n| job(n, &format!("t{index}"), Priority::Normal)));
            number += count;
        }
        let order: Vec<_> = lane.claim(NOW, number as usize).jobs.into_iter().map(|job| job.tenant).collect();
        prop_assert_eq!(order.len(), number as usize);
        let bound = 3 * (backlogs.len() - 1);
        for (index, &count) in backlogs.iter().enumerate() {
            let whose = tenant(&format!("t{index}"));
            let turns: Vec<_> = order.iter().enumerate().filter(|(_, name)| **name == whose).map(|(at, _)| at).collect();
            prop_assert_eq!(turns.len(), count as usize);
            prop_assert!(turns[0] <= bound, "first served {}th", turns[0]);
            for pair in turns.windows(2) {
                prop_assert!(pair[1] - pair[0] - 1 <= bound, "waited {} turns", pair[1] - pair[0] - 1);
            }
        }
    }
}
