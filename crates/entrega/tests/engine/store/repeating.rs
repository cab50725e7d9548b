//! Keys: what is handed in twice happens once, and whoever hands it in again gets the first answer.

use std::sync::Arc;

use entrega::store::{Idempotency, NewEntry, Submitted};
use entrega_core::job::{Job, JobState};

use super::fixture::{FEW, Fixture, HOUR, SECOND, tenant};

const ACCEPTED: Submitted = Submitted::Accepted { pushed_out: None };

fn once(key: &str, request: u8) -> Idempotency {
    Idempotency { key: key.into(), request: [request; 32], lasts: 24 * HOUR }
}

fn keyed(job: Job, key: &str, request: u8) -> NewEntry {
    NewEntry { job, idempotency: vec![once(key, request)], answer: None }
}

async fn take(f: &Fixture, entry: NewEntry) -> Submitted {
    f.store.take(vec![entry]).await.unwrap().remove(0)
}

pub(crate) async fn the_same_key_gives_the_first_id_again(f: &Fixture) {
    let first = f.job("http", "acme");
    let again = |f: &Fixture| keyed(f.job("http", "acme"), "order-17", 1);
    let entries = vec![keyed(first.clone(), "order-17", 1), again(f)];
    let repeated = Submitted::Repeated { id: first.id };
    assert_eq!(f.store.take(entries).await.unwrap(), [ACCEPTED, repeated.clone()], "in one submission");
    assert_eq!(take(f, again(f)).await, repeated, "while it waits");
    let claimed = f.claim_one("http").await;
    assert_eq!(claimed.job, first);
    assert_eq!(take(f, again(f)).await, repeated, "while it runs");
    f.done(claimed).await;
    assert_eq!(take(f, again(f)).await, repeated, "when it has ended");
    assert_eq!(f.state(first.id).await, JobState::Done);
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn a_key_used_for_another_request_is_refused(f: &Fixture) {
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 1)).await, ACCEPTED);
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 2)).await, Submitted::OtherRequest);
    assert_eq!(take(f, keyed(f.job("small", "acme"), "order-17", 3)).await, Submitted::OtherRequest, "in any lane");
    assert_eq!(f.claim_ids("http").await.len(), 1);
    assert!(f.claim_ids("small").await.is_empty());
}

pub(crate) async fn a_key_is_a_tenants_own(f: &Fixture) {
    assert_eq!(take(f, keyed(f.job("http", "a"), "order-17", 1)).await, ACCEPTED);
    assert_eq!(take(f, keyed(f.job("http", "b"), "order-17", 2)).await, ACCEPTED);
    assert_eq!(take(f, keyed(f.job("http", "a"), "order-18", 2)).await, ACCEPTED);
    assert_eq!(f.claim_ids("http").await.len(), 3);
}

pub(crate) async fn a_key_is_forgotten_when_it_expires(f: &Fixture) {
    let first = f.job("http", "acme");
    assert_eq!(take(f, keyed(first.clone(), "order-17", 1)).await, ACCEPTED);
    f.advance(24 * HOUR - SECOND);
    f.store.sweep().await.unwrap();
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 1)).await, Submitted::Repeated { id: first.id });
    f.advance(SECOND);
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 2)).await, ACCEPTED, "before a sweep");
    f.advance(24 * HOUR);
    f.store.sweep().await.unwrap();
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 3)).await, ACCEPTED, "and after one");
}

/// A caller who was told to come back later must not be told the same for a day.
pub(crate) async fn what_was_refused_is_not_remembered(f: &Fixture) {
    for _ in 0..FEW {
        f.add("narrow", "acme").await;
    }
    let entry = || keyed(f.job("narrow", "acme"), "order-17", 1);
    assert_eq!(take(f, entry()).await, Submitted::Full);
    f.claim("narrow", FEW).await;
    assert_eq!(take(f, entry()).await, ACCEPTED);
}

pub(crate) async fn of_many_at_once_one_is_taken(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (store, entry) = (Arc::clone(&f.store), keyed(f.job("http", "acme"), "order-17", 1));
        tasks.spawn(async move { store.take(vec![entry]).await.unwrap().remove(0) });
    }
    let answers = tasks.join_all().await;
    let taken = f.claim_ids("http").await;
    assert_eq!(taken.len(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == ACCEPTED).count(), 1);
    let repeated = Submitted::Repeated { id: taken[0] };
    assert_eq!(answers.iter().filter(|answer| **answer == repeated).count(), 31);
}

/// A mail has the key of its call and an id of its caller's own.
pub(crate) async fn a_job_with_several_keys_is_known_by_each(f: &Fixture) {
    let entry = |keys: &[&str]| NewEntry {
        job: f.job("http", "acme"),
        idempotency: keys.iter().map(|key| once(key, 1)).collect(),
        answer: None,
    };
    let first = entry(&["call-1", "order-17"]);
    let repeated = Submitted::Repeated { id: first.job.id };
    let entries = vec![first, entry(&["call-2", "order-17"]), entry(&["call-1"])];
    let answers = f.store.take(entries).await.unwrap();
    assert_eq!(answers, [ACCEPTED, repeated.clone(), repeated.clone()], "in one submission");
    for keys in [&["call-1"][..], &["order-17"], &["call-3", "order-17"], &["order-17", "call-1"]] {
        assert_eq!(take(f, entry(keys)).await, repeated, "{keys:?}");
    }
    assert_eq!(take(f, entry(&["call-2", "order-18"])).await, ACCEPTED, "a repeat leaves no key behind");
    assert_eq!(f.claim_ids("http").await.len(), 2);
}

pub(crate) async fn the_first_key_that_is_known_decides(f: &Fixture) {
    let (one, other) = (f.job("http", "acme"), f.job("http", "acme"));
    assert_eq!(take(f, keyed(one.clone(), "one", 1)).await, ACCEPTED);
    assert_eq!(take(f, keyed(other.clone(), "other", 2)).await, ACCEPTED);
    for (keys, expected) in [
        ([("one", 1), ("other", 2)], Submitted::Repeated { id: one.id }),
        ([("other", 2), ("one", 1)], Submitted::Repeated { id: other.id }),
        ([("one", 1), ("other", 9)], Submitted::Repeated { id: one.id }),
        ([("one", 9), ("other", 2)], Submitted::OtherRequest),
        ([("new", 1), ("other", 1)], Submitted::OtherRequest),
    ] {
        let idempotency = keys.iter().map(|(key, request)| once(key, *request)).collect();
        assert_eq!(
            take(f, NewEntry { job: f.job("http", "acme"), idempotency, answer: None }).await,
            expected,
            "{keys:?}"
        );
    }
    assert_eq!(f.claim_ids("http").await, [one.id, other.id]);
}

/// A sweep forgot a key for the sake of its first use, which had expired, although it had been used again since.
pub(crate) async fn a_key_that_is_used_anew_is_remembered_anew(f: &Fixture) {
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 1)).await, ACCEPTED);
    f.advance(24 * HOUR);
    let second = f.job("http", "acme");
    assert_eq!(take(f, keyed(second.clone(), "order-17", 2)).await, ACCEPTED);
    f.store.sweep().await.unwrap();
    f.store.flush().await.unwrap();
    assert_eq!(take(f, keyed(f.job("http", "acme"), "order-17", 2)).await, Submitted::Repeated { id: second.id });
}

pub(crate) async fn the_job_taken_under_a_key_is_found_while_it_is_remembered(f: &Fixture) {
    let job = f.job("http", "acme");
    let short = Idempotency { lasts: HOUR, ..once("call-1", 1) };
    assert_eq!(
        take(f, NewEntry { job: job.clone(), idempotency: vec![short, once("order-17", 1)], answer: None }).await,
        ACCEPTED
    );
    let look = async |whose: &str, key: &str| f.store.job_by_key(&tenant(whose), key).await.unwrap();
    assert_eq!(look("acme", "call-1").await, Some(job.id));
    assert_eq!(look("acme", "order-17").await, Some(job.id));
    assert_eq!(look("acme", "order-18").await, None);
    assert_eq!(look("other", "order-17").await, None);
    f.done(f.claim_one("http").await).await;
    f.advance(HOUR);
    assert_eq!(
        (look("acme", "call-1").await, look("acme", "order-17").await),
        (None, Some(job.id)),
        "each for its time"
    );
    f.advance(23 * HOUR);
    assert_eq!(look("acme", "order-17").await, None, "before a sweep");
    f.store.sweep().await.unwrap();
    assert_eq!(look("acme", "order-17").await, None);
}
