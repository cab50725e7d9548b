//! The same random operations on the lane machine (a store in memory) and on Redis: the answers must be the same.
//! Invariant: both live by one clock, so every answer is comparable to the microsecond; a difference is reported with
//! the seed and all operations up to it.
//!
//! `ENTREGA_DIFFERENTIAL_SEQUENCES` sets how many sequences (60), `ENTREGA_DIFFERENTIAL_SEED` where they begin.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::redis::RedisStore;
use entrega::store::{ChangeError, ClaimBatch, ClaimedJob, Endpoint, Settlement, Store, TenantSettings};
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::cadence::CadencePolicy;
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, Priority};
use entrega_core::name::TenantName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::{Fairness, LanePolicy, OnFull, Scope, ThrottlePolicy};
use entrega_core::throttle::Rate;
use entrega_core::time::Time;
use fastrand::Rng;
use serde::Serialize;

use super::endpoints::endpoint;
use super::fixture::{Fixture, SECOND, Setup, failure, lane, tenant};
use super::worlds::open_over;
use crate::redis;
use entrega::store::local::tables::TABLES;
use entrega_ledger::HeapLedger;

const LANE: &str = "lane";
const STEPS: usize = 90;
/// Two tenants, and two endpoints of theirs.
const TENANTS: [&str; 4] = ["a", "b", "a/x", "b/x"];
/// Leases last a year here; whoever is told to come back so late need not come back.
const NEVER_BACK: Duration = Duration::from_hours(24 * 100);

/// Two stores and what has been done to both.
struct Pair {
    machine: Fixture,
    redis: Fixture,
    rng: Rng,
    is_round: bool,
    ids: Vec<JobId>,
    /// Those that died at some time.
    dead: Vec<JobId>,
    running: BTreeMap<JobId, [ClaimedJob; 2]>,
    plant: Plant,
    trace: Vec<String>,
}

/// What Redis is told differently.
#[derive(Clone, Copy)]
struct Plant {
    policy: ChangePolicy,
    lesson: ChangeLesson,
    throttle: ChangeThrottle,
}

type ChangePolicy = fn(&mut LanePolicy);
type ChangeLesson = fn(Lesson) -> Lesson;
type ChangeThrottle = fn(Option<Rate>) -> Option<Rate>;

const NO_PLANT: Plant = Plant { policy: |_| {}, lesson: |lesson| lesson, throttle: |throttle| throttle };

/// What differed, and how it came to that.
struct Difference {
    what: String,
    trace: Vec<String>,
}

fn any_policy(rng: &mut Rng) -> LanePolicy {
    let scope = if rng.bool() { Scope::Lane } else { Scope::Tenant };
    let throttle = ThrottlePolicy { max_requests: rng.u32(1..5), per: rng.u32(1..8) * SECOND, scope };
    let when_open = if rng.bool() { WhenOpen::Hold } else { WhenOpen::Pass };
    let scope = if rng.bool() || when_open == WhenOpen::Pass { Scope::Lane } else { Scope::Tenant };
    let open = rng.u32(1..10) * SECOND;
    let breaker = BreakerPolicy { failures: rng.u32(1..4), open, probe_timeout: rng.u32(1..5) * SECOND, when_open };
    let concurrency = rng.u32(1..12);
    let turns = rng.u8(..) > 40;
    LanePolicy {
        throttle: (rng.u8(..) < 90).then_some(throttle),
        breaker: (rng.u8(..) < 110).then_some((breaker, scope)),
        cadence: (rng.u8(..) < 60).then(|| CadencePolicy::starting_at(rng.u32(1..4) * SECOND)),
        concurrency,
        tenant_concurrency: if turns { rng.u32(1..=concurrency) } else { concurrency },
        capacity: if rng.bool() { rng.u32(3..12) } else { 1000 },
        on_full: if rng.bool() { OnFull::Preempt } else { OnFull::Refuse },
        fairness: Fairness {
            enable_round_robin: turns,
            max_jobs_per_tenant_batch: rng.u32(1..4),
            ..Fairness::default()
        },
        ttl: rng.bool().then(|| rng.u32(5..60) * SECOND),
        // Whose tenants may have throttles of their own.
        channel: LanePolicy::webhook().channel,
        ..LanePolicy::http()
    }
}

/// A paced lane before one destination: what it does depends on gates that open and shut often.
fn any_paced_policy(rng: &mut Rng) -> LanePolicy {
    let mut some_ms = |range| Duration::from_millis(rng.u64(range));
    let (tick, open, probe_timeout) = (some_ms(50..500), some_ms(500..3_000), some_ms(500..4_000));
    let when_open = if rng.u8(..) < 200 { WhenOpen::Pass } else { WhenOpen::Hold };
    let breaker = BreakerPolicy { failures: rng.u32(1..4), open, probe_timeout, when_open };
    let concurrency = rng.u32(2..8);
    LanePolicy {
        breaker: Some((breaker, Scope::Lane)),
        cadence: rng.bool().then(|| CadencePolicy { max: 4 * tick, ..CadencePolicy::starting_at(tick) }),
        concurrency,
        tenant_concurrency: concurrency,
        ttl: None,
        ..any_policy(rng)
    }
}

/// In every other sequence a round number, so that moments meet.
fn some_time(rng: &mut Rng, is_round: bool, ms_max: u64) -> Duration {
    match is_round {
        true => Duration::from_millis(rng.u64(..ms_max / 500) * 500),
        false => Duration::from_micros(rng.u64(..ms_max * 1000)),
    }
}

/// A policy that can be run.
fn policy(rng: &mut Rng) -> LanePolicy {
    loop {
        let policy = if rng.u8(..) < 90 { any_paced_policy(rng) } else { any_policy(rng) };
        if policy.check().is_ok() {
            return policy;
        }
    }
}

impl Pair {
    async fn new(seed: u64, plant: Plant) -> Pair {
        let mut rng = Rng::with_seed(seed);
        let ours = policy(&mut rng);
        let mut theirs = ours.clone();
        (plant.policy)(&mut theirs);
        let trace = vec![format!("seed {seed}: {ours:?}")];
        let setup = Setup { lanes: [(lane(LANE), Arc::new(ours))].into(), ..Setup::new() };
        let other = Setup { lanes: [(lane(LANE), Arc::new(theirs))].into(), ..setup.clone() };
        let store = RedisStore::open(other.on_redis(redis::shared().url()), other.clock.clone()).await.unwrap();
        let redis = Fixture::over(Arc::new(store), other);
        let machine = Fixture::over(open_over(HeapLedger::new(&TABLES), &setup).await, setup);
        Pair {
            machine,
            redis,
            rng,
            is_round: seed.is_multiple_of(2),
            ids: Vec::new(),
            dead: Vec::new(),
            running: BTreeMap::new(),
            plant,
            trace,
        }
    }

    fn stores(&self) -> (Arc<dyn Store>, Arc<dyn Store>) {
        (self.machine.store.clone(), self.redis.store.clone())
    }

    fn same<T: Debug + PartialEq>(&mut self, what: &str, machine: T, redis: T) -> Result<(), Difference> {
        if machine == redis {
            return Ok(());
        }
        let what = format!("{what}: the machine says {machine:?}, Redis says {redis:?}");
        Err(Difference { what, trace: std::mem::take(&mut self.trace) })
    }

    async fn step(&mut self) -> Result<(), Difference> {
        match self.rng.u8(..100) {
            0..24 => self.submit().await,
            24..49 => self.claim().await,
            49..51 => self.throttle().await,
            51..71 => self.settle().await,
            71..75 => self.change("cancel").await,
            75..79 => self.change("replay").await,
            79..82 => self.change("unblock").await,
            82..83 => self.change("discard").await,
            83..85 => self.pause().await,
            85..87 => self.weigh().await,
            _ => {
                let by = some_time(&mut self.rng, self.is_round, 6_000);
                self.trace.push(format!("advance {by:?}"));
                self.machine.advance(by);
                Ok(())
            }
        }?;
        self.look().await
    }

    fn any_job(&mut self) -> Job {
        let rng = &mut self.rng;
        let tenant = TenantName::kept(TENANTS[rng.usize(..TENANTS.len())]).unwrap();
        let now = self.machine.now();
        let priority = [Priority::High, Priority::Normal, Priority::Normal, Priority::Low][rng.usize(..4)];
        let due_at = if rng.u8(..) < 70 { now + some_time(rng, self.is_round, 20_000) } else { now };
        let expires_at = rng.bool().then(|| now + SECOND + some_time(rng, self.is_round, 39_000));
        let mut job = Job { tenant, priority, due_at, expires_at, ..self.machine.job(LANE, "a") };
        let is_known = |id: &JobId| self.running.contains_key(id);
        if let Some(&id) = self.ids.iter().rev().find(|id| is_known(id)).filter(|_| rng.u8(..) < 20) {
            job.id = id;
        }
        job
    }

    async fn submit(&mut self) -> Result<(), Difference> {
        let jobs: Vec<_> = (0..self.rng.usize(1..7)).map(|_| self.any_job()).collect();
        let brief = |job: &Job| (job.id, job.tenant.clone(), job.priority, job.due_at, job.expires_at);
        self.trace.push(format!("submit {:?}", jobs.iter().map(brief).collect::<Vec<_>>()));
        self.ids.extend(jobs.iter().map(|job| job.id));
        let (machine, redis) = self.stores();
        let (one, other) = (machine.submit(jobs.clone()).await.unwrap(), redis.submit(jobs).await.unwrap());
        self.same("submit", one, other)
    }

    async fn claim(&mut self) -> Result<(), Difference> {
        let max = self.rng.usize(1..9);
        self.trace.push(format!("claim {max} at {}", self.machine.now().as_micros()));
        let (machine, redis) = self.stores();
        let one = machine.claim(&lane(LANE), max).await.unwrap();
        let other = redis.claim(&lane(LANE), max).await.unwrap();
        machine.flush().await.unwrap();
        let now = self.machine.now();
        self.same("claim", brief(&one, now), brief(&other, now))?;
        let both = one.jobs.into_iter().zip(other.jobs);
        self.running.extend(both.map(|(one, other)| (one.job.id, [one, other])));
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), Difference> {
        let ids: Vec<_> = self.running.keys().copied().collect();
        let some: Vec<_> = ids.into_iter().filter(|_| self.rng.u8(..) < 120).collect();
        let (mut ones, mut others) = (Vec::new(), Vec::new());
        for id in some {
            let Some([one, other]) = self.running.remove(&id) else { continue };
            let [one, other] = self.settlements(one, other);
            if matches!(one.transition, Transition::DeadLetter { .. }) {
                self.dead.push(id);
            }
            self.trace.push(format!("settle {id}: {:?} {:?} {:?}", one.transition, one.lesson, one.took));
            ones.push(one);
            others.push(other);
        }
        let (machine, redis) = self.stores();
        // One by one: in one batch the machine takes ends before retries, which only matters within the batch.
        for (one, other) in ones.into_iter().zip(others) {
            machine.settle(&lane(LANE), vec![one]).await.unwrap();
            redis.settle(&lane(LANE), vec![other]).await.unwrap();
            machine.flush().await.unwrap();
            redis.flush().await.unwrap();
        }
        Ok(())
    }

    fn settlements(&mut self, one: ClaimedJob, other: ClaimedJob) -> [Settlement; 2] {
        let rng = &mut self.rng;
        let now = self.machine.now();
        let failure = failure(["http_503", "timeout"][rng.usize(..2)]);
        let transition = match rng.u8(..10) {
            0..5 => Transition::Done,
            5..8 => Transition::Retry { at: now + some_time(rng, self.is_round, 10_000), failure },
            8 => Transition::Blocked { failure },
            _ => Transition::DeadLetter { failure },
        };
        let lesson = match rng.u8(..20) {
            0..7 => Lesson::Up,
            7..11 => Lesson::Down,
            11..13 => Lesson::Slower(rng.bool().then(|| Duration::from_millis(rng.u64(..5_000)))),
            13..15 => Lesson::Nothing,
            15..17 => Lesson::Apart,
            _ => Lesson::Unused,
        };
        let took = Duration::from_millis(rng.u64(..3_000));
        [(one, lesson), (other, (self.plant.lesson)(lesson))].map(|(claimed, lesson)| {
            let settlement = self.machine.settlement(claimed, transition.clone());
            Settlement { lesson, took, ..settlement }
        })
    }

    async fn change(&mut self, what: &'static str) -> Result<(), Difference> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let among = if self.dead.is_empty() || self.rng.bool() { &self.ids } else { &self.dead };
        let id = among[self.rng.usize(..among.len())];
        let (machine, redis) = self.stores();
        let (one, other) = (apply(&*machine, what, id).await, apply(&*redis, what, id).await);
        self.trace.push(format!("{what} {id}: {one}"));
        self.same(what, one, other)
    }

    async fn pause(&mut self) -> Result<(), Difference> {
        // Seldom: nothing happens in a paused lane.
        let paused = self.rng.u8(..4) == 0;
        self.trace.push(format!("paused {paused}"));
        let (machine, redis) = self.stores();
        machine.set_paused(&lane(LANE), paused).await.unwrap();
        redis.set_paused(&lane(LANE), paused).await.unwrap();
        Ok(())
    }

    async fn throttle(&mut self) -> Result<(), Difference> {
        let whose = tenant(["a", "b"][self.rng.usize(..2)]);
        let rate = Rate { max_requests: self.rng.u32(1..4), per_ms: self.rng.u64(1..6) * 1000 };
        let rate = (self.rng.u8(..4) > 0).then_some(rate);
        self.trace.push(format!("throttle {whose}/x: {rate:?}"));
        let (machine, redis) = self.stores();
        if rate.is_none() && self.rng.bool() {
            machine.remove_endpoint(&whose, "x").await.unwrap();
            redis.remove_endpoint(&whose, "x").await.unwrap();
            return Ok(());
        }
        for (store, throttle) in [(machine, rate), (redis, (self.plant.throttle)(rate))] {
            let version = store.endpoint(&whose, "x").map_or(0, |kept| kept.version);
            store.put_endpoint(Endpoint { throttle, version, ..endpoint(whose.as_str(), "x") }).await.unwrap();
        }
        Ok(())
    }

    async fn weigh(&mut self) -> Result<(), Difference> {
        let settings = TenantSettings { tenant: tenant(["a", "b"][self.rng.usize(..2)]), weight: self.rng.u32(1..4) };
        self.trace.push(format!("{settings:?}"));
        let (machine, redis) = self.stores();
        machine.put_tenant(settings.clone()).await.unwrap();
        redis.put_tenant(settings).await.unwrap();
        Ok(())
    }

    /// Everything that can be seen must be the same after every operation.
    async fn look(&mut self) -> Result<(), Difference> {
        let (machine, redis) = self.stores();
        let (one, other) = (figures(&*machine).await, figures(&*redis).await);
        self.same("the lane", one, other)?;
        if self.ids.is_empty() {
            return Ok(());
        }
        let id = self.ids[self.rng.usize(..self.ids.len())];
        let (one, other) = (machine.explain(id).await.unwrap(), redis.explain(id).await.unwrap());
        self.same(&format!("explain {id}"), one, other)?;
        let (one, other) = (machine.job(id).await.unwrap(), redis.job(id).await.unwrap());
        self.same(&format!("job {id}"), one.map(words), other.map(words))?;
        let (one, other) = (machine.dead_letter(id).await.unwrap(), redis.dead_letter(id).await.unwrap());
        self.same(&format!("dead letter {id}"), one.map(words), other.map(words))
    }
}

/// What people see, as JSON: every field of it.
fn words(seen: impl Serialize) -> String {
    serde_json::to_string(&seen).unwrap()
}

fn brief(batch: &ClaimBatch, now: Time) -> impl Debug + PartialEq + use<> {
    let job = |claimed: &ClaimedJob| {
        let ClaimedJob { job, attempt, generation, history, expires, past_breaker, .. } = claimed;
        (job.clone(), *attempt, *generation, history.clone(), *expires, *past_breaker)
    };
    let wake_at = batch.wake_at.filter(|&at| at.since(now) < NEVER_BACK);
    (batch.jobs.iter().map(job).collect::<Vec<_>>(), batch.expired.clone(), wake_at)
}

async fn apply(store: &dyn Store, what: &str, id: JobId) -> String {
    let changed = match what {
        "cancel" => store.cancel(id, "not wanted").await.map(drop),
        "replay" => store.replay(id).await,
        "unblock" => store.unblock(id).await,
        _ => store.discard(id, "given up").await,
    };
    match changed {
        Ok(()) => "ok".into(),
        Err(ChangeError::Store(error)) => panic!("{what} {id}: {error}"),
        Err(other) => other.to_string(),
    }
}

async fn figures(store: &dyn Store) -> impl Debug + PartialEq + use<> {
    let view = store.lanes().await.unwrap().remove(0);
    let tenants: Vec<_> = store.tenants().await.unwrap().into_iter().map(|view| view.figures).collect();
    let oldest = (view.sizes.waiting() > 0).then_some(view.oldest);
    let lane = (view.sizes, view.blocked, view.dead_letters, view.paused, view.hold, view.breaker, view.cadence);
    (lane, oldest, tenants)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

async fn run(seed: u64, plant: Plant) -> Result<(), Difference> {
    let mut pair = Pair::new(seed, plant).await;
    for _ in 0..STEPS {
        pair.step().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_answers_as_the_lane_machine_does() {
    if redis::is_left_out() {
        return;
    }
    let first = setting("ENTREGA_DIFFERENTIAL_SEED", 1);
    for seed in first..first + setting("ENTREGA_DIFFERENTIAL_SEQUENCES", 60) {
        if let Err(Difference { what, trace }) = run(seed, NO_PLANT).await {
            panic!("{what}\nafter:\n{}", trace.join("\n"));
        }
    }
}

/// A comparison that finds nothing may be looking at nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planted_difference_is_found() {
    if redis::is_left_out() {
        return;
    }
    let policies: [(&str, ChangePolicy); 8] = [
        ("longer turns", |policy| policy.fairness.max_jobs_per_tenant_batch += 1),
        ("one more place", |policy| policy.capacity += 1),
        ("one more start", |policy| policy.throttle.iter_mut().for_each(|throttle| throttle.max_requests += 1)),
        ("one more failure", |policy| policy.breaker.iter_mut().for_each(|(breaker, _)| breaker.failures += 1)),
        ("nobody passes", |policy| {
            policy.breaker.iter_mut().for_each(|(breaker, _)| breaker.when_open = WhenOpen::Hold);
        }),
        ("one more at once", |policy| policy.tenant_concurrency += 1),
        ("a slower tick", |policy| policy.cadence.iter_mut().for_each(|cadence| cadence.initial += SECOND)),
        ("a longer penalty", |policy| policy.cadence.iter_mut().for_each(|cadence| cadence.penalty += 0.5)),
    ];
    let lessons: [(&str, ChangeLesson); 3] = [
        ("a start is kept", |lesson| if lesson == Lesson::Unused { Lesson::Apart } else { lesson }),
        ("a probe is given up", |lesson| if lesson == Lesson::Apart { Lesson::Nothing } else { lesson }),
        ("a start is given back", |lesson| if lesson == Lesson::Nothing { Lesson::Unused } else { lesson }),
    ];
    let throttles: [(&str, ChangeThrottle); 2] = [
        ("no throttle of its own", |_| None),
        ("a longer throttle of its own", |rate| rate.map(|rate| Rate { per_ms: rate.per_ms + 1, ..rate })),
    ];
    let policies = policies.map(|(name, policy)| (name, Plant { policy, ..NO_PLANT }));
    let lessons = lessons.map(|(name, lesson)| (name, Plant { lesson, ..NO_PLANT }));
    let throttles = throttles.map(|(name, throttle)| (name, Plant { throttle, ..NO_PLANT }));
    for (name, plant) in policies.into_iter().chain(lessons).chain(throttles) {
        let mut found = None;
        for seed in 1..60 {
            if let Err(difference) = run(seed, plant).await {
                found = Some((seed, difference.trace.len() - 1));
                break;
            }
        }
        let (sequence, steps) = found.unwrap_or_else(|| panic!("{name}: nobody noticed"));
        println!("{name}: found in sequence {sequence} after {steps} operations");
    }
}
