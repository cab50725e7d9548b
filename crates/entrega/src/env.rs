//! What the parts of an engine share: one store, one clock, one source of chance, one set of metrics.
//! Invariant: every part of an engine has the same ones; two engines in one process share nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;

use crate::chance::Chance;
use crate::metrics::Metrics;
use crate::store::{Store, StoreError};
use entrega_call::Clock;

/// The lanes there are, with their policies.
pub type Lanes = BTreeMap<LaneName, Arc<LanePolicy>>;

/// The surroundings of an engine's parts; cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Where jobs are safe.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Clock,
    /// Chance and ids.
    pub chance: Arc<Chance>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The lanes there are.
    pub lanes: Arc<Lanes>,
}

impl Env {
    /// Over a store, with new metrics and the system's chance.
    pub fn new(store: Arc<dyn Store>, clock: Clock, lanes: Lanes) -> Env {
        let metrics = Arc::new(Metrics::new(lanes.keys()));
        Env { store, clock, chance: Arc::new(Chance::from_system()), metrics, lanes: Arc::new(lanes) }
    }

    /// A lane's policy.
    pub fn policy(&self, lane: &LaneName) -> Result<Arc<LanePolicy>, StoreError> {
        self.lanes.get(lane).cloned().ok_or_else(|| StoreError::UnknownLane {
            lane: lane.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}
