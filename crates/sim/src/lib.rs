//! The rules under simulated time: a lane, its tenants, destinations that misbehave, and crashes, all from one seed.
//!
//! Owns: the world of one run and what is checked in it.
//! Invariant: one seed, one trace: nothing here reads a clock or draws chance elsewhere.
//! Never: does I/O. The store and the dispatcher are not simulated yet; what is durable here is a map.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega_core::decide::{Transition, decide};
use entrega_core::id::JobId;
use entrega_core::job::Priority;
use entrega_core::lane::{Admission, Claimed, Lane, Next, Waiting};
use entrega_core::name::TenantName;
use entrega_core::outcome::{Answer, Fault, FaultKind, Outcome};
use entrega_core::policy::{LanePolicy, Scope, ThrottlePolicy};
use entrega_core::time::Time;
use http::{HeaderMap, StatusCode};

const JOBS: u32 = 120;
const TENANTS: u32 = 6;
/// A run that has not ended by then is stuck.
const STEPS_MAX: usize = 100_000;
const THROTTLE_MAX: u32 = 20;
const THROTTLE_PER: Duration = Duration::from_secs(1);

/// What is durable of a job.
#[derive(Clone, Debug)]
enum Fate {
    Waiting(Waiting),
    /// With its reason.
    Ended(String),
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Submit(u32),
    /// The attempt of this job in this life of the process ends.
    AttemptEnds(JobId, u32),
    Wake,
    Crash,
}

/// One run.
struct World {
    now: Time,
    policy: Arc<LanePolicy>,
    lane: Lane,
    durable: BTreeMap<JobId, Fate>,
    running: BTreeMap<JobId, Claimed>,
    attempts: BTreeMap<JobId, u32>,
    starts: Vec<Time>,
    agenda: BinaryHeap<Reverse<(Time, Event)>>,
    rng: fastrand::Rng,
    life: u32,
    trace: Vec<String>,
}

/// Runs one seed to its end, checking as it goes, and gives its trace.
///
/// # Panics
/// When a promise is broken; the message names the checker.
pub fn run(seed: u64) -> Vec<String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS_MAX {
        let Some(Reverse((at, event))) = world.agenda.pop() else { break };
        world.now = world.now.max(at);
        world.happen(event);
    }
    world.check();
    world.trace
}

impl World {
    fn new(seed: u64) -> World {
        let throttle = ThrottlePolicy { max_requests: THROTTLE_MAX, per: THROTTLE_PER, scope: Scope::Lane };
        let policy =
            LanePolicy { concurrency: 8, tenant_concurrency: 4, throttle: Some(throttle), ..LanePolicy::http() };
        let policy = Arc::new(policy);
        let mut world = World {
            now: Time::from_millis(1_000_000),
            lane: Lane::new(policy.clone()),
            policy,
            durable: BTreeMap::new(),
            running: BTreeMap::new(),
            attempts: BTreeMap::new(),
            starts: Vec::new(),
            agenda: BinaryHeap::new(),
            rng: fastrand::Rng::with_seed(seed),
            life: 0,
            trace: Vec::new(),
        };
        for number in 0..JOBS {
            let at = world.now + Duration::from_millis(world.rng.u64(0..20_000));
            world.agenda.push(Reverse((at, Event::Submit(number))));
        }
        for _ in 0..world.rng.u32(0..4) {
            let at = world.now + Duration::from_millis(world.rng.u64(0..60_000));
            world.agenda.push(Reverse((at, Event::Crash)));
        }
        world
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Submit(number) => self.submit(number),
            Event::AttemptEnds(id, life) if life == self.life => self.attempt_ends(id),
            Event::AttemptEnds(..) | Event::Wake => {}
            Event::Crash => self.crash(),
        }
        self.claim();
    }

    fn submit(&mut self, number: u32) {
        let job = Waiting {
            id: JobId::from_parts(self.now, number.into()),
            tenant: TenantName::new(&format!("t{}", number % TENANTS)).expect("a tenant name"),
            priority: Priority::ALL[number as usize % 3],
            due: self.now,
            expires: self.now + Duration::from_secs(self.rng.u64(30..600)),
            attempt: 0,
            generation: 0,
        };
        assert_eq!(self.lane.admit(&job), Admission::Admitted);
        self.durable.insert(job.id, Fate::Waiting(job));
        self.lane.publish(self.now);
    }

    fn claim(&mut self) {
        let claims = self.lane.claim(self.now, usize::MAX);
        for left in claims.expired {
            self.end(left.id, "dropped", "ttl_expired".into());
        }
        for job in claims.jobs {
            self.trace.push(format!("{} start {} #{}", self.now.as_millis(), job.id, job.attempt));
            self.starts.push(self.now);
            *self.attempts.entry(job.id).or_default() += 1;
            let took = Duration::from_millis(self.rng.u64(1..3_000));
            self.agenda.push(Reverse((self.now + took, Event::AttemptEnds(job.id, self.life))));
            assert!(self.running.insert(job.id, job).is_none(), "no_double_run");
        }
        if let Some(at) = claims.wake_at {
            self.agenda.push(Reverse((at.max(self.now + Duration::from_micros(1)), Event::Wake)));
        }
    }

    /// A destination per tenant: some work, some fail now and then, one is mostly down, one asks for patience.
    fn outcome(&mut self, tenant: &TenantName) -> Outcome {
        let luck = self.rng.u32(0..100);
        let (status, retry_after) = match (tenant.as_str(), luck) {
            ("t1", 0..40) => (503, None),
            ("t2", 0..80) => {
                return Outcome::Fault(Fault { kind: FaultKind::Connect, message: "connection refused".into() });
            }
            ("t3", 0..30) => (429, Some(Duration::from_secs(2))),
            ("t4", 0..10) => (404, None),
            _ => (200, None),
        };
        let status = StatusCode::from_u16(status).expect("a status");
        Outcome::Answer(Answer { status, headers: HeaderMap::new(), body: Bytes::new(), truncated: false, retry_after })
    }

    fn attempt_ends(&mut self, id: JobId) {
        let job = self.running.remove(&id).expect("no_double_settle");
        let outcome = self.outcome(&job.tenant);
        let chance = self.rng.f64();
        let transition = decide(self.now, &self.policy, job.attempt, job.expires, &outcome, chance);
        let next = match &transition {
            Transition::Retry { at, .. } => Next::RetryAt(*at),
            _ => Next::Leave,
        };
        assert!(self.lane.settle(self.now, job.ticket, next, outcome.lesson(), Duration::ZERO), "no_double_settle");
        match transition {
            Transition::Done => self.end(id, "done", "delivered".into()),
            Transition::DeadLetter { failure } | Transition::Blocked { failure } => {
                self.end(id, "dead", failure.reason)
            }
            Transition::Retry { at, .. } => {
                if let Some(Fate::Waiting(waiting)) = self.durable.get_mut(&id) {
                    waiting.attempt = job.attempt as u16;
                    waiting.due = at;
                }
            }
        }
    }

    fn end(&mut self, id: JobId, how: &'static str, reason: String) {
        self.trace.push(format!("{} {how} {id} {reason}", self.now.as_millis()));
        let before = self.durable.insert(id, Fate::Ended(reason));
        assert!(matches!(before, Some(Fate::Waiting(_))), "no_double_settle: {id}");
    }

    /// Everything in memory is gone; what is durable waits again, and throttles are assumed spent.
    fn crash(&mut self) {
        self.trace.push(format!("{} crash with {} running", self.now.as_millis(), self.running.len()));
        self.life += 1;
        self.running.clear();
        self.lane = Lane::new(self.policy.clone());
        for fate in self.durable.values() {
            if let Fate::Waiting(waiting) = fate {
                self.lane.restore(self.now, waiting);
            }
        }
        self.lane.assume_spent(self.now);
    }

    fn check(&self) {
        assert_eq!(self.durable.len(), JOBS as usize, "no_accepted_job_lost");
        for (id, fate) in &self.durable {
            let Fate::Ended(reason) = fate else { panic!("nothing_stuck_after_heal: {id} is {fate:?}") };
            assert!(!reason.is_empty(), "ends_have_reasons: {id}");
        }
        for (id, &attempts) in &self.attempts {
            assert!(attempts <= self.policy.retry.attempts + self.life, "attempts_bounded: {id} had {attempts}");
        }
        for (index, &first) in self.starts.iter().enumerate() {
            let within = self.starts[index..].iter().take_while(|&&start| start < first + THROTTLE_PER).count();
            assert!(within <= THROTTLE_MAX as usize, "throttle_respected: {within} starts in a second");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promises_hold_for_a_thousand_seeds() {
        for seed in 0..1_000 {
            let ran = std::panic::catch_unwind(|| run(seed));
            assert!(ran.is_ok(), "seed {seed} broke a promise; see the message above");
        }
    }

    #[test]
    fn one_seed_gives_one_trace() {
        assert_eq!(run(4711), run(4711));
        assert_ne!(run(4711), run(4712));
    }

    #[test]
    fn crashes_happen() {
        let crashed = (0..20).filter(|&seed| run(seed).iter().any(|line| line.contains("crash with"))).count();
        assert!(crashed > 5, "{crashed} of 20 runs crashed");
    }
}
