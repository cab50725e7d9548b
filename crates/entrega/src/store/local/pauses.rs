//! Pauses: lanes that an operator holds.
//! Invariant: of two who pause and resume at once, the last one is the last in memory and in the ledger; nothing starts while a
//! pause is written down.

use entrega_core::name::LaneName;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::cluster::Cluster;
use super::lanes::OwnedLane;
use crate::store::StoreError;

/// Whether a lane is paused. No two of these records are alike and none is ever removed: a late copy of an earlier change
/// finds another than the one it was to replace.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pause {
    pub(super) paused: bool,
    node: u64,
    mark: u64,
}

impl Shared {
    /// Pauses or resumes a lane, for whoever owns it.
    pub(super) async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        let name = self.lane(lane)?.name.clone();
        let key = format!("paused/{name}");
        let apply = |name: LaneName| {
            move |shared: &Shared| {
                shared.registered.write().set_paused(&name, paused);
                shared.owned(&name).iter().for_each(|lane| lane.apply_pause(paused));
            }
        };
        if paused {
            self.owned(&name).iter().for_each(|lane| lane.apply_pause(true));
        }
        let mark = self.cluster.as_ref().map_or(0, Cluster::next_mark);
        self.put(&key, &Pause { paused, node: self.options.node, mark }, apply(name)).await
    }
}

impl OwnedLane {
    pub(super) fn apply_pause(&self, paused: bool) {
        let mut machine = self.machine.lock();
        if paused {
            machine.pause()
        } else {
            machine.resume()
        }
        drop(machine);
        self.wake.notify_one();
    }
}
