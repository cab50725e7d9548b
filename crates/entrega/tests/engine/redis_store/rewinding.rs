//! A server that is put back to an earlier state under living nodes: they notice, say so, and go on with what there is.

use std::path::Path;
use std::time::Duration;

use entrega::store::Submitted;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::GateKind;

use super::world::{World, bounded, claims, eventually};
use crate::store::fixture::Fixture;
use entrega_testkit::log::Log;
use entrega_testkit::redis::{self, RedisServer};

const GOES_ON_WITHIN: Duration = Duration::from_secs(10);

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Keeps a copy of what the server has.
fn back_up(server: &RedisServer) {
    copy(&server.folder().join("appendonlydir"), &server.folder().join("backup"));
}

/// Starts the server again with that copy.
fn restore(server: &RedisServer) {
    server.kill();
    let data = server.folder().join("appendonlydir");
    std::fs::remove_dir_all(&data).unwrap();
    copy(&server.folder().join("backup"), &data);
    server.restart();
}

async fn is_well(node: &Fixture) {
    let is_well = async || match node.store.health().failure {
        None => node.store.flush().await.map_err(|error| error.to_string()),
        Some(failure) => Err(failure),
    };
    eventually(GOES_ON_WITHIN, "the node is well", is_well).await;
}

/// Waits until a job can be claimed, and delivers it. What is claimed before the loss was noticed is claimed again.
async fn is_delivered(owner: &Fixture, id: JobId) {
    let is_done = async || {
        let claimed = owner.claim("http", 100).await.jobs;
        for claimed in claimed {
            let settlement = owner.settlement(claimed, entrega_core::decide::Transition::Done);
            let lane = settlement.job.lane.clone();
            owner.store.settle(&lane, vec![settlement]).await.map_err(|error| error.to_string())?;
        }
        match owner.store.job(id).await {
            Ok(Some(view)) if view.state == JobState::Done => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(GOES_ON_WITHIN, "the job is delivered", is_done).await;
}

/// On one thread, so that all of the log is heard.
#[tokio::test]
async fn a_server_put_back_loses_what_came_since_and_the_owner_says_so_and_goes_on() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let log = Log::default();
        let _hearing = log.hear();
        let server = RedisServer::start(&[]);
        let [owner, other] = World::by_server(&server).nodes().await;
        let [done, running, waiting] =
            [owner.add("http", "acme").await, owner.add("http", "acme").await, other.add("http", "acme").await];
        claims(&owner, "http", GOES_ON_WITHIN).await;
        back_up(&server);
        // All of this is lost.
        let lost = [owner.add("http", "acme").await, other.add("http", "acme").await];
        let second = claims(&owner, "http", GOES_ON_WITHIN).await;
        owner.done(second).await;
        restore(&server);
        is_well(&owner).await;
        is_well(&other).await;

        for id in [done, running, waiting] {
            is_delivered(&owner, id).await;
        }
        for id in [owner.add("http", "acme").await, other.add("http", "acme").await] {
            is_delivered(&owner, id).await;
        }
        for id in lost {
            assert!(owner.store.job(id).await.unwrap().is_none(), "what came after the copy is gone");
        }
        assert!(owner.claim_ids("http").await.is_empty(), "nothing is left over");
        let said = log.text();
        assert!(said.contains("has lost writes that it had acknowledged") && said.contains("\"missing\":"), "{said}");
    })
    .await;
}

/// A copy that is older than the nodes that run: it knows none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_put_back_to_before_its_nodes_started_is_gone_on_with() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let earlier = world.node().await;
        let id = earlier.add("http", "acme").await;
        earlier.store.release().await.unwrap();
        back_up(&server);
        drop(earlier);
        let [owner, other] = world.nodes().await;
        is_delivered(&owner, id).await;
        let lost = owner.add("http", "acme").await;
        restore(&server);
        is_well(&owner).await;
        is_well(&other).await;
        let new = owner.add("http", "acme").await;
        let handed = other.add("http", "acme").await;
        // Whichever of them was first.
        for id in [id, new, handed] {
            let is_done = async || {
                for node in [&owner, &other] {
                    for claimed in node.claim("http", 100).await.jobs {
                        node.done(claimed).await;
                    }
                }
                match owner.store.job(id).await {
                    Ok(Some(view)) if view.state == JobState::Done => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            };
            eventually(GOES_ON_WITHIN, "the job is delivered", is_done).await;
        }
        assert!(owner.store.job(lost).await.unwrap().is_none());
    })
    .await;
}

/// The last starts were among what the server lost. The owner went by what was left of them, and the throttle let as many
/// go again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_put_back_does_not_refill_a_throttle() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let owner = World::by_server(&server).node().await;
        let mut jobs = Vec::new();
        for _ in 0..4 {
            jobs.push(owner.add("throttled", "acme").await);
        }
        assert_eq!(claims(&owner, "throttled", GOES_ON_WITHIN).await.job.id, jobs[0]);
        back_up(&server);
        assert_eq!(claims(&owner, "throttled", GOES_ON_WITHIN).await.job.id, jobs[1]);
        restore(&server);
        // The next write of the lane finds out.
        let is_taken = async || match owner.store.submit(vec![owner.job("throttled", "acme")]).await {
            Ok(answers) if matches!(answers[0], Submitted::Accepted { .. }) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually(GOES_ON_WITHIN, "a job is taken", is_taken).await;
        let is_held = async || match owner.store.explain(jobs[3]).await {
            Ok(Some(why)) if why.holds.iter().any(|hold| hold.gate == GateKind::Throttle) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually(GOES_ON_WITHIN, "the throttle holds", is_held).await;
        assert!(owner.claim_ids("throttled").await.is_empty());
    })
    .await;
}
