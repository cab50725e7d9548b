//! A server that forgets its scripts, or is killed and started again: the same store goes on, and nothing is lost.

use std::time::Duration;

use entrega::store::{JobFilter, Page, StoreError};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};

use super::world::{World, bounded, claims, comes_back, eventually};
use crate::store::fixture::{Fixture, HOUR, SECOND};
use entrega_testkit::redis::{self, RedisServer};

const GOES_ON_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_outlives_a_server_that_forgot_its_scripts() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_hand(&server).node().await;
        let forget = || assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
        forget();
        let id = node.add("http", "acme").await;
        forget();
        let claimed = node.claim_one("http").await;
        forget();
        node.retry(claimed, SECOND).await;
        forget();
        assert_eq!(node.state(id).await, JobState::RetryWait);
        forget();
        assert_eq!(node.store.lanes().await.unwrap().len(), node.setup.lanes.len());
        forget();
        let page = Page { after: None, limit: 10 };
        assert_eq!(node.store.jobs(&JobFilter::default(), page).await.unwrap().items.len(), 1);
        forget();
        node.store.sweep().await.unwrap();
        forget();
        node.store.cancel(id, "not wanted").await.unwrap();
        forget();
        assert_eq!(node.store.tenants().await.unwrap().len(), 1);
        forget();
        // All at once, so that several find their script missing.
        let jobs: Vec<Job> = ["http", "single", "shared", "small"].map(|lane| node.job(lane, "acme")).into();
        assert_eq!(node.submit_all(jobs).await.len(), 4);
        for lane in ["http", "single", "shared", "small"] {
            assert_eq!(node.claim_ids(lane).await.len(), 1, "{lane}");
        }
    })
    .await;
}

/// How jobs of every kind stand.
async fn states(node: &Fixture, ids: &[JobId]) -> Vec<JobState> {
    let mut states = Vec::new();
    for id in ids {
        states.push(node.state(*id).await);
    }
    states
}

/// Waits until the store reaches its server again.
async fn goes_on(node: &Fixture) {
    let answers = async || node.store.health().failure.map_or(Ok(()), Err);
    eventually(GOES_ON_WITHIN, "the store reaches its server again", answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_and_started_again_has_everything_and_the_same_store_goes_on() {
    if redis::is_left_out() {
        return;
    }
    bounded(kill_and_restart()).await;
}

async fn kill_and_restart() {
    let server = RedisServer::start(&["--appendfsync", "always"]);
    let node = World::by_server(&server).node().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(node.add("http", "acme").await);
    }
    node.done(node.claim_one("http").await).await;
    node.dead(node.claim_one("http").await, "http_404").await;
    node.retry(node.claim_one("http").await, HOUR).await;
    let running = node.claim_one("http").await;
    let expected = [JobState::Done, JobState::Dlq, JobState::RetryWait, JobState::Running, JobState::Queued];
    assert_eq!(states(&node, &ids).await, expected);

    server.kill();
    let job = node.job("http", "acme");
    let unclear = job.id;
    let refused = node.store.submit(vec![job]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unreachable { .. }), "{refused}");
    assert!(node.store.health().failure.is_some());
    let batch = node.claim("http", 1).await;
    assert!(batch.jobs.is_empty());
    comes_back(&node, &batch).await;
    server.restart();
    goes_on(&node).await;
    assert!(node.store.health().failure.is_none());
    assert_eq!(states(&node, &ids).await, expected, "nothing is lost");

    // Its lane is still its own: the attempt that was under way is settled as if nothing had happened.
    node.done(running).await;
    assert_eq!(node.store.health().stale_settlements, 0);
    let mut claimed = vec![claims(&node, "http", GOES_ON_WITHIN).await.job.id];
    claimed.extend(node.claim_ids("http").await);
    // Whoever was told that nobody knows whether the job was taken may find it taken.
    claimed.retain(|id| *id != unclear);
    assert_eq!(claimed, [ids[4]]);
    node.add("http", "acme").await;
}

/// It said "the store cannot be reached: the store cannot be reached: …; try again; try again".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_submission_says_once_what_is_wrong() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_hand(&server).node().await;
        server.kill();
        let refused = node.store.submit(vec![node.job("http", "acme")]).await.unwrap_err().to_string();
        assert_eq!(refused.matches("cannot be reached").count(), 1, "{refused}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_made_while_the_server_is_gone_is_written_when_it_is_back() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_hand(&server).node().await;
        let id = node.add("http", "acme").await;
        let settlement = node.settlement(node.claim_one("http").await, entrega_core::decide::Transition::Done);
        server.kill();
        node.store.settle(&settlement.job.lane.clone(), vec![settlement]).await.expect("it is kept");
        server.restart();
        node.store.flush().await.unwrap();
        assert_eq!(node.state(id).await, JobState::Done);
    })
    .await;
}
