//! Leases: at most one node holds a job.
//! Invariant: what a node is at is renewed while it can reach the store; what a node has not renewed in time, others get.

use std::sync::Arc;

use super::{LEASE, Lease, REAP_EVERY, RENEW_EVERY, SimStore, State};
use crate::bug::Bug;

impl SimStore {
    /// Renews what this node holds, for as long as it lives.
    pub(super) async fn renew_on(self: Arc<Self>) {
        loop {
            self.life.wait(RENEW_EVERY).await;
            self.life.reach().await;
            self.life.wait_for_store().await;
            self.life.reach().await;
            if self.has(Bug::LeaseNotRenewed) {
                continue;
            }
            let until = self.now() + LEASE;
            let mut state = self.shared.state.lock();
            let is_own = |lease: &Lease| match self.has(Bug::RenewOldLife) {
                true => lease.node == self.node,
                false => self.holds(lease),
            };
            state.leases.values_mut().filter(|lease| is_own(lease)).for_each(|lease| lease.until = until);
        }
    }

    /// Takes attempts over whose lease has ended: their jobs wait again, with the same number.
    pub(super) async fn reap_on(self: Arc<Self>) {
        loop {
            self.life.wait(REAP_EVERY).await;
            let now = self.now();
            let mut state = self.shared.state.lock();
            let is_kept = |lease: &Lease| self.has(Bug::DeadNodesKeep) && lease.life.is_dead();
            let ended = |lease: &Lease| lease.until <= now && !is_kept(lease);
            for number in numbers(&state, ended) {
                self.put_back(&mut state, number);
                self.life.world.witness.lock().lease_lost(now, number);
            }
        }
    }

    /// Gives back what this node holds, so that others need not wait for its leases to end.
    pub(super) fn give_back(&self) {
        let now = self.now();
        let mut state = self.shared.state.lock();
        let is_ours = |lease: &Lease| self.holds(lease) || self.has(Bug::GiveBackEverybodys);
        for number in numbers(&state, is_ours) {
            self.put_back(&mut state, number);
            self.life.world.witness.lock().given_back(now, number, self.node);
        }
    }

    /// Whether this life of this node got the job: what it held in a life before is lost to it.
    fn holds(&self, lease: &Lease) -> bool {
        Arc::ptr_eq(&lease.life, &self.life)
    }

    fn put_back(&self, state: &mut State, number: u64) {
        let Some(Lease { lane, ticket, id, .. }) = state.leases.remove(&number) else { return };
        let Some(record) = self.life.world.disk.lock().jobs.get(&id).cloned() else { return };
        let Some(cell) = state.lanes.get_mut(&lane) else { return };
        cell.put_back(self.now(), ticket, &record);
    }
}

fn numbers(state: &State, is_wanted: impl Fn(&Lease) -> bool) -> Vec<u64> {
    state.leases.iter().filter(|(_, lease)| is_wanted(lease)).map(|(number, _)| *number).collect()
}
