//! Admission: a full lane refuses or pushes out, an expired job is dropped, and each of these is seen.

use std::collections::BTreeMap;

use entrega::store::Submitted;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState, Priority};

use super::fixture::{FEW, Fixture, SECOND, is_unknown_lane, soon};

const ACCEPTED: Submitted = Submitted::Accepted { pushed_out: None };

/// Which job had to leave for a newcomer.
fn pushed_out(submitted: &Submitted) -> Option<JobId> {
    match submitted {
        Submitted::Accepted { pushed_out } => pushed_out.as_ref().map(|left| left.id),
        _ => None,
    }
}

async fn assert_dropped(f: &Fixture, id: JobId, reason: &str) {
    let view = f.view(id).await;
    assert_eq!(view.state, JobState::Dropped);
    assert!(view.reason.as_deref().is_some_and(|why| why.starts_with(reason)), "{:?}", view.reason);
    assert_eq!(view.ended_at, Some(f.now()));
    assert_eq!(view.labels["runId"], "run_456", "what it was is still known");
    soon(f.store.ended(id)).await.unwrap();
}

pub(crate) async fn a_full_lane_refuses_and_keeps_what_it_has(f: &Fixture) {
    let jobs: Vec<_> = (0..FEW + 2).map(|_| f.job("narrow", "acme")).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let urgent = f.urgent_job("narrow", Priority::High);
    let submitted = f.submit_all(jobs).await;
    assert_eq!(submitted, [ACCEPTED, ACCEPTED, ACCEPTED, Submitted::Full, Submitted::Full]);
    assert_eq!(f.submit_all(vec![urgent]).await, [Submitted::Full], "this lane pushes nobody out");
    assert!(f.store.job(ids[FEW]).await.unwrap().is_none(), "nothing is kept of what was refused");
    assert_eq!(f.claim_ids("narrow").await, ids[..FEW]);
    f.add("narrow", "acme").await;
}

pub(crate) async fn an_urgent_job_pushes_out_the_newest_low_one(f: &Fixture) {
    let normal = f.accept(f.urgent_job("urgent", Priority::Normal)).await;
    let old_low = f.accept(f.urgent_job("urgent", Priority::Low)).await;
    let new_low = f.accept(f.urgent_job("urgent", Priority::Low)).await;
    let high = f.urgent_job("urgent", Priority::High);
    let id = high.id;
    assert_eq!(f.submit_all(vec![high]).await.iter().map(pushed_out).collect::<Vec<_>>(), [Some(new_low)]);
    assert_dropped(f, new_low, "preempted").await;
    let another = f.urgent_job("urgent", Priority::Normal);
    let another_id = another.id;
    assert_eq!(f.submit_all(vec![another]).await.iter().map(pushed_out).collect::<Vec<_>>(), [Some(old_low)]);
    assert_dropped(f, old_low, "preempted").await;
    assert_eq!(f.claim_ids("urgent").await, [id, normal, another_id]);
}

pub(crate) async fn without_low_jobs_the_newest_normal_one_leaves(f: &Fixture) {
    let old = f.add("urgent", "acme").await;
    f.add("urgent", "acme").await;
    let newest = f.accept(Job { due_at: f.now() + 60 * SECOND, ..f.job("urgent", "acme") }).await;
    let high = f.urgent_job("urgent", Priority::High);
    assert_eq!(pushed_out(&f.submit_all(vec![high]).await[0]), Some(newest), "one that is not due yet can leave, too");
    assert_dropped(f, newest, "preempted").await;
    assert_eq!(f.state(old).await, JobState::Queued);
}

pub(crate) async fn nothing_as_urgent_is_pushed_out(f: &Fixture) {
    for _ in 0..FEW {
        f.add("urgent", "acme").await;
    }
    for priority in [Priority::Normal, Priority::Low] {
        assert_eq!(f.submit_all(vec![f.urgent_job("urgent", priority)]).await, [Submitted::Full], "{priority:?}");
    }
    assert_eq!(f.claim_ids("urgent").await.len(), FEW);
}

pub(crate) async fn pushing_out_works_within_one_submission(f: &Fixture) {
    let priorities = [Priority::Low, Priority::Low, Priority::Low, Priority::High, Priority::High];
    let jobs: Vec<_> = priorities.iter().map(|&priority| f.urgent_job("urgent", priority)).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let left: Vec<_> = f.submit_all(jobs).await.iter().map(pushed_out).collect();
    assert_eq!(left, [None, None, None, Some(ids[2]), Some(ids[1])]);
    assert_dropped(f, ids[1], "preempted").await;
    assert_dropped(f, ids[2], "preempted").await;
    assert_eq!(f.claim_ids("urgent").await, [ids[3], ids[4], ids[0]]);
}

pub(crate) async fn a_running_job_is_never_pushed_out(f: &Fixture) {
    let low = f.accept(f.urgent_job("urgent", Priority::Low)).await;
    let running = f.claim_one("urgent").await;
    for _ in 0..FEW {
        f.accept(f.urgent_job("urgent", Priority::High)).await;
    }
    assert_eq!(f.submit_all(vec![f.urgent_job("urgent", Priority::High)]).await, [Submitted::Full]);
    assert_eq!(f.state(low).await, JobState::Running);
    f.done(running).await;
    assert_eq!(f.state(low).await, JobState::Done);
}

pub(crate) async fn an_expired_job_is_dropped_and_the_next_is_looked_at(f: &Fixture) {
    let expires_at = Some(f.now() + 10 * SECOND);
    let expiring = f.accept(Job { expires_at, ..f.job("http", "acme") }).await;
    let next = f.add("http", "acme").await;
    assert_eq!(f.view(expiring).await.expires_at, expires_at);
    f.advance(10 * SECOND);
    let batch = f.claim("http", 1).await;
    assert_eq!(batch.jobs.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), [next]);
    assert_eq!(batch.expired.iter().map(|left| left.id).collect::<Vec<_>>(), [expiring]);
    f.store.flush().await.unwrap();
    assert_dropped(f, expiring, "ttl_expired").await;
}

pub(crate) async fn a_retry_that_expires_keeps_its_attempts(f: &Fixture) {
    let id = f.accept(Job { expires_at: Some(f.now() + 10 * SECOND), ..f.job("http", "acme") }).await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(20 * SECOND);
    assert_eq!(f.claim("http", 1).await.expired.len(), 1);
    f.store.flush().await.unwrap();
    assert_dropped(f, id, "ttl_expired").await;
    assert_eq!(f.view(id).await.attempts.len(), 1);
}

/// It panicked the thread that writes: everybody who waited for it waited for ever.
pub(crate) async fn an_id_that_is_in_the_lane_is_refused_and_the_first_job_stays(f: &Fixture) {
    let first = f.job("http", "acme");
    let twin = |whose: &str| Job { id: first.id, labels: BTreeMap::new(), ..f.job("http", whose) };
    let submitted = f.submit_all(vec![first.clone(), twin("acme"), f.job("http", "acme")]).await;
    assert_eq!(submitted, [ACCEPTED, Submitted::Duplicate, ACCEPTED], "in one submission");
    assert_eq!(soon(f.store.submit(vec![twin("other")])).await.unwrap(), [Submitted::Duplicate], "while it waits");
    let view = f.view(first.id).await;
    assert_eq!((view.company_id, view.labels), (first.tenant.clone(), first.labels.clone()));
    let claimed = f.claim_one("http").await;
    assert_eq!(claimed.job, first);
    assert_eq!(f.submit_all(vec![twin("acme")]).await, [Submitted::Duplicate], "while it runs");
    f.done(claimed).await;
    assert_eq!(f.state(first.id).await, JobState::Done);
    assert_eq!(f.claim_ids("http").await.len(), 1, "nothing is left of its twins");
}

pub(crate) async fn a_batch_with_an_unknown_lane_is_refused_whole(f: &Fixture) {
    let jobs = vec![f.job("http", "acme"), f.job("nowhere", "acme")];
    assert!(is_unknown_lane(&f.store.submit(jobs).await.unwrap_err()));
    assert!(f.claim_ids("http").await.is_empty());
}
