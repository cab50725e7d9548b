//! Nodes over one Redis, each of which may be dead for a while.
//! Invariant: a node ends only when it is killed here; it starts again in its own folder, Redis over its own data.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::block_in_place;

use super::ledger::Ledger;
use crate::nodes::cluster::{LEASE, Node};
use crate::nodes::destination::Destination;
use entrega_testkit::redis::RedisServer;
use entrega_testkit::wait::eventually;

/// Owners that are silent for two seconds are replaced.
const CONFIG: &str = "[cluster]\nlease = \"2s\"\n[lanes.http]\ntimeout = \"2s\"\ntenant_concurrency = 4096\n";
/// The lane's, for one node.
pub const CONCURRENCY: usize = 64;
/// What waits for the lease of the last kill, and the work that is left.
const EMPTY_WITHIN: Duration = Duration::from_secs(40);
const READY_WITHIN: Duration = Duration::from_secs(10);
const GOES_ON_WITHIN: Duration = Duration::from_secs(10);
/// How long something stays dead: mostly a moment, one time in so many longer. Nodes that were without Redis for more
/// than two seconds come back another way than those that hardly noticed.
const DEAD_MS: Range<u64> = 0..300;
const DEAD_LONG_MS: Range<u64> = 1_500..3_500;
const DEAD_LONG_EVERY: u32 = 10;

const _: () = assert!(LEASE.as_secs() * 4 < EMPTY_WITHIN.as_secs());

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// A node.
    Ours,
    /// Redis.
    Theirs,
    /// A node and Redis at once.
    Both,
}

/// The nodes, and what is around them.
pub struct World {
    redis: RedisServer,
    nodes: Vec<Mutex<Option<Arc<Node>>>>,
    pub destination: Destination,
    pub ledger: Ledger,
}

impl World {
    pub async fn start(nodes: usize) -> World {
        let redis = block_in_place(|| RedisServer::start(&[]));
        let start = |_| Mutex::new(Some(Arc::new(Node::start(&redis, CONFIG))));
        let nodes = block_in_place(|| (0..nodes).map(start).collect());
        World { redis, nodes, destination: Destination::start().await, ledger: Ledger::default() }
    }

    /// A node that lives, as far as is known.
    pub fn any(&self, chance: &mut fastrand::Rng) -> Option<Arc<Node>> {
        let living: Vec<_> = self.living().collect();
        chance.choice(living)
    }

    fn living(&self) -> impl Iterator<Item = Arc<Node>> {
        self.nodes.iter().filter_map(|node| node.lock().clone())
    }

    /// Kills, leaves it dead for a moment, starts it again, and waits until work goes on.
    pub async fn strike(&self, kill: Kill, chance: &mut fastrand::Rng) {
        self.assert_alive();
        let slot = &self.nodes[chance.usize(..self.nodes.len())];
        let dying = if kill == Kill::Theirs { None } else { slot.lock().take() };
        self.ledger.note_kill(self.destination.now());
        block_in_place(|| self.kill(kill, dying.as_deref()));
        let dead = if chance.u32(..DEAD_LONG_EVERY) == 0 { DEAD_LONG_MS } else { DEAD_MS };
        // reason: how long something is gone is chance, too
        tokio::time::sleep(Duration::from_millis(chance.u64(dead))).await;
        block_in_place(|| {
            if kill != Kill::Ours {
                self.redis.restart();
            }
            if let Some(dead) = dying {
                *slot.lock() = Some(Arc::new(dead.again(&self.redis)));
            }
        });
        self.destination.arrived(self.destination.count() + 1, GOES_ON_WITHIN).await;
    }

    fn kill(&self, kill: Kill, node: Option<&Node>) {
        std::thread::scope(|both| {
            if kill != Kill::Ours {
                both.spawn(|| self.redis.kill());
            }
            if let Some(node) = node {
                both.spawn(|| node.kill());
            }
        });
    }

    /// No node may have ended by itself.
    fn assert_alive(&self) {
        for node in self.living() {
            assert_eq!(node.ended(), None, "a node ended that nobody killed:\n{}", node.log());
        }
    }

    /// Waits until everything has arrived, nothing waits or runs any more, as every node sees it, and nothing gave up. What
    /// nodes see of a lane that another owns is what its owner last showed: that alone would be no proof.
    pub async fn drain(&self) {
        let has_arrived = async || match self.ledger.missing(&self.destination) {
            0 => Ok(()),
            missing => Err(format!("{missing} accepted jobs have not arrived")),
        };
        eventually(EMPTY_WITHIN, "everything accepted has arrived", has_arrived).await;
        for node in self.living() {
            let is_ready = async || match node.call("GET", "/health/ready", &Value::Null).await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body))),
                Err(error) => Err(format!("{}\n{}", error.reason(), node.log())),
            };
            eventually(READY_WITHIN, "a node is ready", is_ready).await;
            node.empty(EMPTY_WITHIN).await;
            let dead = node.ok("GET", "/v1/dlq", &Value::Null).await;
            assert_eq!(dead["items"], Value::Array(Vec::new()), "nothing gave up");
        }
        self.assert_alive();
    }
}
