//! Nodes over one Redis that syncs every write: some node, Redis, or both are killed at random moments.
//!
//! A repeat is counted for the kill that cut its first attempt short. A node has at most the lane's attempts under way,
//! and so many that it could not settle. Redis forgets nothing, and nodes that live settle what they have when it is
//! back: its own death is no reason to repeat anything.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::local::UNSETTLED_SHARED_MAX;

use super::ledger::Balance;
use super::senders::Senders;
use super::world::{CONCURRENCY, Kill, World};
use super::{seeded, setting};
use crate::nodes::cluster::alone;
use entrega_testkit::redis;

/// In the suite; `cargo xtask crash` asks for more.
const CYCLES: u64 = 3;
/// A loss is to be found near the kill that caused it.
const KILLS_PER_DRAIN: u64 = 25;
/// Work has gone on for so long when the next kill comes.
const ALIVE_MS: Range<u64> = 20..600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_node_killed_again_and_again_loses_nothing() {
    killed(Kill::Ours, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_node_is_killed_nothing_is_lost() {
    killed(Kill::Ours, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_again_and_again_loses_nothing() {
    killed(Kill::Theirs, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_and_redis_killed_at_once_lose_nothing() {
    killed(Kill::Both, 2).await;
}

async fn killed(kill: Kill, nodes: u64) {
    if redis::is_left_out() {
        return;
    }
    let _alone = alone();
    let cycles = setting("ENTREGA_CRASH_CYCLES").unwrap_or(CYCLES);
    let nodes = setting("ENTREGA_CRASH_NODES").unwrap_or(nodes);
    let repeats_max = if kill == Kill::Theirs { 0 } else { CONCURRENCY + UNSETTLED_SHARED_MAX };
    let mut chance = seeded();
    let world = Arc::new(World::start(usize::try_from(nodes).unwrap()).await);
    let mut left = cycles;
    while left > 0 {
        let kills = left.min(KILLS_PER_DRAIN);
        let senders = Senders::start(&world, &mut chance);
        for _ in 0..kills {
            // reason: the kill must come at a moment that nobody chose
            tokio::time::sleep(Duration::from_millis(chance.u64(ALIVE_MS))).await;
            world.strike(kill, &mut chance).await;
        }
        senders.stop().await;
        world.drain().await;
        say(kill, nodes, &world.ledger.check(&world.destination, repeats_max));
        left -= kills;
    }
}

fn say(kill: Kill, nodes: u64, balance: &Balance) {
    let Balance { kills, sent, accepted, in_doubt, answers_lost, repeats, repeats_per_kill } = balance;
    println!(
        "{kills} kills ({kill:?}, {nodes} nodes): {sent} jobs sent, {accepted} accepted, all delivered; {in_doubt} \
         submissions accepted when sent again, {answers_lost} of them had lost only their answer; {repeats} attempts \
         repeated, at most {repeats_per_kill} after a kill"
    );
}
