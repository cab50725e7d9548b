//! What nodes tell each other: there is work, a job has ended, an operator changed something; and what happens when nobody
//! hears it.

use std::sync::Arc;
use std::time::Duration;

use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::time::Time;
use tokio::sync::Notify;

use super::world::{TAKEN_OVER_WITHIN, World, bounded, claims, eventually};
use crate::store::fixture::{Fixture, SECOND, lane};
use entrega_testkit::redis::{self, RedisServer};

const TOLD_WITHIN: Duration = Duration::from_secs(2);
const WOKEN_WITHIN: Duration = Duration::from_secs(1);
/// How much a clock may be wrong that nobody has looked at for a while.
const AHEAD: Duration = Duration::from_mins(5);
/// What is said is heard within this time.
const SLACK: Duration = Duration::from_millis(500);

/// Waits on a node for the end of a job, in the background.
fn wait_on(node: &Fixture, id: JobId) -> tokio::task::JoinHandle<Time> {
    let (store, clock) = (node.store.clone(), node.setup.clock.clone());
    tokio::spawn(async move {
        store.ended(id).await.unwrap();
        clock.now()
    })
}

/// Waits until the nodes listen, so many of them.
pub(crate) async fn are_listening(server: &RedisServer, world: &World, count: usize) {
    let channel = world.key("signals");
    let listen = async || {
        let listeners = server.command(&["PUBSUB", "NUMSUB", &channel]);
        let is_so = listeners.lines().last() == Some(&count.to_string());
        if is_so { Ok(()) } else { Err(listeners) }
    };
    eventually(5 * SECOND, "the nodes listen", listen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_when_another_node_settles() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [worker, asked] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        for (is_dead, taker) in [(false, &worker), (true, &worker), (false, &asked), (true, &asked)] {
            let id = taker.add("http", "acme").await;
            let waiting = wait_on(&asked, id);
            let claimed = claims(&worker, "http", TOLD_WITHIN).await;
            let settled_at = worker.now();
            match is_dead {
                false => worker.done(claimed).await,
                true => worker.dead(claimed, "http_404").await,
            }
            let told_at = tokio::time::timeout(TOLD_WITHIN, waiting).await.expect("it is told soon").unwrap();
            println!("told after {} ms", told_at.since(settled_at).as_millis());
            assert!(asked.state(id).await.is_end());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_soon_though_the_signals_were_lost() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [worker, asked] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        for _ in 0..3 {
            let id = asked.add("http", "acme").await;
            let waiting = wait_on(&asked, id);
            let claimed = claims(&worker, "http", TOLD_WITHIN).await;
            assert_eq!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]), "2");
            let settled_at = worker.now();
            worker.done(claimed).await;
            let told_at = tokio::time::timeout(TOLD_WITHIN, waiting).await.expect("it is told soon").unwrap();
            println!("told after {} ms, without signals", told_at.since(settled_at).as_millis());
            assert_eq!(asked.state(id).await, JobState::Done);
            are_listening(&server, &world, 2).await;
        }
    })
    .await;
}

/// Nodes need not agree on the time. One whose clock was ahead struck those who waited on the others off the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_though_another_node_has_a_clock_that_is_ahead() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [worker, asked] = world.nodes().await;
        let ahead = world.clone().by_clock(Clock::manual(worker.now() + AHEAD)).node().await;
        are_listening(&server, &world, 3).await;
        let [id, other] = [worker.add("http", "acme").await, worker.add("http", "acme").await];
        let (waiting, elsewhere) = (wait_on(&asked, id), wait_on(&ahead, other));
        for claimed in worker.claim("http", 2).await.jobs {
            worker.done(claimed).await;
        }
        tokio::time::timeout(TOLD_WITHIN, waiting).await.expect("it is told soon").unwrap();
        tokio::time::timeout(TOLD_WITHIN, elsewhere).await.expect("so is this one").unwrap();
        assert_eq!(asked.state(id).await, JobState::Done);
    })
    .await;
}

/// Brings a node to rest: it has been told everything and finds nothing to do.
async fn sleeps(node: &Fixture) -> Arc<Notify> {
    let wake = node.store.wake(&lane("http")).unwrap();
    // What woke it before is over; signals on their way come within this time.
    while tokio::time::timeout(SLACK, wake.notified()).await.is_ok() {}
    let batch = node.claim("http", 10).await;
    assert!(batch.jobs.is_empty() && batch.wake_at.is_none(), "there is nothing to come back for: {batch:?}");
    wake
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_found_nothing_is_woken_when_another_takes_work_in() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [worker, intake] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        for is_heard in [true, true, true, false] {
            let wake = sleeps(&worker).await;
            if !is_heard {
                assert_eq!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]), "2");
            }
            let submitted_at = intake.now();
            let id = intake.add("http", "acme").await;
            tokio::time::timeout(WOKEN_WITHIN, wake.notified()).await.expect("it is woken");
            println!("woken {} ms after the submission", worker.now().since(submitted_at).as_millis());
            let claimed = worker.claim_one("http").await;
            assert_eq!(claimed.job.id, id);
            worker.done(claimed).await;
        }
    })
    .await;
}

/// Whatever else makes work: a lane that is resumed, a job that is unblocked or replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_woken_by_whatever_an_operator_does_on_another_node() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [worker, desk] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        let dead = worker.add_dead("http", "acme", "http_404").await;
        let wake = sleeps(&worker).await;
        desk.store.replay(dead).await.unwrap();
        tokio::time::timeout(WOKEN_WITHIN, wake.notified()).await.expect("a replay wakes");
        worker.block(worker.claim_one("http").await).await;
        let wake = sleeps(&worker).await;
        desk.store.unblock(dead).await.unwrap();
        tokio::time::timeout(WOKEN_WITHIN, wake.notified()).await.expect("an unblocked job wakes");
        worker.done(worker.claim_one("http").await).await;
        desk.store.set_paused(&lane("http"), true).await.unwrap();
        desk.add("http", "acme").await;
        let wake = sleeps(&worker).await;
        desk.store.set_paused(&lane("http"), false).await.unwrap();
        tokio::time::timeout(WOKEN_WITHIN, wake.notified()).await.expect("a resumed lane wakes");
        assert_eq!(worker.claim_ids("http").await.len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_by_is_woken_when_it_takes_over() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [gone, other] = World::by_server(redis::shared()).nodes().await;
        let id = gone.add("http", "acme").await;
        assert_eq!(gone.claim_ids("http").await, [id]);
        let wake = sleeps(&other).await;
        drop(gone);
        tokio::time::timeout(TAKEN_OVER_WITHIN, wake.notified()).await.expect("it is woken");
        let taken = claims(&other, "http", SLACK).await;
        assert_eq!((taken.job.id, taken.attempt), (id, 1));
    })
    .await;
}
