//! Nodes with nothing to do leave Redis alone.

use std::time::Duration;

use serde_json::Value;

use super::cluster::{Node, job};
use super::destination::Destination;
use entrega_testkit::redis::{self, RedisServer};
use entrega_testkit::wait::bounded;

const IDLE_SECONDS: u64 = 3;
/// Those within scripts count as well. An owner shows every second that it lives and how its lanes stand, each under its own
/// token (three commands), and looks twice a second at each of six inboxes; whoever stands by looks every second at each
/// lane's owner.
const COMMANDS_PER_SECOND_MAX: u64 = 130;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_idle_nodes_cost_redis_next_to_nothing() {
    if redis::is_left_out() {
        return;
    }
    bounded(idle()).await;
}

async fn idle() {
    let redis = RedisServer::start(&[]);
    let destination = Destination::start().await;
    let nodes = [(); 2].map(|()| Node::start(&redis, ""));
    // Nodes that have worked before: what they do afterwards is what counts.
    for node in &nodes {
        let taken = node.send(&Value::Array(vec![job(&destination.url("/"), "acme"); 20])).await.unwrap();
        assert_eq!(taken.ids.len(), 20, "{:?}", taken.problems);
    }
    for node in &nodes {
        node.empty(Duration::from_secs(10)).await;
    }
    // reason: what ends with the last job, such as its settlement, is no idleness
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(redis.command(&["CONFIG", "RESETSTAT"]), "OK");
    // reason: idleness is measured
    tokio::time::sleep(Duration::from_secs(IDLE_SECONDS)).await;
    let stats = redis.command(&["INFO", "stats"]);
    let commands = figure(&stats, "total_commands_processed");
    println!("{commands} commands in {IDLE_SECONDS} s");
    assert!(
        commands < COMMANDS_PER_SECOND_MAX * IDLE_SECONDS,
        "{commands} commands in {IDLE_SECONDS} s; by name:\n{}",
        redis.command(&["INFO", "commandstats"])
    );
}

fn figure(info: &str, name: &str) -> u64 {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in:\n{info}"))
}
