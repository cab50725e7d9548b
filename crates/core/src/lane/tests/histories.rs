//! The lane machine under random histories, against an observer who knows where every job is.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::cadence::CadencePolicy;

const LESSONS: [Lesson; 6] =
    [Lesson::Up, Lesson::Down, Lesson::Slower(None), Lesson::Nothing, Lesson::Apart, Lesson::Unused];

/// In which a throttle here allows three starts.
const WINDOW: Duration = Duration::from_millis(100);

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Admit {
        tenant: u8,
        priority: u8,
        delay_ms: u64,
        ttl_ms: u64,
    },
    Publish,
    Claim(usize),
    Settle {
        which: usize,
        retry_ms: Option<u64>,
        lesson: u8,
    },
    Cancel(usize),
    Pause,
    Resume,
    /// Three starts at most, or no throttle of its own.
    Throttle {
        tenant: u8,
        per_ms: Option<u64>,
    },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u8..5, 0u8..3, prop_oneof![Just(0), 0u64..500], 200u64..5000)
            .prop_map(|(tenant, priority, delay_ms, ttl_ms)| Step::Admit { tenant, priority, delay_ms, ttl_ms }),
        3 => Just(Step::Publish),
        4 => (1usize..6).prop_map(Step::Claim),
        4 => (any::<usize>(), prop::option::of(0u64..800), 0u8..6).prop_map(|(which, retry_ms, lesson)| Step::Settle { which, retry_ms, lesson }),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => (0u8..5, prop::option::of(1u64..2000)).prop_map(|(tenant, per_ms)| Step::Throttle { tenant, per_ms }),
        2 => (1u64..400).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..250)
}

/// Every tenant behind gates of its own.
fn gated_policy() -> LanePolicy {
    LanePolicy {
        capacity: 20,
        concurrency: 6,
        tenant_concurrency: 3,
        on_full: OnFull::Preempt,
        throttle: Some(ThrottlePolicy { max_requests: 3, per: WINDOW, scope: Scope::Tenant }),
        breaker: Some((breaker(3, 300, 500), Scope::Tenant)),
        ..LanePolicy::http()
    }
}

/// One gate before the whole lane, past which jobs go while its breaker is open.
fn passing_policy() -> LanePolicy {
    LanePolicy {
        throttle: Some(ThrottlePolicy { max_requests: 3, per: WINDOW, scope: Scope::Lane }),
        breaker: Some((BreakerPolicy { when_open: WhenOpen::Pass, ..breaker(3, 300, 500) }, Scope::Lane)),
        cadence: Some(CadencePolicy::starting_at(Duration::from_millis(30))),
        priority_scope: Scope::Lane,
        ..gated_policy()
    }
}

/// What an observer knows of the lane: every job in exactly one of these places.
#[derive(Default)]
struct Observed {
    scope: Scope,
    waiting: BTreeSet<JobId>,
    running: BTreeMap<JobId, Claimed>,
    left: BTreeSet<JobId>,
    /// By gate, of every start that it counts, when and whose it was; nobody's if another was given back after it.
    starts: BTreeMap<Option<TenantName>, Vec<(Time, Option<JobId>)>>,
    passed: u32,
    made: u32,
}

impl Observed {
    fn starts_of(&mut self, tenant: &TenantName) -> &mut Vec<(Time, Option<JobId>)> {
        let gate = (self.scope == Scope::Tenant).then(|| tenant.clone());
        self.starts.entry(gate).or_default()
    }

    fn check_end(&self) {
        assert!(self.waiting.is_empty() && self.running.is_empty(), "stuck: {:?}", self.waiting);
        self.starts.values().for_each(|starts| check_window(starts, 3, WINDOW));
    }

    fn leaves(&mut self, left: Left) {
        assert!(self.waiting.remove(&left.id), "{} left without waiting", left.id);
        assert!(left.state.may_become(JobState::Dropped), "{:?} may not be dropped", left.state);
        assert!(self.left.insert(left.id), "{} left twice", left.id);
    }

    fn claims(&mut self, now: Time, claims: Claims) {
        for job in claims.jobs {
            assert!(self.waiting.remove(&job.id), "{} claimed without waiting", job.id);
            match job.past_breaker {
                true => self.passed += 1,
                false => self.starts_of(&job.tenant).push((now, Some(job.id))),
            }
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
                    Admission::OverQuota(quota) => {
                        let of_tenant = lane.usage(&new.tenant);
                        assert!(quota == Quota::Places && of_tenant.places >= 18, "{of_tenant:?} is within {quota:?}");
                    }
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
            Step::Throttle { tenant: whose, per_ms } => {
                let rate = per_ms.map(|per_ms| Rate { max_requests: 3, per_ms });
                lane.set_throttle(&tenant(&format!("t{whose}")), rate);
            }
            Step::Pause => lane.pause(),
            Step::Resume => lane.resume(),
            Step::Cancel(_) | Step::Wait(_) => {}
        }
        assert_eq!(lane.sizes().waiting() as usize, self.waiting.len());
        assert_eq!(lane.sizes().running() as usize, self.running.len());
        self.check_bounds(lane);
    }

    /// Slots, slow attempts and those of each tenant stay within their bounds.
    fn check_bounds(&self, lane: &Lane) {
        let (policy, sizes) = (lane.policy(), lane.sizes());
        assert!(sizes.running() - sizes.slow() <= policy.concurrency, "more than there are slots");
        let bounds = SlowBounds::of(policy);
        assert!(sizes.slow() <= bounds.map_or(0, |bounds| bounds.max), "more slow ones than may be");
        let of_tenant = bounds.map_or(policy.tenant_concurrency, |bounds| bounds.tenant_max);
        assert!(lane.tenants().all(|tenant| tenant.running <= of_tenant), "more of a tenant than may be");
    }

    /// All steps, and then everything comes out.
    fn live_through(&mut self, lane: &mut Lane, steps: Vec<Step>) {
        let mut now = NOW;
        for step in steps {
            if let Step::Wait(ms) = step {
                now = now + Duration::from_millis(ms);
            }
            self.step(lane, now, step);
        }
        lane.resume();
        lane.publish(now);
        for _ in 0..10_000 {
            if self.waiting.is_empty() && self.running.is_empty() {
                break;
            }
            while !self.running.is_empty() {
                self.settle(lane, now, 0, None, 0);
            }
            let claims = lane.claim(now, 100);
            let wake_at = claims.wake_at;
            let is_idle = claims.jobs.is_empty();
            self.claims(now, claims);
            if is_idle && !self.waiting.is_empty() {
                let wake_at = wake_at.expect("waiting jobs, all gates open, yet nobody says when to come back");
                now = now.max(wake_at);
            }
        }
    }

    fn settle(&mut self, lane: &mut Lane, now: Time, which: usize, retry_ms: Option<u64>, lesson: u8) {
        if self.running.is_empty() {
            return;
        }
        let id = *self.running.keys().nth(which % self.running.len()).unwrap();
        let job = self.running.remove(&id).unwrap();
        let lesson = LESSONS[lesson as usize];
        let starts = self.starts_of(&job.tenant);
        if lesson == Lesson::Unused && !job.past_breaker && starts.pop_if(|start| start.1 == Some(id)).is_some() {
            starts.last_mut().into_iter().for_each(|start| start.1 = None);
        }
        let next = retry_ms.map_or(Next::Leave, |ms| Next::RetryAt(now + Duration::from_millis(ms)));
        assert!(lane.settle(now, job.ticket, next, lesson, Duration::ZERO));
        match next {
            Next::Leave => assert!(self.left.insert(id)),
            Next::RetryAt(_) => assert!(self.waiting.insert(id)),
        }
    }
}

fn check_window(starts: &[(Time, Option<JobId>)], max: usize, length: Duration) {
    for (index, &(first, _)) in starts.iter().enumerate() {
        let within = starts[index..].iter().take_while(|(start, _)| *start < first + length).count();
        assert!(within <= max, "{within} starts within {length:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens, no job is lost or doubled, and everything comes out once the gates are open.
    #[test]
    fn no_job_is_lost_or_doubled(steps in steps()) {
        let mut observed = Observed { scope: Scope::Tenant, ..Observed::default() };
        observed.live_through(&mut lane(gated_policy()), steps);
        observed.check_end();
        prop_assert_eq!(observed.passed, 0);
    }

    /// The same where nothing but slots holds anybody, and attempts become slow.
    #[test]
    fn no_job_of_a_lane_with_slow_attempts_is_lost_or_doubled(steps in steps()) {
        let policy = LanePolicy { concurrency: 2, tenant_concurrency: 1, throttle: None, breaker: None, ..gated_policy() };
        let mut observed = Observed { scope: Scope::Tenant, ..Observed::default() };
        let mut lane = lane(policy);
        let unthrottled = |step: &Step| !matches!(step, Step::Throttle { .. });
        observed.live_through(&mut lane, steps.into_iter().filter(unthrottled).collect());
        prop_assert!(observed.waiting.is_empty() && observed.running.is_empty(), "stuck: {:?}", observed.waiting);
        prop_assert_eq!(lane.sizes().slow(), 0);
    }

    /// The same where jobs go past an open breaker.
    #[test]
    fn jobs_that_pass_are_not_lost_or_doubled_and_no_gate_counts_them(steps in steps()) {
        let mut observed = Observed { scope: Scope::Lane, ..Observed::default() };
        observed.live_through(&mut lane(passing_policy()), steps);
        observed.check_end();
    }

    /// A throttle of a tenant's own holds it beside the lane's, and nobody else.
    #[test]
    fn a_tenants_own_throttle_is_exact(steps in steps(), max_requests in 1u32..4, per_ms in 1u64..600) {
        let mut lane = lane(gated_policy());
        let whose = tenant("t0");
        lane.set_throttle(&whose, Some(Rate { max_requests, per_ms }));
        let others = |step: &Step| !matches!(step, Step::Throttle { tenant: 0, .. });
        let mut observed = Observed { scope: Scope::Tenant, ..Observed::default() };
        observed.live_through(&mut lane, steps.into_iter().filter(others).collect());
        observed.check_end();
        check_window(observed.starts_of(&whose), max_requests as usize, Duration::from_millis(per_ms));
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
