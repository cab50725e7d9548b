//! Tenants: what operators set for them, what they have used up, and how they stand in each lane.
//! Invariant: what is set is in memory, and every lane of this node goes by it.

use entrega_core::lane::Waiting;
use entrega_core::name::TenantName;

use super::Shared;
use super::lanes::OwnedLane;
use super::order::{Answered, Order};
use crate::store::{StoreError, TenantSettings, TenantView};

impl Shared {
    /// What is set for a tenant.
    pub(super) fn tenant_settings(&self, tenant: &TenantName) -> TenantSettings {
        let registered = self.registered.read();
        registered.settings(tenant).cloned().unwrap_or_else(|| TenantSettings::new(tenant.company()))
    }

    /// Whether a new job would take its tenant over the bytes that it may have in the lanes of this node.
    pub(super) fn is_over_bytes(&self, job: &Waiting) -> bool {
        let max = self.registered.read().settings(&job.tenant).and_then(|settings| settings.quotas.stored_bytes);
        let Some(max) = max else { return false };
        let used = self.all_owned().map(|lane| {
            let dead = lane.dead.lock().bytes_of(&job.tenant);
            lane.machine.lock().usage(&job.tenant).bytes + dead
        });
        used.sum::<u64>() + u64::from(job.bytes) > max
    }

    pub(super) async fn tenant_views(&self) -> Result<Vec<TenantView>, StoreError> {
        let mut views = Vec::new();
        for lane in self.lanes.values() {
            let figures = match lane.acting() {
                Some(owned) => owned.machine.lock().tenants().collect(),
                None => match self.order(lane, Order::Tenants).await? {
                    Answered::Tenants(figures) => figures,
                    _ => Vec::new(),
                },
            };
            views.extend(figures.into_iter().map(|figures| TenantView { lane: lane.name.clone(), figures }));
        }
        Ok(views)
    }
}

impl OwnedLane {
    /// Sets what an operator gave a tenant. Only whoever has jobs is known to a lane, or was given something.
    pub(super) fn apply_settings(&self, settings: &TenantSettings) {
        let mut machine = self.machine.lock();
        machine.set_weight(&settings.tenant, settings.weight);
        machine.set_quotas(&settings.tenant, settings.quotas);
    }
}
