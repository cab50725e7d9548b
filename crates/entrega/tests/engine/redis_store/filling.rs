//! A server whose memory is full: new work is refused, and everything that makes room goes on.

use std::time::Duration;

use entrega::store::{JobFilter, Page, Settlement, StoreError, Submitted};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;

use super::world::{TAKEN_OVER_WITHIN, World, becomes, bounded, claims, eventually, heavy_job, info};
use crate::store::fixture::{Fixture, SECOND, failure, lane};
use entrega_testkit::redis::{self, RedisServer};

const JOB_BYTES: usize = 10_000;
const ROOM_BYTES: u64 = 2 << 20;
const JOBS_MAX: usize = 1000;
/// How often a store looks at its server's memory, and some.
const LOOKED_WITHIN: Duration = Duration::from_secs(8);

/// Whether there was no room for a job.
fn is_full(submitted: &Result<Vec<Submitted>, StoreError>) -> bool {
    matches!(submitted.as_deref(), Ok([Submitted::Unsaved(StoreError::MemoryFull)]) | Err(StoreError::MemoryFull))
}

/// Submits until the server is full.
async fn submit_until_full(node: &Fixture) -> Vec<JobId> {
    let mut ids = Vec::new();
    while ids.len() < JOBS_MAX {
        let job = heavy_job(node, JOB_BYTES);
        let id = job.id;
        let submitted = node.store.submit(vec![job]).await;
        if is_full(&submitted) {
            return ids;
        }
        assert_eq!(submitted.unwrap(), [Submitted::Accepted { pushed_out: None }]);
        ids.push(id);
    }
    panic!("{JOBS_MAX} jobs of {JOB_BYTES} bytes found room in {ROOM_BYTES}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_new_work_drains_and_takes_work_again_by_itself() {
    if redis::is_left_out() {
        return;
    }
    bounded(fill_and_drain()).await;
}

async fn fill_and_drain() {
    let server = RedisServer::start(&[]);
    let node = World::by_server(&server).node().await;
    let max = info(&server, "memory", "used_memory") + ROOM_BYTES;
    assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", &max.to_string()]), "OK");
    let ids = submit_until_full(&node).await;
    println!("{} jobs of {JOB_BYTES} bytes in {ROOM_BYTES} bytes", ids.len());
    assert!(ids.len() > 50, "it was not full at once");
    assert_eq!(node.store.health().rejected_writes, 1);

    let mut claimed = node.claim("http", ids.len()).await.jobs;
    assert_eq!(claimed.len(), ids.len(), "claims go on");
    let (dead, retried) = (claimed.pop().unwrap(), claimed.pop().unwrap());
    let (dead_id, retried_id) = (dead.job.id, retried.job.id);
    node.dead(dead, "http_404").await;
    node.retry(retried, Duration::ZERO).await;
    for claimed in claimed {
        let settlement = node.settlement(claimed, Transition::Done);
        node.store.settle(&lane("http"), vec![settlement]).await.unwrap();
    }
    node.store.flush().await.unwrap();
    assert_eq!(node.state(ids[0]).await, JobState::Done);
    assert_eq!(node.state(dead_id).await, JobState::Dlq);
    let again = node.claim_one("http").await;
    assert_eq!((again.job.id, again.attempt), (retried_id, 2));
    node.done(again).await;
    let id = node.accept(heavy_job(&node, JOB_BYTES)).await;
    assert_eq!(node.claim_ids("http").await, [id], "what was delivered has made room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_but_new_work_goes_on_while_memory_is_full() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_server(&server).node().await;
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(node.add("http", "acme").await);
        }
        let buried = node.add_dead("small", "acme", "http_404").await;
        server.fill();
        assert!(is_full(&node.store.submit(vec![node.job("http", "acme")]).await));
        node.done(node.claim_one("http").await).await;
        node.retry(node.claim_one("http").await, 60 * SECOND).await;
        node.dead(node.claim_one("http").await, "http_404").await;
        let blocked = node.claim_one("http").await;
        node.settle(blocked, Transition::Blocked { failure: failure("http_503") }).await;
        let states = [JobState::Done, JobState::RetryWait, JobState::Dlq, JobState::Blocked];
        for (id, state) in ids.iter().zip(states) {
            assert_eq!(node.state(*id).await, state);
        }
        node.store.cancel(ids[4], "not wanted").await.unwrap();
        node.store.unblock(ids[3]).await.unwrap();
        node.store.discard(ids[2], "not wanted").await.unwrap();
        node.store.replay(buried).await.unwrap();
        node.done(node.claim_one("small").await).await;
        node.store.set_paused(&lane("http"), true).await.unwrap();
        node.store.set_paused(&lane("http"), false).await.unwrap();
        let page = Page { after: None, limit: 100 };
        assert_eq!(node.store.jobs(&JobFilter::default(), page).await.unwrap().items.len(), 7);
        assert!(node.store.explain(ids[5]).await.unwrap().is_some());
        server.give_room();
        node.add("http", "acme").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_while_memory_is_full() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server).leased_for(SECOND);
        let [node, other] = world.nodes().await;
        let id = node.add("http", "acme").await;
        let claimed = node.claim_one("http").await;
        server.fill();
        // reason: an attempt that takes longer than its lease is what is tested
        tokio::time::sleep(2 * SECOND).await;
        assert!(other.claim_ids("http").await.is_empty());
        node.done(claimed).await;
        assert_eq!(other.state(id).await, JobState::Done);
    })
    .await;
}

/// Whose turn it is to sweep went by a plain command, which a full server refuses: nothing ever made room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_swept() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_server(&server).keeping_for(Duration::ZERO).node().await;
        let id = node.add("http", "acme").await;
        node.done(node.claim_one("http").await).await;
        server.fill();
        let swept = node.store.sweep().await;
        assert_eq!(swept.expect("a sweep makes room").jobs, 1);
        assert!(node.store.job(id).await.unwrap().is_none());
    })
    .await;
}

/// That somebody waits was written by a plain command as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_job_is_told_though_memory_is_full() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let [node, other] = World::by_server(&server).nodes().await;
        let id = node.add("http", "acme").await;
        server.fill();
        let claimed = node.claim_one("http").await;
        let (ended, ()) = tokio::join!(other.store.ended(id), node.done(claimed));
        ended.expect("a long poll is no new work");
        assert_eq!(other.state(id).await, JobState::Done);
    })
    .await;
}

/// And the format of the data: a node that was started again while memory was full stayed away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_a_full_server_to_drain_it() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let id = world.node().await.add("http", "acme").await;
        server.fill();
        let node = world.node().await;
        node.done(claims(&node, "http", TAKEN_OVER_WITHIN).await).await;
        assert_eq!(node.state(id).await, JobState::Done);
    })
    .await;
}

/// It was refused as if it were new work, and what could not be written for it never made any room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_caused_reaches_its_lane_though_memory_is_full() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_server(&server).node().await;
        node.add("http", "acme").await;
        let claimed = node.claim_one("http").await;
        server.fill();
        let caused = node.job("single", "acme");
        let settlement = Settlement { causes: vec![caused.clone()], ..node.settlement(claimed, Transition::Done) };
        node.store.settle(&lane("http"), vec![settlement]).await.unwrap();
        becomes(&node, caused.id, JobState::Queued, 3 * SECOND).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_caused_while_memory_was_full_is_claimed_even_if_its_node_is_gone() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let [gone, other] = World::by_server(&server).nodes().await;
        gone.add("http", "acme").await;
        let claimed = gone.claim_one("http").await;
        server.fill();
        let caused = gone.job("single", "acme");
        let settlement = Settlement { causes: vec![caused.clone()], ..gone.settlement(claimed, Transition::Done) };
        gone.store.settle(&lane("http"), vec![settlement]).await.unwrap();
        gone.store.flush().await.unwrap();
        drop(gone);
        assert_eq!(other.state(caused.id).await, JobState::Queued);
        let refused = other.store.submit(vec![other.job("http", "acme")]).await;
        assert!(is_full(&refused), "there is no room in an inbox, either: {refused:?}");
        let taken = claims(&other, "single", TAKEN_OVER_WITHIN).await;
        assert_eq!(taken.job.id, caused.id, "the server is full all the while");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_says_how_full_the_memory_is() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        // So much that what clients take in between does not count.
        assert_eq!(server.command(&["SETRANGE", "ballast", "50000000", "x"]), "50000001");
        let node = World::by_server(&server).node().await;
        for (percent, level) in [(85, 1), (95, 2), (50, 0), (101, 2)] {
            let max = info(&server, "memory", "used_memory") * 100 / percent;
            assert_eq!(server.command(&["CONFIG", "SET", "maxmemory", &max.to_string()]), "OK");
            let is_seen = async || {
                let health = node.store.health();
                let memory = health.memory.unwrap();
                let is_so = (memory.max_bytes, memory.level, health.refuses.is_some()) == (max, level, percent > 100);
                if is_so { Ok(()) } else { Err(format!("{health:?}")) }
            };
            eventually(LOOKED_WITHIN, &format!("{percent} % is level {level}"), is_seen).await;
        }
    })
    .await;
}
