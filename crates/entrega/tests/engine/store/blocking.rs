//! What waits for an operator: blocked jobs and paused lanes.

use entrega::store::{ChangeError, Page};
use entrega_core::decide::{Attempts, Transition, decide};
use entrega_core::job::{Job, JobState};
use entrega_core::lane::{GateKind, Hold};
use entrega_core::outcome::{Fault, FaultKind, Outcome};

use super::fixture::{Fixture, SECOND, lane, tenant};

pub(crate) async fn blocked_count(f: &Fixture, name: &str) -> u32 {
    let lanes = f.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name.as_str() == name).map(|view| view.blocked).unwrap()
}

pub(crate) async fn out_of_attempts_blocks_where_the_lane_says_so(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let policy = f.setup.lanes[&lane("http")].clone();
    let outcome = Outcome::Fault(Fault { kind: FaultKind::Timeout, message: "no answer within 10s".into() });
    for _ in 0..policy.retry.attempts {
        let claimed = f.claim_one("http").await;
        let transition = decide(
            f.now(),
            &policy,
            Attempts::after(&claimed.history, claimed.attempt),
            claimed.expires,
            &outcome,
            0.5,
        );
        if let Transition::Retry { at, .. } = transition {
            f.settle(claimed, transition).await;
            f.advance(at.since(f.now()));
        } else {
            f.settle(claimed, transition).await;
        }
    }
    let view = f.view(id).await;
    assert_eq!((view.state, view.attempts.len()), (JobState::Blocked, 5));
    assert!(view.reason.as_deref().is_some_and(|reason| reason.starts_with("no answer within 10s")));
    assert!(f.store.dead_letter(id).await.unwrap().is_none());
    assert_eq!(blocked_count(f, "http").await, 1);
    f.advance(3600 * SECOND);
    assert!(f.claim_ids("http").await.is_empty(), "only an operator moves it");
}

pub(crate) async fn an_unblocked_job_has_all_its_attempts_again(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    f.block(f.claim_one("http").await).await;
    f.advance(60 * SECOND);
    f.store.unblock(id).await.unwrap();
    assert_eq!(blocked_count(f, "http").await, 0);
    let view = f.view(id).await;
    assert_eq!((view.state, view.reason), (JobState::Queued, None));
    let claimed = f.claim_one("http").await;
    assert_eq!((claimed.job.id, claimed.attempt), (id, 1));
    f.done(claimed).await;
    assert_eq!(f.state(id).await, JobState::Done);
}

/// Promise 4: nothing disappears silently, so what was tried before an operator stepped in is still told afterwards.
pub(crate) async fn an_unblocked_job_keeps_its_earlier_attempts(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    f.store.unblock(id).await.unwrap();
    f.done(f.claim_one("http").await).await;
    let view = f.view(id).await;
    let codes: Vec<_> = view.attempts.iter().map(|attempt| attempt.code.as_str()).collect();
    assert_eq!(codes, ["http_503", "ok"]);
}

/// A job may be blocked because its time to live ran out; unblocked under the old one it would be dropped unseen.
pub(crate) async fn an_unblocked_job_gets_its_time_to_live_again(f: &Fixture) {
    let id = f.accept(Job { expires_at: Some(f.now() + 10 * SECOND), ..f.job("http", "acme") }).await;
    f.block(f.claim_one("http").await).await;
    f.advance(60 * SECOND);
    f.store.unblock(id).await.unwrap();
    let batch = f.claim("http", 1).await;
    assert!(batch.expired.is_empty(), "an operator said that it shall run");
    assert_eq!(batch.jobs.len(), 1);
}

pub(crate) async fn only_a_blocked_job_can_be_unblocked(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let wrong = f.store.unblock(id).await.unwrap_err();
    assert!(matches!(wrong, ChangeError::WrongState { state: JobState::Queued, .. }), "{wrong}");
    f.done(f.claim_one("http").await).await;
    let wrong = f.store.unblock(id).await.unwrap_err();
    assert!(matches!(wrong, ChangeError::WrongState { state: JobState::Done, .. }), "{wrong}");
    let unknown = f.store.unblock(f.job("http", "acme").id).await.unwrap_err();
    assert!(matches!(unknown, ChangeError::Unknown), "{unknown}");
}

pub(crate) async fn a_paused_lane_gives_nothing_and_shows_its_jobs_as_idle(f: &Fixture) {
    let tried = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    let fresh = f.add("http", "acme").await;
    let elsewhere = f.add("single", "acme").await;
    f.store.set_paused(&lane("http"), true).await.unwrap();
    f.advance(60 * SECOND);
    assert!(f.claim_ids("http").await.is_empty());
    assert_eq!(f.state(fresh).await, JobState::Idle);
    assert_eq!(f.state(tried).await, JobState::RetryWait, "only one that never ran is idle");
    let lanes = f.store.lanes().await.unwrap();
    let paused: Vec<_> = lanes.iter().filter(|view| view.paused).collect();
    assert_eq!(paused.len(), 1);
    assert_eq!(paused[0].hold, Some(Hold { gate: GateKind::Paused, until: None }));
    assert_eq!(f.claim_ids("single").await, [elsewhere], "other lanes go on");

    let wake = f.store.wake(&lane("http")).unwrap();
    // What the submissions and the pause have rung is not what is asked for here.
    drop(tokio::time::timeout(std::time::Duration::ZERO, wake.notified()).await);
    f.store.set_paused(&lane("http"), false).await.unwrap();
    super::fixture::soon(wake.notified()).await;
    assert_eq!(f.state(fresh).await, JobState::Queued);
    let mut claimed = f.claim_ids("http").await;
    claimed.sort();
    assert_eq!(claimed, [tried, fresh]);
}

pub(crate) async fn a_paused_lane_still_takes_and_settles(f: &Fixture) {
    let running = f.add("http", "acme").await;
    let claimed = f.claim_one("http").await;
    f.store.set_paused(&lane("http"), true).await.unwrap();
    f.add("http", "acme").await;
    f.done(claimed).await;
    assert_eq!(f.state(running).await, JobState::Done);
}

pub(crate) async fn blocked_jobs_are_told_oldest_first_with_whose_they_are(f: &Fixture) {
    let mut expected = Vec::new();
    for tenant_name in ["acme", "zeta", "acme"] {
        let job = f.job("http", tenant_name);
        expected.push((f.accept(job).await, tenant(tenant_name)));
        f.block(f.claim_one("http").await).await;
    }
    f.add("http", "acme").await;
    let first = f.store.blocked(&lane("http"), Page { after: None, limit: 2 }).await.unwrap();
    assert_eq!((first.items, first.next), (expected[..2].to_vec(), Some(expected[1].0)));
    let rest = f.store.blocked(&lane("http"), Page { after: first.next, limit: 2 }).await.unwrap();
    assert_eq!((rest.items, rest.next), (expected[2..].to_vec(), None), "those that wait are no blocked ones");
}
