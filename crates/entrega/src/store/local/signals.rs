//! Signals: what nodes tell one another so that nobody has to wait for the next look.
//! Invariant: whatever a signal says is also in the ledger, and looked for now and then; a lost signal costs a delay.
//!
//! | signal | means |
//! |---|---|
//! | `inbox <lane>` | something was left for the owner of a lane |
//! | `answer <order>` | an order was carried out, or refused |
//! | `ended <node> <job>…` | jobs that this node took rest |
//! | `registry` | operators changed something |
//! | `free` | an owner gave something up |
//! | `left <node> <shard>` | an owner is giving a shard up, for this node |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_ledger::Shard;
use tokio::sync::broadcast::error::RecvError;

use super::Shared;
use super::cluster::SIGNALS_MAX;
use super::lanes::{LaneEntry, OwnedLane};

/// What a busy node has to say gathers for so long.
const GATHER: Duration = Duration::from_millis(1);
/// The most jobs that one signal names.
const ENDED_AT_ONCE: usize = 256;

impl Shared {
    /// Tells all nodes something, soon. This node hears it, too.
    pub(super) fn signal(&self, signal: String) {
        if let Some(cluster) = &self.cluster {
            let mut signals = cluster.signals.lock();
            if signals.len() < SIGNALS_MAX {
                signals.insert(signal);
            }
            drop(signals);
            cluster.has_signals.notify_one();
        }
    }

    /// Something was left for the owner of a lane.
    pub(super) fn poke(&self, lane: &LaneEntry) {
        lane.inbox.notify_one();
        self.signal(format!("inbox {}", lane.name));
    }

    /// Tells the nodes that took these jobs that they rest.
    pub(super) fn notify_takers(&self, lanes: &[Arc<OwnedLane>], ended: &[JobId]) {
        let mut by_node: BTreeMap<u64, Vec<JobId>> = BTreeMap::new();
        for lane in lanes {
            let mut takers = lane.takers.lock();
            if takers.is_empty() {
                continue;
            }
            for id in ended {
                if let Some(taker) = takers.remove(id) {
                    by_node.entry(taker).or_default().push(*id);
                }
            }
        }
        by_node.remove(&self.options.node);
        for (node, jobs) in by_node {
            for some in jobs.chunks(ENDED_AT_ONCE) {
                let names: Vec<String> = some.iter().map(JobId::to_string).collect();
                self.signal(format!("ended {node:016x} {}", names.join(" ")));
            }
        }
    }

    async fn heard(&self, signal: &str) {
        match signal.split_once(' ') {
            Some(("inbox", lane)) => {
                let lane = self.lanes.values().find(|known| known.name.as_str() == lane);
                lane.into_iter().for_each(|lane| lane.inbox.notify_one());
            }
            Some(("answer", order)) => self.asked.answered(order),
            Some(("ended", rest)) => {
                let Some((node, jobs)) = rest.split_once(' ') else { return };
                if u64::from_str_radix(node, 16) == Ok(self.options.node) {
                    let jobs: Vec<JobId> = jobs.split(' ').filter_map(|job| job.parse().ok()).collect();
                    self.waiters.notify(&jobs);
                }
            }
            Some(("left", rest)) => {
                let Some((node, shard)) = rest.split_once(' ') else { return };
                if let (Ok(node), Some(cluster)) = (u64::from_str_radix(node, 16), &self.cluster) {
                    cluster.nodes.leave_to(self.clock.now(), Shard::new(shard), node);
                }
            }
            None if signal == "registry" => self.refresh_registry_or_log().await,
            None if signal == "free" => {
                self.cluster.iter().for_each(|cluster| cluster.look.notify_one());
            }
            _ => {}
        }
    }
}

/// Hears what all nodes say.
pub(super) async fn listen(shared: Arc<Shared>) {
    let mut signals = shared.ledger.listen();
    loop {
        let heard = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            heard = signals.recv() => heard,
        };
        match heard {
            Ok(signal) => shared.heard(&signal).await,
            // Whatever was missed is looked up.
            Err(RecvError::Lagged(_)) => {
                shared.waiters.notify_all();
                shared.lanes.values().for_each(|lane| lane.inbox.notify_one());
                shared.refresh_registry_or_log().await;
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Says what this node has to say.
pub(super) async fn speak(shared: Arc<Shared>) {
    let Some(cluster) = &shared.cluster else { return };
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = cluster.has_signals.notified() => {}
        }
        let signals = std::mem::take(&mut *cluster.signals.lock());
        for signal in signals {
            // One that is lost costs a delay.
            drop(shared.ledger.signal(&signal).await);
        }
        tokio::time::sleep(GATHER).await;
    }
}
