//! Rates: how many calls of the API a tenant makes in a second, where an operator set a limit.
//! Invariant: in no second are more calls of a tenant let through than its quota; who has none is not counted.
//! Never: waits; a call that is too soon is told when it would not be.

use std::collections::HashMap;
use std::time::Duration;

use entrega::refusal::Refusal;
use entrega_core::name::TenantName;
use entrega_core::quota::Quota;
use entrega_core::throttle::{Rate, Throttle};
use entrega_core::time::Time;
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

/// The last calls of each tenant that has a limit: as many entries as operators made.
#[derive(Debug, Default)]
pub(super) struct RequestRates {
    throttles: Mutex<HashMap<TenantName, Throttle>>,
}

impl RequestRates {
    /// Counts a call, unless it would be one too many.
    pub(super) fn count(&self, now: Time, tenant: &TenantName, max: u32) -> Result<(), Refusal> {
        let mut throttles = self.throttles.lock();
        let throttle = throttles.entry(tenant.clone()).or_insert_with(|| Throttle::new(max, SECOND));
        throttle.change(Rate { max_requests: max, per_ms: 1_000 });
        let next = throttle.next_start();
        if next > now {
            let (quota, retry_after) = (Quota::RequestsPerSecond, next.since(now));
            return Err(Refusal::OverQuota { quota, tenant: tenant.clone(), retry_after });
        }
        throttle.start(now);
        Ok(())
    }

    /// A tenant has no limit any more.
    pub(super) fn forget(&self, tenant: &TenantName) {
        self.throttles.lock().remove(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_no_second_does_a_tenant_make_more_calls_than_its_quota() {
        let (rates, start) = (RequestRates::default(), Time::from_millis(1_000_000));
        let [busy, other] = ["busy", "other"].map(|name| TenantName::new(name).unwrap());
        let at = |ms| start + Duration::from_millis(ms);
        let taken: Vec<u64> =
            (0..40).map(|step| step * 50).filter(|ms| rates.count(at(*ms), &busy, 3).is_ok()).collect();
        assert_eq!(taken, [0, 50, 100, 1_000, 1_050, 1_100]);
        assert!(rates.count(at(1_990), &other, 3).is_ok(), "others notice nothing");
        assert!(rates.count(at(1_990), &busy, 4).is_ok(), "a new limit counts at once");
    }
}
