//! Listing: every job once, wherever it stands, newest first, page by page.

use entrega::store::{JobFilter, Page};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::LaneSizes;

use super::fixture::{Fixture, SECOND, lane, tenant};

/// A job in every state, oldest first, with the state it is in.
async fn one_in_every_state(f: &Fixture) -> Vec<(JobId, JobState)> {
    let mut jobs = Vec::new();
    let done = f.add("http", "a").await;
    f.done(f.claim_one("http").await).await;
    jobs.push((done, JobState::Done));
    jobs.push((f.add_dead("http", "a", "http_404").await, JobState::Dlq));
    let cancelled = f.add("http", "a").await;
    f.store.cancel(cancelled, "not wanted").await.unwrap();
    jobs.push((cancelled, JobState::Cancelled));
    let dropped = f.accept(Job { expires_at: Some(f.now() + SECOND), ..f.job("http", "b") }).await;
    f.advance(SECOND);
    assert_eq!(f.claim("http", 1).await.expired.len(), 1);
    jobs.push((dropped, JobState::Dropped));
    let discarded = f.add_dead("http", "b", "http_404").await;
    f.store.discard(discarded, "not wanted").await.unwrap();
    jobs.push((discarded, JobState::Dlq));
    let replayed = f.add_dead("http", "b", "http_404").await;
    f.store.replay(replayed).await.unwrap();
    f.done(f.claim_one("http").await).await;
    jobs.push((replayed, JobState::Done));
    let blocked = f.add("http", "b").await;
    f.block(f.claim_one("http").await).await;
    jobs.push((blocked, JobState::Blocked));
    let retried = f.add("http", "b").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    jobs.push((retried, JobState::RetryWait));
    let running = f.add("http", "b").await;
    f.claim_one("http").await;
    jobs.push((running, JobState::Running));
    let replaying = f.add_dead("http", "b", "http_404").await;
    f.store.replay(replaying).await.unwrap();
    jobs.push((replaying, JobState::Replaying));
    jobs.push((f.add("http", "b").await, JobState::Queued));
    let later = Job { due_at: f.now() + SECOND, ..f.job("small", "a") };
    jobs.push((f.accept(later).await, JobState::Idle));
    f.store.flush().await.unwrap();
    jobs
}

/// All pages, each with at most `limit` rows.
async fn pages(f: &Fixture, filter: &JobFilter, limit: usize) -> Vec<Vec<(JobId, JobState)>> {
    let (mut after, mut pages) = (None, Vec::new());
    loop {
        let page = f.store.jobs(filter, Page { after, limit }).await.unwrap();
        pages.push(page.items.iter().map(|view| (view.job_id, view.state)).collect());
        after = page.next;
        if after.is_none() || pages.len() > 100 {
            return pages;
        }
    }
}

pub(crate) async fn every_job_is_listed_once_newest_first(f: &Fixture) {
    let mut jobs = one_in_every_state(f).await;
    jobs.reverse();
    for limit in 1..=jobs.len() + 1 {
        let pages = pages(f, &JobFilter::default(), limit).await;
        assert_eq!(pages.concat(), jobs, "pages of {limit}");
        assert!(pages.iter().all(|page| page.len() <= limit));
    }
    let in_fives: Vec<_> = pages(f, &JobFilter::default(), 5).await.iter().map(Vec::len).collect();
    assert_eq!(in_fives, [5, 5, 2]);
}

pub(crate) async fn jobs_are_listed_by_lane_and_tenant(f: &Fixture) {
    let mut jobs = one_in_every_state(f).await;
    jobs.reverse();
    let of_small = JobFilter { lane: Some(lane("small")), ..JobFilter::default() };
    assert_eq!(pages(f, &of_small, 2).await.concat(), jobs[..1]);
    let of_a = JobFilter { tenant: Some(tenant("a")), ..JobFilter::default() };
    assert_eq!(pages(f, &of_a, 2).await.concat(), [jobs[0], jobs[9], jobs[10], jobs[11]]);
    let of_both = JobFilter { lane: Some(lane("http")), ..of_a };
    assert_eq!(pages(f, &of_both, 2).await.concat(), jobs[9..]);
}

/// The endpoints of a tenant take turns of their own; a listing of one shows none of the others', however they ended.
pub(crate) async fn jobs_are_listed_by_endpoint(f: &Fixture) {
    let mut of_one = Vec::new();
    for name in ["one", "two"] {
        let job = || Job { tenant: tenant("a").endpoint(name), ..f.job("http", "a") };
        let cancelled = f.accept(job()).await;
        f.store.cancel(cancelled, "not wanted").await.unwrap();
        let blocked = f.accept(job()).await;
        f.block(f.claim_one("http").await).await;
        if name == "one" {
            of_one = vec![(blocked, JobState::Blocked), (cancelled, JobState::Cancelled)];
        }
    }
    let by = |whose| JobFilter { tenant: Some(whose), ..JobFilter::default() };
    assert_eq!(pages(f, &by(tenant("a").endpoint("one")), 10).await.concat(), of_one);
    assert_eq!(pages(f, &by(tenant("a")), 10).await.concat().len(), 4);
}

pub(crate) async fn jobs_are_listed_by_state(f: &Fixture) {
    let mut jobs = one_in_every_state(f).await;
    jobs.reverse();
    for state in JobState::ALL {
        let filter = JobFilter { states: vec![state], ..JobFilter::default() };
        let expected: Vec<_> = jobs.iter().copied().filter(|job| job.1 == state).collect();
        assert!(!expected.is_empty(), "{state} is among them");
        assert_eq!(pages(f, &filter, 1).await.concat(), expected, "{state}");
    }
}

pub(crate) async fn jobs_are_listed_by_several_states(f: &Fixture) {
    let mut jobs = one_in_every_state(f).await;
    jobs.reverse();
    for states in JobState::ALL.windows(3) {
        let filter = JobFilter { states: states.to_vec(), ..JobFilter::default() };
        let expected: Vec<_> = jobs.iter().copied().filter(|job| states.contains(&job.1)).collect();
        assert_eq!(pages(f, &filter, 2).await.concat(), expected, "{states:?}");
    }
}

/// A page looks at a bounded number of records of each kind; what lies beyond must come later, and only then.
pub(crate) async fn a_long_search_goes_on_with_the_next_page(f: &Fixture) {
    let dead = f.add_dead("http", "rare", "http_404").await;
    let waiting = f.add("http", "rare").await;
    for _ in 0..21 {
        f.submit_all((0..1_000).map(|_| f.job("http", "busy")).collect()).await;
    }
    let of_rare = JobFilter { tenant: Some(tenant("rare")), ..JobFilter::default() };
    let expected = [(waiting, JobState::Queued), (dead, JobState::Dlq)];
    assert_eq!(pages(f, &of_rare, 10).await.concat(), expected);
}

pub(crate) async fn a_lane_counts_its_jobs(f: &Fixture) {
    one_in_every_state(f).await;
    let lanes = f.store.lanes().await.unwrap();
    assert_eq!(lanes.len(), f.setup.lanes.len());
    let view = |name: &str| lanes.iter().find(|view| view.name.as_str() == name).unwrap();
    let count = |sizes: &LaneSizes| {
        [JobState::Queued, JobState::Running, JobState::RetryWait, JobState::Replaying, JobState::Idle]
            .map(|state| sizes.in_state(state))
    };
    assert_eq!(count(&view("http").sizes), [1, 1, 1, 1, 0]);
    assert_eq!((view("http").blocked, view("http").dead_letters), (1, 2), "the pending and the replaying one");
    assert_eq!(count(&view("small").sizes), [0, 0, 0, 0, 1]);
    assert_eq!((view("small").blocked, view("small").dead_letters), (0, 0));
    let oldest = view("http").oldest.unwrap();
    assert_eq!(oldest, f.now(), "the retry is the oldest that waits");
}
