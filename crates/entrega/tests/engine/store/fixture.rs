//! The world of a scenario: a store of some kind, a clock that stands still, and short words for what scenarios do.
//! Invariant: nothing here knows which store it drives; time passes only by [`Fixture::advance`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::http::HttpRequest;
use entrega::store::{ClaimBatch, ClaimedJob, JobView, Settlement, Store, StoreError, Submitted};
use entrega_call::Clock;
use entrega_core::body::Body;
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::cadence::CadencePolicy;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::decide::{Failure, Transition};
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::payload::Payload;
use entrega_core::policy::{DeadLetterPolicy, LanePolicy, OnExhausted, OnFull, Scope, ThrottlePolicy};
use entrega_core::time::Time;

/// 2026-01-31T09:30:00.000Z.
pub(crate) const START: Time = Time::from_millis(1_769_851_800_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_hours(1);
/// How long ended jobs are kept.
pub(crate) const RETENTION: Duration = Duration::from_hours(48);
/// How long an attempt takes here.
pub(crate) const TOOK: Duration = Duration::from_millis(40);
/// How many jobs wait in `narrow` and `urgent`, and how many dead letters `small` keeps.
pub(crate) const FEW: usize = 3;

pub(crate) fn lane(name: &str) -> LaneName {
    LaneName::new(name).unwrap()
}

pub(crate) fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

/// What every store is made with.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) chance: Arc<Chance>,
    pub(crate) lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
}

impl Setup {
    pub(crate) fn new() -> Setup {
        let lanes = policies().into_iter().map(|(name, policy)| (lane(name), Arc::new(policy))).collect();
        Setup { clock: Clock::manual(START), chance: Arc::new(Chance::from_seed(7)), lanes }
    }
}

/// A lane for each thing that a lane can do; `http` holds nothing back.
fn policies() -> [(&'static str, LanePolicy); 11] {
    let http = LanePolicy { concurrency: 10_000, tenant_concurrency: 10_000, ..LanePolicy::http() };
    let throttle = ThrottlePolicy { max_requests: 2, per: 60 * SECOND, scope: Scope::Lane };
    let breaker =
        BreakerPolicy { failures: 1, open: 30 * SECOND, probe_timeout: 30 * SECOND, when_open: WhenOpen::Hold };
    let passing = BreakerPolicy { when_open: WhenOpen::Pass, ..breaker };
    let cadence = Some(CadencePolicy::starting_at(SECOND));
    let narrow = LanePolicy { capacity: FEW as u32, ..http.clone() };
    let dead_letters = DeadLetterPolicy { ttl: HOUR, cap: FEW as u32 };
    [
        ("single", LanePolicy { concurrency: 1, tenant_concurrency: 1, ..http.clone() }),
        ("shared", LanePolicy { concurrency: 4, tenant_concurrency: 1, ..http.clone() }),
        ("throttled", LanePolicy { throttle: Some(throttle), ..http.clone() }),
        ("broken", LanePolicy { breaker: Some((breaker, Scope::Lane)), ..http.clone() }),
        ("paced", LanePolicy { cadence: cadence.clone(), ..http.clone() }),
        ("passing", LanePolicy { breaker: Some((passing, Scope::Lane)), cadence, ..http.clone() }),
        ("webhook", LanePolicy::webhook()),
        ("urgent", LanePolicy { on_full: OnFull::Preempt, ..narrow.clone() }),
        ("narrow", narrow),
        ("small", LanePolicy { dead_letters, ..http.clone() }),
        ("http", LanePolicy { on_exhausted: OnExhausted::Blocked, ..http }),
    ]
}

/// A store to exercise, and whatever must live as long as it does.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dir: Option<tempfile::TempDir>,
}

/// Makes a store, or says that there is none to be had; one of these per kind of store.
pub(crate) type Make = fn(Setup) -> Making;
pub(crate) type Making = Pin<Box<dyn Future<Output = Option<World>> + Send>>;

/// What a scenario gets.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) setup: Setup,
    _dir: Option<tempfile::TempDir>,
}

impl Fixture {
    /// `None` where the store cannot be had.
    pub(crate) async fn new(make: Make) -> Option<Fixture> {
        let setup = Setup::new();
        let World { store, dir } = make(setup.clone()).await?;
        Some(Fixture { store, setup, _dir: dir })
    }

    pub(crate) fn over(store: Arc<dyn Store>, setup: Setup) -> Fixture {
        Fixture { store, setup, _dir: None }
    }

    pub(crate) fn now(&self) -> Time {
        self.setup.clock.now()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.setup.clock.advance(by);
    }

    /// A new job, due now.
    pub(crate) fn job(&self, lane_name: &str, tenant_name: &str) -> Job {
        let now = self.now();
        let id = self.setup.chance.job_id(now);
        Job {
            id,
            lane: lane(lane_name),
            tenant: tenant(tenant_name),
            priority: Priority::Normal,
            destination: Some("POST https://example.com/hook".into()),
            earlier: Default::default(),
            payload: Payload::of(&HttpRequest {
                method: "POST".into(),
                url: "https://example.com/hook".into(),
                headers: vec![("x-b".into(), "2".into()), ("x-a".into(), "1".into())],
                body: Body(bytes::Bytes::from_static(&[0xff, 0x00, b'x'])),
            }),
            labels: BTreeMap::from([("runId".into(), "run_456".into())]),
            idempotency_key: Some(format!("workflow:{tenant_name}:{id}:send:v1")),
            accepted_at: now,
            due_at: now,
            expires_at: None,
        }
    }

    /// A job for an endpoint.
    pub(crate) fn hook(&self, tenant_name: &str, endpoint: &str) -> Job {
        Job { tenant: tenant(tenant_name).endpoint(endpoint), ..self.job("webhook", tenant_name) }
    }

    pub(crate) fn urgent_job(&self, lane_name: &str, priority: Priority) -> Job {
        Job { priority, ..self.job(lane_name, "acme") }
    }

    pub(crate) async fn submit_all(&self, jobs: Vec<Job>) -> Vec<Submitted> {
        self.store.submit(jobs).await.unwrap()
    }

    /// Submits a job that must be accepted without anybody leaving.
    pub(crate) async fn accept(&self, job: Job) -> JobId {
        let id = job.id;
        assert_eq!(self.submit_all(vec![job]).await, [Submitted::Accepted { pushed_out: None }]);
        id
    }

    /// Submits a plain job.
    pub(crate) async fn add(&self, lane_name: &str, tenant_name: &str) -> JobId {
        self.accept(self.job(lane_name, tenant_name)).await
    }

    pub(crate) async fn claim(&self, lane_name: &str, max: usize) -> ClaimBatch {
        self.store.claim(&lane(lane_name), max).await.unwrap()
    }

    pub(crate) async fn claim_ids(&self, lane_name: &str) -> Vec<JobId> {
        self.claim(lane_name, usize::MAX).await.jobs.iter().map(|claimed| claimed.job.id).collect()
    }

    pub(crate) async fn claim_one(&self, lane_name: &str) -> ClaimedJob {
        let mut jobs = self.claim(lane_name, 1).await.jobs;
        assert_eq!(jobs.len(), 1, "one job of {lane_name} is to be had");
        jobs.remove(0)
    }

    /// Ends an attempt and waits until that is durable.
    pub(crate) async fn settle(&self, claimed: ClaimedJob, transition: Transition) {
        let lane = claimed.job.lane.clone();
        self.store.settle(&lane, vec![self.settlement(claimed, transition)]).await.unwrap();
        self.store.flush().await.unwrap();
    }

    /// The settlement that a dispatcher would make.
    pub(crate) fn settlement(&self, claimed: ClaimedJob, transition: Transition) -> Settlement {
        let (code, reason) = match &transition {
            Transition::Done => ("ok".to_owned(), None),
            Transition::Retry { failure, .. }
            | Transition::Blocked { failure }
            | Transition::Dropped { failure }
            | Transition::DeadLetter { failure } => (failure.code.clone(), Some(failure.reason.clone())),
        };
        let lesson = if reason.is_some() { Lesson::Down } else { Lesson::Up };
        let duration_ms = TOOK.as_millis() as u64;
        let mut attempts = claimed.history;
        attempts.push(Attempt {
            number: claimed.attempt,
            started_at: self.now(),
            duration_ms,
            code,
            reason,
            mail: None,
            answer: None,
        });
        Settlement {
            ticket: claimed.ticket,
            job: claimed.job,
            generation: claimed.generation,
            attempts,
            transition,
            lesson,
            took: TOOK,
            answer: None,
            causes: Vec::new(),
        }
    }

    pub(crate) async fn done(&self, claimed: ClaimedJob) {
        self.settle(claimed, Transition::Done).await;
    }

    pub(crate) async fn retry(&self, claimed: ClaimedJob, after: Duration) {
        let at = self.now() + after;
        self.settle(claimed, Transition::Retry { at, failure: failure("http_503") }).await;
    }

    pub(crate) async fn block(&self, claimed: ClaimedJob) {
        self.settle(claimed, Transition::Blocked { failure: failure("http_503") }).await;
    }

    pub(crate) async fn dead(&self, claimed: ClaimedJob, code: &str) {
        self.settle(claimed, Transition::DeadLetter { failure: failure(code) }).await;
    }

    /// A job of a lane without other jobs, taken straight to the dead letters.
    pub(crate) async fn add_dead(&self, lane_name: &str, tenant_name: &str, code: &str) -> JobId {
        let id = self.add(lane_name, tenant_name).await;
        let claimed = self.claim_one(lane_name).await;
        assert_eq!(claimed.job.id, id);
        self.dead(claimed, code).await;
        id
    }

    pub(crate) async fn view(&self, id: JobId) -> JobView {
        self.store.job(id).await.unwrap().expect("the job is known")
    }

    pub(crate) async fn state(&self, id: JobId) -> JobState {
        self.view(id).await.state
    }

    pub(crate) async fn entry(&self, id: JobId) -> DeadLetter {
        self.store.dead_letter(id).await.unwrap().expect("the dead letter is known")
    }
}

/// A failure with its code in words.
pub(crate) fn failure(code: &str) -> Failure {
    Failure { code: code.into(), reason: format!("it failed with {code}") }
}

/// Waits for something that another thread is about to do; a store that never does it must not hang the suite.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(20 * SECOND, future).await.expect("it happens soon")
}

/// Whether this is the refusal of a lane that does not exist, naming those that do.
pub(crate) fn is_unknown_lane(error: &StoreError) -> bool {
    matches!(error, StoreError::UnknownLane { lane, known } if lane == "nowhere" && known.contains("http"))
}
