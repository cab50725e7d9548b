//! Cancelling: only what waits or is blocked can be ended by request, and the reason is kept.

use std::sync::Arc;

use entrega::store::ChangeError;
use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};

use super::blocking::blocked_count;
use super::fixture::{Fixture, SECOND, soon};

async fn assert_refused(f: &Fixture, id: JobId, expected: JobState) {
    let refused = f.store.cancel(id, "not wanted").await.unwrap_err();
    assert!(matches!(refused, ChangeError::WrongState { state, .. } if state == expected), "{refused}");
    assert_eq!(f.state(id).await, expected, "a refusal changes nothing");
}

pub(crate) async fn a_waiting_job_is_cancelled_with_the_reason(f: &Fixture) {
    let queued = f.add("http", "acme").await;
    let delayed = f.accept(Job { due_at: f.now() + SECOND, ..f.job("http", "acme") }).await;
    for id in [queued, delayed] {
        let view = f.store.cancel(id, "not wanted").await.unwrap();
        assert_eq!((view.job_id, view.state), (id, JobState::Cancelled));
        let view = f.view(id).await;
        assert_eq!((view.state, view.reason.as_deref()), (JobState::Cancelled, Some("not wanted")));
        assert_eq!(view.ended_at, Some(f.now()));
    }
    f.advance(SECOND);
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn a_job_that_waits_for_a_retry_is_cancelled_with_its_attempts(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.store.cancel(id, "not wanted").await.unwrap();
    let view = f.view(id).await;
    assert_eq!((view.state, view.attempts.len()), (JobState::Cancelled, 1));
    f.advance(SECOND);
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn a_running_job_is_not_cancelled(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let claimed = f.claim_one("http").await;
    assert_refused(f, id, JobState::Running).await;
    f.done(claimed).await;
    assert_eq!(f.state(id).await, JobState::Done);
}

/// What waits for an endpoint that never comes back could otherwise never end.
pub(crate) async fn a_blocked_job_is_cancelled_with_its_attempts(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    let other = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    let view = f.store.cancel(id, "not wanted").await.unwrap();
    assert_eq!((view.state, view.reason.as_deref()), (JobState::Cancelled, Some("not wanted")));
    let view = f.view(id).await;
    assert_eq!((view.state, view.reason.as_deref()), (JobState::Cancelled, Some("not wanted")));
    assert_eq!((view.attempts.len(), view.ended_at), (1, Some(f.now())));
    assert_eq!(blocked_count(f, "http").await, 1, "only the other one");
    let refused = f.store.unblock(id).await.unwrap_err();
    assert!(matches!(refused, ChangeError::WrongState { .. }), "{refused}");
    assert_refused(f, id, JobState::Cancelled).await;
    f.store.unblock(other).await.unwrap();
    assert_eq!(f.claim_ids("http").await, [other]);
}

pub(crate) async fn a_blocked_replay_that_is_cancelled_is_a_pending_dead_letter_again(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    f.block(f.claim_one("http").await).await;
    assert_eq!(f.store.cancel(id, "not wanted").await.unwrap().state, JobState::Dlq);
    let entry = f.entry(id).await;
    assert_eq!((entry.status, entry.attempts.len()), (DeadLetterStatus::Pending, 2));
    assert!(entry.last_failure_reason.contains("not wanted"), "{}", entry.last_failure_reason);
    assert_eq!(blocked_count(f, "http").await, 0);
    f.store.replay(id).await.unwrap();
    assert_eq!(f.claim_ids("http").await, [id]);
}

pub(crate) async fn a_blocked_job_that_many_end_or_unblock_ends_once(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let store = Arc::clone(&f.store);
        tasks.spawn(async move {
            match number % 2 {
                0 => store.cancel(id, "not wanted").await.map(drop),
                _ => store.unblock(id).await,
            }
        });
    }
    let outcomes = soon(tasks.join_all()).await;
    // Idempotency unblocked it waits, and is cancelled from there.
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!((1..=2).contains(&done) && f.state(id).await == JobState::Cancelled, "{outcomes:?}");
    assert_eq!(blocked_count(f, "http").await, 0);
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn what_has_ended_or_is_unknown_is_not_cancelled(f: &Fixture) {
    let done = f.add("http", "acme").await;
    f.done(f.claim_one("http").await).await;
    assert_refused(f, done, JobState::Done).await;
    let dead = f.add_dead("http", "acme", "http_404").await;
    assert_refused(f, dead, JobState::Dlq).await;
    let cancelled = f.add("http", "acme").await;
    f.store.cancel(cancelled, "not wanted").await.unwrap();
    assert_refused(f, cancelled, JobState::Cancelled).await;
    let unknown = f.store.cancel(f.job("http", "acme").id, "not wanted").await.unwrap_err();
    assert!(matches!(unknown, ChangeError::Unknown), "{unknown}");
}
