//! Waiting calls: callers whom the answer to somebody else keeps waiting, such as long polls and connector calls.
//! Invariant: a tenant has at most as many as its quota says; a call that ends, however it ends, makes room.
//! Never: lets a call wait for room; whoever is over the quota is told at once.

use std::collections::HashMap;

use entrega_core::name::TenantName;
use parking_lot::Mutex;

use super::Api;
use super::problem::{ApiError, Quota};

/// The calls that wait, by tenant; none is listed without one.
#[derive(Default)]
pub(super) struct WaitingCalls(Mutex<HashMap<TenantName, usize>>);

/// A call that waits, until this is dropped.
#[must_use]
pub(super) struct WaitingCall<'a> {
    calls: &'a WaitingCalls,
    tenant: TenantName,
}

impl Api {
    /// Counts a call that is going to wait; refuses what is over the tenant's quota.
    pub(super) fn begin_waiting(&self, tenant: &TenantName) -> Result<WaitingCall<'_>, ApiError> {
        self.waiting.begin(tenant, self.calls_max(tenant))
    }

    /// How many calls of a tenant may wait at once.
    fn calls_max(&self, tenant: &TenantName) -> usize {
        let set = self.engine.store().tenant_settings(tenant).quotas.waiting_calls;
        set.map_or(self.limits.waiting_calls_max, |max| max as usize)
    }
}

impl WaitingCalls {
    fn begin(&self, tenant: &TenantName, calls_max: usize) -> Result<WaitingCall<'_>, ApiError> {
        let mut calls = self.0.lock();
        let waiting = calls.get(tenant).copied().unwrap_or_default();
        if waiting >= calls_max {
            return Err(ApiError::OverQuota { quota: Quota::Calls, max: calls_max });
        }
        calls.insert(tenant.clone(), waiting + 1);
        Ok(WaitingCall { calls: self, tenant: tenant.clone() })
    }

    /// How many wait, of all tenants.
    pub(super) fn count(&self) -> usize {
        self.0.lock().values().sum()
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        match calls.get_mut(&self.tenant) {
            Some(waiting) if *waiting > 1 => *waiting -= 1,
            _ => drop(calls.remove(&self.tenant)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_over_its_quota_is_refused_and_others_notice_nothing() {
        let (calls, one, other) =
            (WaitingCalls::default(), TenantName::new("one").unwrap(), TenantName::new("other").unwrap());
        let (first, second) = (calls.begin(&one, 2).ok().unwrap(), calls.begin(&one, 2).ok().unwrap());
        let refused = calls.begin(&one, 2).err().unwrap();
        assert_eq!(refused.to_string(), "the quota 'calls' is used up: 2 calls wait already; wait for one to end");
        let others = calls.begin(&other, 2).ok().unwrap();
        drop(first);
        let third = calls.begin(&one, 2).ok().unwrap();
        assert_eq!(calls.count(), 3);
        drop((second, third, others));
        assert!(calls.0.lock().is_empty());
    }
}
