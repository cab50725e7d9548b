//! What `appendfsync everysec` can lose: measured with a server that is killed, and bounded.
//! A killed process loses nothing that it had written to the file, because the system keeps that. What a machine loses
//! when it dies is what was not synced yet; no test of one process can show that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::{JobFilter, Page, Submitted};
use entrega_core::id::JobId;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use super::world::{World, bounded, eventually};
use crate::store::fixture::{Fixture, lane};
use entrega_testkit::redis::{self, RedisServer};

const BATCH: usize = 10;
const LOADED_MS: u64 = 3000;
const RANDOM_MS: u64 = 2000;
/// A second between syncs, as much for one that is late, and some.
const LOSS_MAX: Duration = Duration::from_millis(2500);
const GOES_ON_WITHIN: Duration = Duration::from_secs(10);

type Accepted = Vec<(JobId, Time)>;

/// Submits until the server is gone; what was accepted, and when that was known.
async fn submit_until_gone(node: Arc<Fixture>) -> Accepted {
    let mut accepted = Vec::new();
    loop {
        let jobs: Vec<_> = (0..BATCH).map(|_| node.job("http", "acme")).collect();
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        let Ok(submitted) = node.store.submit(jobs).await else { return accepted };
        assert!(submitted.iter().all(|one| *one == Submitted::Accepted { pushed_out: None }));
        let now = node.now();
        accepted.extend(ids.into_iter().map(|id| (id, now)));
    }
}

/// All jobs that the server has.
async fn kept(node: &Fixture) -> BTreeSet<JobId> {
    let filter = JobFilter { lane: Some(lane("http")), ..JobFilter::default() };
    let (mut ids, mut after) = (BTreeSet::new(), None);
    loop {
        let page = node.store.jobs(&filter, Page { after, limit: 1000 }).await.unwrap();
        ids.extend(page.items.iter().map(|view| view.job_id));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

/// Kills a server under load; how many of how many accepted jobs were lost, and how long before the kill the oldest
/// of them was accepted.
async fn kill_under_load(sync: &str) -> (usize, usize, Duration) {
    let server = RedisServer::start(&["--appendfsync", sync]);
    let roomy = LanePolicy { capacity: u32::MAX, ..LanePolicy::http() };
    let node = Arc::new(World::by_server(&server).with_lane("http", roomy).node().await);
    println!("{sync}: {}", node.store.health().durability);
    let submitting = tokio::spawn(submit_until_gone(node.clone()));
    let chance = u64::from_le_bytes(entrega::chance::secret_bytes()) % RANDOM_MS;
    // reason: the server dies at a moment that nothing else decides
    tokio::time::sleep(Duration::from_millis(LOADED_MS + chance)).await;
    let killed_at = node.now();
    server.kill();
    let accepted = submitting.await.unwrap();
    server.restart();
    let answers = async || node.store.health().failure.map_or(Ok(()), Err);
    eventually(GOES_ON_WITHIN, "the store reaches its server again", answers).await;
    let kept = kept(&node).await;
    let lost: Vec<Time> = accepted.iter().filter(|(id, _)| !kept.contains(id)).map(|(_, at)| *at).collect();
    let oldest = lost.iter().map(|at| killed_at.since(*at)).max().unwrap_or_default();
    println!(
        "{sync}: {} of {} accepted jobs were lost with the process (not the machine), killed after {} ms; the oldest of \
         them was accepted {} ms before",
        lost.len(),
        accepted.len(),
        LOADED_MS + chance,
        oldest.as_millis()
    );
    assert!(accepted.len() > 1000, "the server was under load");
    (lost.len(), accepted.len(), oldest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everysec_loses_no_more_than_the_last_seconds_before_a_kill() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let (lost, accepted, oldest) = kill_under_load("everysec").await;
        assert!(oldest <= LOSS_MAX, "{lost} of {accepted} lost, the oldest accepted {oldest:?} before the kill");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn always_loses_nothing_to_a_kill() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let (lost, accepted, _) = kill_under_load("always").await;
        assert_eq!(lost, 0, "of {accepted}");
    })
    .await;
}
