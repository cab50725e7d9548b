//! Claims: what is due goes out once, in order of urgency, turn and age.

use std::collections::BTreeSet;
use std::sync::Arc;

use entrega::store::{Submitted, TenantSettings};
use entrega_core::job::{Job, JobState, Priority};

use super::fixture::{Fixture, SECOND, is_unknown_lane, lane, soon, tenant};

pub(crate) async fn accepted_jobs_are_claimed_once_in_the_order_they_came(f: &Fixture) {
    let mut added = Vec::new();
    for _ in 0..5 {
        added.push(f.add("http", "acme").await);
    }
    let first = f.claim("http", 2).await;
    assert_eq!(first.jobs.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), added[..2]);
    assert_eq!(f.claim_ids("http").await, added[2..]);
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn urgent_jobs_go_first(f: &Fixture) {
    let mut added = Vec::new();
    for priority in [Priority::Low, Priority::Normal, Priority::High, Priority::Low, Priority::High] {
        added.push(f.accept(f.urgent_job("http", priority)).await);
    }
    assert_eq!(f.claim_ids("http").await, [2, 4, 1, 0, 3].map(|index| added[index]));
}

async fn turns(f: &Fixture, jobs_each: usize) -> String {
    for name in ["a", "b"] {
        f.submit_all((0..jobs_each).map(|_| f.job("http", name)).collect()).await;
    }
    let claimed = f.claim("http", usize::MAX).await.jobs;
    claimed.iter().map(|claimed| claimed.job.tenant.as_str()).collect()
}

pub(crate) async fn tenants_take_turns_of_three(f: &Fixture) {
    assert_eq!(turns(f, 5).await, "aaabbbaabb");
}

pub(crate) async fn a_heavier_tenant_has_longer_turns(f: &Fixture) {
    f.store.put_tenant(TenantSettings { weight: 2, ..TenantSettings::new(tenant("b")) }).await.unwrap();
    assert_eq!(turns(f, 7).await, "aaabbbbbbaaaba");
}

pub(crate) async fn a_claim_brings_the_whole_job(f: &Fixture) {
    let job = Job { expires_at: Some(f.now() + 60 * SECOND), ..f.urgent_job("http", Priority::Low) };
    f.accept(job.clone()).await;
    let claimed = f.claim_one("http").await;
    assert_eq!(claimed.job, job);
    assert_eq!((claimed.attempt, claimed.generation), (1, 0));
    assert!(claimed.history.is_empty());
    assert_eq!(Some(claimed.expires), job.expires_at);
}

pub(crate) async fn a_running_job_is_not_claimed_again(f: &Fixture) {
    let id = f.add("http", "acme").await;
    assert_eq!(f.state(id).await, JobState::Queued);
    let claimed = f.claim_one("http").await;
    assert_eq!(f.state(id).await, JobState::Running);
    f.advance(60 * SECOND);
    assert!(f.claim_ids("http").await.is_empty());
    f.done(claimed).await;
    assert!(f.claim_ids("http").await.is_empty());
}

pub(crate) async fn a_delayed_job_waits_for_its_moment(f: &Fixture) {
    let due_at = f.now() + 10 * SECOND;
    let later = f.accept(Job { due_at: due_at + SECOND, ..f.job("http", "acme") }).await;
    let id = f.accept(Job { due_at, ..f.job("http", "acme") }).await;
    let view = f.view(id).await;
    assert_eq!((view.state, view.due_at), (JobState::Idle, Some(due_at)));
    f.advance(10 * SECOND - std::time::Duration::from_micros(1));
    let early = f.claim("http", 10).await;
    assert!(early.jobs.is_empty());
    assert_eq!(early.wake_at, Some(due_at), "the dispatcher is told when to come back");
    f.advance(std::time::Duration::from_micros(1));
    assert_eq!(f.claim_ids("http").await, [id]);
    assert_eq!(f.claim("http", 10).await.wake_at, Some(due_at + SECOND));
    f.advance(SECOND);
    assert_eq!(f.claim_ids("http").await, [later]);
}

pub(crate) async fn a_lane_starts_no_more_than_its_concurrency(f: &Fixture) {
    let first = f.add("single", "a").await;
    let second = f.add("single", "b").await;
    let claimed = f.claim("single", 10).await.jobs.remove(0);
    assert_eq!(claimed.job.id, first);
    assert!(f.claim_ids("single").await.is_empty());
    f.done(claimed).await;
    assert_eq!(f.claim_ids("single").await, [second]);
}

pub(crate) async fn an_unknown_lane_is_refused_with_the_known_ones(f: &Fixture) {
    assert!(is_unknown_lane(&f.store.claim(&lane("nowhere"), 1).await.unwrap_err()));
    assert!(is_unknown_lane(&f.store.wake(&lane("nowhere")).unwrap_err()));
    assert!(is_unknown_lane(&f.store.set_paused(&lane("nowhere"), true).await.unwrap_err()));
}

pub(crate) async fn a_dispatcher_is_woken_by_new_work(f: &Fixture) {
    let wake = f.store.wake(&lane("http")).unwrap();
    f.add("http", "acme").await;
    soon(wake.notified()).await;
    assert_eq!(f.claim_ids("http").await.len(), 1, "what woke it can be claimed");
}

pub(crate) async fn jobs_from_64_tasks_are_each_claimed_once(f: &Fixture) {
    let mut ids = BTreeSet::new();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64 {
        let jobs: Vec<_> = (0..5).map(|_| f.job("http", &format!("t{}", task % 7))).collect();
        ids.extend(jobs.iter().map(|job| job.id));
        let store = f.store.clone();
        tasks.spawn(async move {
            for job in jobs {
                assert_eq!(store.submit(vec![job]).await.unwrap(), [Submitted::Accepted { pushed_out: None }]);
            }
        });
    }
    tasks.join_all().await;
    let claimed = f.claim_ids("http").await;
    assert_eq!(claimed.len(), ids.len());
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), ids);
}

pub(crate) async fn no_job_is_claimed_by_two_claimers(f: &Fixture) {
    let jobs: Vec<_> = (0..400).map(|_| f.job("http", "acme")).collect();
    let ids: BTreeSet<_> = jobs.iter().map(|job| job.id).collect();
    f.submit_all(jobs).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&f.store);
        tasks.spawn(async move {
            let mut claimed = Vec::new();
            for _ in 0..50 {
                let batch = store.claim(&lane("http"), 1).await.unwrap();
                claimed.extend(batch.jobs.iter().map(|claimed| claimed.job.id));
                tokio::task::yield_now().await;
            }
            claimed
        });
    }
    let claimed = tasks.join_all().await.concat();
    assert_eq!(claimed.len(), ids.len());
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), ids);
}
