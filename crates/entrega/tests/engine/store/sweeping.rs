//! Sweeping: what has been kept long enough leaves, and whoever sweeps is told what left.

use std::time::Duration;

use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::quota::Quotas;

use super::fixture::{FEW, Fixture, HOUR, RETENTION, SECOND};
use super::quotas::set;

/// Sweeps; which dead letters left, and why.
async fn sweep(f: &Fixture) -> (usize, Vec<(JobId, &'static str)>) {
    let swept = f.store.sweep().await.unwrap();
    (swept.jobs, swept.dead_letters.iter().map(|(entry, why)| (entry.job_id, *why)).collect())
}

pub(crate) async fn retention_forgets_ended_jobs_and_nothing_else(f: &Fixture) {
    let old = f.add("http", "acme").await;
    f.done(f.claim_one("http").await).await;
    let cancelled = f.add("http", "acme").await;
    f.store.cancel(cancelled, "not wanted").await.unwrap();
    let dead = f.add_dead("http", "acme", "http_404").await;
    let running = f.add("http", "acme").await;
    f.claim_one("http").await;
    let waiting = f.add("http", "acme").await;
    f.advance(RETENTION);
    assert_eq!(sweep(f).await, (0, vec![]), "kept to the last moment");
    f.advance(Duration::from_millis(1));
    let young = f.add("single", "acme").await;
    f.done(f.claim_one("single").await).await;
    assert_eq!(sweep(f).await, (2, vec![]));
    for id in [old, cancelled] {
        assert!(f.store.job(id).await.unwrap().is_none());
    }
    assert_eq!(f.state(dead).await, JobState::Dlq);
    assert_eq!(f.state(running).await, JobState::Running);
    assert_eq!(f.state(waiting).await, JobState::Queued);
    assert_eq!(f.state(young).await, JobState::Done);
}

pub(crate) async fn a_job_is_kept_from_its_end_not_from_its_beginning(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.advance(2 * RETENTION);
    f.done(f.claim_one("http").await).await;
    assert_eq!(sweep(f).await.0, 0);
    f.advance(RETENTION + SECOND);
    assert_eq!(sweep(f).await.0, 1);
    assert!(f.store.job(id).await.unwrap().is_none());
}

pub(crate) async fn dead_letters_leave_at_their_ttl(f: &Fixture) {
    let all = Quotas { dead_letters: Some(100), ..Quotas::default() };
    set(f, "acme", all).await;
    let first = f.add_dead("small", "acme", "http_404").await;
    let discarded = f.add_dead("small", "acme", "http_404").await;
    f.store.discard(discarded, "not wanted").await.unwrap();
    f.advance(SECOND);
    let second = f.add_dead("small", "acme", "http_404").await;
    let elsewhere = f.add_dead("http", "acme", "http_404").await;
    let whole = f.entry(first).await;
    f.advance(HOUR - SECOND);
    let swept = f.store.sweep().await.unwrap().dead_letters;
    assert_eq!(
        swept.iter().map(|(entry, why)| (entry.job_id, *why)).collect::<Vec<_>>(),
        [(first, "ttl"), (discarded, "ttl")]
    );
    assert_eq!(swept[0].0, whole, "who sweeps can write the whole entry down");
    assert!(f.store.dead_letter(first).await.unwrap().is_none());
    assert!(f.store.job(first).await.unwrap().is_none());
    assert_eq!(dead_letter_count(f, "small").await, 1);
    f.advance(SECOND);
    assert_eq!(sweep(f).await, (0, vec![(second, "ttl")]));
    assert_eq!(sweep(f).await, (0, vec![]), "nothing leaves twice");
    f.entry(elsewhere).await;
}

pub(crate) async fn past_the_cap_the_oldest_leave(f: &Fixture) {
    let all = Quotas { dead_letters: Some(100), ..Quotas::default() };
    set(f, "acme", all).await;
    let mut ids = Vec::new();
    for _ in 0..FEW + 2 {
        ids.push(f.add_dead("small", "acme", "http_404").await);
        f.advance(SECOND);
    }
    assert_eq!(dead_letter_count(f, "small").await, FEW as u32 + 2, "they leave in a sweep, with their audit record");
    assert_eq!(sweep(f).await, (0, vec![(ids[0], "cap"), (ids[1], "cap")]));
    assert_eq!(dead_letter_count(f, "small").await, FEW as u32);
    for id in &ids[2..] {
        f.entry(*id).await;
    }
}

pub(crate) async fn a_replaying_dead_letter_stays(f: &Fixture) {
    let all = Quotas { dead_letters: Some(100), ..Quotas::default() };
    set(f, "acme", all).await;
    let mut ids = Vec::new();
    for _ in 0..FEW + 1 {
        ids.push(f.add_dead("small", "acme", "http_404").await);
        f.advance(SECOND);
    }
    f.store.replay(ids[0]).await.unwrap();
    assert_eq!(sweep(f).await, (0, vec![(ids[1], "cap")]), "the next oldest leaves instead");
    f.advance(2 * HOUR);
    assert_eq!(sweep(f).await, (0, vec![(ids[2], "ttl"), (ids[3], "ttl")]));
    let DeadLetter { failed_attempts, .. } = f.entry(ids[0]).await;
    f.dead(f.claim_one("small").await, "timeout").await;
    assert_eq!(f.entry(ids[0]).await.failed_attempts, failed_attempts + 1);
}

async fn dead_letter_count(f: &Fixture, name: &str) -> u32 {
    let lanes = f.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name.as_str() == name).map(|view| view.dead_letters).unwrap()
}
