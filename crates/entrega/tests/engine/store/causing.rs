//! Causing: a settlement makes jobs for other lanes. They come with it, whatever the size of their lane, and once.
//! They may come a moment after the settlement, in the order they were caused: what must not come is known not to have
//! come when a job that was caused after it has.

use std::time::Duration;

use entrega::store::{ClaimedJob, JobView, Lease, Settlement, Submitted};
use entrega_core::decide::{Failure, Transition};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState, Priority};

use super::fixture::{FEW, Fixture, SECOND, failure, is_unknown_lane, lane, soon};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A lane is told much sooner than it would look by itself.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// A settlement that causes these jobs.
fn causing(f: &Fixture, claimed: ClaimedJob, transition: Transition, causes: &[&Job]) -> Settlement {
    Settlement { causes: causes.iter().copied().cloned().collect(), ..f.settlement(claimed, transition) }
}

async fn settle(f: &Fixture, settlements: Vec<Settlement>) {
    f.store.settle(&lane("http"), settlements).await.unwrap();
    f.store.flush().await.unwrap();
}

/// A job of `http` is delivered and causes these.
async fn cause(f: &Fixture, causes: &[&Job]) {
    f.add("http", "acme").await;
    let claimed = f.claim_one("http").await;
    settle(f, vec![causing(f, claimed, Transition::Done, causes)]).await;
}

/// Causes these, and returns when they have come or never will.
async fn cause_and_wait(f: &Fixture, causes: &[&Job]) {
    let last = f.job("shared", "last");
    cause(f, &[causes, &[&last]].concat()).await;
    arrives(f, last.id).await;
}

async fn arrives(f: &Fixture, id: JobId) -> JobView {
    soon(async {
        loop {
            if let Some(view) = f.store.job(id).await.unwrap() {
                return view;
            }
            // reason: a store may move a caused job on after its settlement is durable; nobody is told by its id
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
    .await
}

async fn waiting(f: &Fixture, lane_name: &str) -> u32 {
    let lanes = f.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name.as_str() == lane_name).unwrap().sizes.waiting()
}

pub(crate) async fn whatever_becomes_of_a_job_it_can_cause_others(f: &Fixture) {
    let transitions = [
        Transition::Done,
        Transition::Retry { at: f.now() + SECOND, failure: failure("http_503") },
        Transition::Blocked { failure: failure("http_503") },
        Transition::DeadLetter { failure: failure("http_404") },
    ];
    for transition in transitions {
        let how = format!("{transition:?}");
        let cause = f.add("http", "acme").await;
        let claimed = f.claim_one("http").await;
        let (one, other) = (f.job("single", "acme"), f.job("shared", "beta"));
        settle(f, vec![causing(f, claimed, transition, &[&one, &other])]).await;
        assert_ne!(f.state(cause).await, JobState::Running, "{how}");
        for job in [&one, &other] {
            let view = arrives(f, job.id).await;
            assert_eq!((view.state, &view.lane, &view.company_id), (JobState::Queued, &job.lane, &job.tenant), "{how}");
        }
        for (lane_name, job) in [("single", one), ("shared", other)] {
            let claimed = f.claim_one(lane_name).await;
            assert_eq!((&claimed.job, claimed.attempt, claimed.generation), (&job, 1, 0), "the whole job: {how}");
            f.done(claimed).await;
            assert_eq!(f.state(job.id).await, JobState::Done, "{how}");
        }
    }
}

pub(crate) async fn a_caused_job_wakes_its_lane(f: &Fixture) {
    let wake = f.store.wake(&lane("single")).unwrap();
    let job = f.job("single", "acme");
    assert!(f.claim_ids("single").await.is_empty());
    cause(f, &[&job]).await;
    let claimed = async {
        loop {
            wake.notified().await;
            if let Some(claimed) = f.claim("single", 1).await.jobs.pop() {
                return claimed;
            }
        }
    };
    let claimed = tokio::time::timeout(TOLD_WITHIN, claimed).await.expect("the lane is told");
    assert_eq!(claimed.job.id, job.id);
}

pub(crate) async fn a_caused_job_waits_for_its_moment(f: &Fixture) {
    let job = Job { due_at: f.now() + 60 * SECOND, ..f.job("single", "acme") };
    cause(f, &[&job]).await;
    assert_eq!(arrives(f, job.id).await.state, JobState::Idle);
    assert!(f.claim_ids("single").await.is_empty());
    f.advance(60 * SECOND);
    assert_eq!(f.claim_ids("single").await, [job.id]);
}

pub(crate) async fn a_caused_job_gets_into_a_full_lane(f: &Fixture) {
    let mut ids = Vec::new();
    for _ in 0..FEW {
        ids.push(f.add("narrow", "acme").await);
    }
    let caused = [f.job("narrow", "acme"), f.job("narrow", "acme")];
    cause_and_wait(f, &[&caused[0], &caused[1]]).await;
    assert_eq!(waiting(f, "narrow").await as usize, FEW + 2);
    assert_eq!(f.submit_all(vec![f.job("narrow", "acme")]).await, [Submitted::Full], "others do not");
    ids.extend(caused.iter().map(|job| job.id));
    assert_eq!(f.claim_ids("narrow").await, ids);
}

pub(crate) async fn a_caused_job_pushes_nobody_out(f: &Fixture) {
    let mut ids = Vec::new();
    for _ in 0..FEW {
        ids.push(f.accept(f.urgent_job("urgent", Priority::Low)).await);
    }
    let caused = f.urgent_job("urgent", Priority::High);
    cause_and_wait(f, &[&caused]).await;
    for id in &ids {
        assert_eq!(f.state(*id).await, JobState::Queued);
    }
    ids.insert(0, caused.id);
    assert_eq!(f.claim_ids("urgent").await, ids);
}

pub(crate) async fn a_job_caused_again_while_it_waits_or_runs_comes_once(f: &Fixture) {
    let job = f.job("single", "acme");
    cause_and_wait(f, &[&job, &job]).await;
    assert_eq!(waiting(f, "single").await, 1, "twice by one settlement");

    f.add("http", "acme").await;
    f.add("http", "acme").await;
    let claimed = f.claim("http", 2).await.jobs;
    let again = claimed.into_iter().map(|claimed| causing(f, claimed, Transition::Done, &[&job])).collect();
    settle(f, again).await;
    cause_and_wait(f, &[&job]).await;
    assert_eq!(waiting(f, "single").await, 1, "by several settlements");

    let running = f.claim_one("single").await;
    cause_and_wait(f, &[&job]).await;
    assert_eq!((waiting(f, "single").await, f.state(job.id).await), (0, JobState::Running));
    f.retry(running, SECOND).await;
    cause_and_wait(f, &[&job]).await;
    assert_eq!((waiting(f, "single").await, f.state(job.id).await), (1, JobState::RetryWait));
    f.advance(SECOND);
    let second = f.claim_one("single").await;
    assert_eq!((second.attempt, second.history.len()), (2, 1), "it is still the first one");
    f.done(second).await;
    assert!(f.claim_ids("single").await.is_empty());
}

/// Whichever comes first: the store has it once, and goes on. A local store that met both in one write panicked.
pub(crate) async fn a_job_caused_and_submitted_at_the_same_time_comes_once(f: &Fixture) {
    for _ in 0..20 {
        let job = f.job("small", "acme");
        f.add("http", "acme").await;
        let settlement = causing(f, f.claim_one("http").await, Transition::Done, &[&job]);
        let lane = lane("http");
        let (settled, submitted) =
            tokio::join!(f.store.settle(&lane, vec![settlement]), f.store.submit(vec![job.clone()]));
        settled.unwrap();
        let submitted = submitted.unwrap();
        let is_answered = matches!(submitted[..], [Submitted::Accepted { pushed_out: None } | Submitted::Duplicate]);
        assert!(is_answered, "{submitted:?}");
        cause_and_wait(f, &[]).await;
        assert_eq!(f.claim_ids("small").await, [job.id]);
    }
}

pub(crate) async fn a_job_caused_again_after_its_end_does_not_come_back(f: &Fixture) {
    let [done, dead, discarded, cancelled] = [(); 4].map(|()| f.job("small", "acme"));
    let all = [&done, &dead, &discarded, &cancelled];
    cause_and_wait(f, &all).await;
    f.done(f.claim_one("small").await).await;
    f.dead(f.claim_one("small").await, "http_404").await;
    f.dead(f.claim_one("small").await, "http_404").await;
    f.store.discard(discarded.id, "not wanted").await.unwrap();
    f.store.cancel(cancelled.id, "not wanted").await.unwrap();
    let states = [JobState::Done, JobState::Dlq, JobState::Dlq, JobState::Cancelled];

    cause_and_wait(f, &all).await;
    assert_eq!(waiting(f, "small").await, 0);
    assert!(f.claim_ids("small").await.is_empty());
    for (job, state) in all.iter().zip(states) {
        assert_eq!(f.state(job.id).await, state);
    }
    assert_eq!(f.entry(dead.id).await.failed_attempts, 1);

    f.store.replay(dead.id).await.unwrap();
    cause_and_wait(f, &[&dead]).await;
    assert_eq!(f.claim_ids("small").await, [dead.id], "its replay is not doubled either");
}

pub(crate) async fn a_refused_settlement_causes_nothing(f: &Fixture) {
    let caused = f.job("single", "acme");
    f.add("http", "acme").await;
    f.add("http", "acme").await;
    let [good, bad] = <[ClaimedJob; 2]>::try_from(f.claim("http", 2).await.jobs).unwrap();
    let failure = Failure { code: "http_404".into(), reason: String::new() };
    let settlements = vec![
        causing(f, good, Transition::Done, &[&caused]),
        causing(f, bad, Transition::DeadLetter { failure }, &[&caused]),
    ];
    assert!(f.store.settle(&lane("http"), settlements).await.is_err());
    cause_and_wait(f, &[]).await;
    assert!(f.store.job(caused.id).await.unwrap().is_none());
    assert_eq!(waiting(f, "single").await, 0);
}

pub(crate) async fn causing_a_job_of_an_unknown_lane_is_refused_whole(f: &Fixture) {
    let ids = [f.add("http", "acme").await, f.add("http", "acme").await];
    let [one, other] = <[ClaimedJob; 2]>::try_from(f.claim("http", 2).await.jobs).unwrap();
    let tickets = [(one.ticket, one.job.clone()), (other.ticket, other.job.clone())];
    let (good, bad) = (f.job("single", "acme"), Job { lane: lane("nowhere"), ..f.job("single", "acme") });
    let settlements =
        vec![causing(f, one, Transition::Done, &[&good]), causing(f, other, Transition::Done, &[&good, &bad])];
    let attempts = settlements[0].attempts.clone();
    assert!(is_unknown_lane(&f.store.settle(&lane("http"), settlements).await.unwrap_err()));
    cause_and_wait(f, &[]).await;
    for id in ids {
        assert_eq!(f.state(id).await, JobState::Running, "its attempt has not ended");
    }
    for job in [&good, &bad] {
        assert!(f.store.job(job.id).await.unwrap().is_none());
    }

    let again = tickets.map(|(ticket, job)| {
        let (history, expires) = (Vec::new(), f.now());
        let (past_breaker, lease) = (false, Lease::forever());
        let claimed = ClaimedJob { ticket, job, attempt: 1, generation: 0, history, expires, past_breaker, lease };
        causing(f, claimed, Transition::Done, &[&good])
    });
    assert_eq!(again[0].attempts, attempts);
    settle(f, again.into()).await;
    assert_eq!(arrives(f, good.id).await.state, JobState::Queued, "what is right is taken");
}
