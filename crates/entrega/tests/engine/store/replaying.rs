//! Replays: a dead letter goes on its way again under its old name, and is never lost to it.

use entrega::store::ChangeError;
use entrega_core::dead_letter::{DeadLetterStatus, GENERATIONS_MAX, NoReplay};
use entrega_core::job::{Job, JobState};

use super::dead_letters::no_replay;
use super::fixture::{FEW, Fixture, HOUR, SECOND};

pub(crate) async fn a_replay_keeps_id_and_key_and_counts_its_generation(f: &Fixture) {
    let job = f.job("http", "acme");
    let id = f.accept(job.clone()).await;
    f.dead(f.claim_one("http").await, "http_404").await;
    f.advance(60 * SECOND);
    f.store.replay(id).await.unwrap();
    let view = f.view(id).await;
    assert_eq!((view.state, view.generation), (JobState::Replaying, 1));
    let entry = f.entry(id).await;
    assert_eq!((entry.status, entry.generation), (DeadLetterStatus::Replaying, 1));
    let claimed = f.claim_one("http").await;
    assert_eq!((claimed.job.id, &claimed.job.idempotency_key), (id, &job.idempotency_key));
    assert_eq!(claimed.job.payload, job.payload);
    assert_eq!(claimed.job.labels, job.labels);
    assert_eq!((claimed.attempt, claimed.generation, claimed.history.len()), (1, 1, 0));
    assert_eq!(f.state(id).await, JobState::Running);
}

pub(crate) async fn only_a_pending_dead_letter_is_replayed(f: &Fixture) {
    let discarded = f.add_dead("http", "acme", "http_404").await;
    f.store.discard(discarded, "not wanted").await.unwrap();
    let replayed = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(replayed).await.unwrap();
    f.done(f.claim_one("http").await).await;
    let replaying = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(replaying).await.unwrap();
    for (id, status) in [
        (discarded, DeadLetterStatus::Discarded),
        (replayed, DeadLetterStatus::Replayed),
        (replaying, DeadLetterStatus::Replaying),
    ] {
        assert_eq!(no_replay(f.store.replay(id).await.unwrap_err()), NoReplay::NotPending { status });
    }
    assert_eq!(f.claim_ids("http").await, [replaying], "a refused replay starts nothing");
    let live = f.add("single", "acme").await;
    assert!(matches!(f.store.replay(live).await.unwrap_err(), ChangeError::Unknown));
}

pub(crate) async fn a_dead_letter_is_replayed_at_most_five_times(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    for generation in 1..=GENERATIONS_MAX {
        f.store.replay(id).await.unwrap();
        let claimed = f.claim_one("http").await;
        assert_eq!(claimed.generation, generation);
        f.dead(claimed, "http_404").await;
    }
    assert_eq!(no_replay(f.store.replay(id).await.unwrap_err()), NoReplay::TooOften);
    let entry = f.entry(id).await;
    assert_eq!((entry.status, entry.generation, entry.failed_attempts), (DeadLetterStatus::Pending, 5, 6));
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn a_delivered_replay_ends_done_and_its_entry_is_replayed(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    f.done(f.claim_one("http").await).await;
    let view = f.view(id).await;
    assert_eq!((view.state, view.generation), (JobState::Done, 1));
    let entry = f.entry(id).await;
    assert_eq!(entry.status, DeadLetterStatus::Replayed, "kept for audit");
    assert_eq!((entry.failed_attempts, entry.attempts.len()), (1, 1));
}

pub(crate) async fn a_failed_replay_adds_to_its_attempts(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.advance(60 * SECOND);
    f.store.replay(id).await.unwrap();
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    f.dead(f.claim_one("http").await, "timeout").await;
    let entry = f.entry(id).await;
    assert_eq!((entry.status, entry.generation), (DeadLetterStatus::Pending, 1));
    let codes: Vec<_> = entry.attempts.iter().map(|attempt| (attempt.number, attempt.code.as_str())).collect();
    assert_eq!(codes, [(1, "http_404"), (1, "http_503"), (2, "timeout")]);
    assert_eq!(entry.failed_attempts, 3);
    assert_eq!(entry.last_failure_code.as_deref(), Some("timeout"));
    assert_eq!(entry.moved_to_dlq_at, f.now(), "its time to live begins anew");
    assert_eq!(entry.enqueued_at, f.now() - 61 * SECOND);
}

pub(crate) async fn a_retried_replay_keeps_its_generation(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    let claimed = f.claim_one("http").await;
    assert_eq!((claimed.attempt, claimed.generation, claimed.history.len()), (2, 1, 1));
    assert_eq!(f.entry(id).await.status, DeadLetterStatus::Replaying);
    f.done(claimed).await;
    assert_eq!(f.entry(id).await.status, DeadLetterStatus::Replayed);
}

pub(crate) async fn a_cancelled_replay_is_a_pending_dead_letter_again(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    let view = f.store.cancel(id, "wrong moment").await.unwrap();
    assert_eq!(view.state, JobState::Dlq);
    let entry = f.entry(id).await;
    assert_eq!(entry.status, DeadLetterStatus::Pending);
    assert!(entry.last_failure_reason.starts_with("it failed with http_404"), "{}", entry.last_failure_reason);
    assert!(entry.last_failure_reason.contains("wrong moment"), "{}", entry.last_failure_reason);
    assert!(f.claim_ids("http").await.is_empty());
    f.store.replay(id).await.unwrap();
    assert_eq!(f.claim_one("http").await.generation, 2);
}

/// Attempts that a replay made before it was cancelled happened all the same; whoever looks for the cause needs them.
pub(crate) async fn a_cancelled_replay_keeps_the_attempts_it_made(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    f.retry(f.claim_one("http").await, SECOND).await;
    f.store.cancel(id, "wrong moment").await.unwrap();
    let entry = f.entry(id).await;
    let codes: Vec<_> = entry.attempts.iter().map(|attempt| attempt.code.as_str()).collect();
    assert_eq!(codes, ["http_404", "http_503"]);
    assert_eq!(entry.failed_attempts, 2);
}

pub(crate) async fn a_replay_has_a_time_to_live_of_its_own(f: &Fixture) {
    let id = f.accept(Job { expires_at: Some(f.now() + HOUR), ..f.job("http", "acme") }).await;
    f.dead(f.claim_one("http").await, "http_404").await;
    f.advance(2 * HOUR);
    f.store.replay(id).await.unwrap();
    let claimed = f.claim_one("http").await;
    assert_eq!(claimed.expires, f.now() + 24 * HOUR, "the lane's, from now on");
    f.retry(claimed, SECOND).await;
    assert_eq!(f.view(id).await.expires_at, Some(f.now() + 24 * HOUR), "also while it waits for a retry");
    f.advance(24 * HOUR);
    let batch = f.claim("http", 1).await;
    assert_eq!(batch.expired.iter().map(|left| left.id).collect::<Vec<_>>(), [id]);
    f.store.flush().await.unwrap();
    let entry = f.entry(id).await;
    assert_eq!(entry.status, DeadLetterStatus::Pending, "an expired replay is a dead letter again");
    assert!(entry.last_failure_reason.contains("ttl_expired"), "{}", entry.last_failure_reason);
    assert_eq!(f.state(id).await, JobState::Dlq);
}

pub(crate) async fn a_replay_goes_into_a_full_lane(f: &Fixture) {
    let id = f.add_dead("narrow", "acme", "http_404").await;
    for _ in 0..FEW {
        f.add("narrow", "acme").await;
    }
    f.store.replay(id).await.unwrap();
    assert!(f.claim_ids("narrow").await.contains(&id), "it had been accepted before: no limit applies");
}
