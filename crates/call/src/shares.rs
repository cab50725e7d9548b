//! Shares: places that tenants have in common, of which none can have them all.
//! Invariant: at most `total_max` places are taken, at most `per_tenant_max` by one tenant. Whoever is over its share waits
//! behind its own; only who is within it waits for a place of all.
//! Never: lists a tenant for long that has no place and waits for none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tenants that are gone and not yet forgotten, beside as many as can have places.
const GONE_MIN: usize = 64;

/// Places for work of many tenants.
#[derive(Debug)]
pub struct Shares {
    total_max: usize,
    per_tenant_max: usize,
    total: Arc<Semaphore>,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Share {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Shares {
    /// So many places in all, and for one tenant; at least one each.
    #[must_use]
    pub fn new(total_max: usize, per_tenant_max: usize) -> Shares {
        let clamped = |places: usize| places.clamp(1, Semaphore::MAX_PERMITS);
        let (total_max, per_tenant_max) = (clamped(total_max), clamped(per_tenant_max));
        let total = Arc::new(Semaphore::new(total_max));
        Shares { total_max, per_tenant_max, total, tenants: Mutex::default() }
    }

    /// Waits for a place. Whoever goes away meanwhile leaves the line.
    pub async fn take(&self, tenant: &str) -> Share {
        let of_tenant = acquired(self.of(tenant)).await;
        Share { _of_tenant: of_tenant, _of_all: acquired(Arc::clone(&self.total)).await }
    }

    /// A tenant's own places; all that it waits for and has keep them.
    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = tenants.get(tenant).and_then(Weak::upgrade) {
            return own;
        }
        if tenants.len() >= 2 * self.total_max + GONE_MIN {
            tenants.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Semaphore::new(self.per_tenant_max));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&own));
        own
    }
}

async fn acquired(places: Arc<Semaphore>) -> OwnedSemaphorePermit {
    places.acquire_owned().await.expect("nobody closes the semaphore")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tenant_over_its_share_waits_and_another_does_not() {
        let shares = Shares::new(3, 2);
        let soon = Duration::from_secs(1);
        let _first = shares.take("one").await;
        let second = shares.take("one").await;
        assert!(timeout(soon, shares.take("one")).await.is_err(), "over its share");
        let _other = timeout(soon, shares.take("other")).await.expect("within its own");
        assert!(timeout(soon, shares.take("third")).await.is_err(), "all are taken");
        drop(second);
        assert!(timeout(soon, shares.take("third")).await.is_ok());
    }

    #[tokio::test]
    async fn tenants_that_are_gone_are_forgotten() {
        let shares = Shares::new(1, 1);
        for number in 0..1000 {
            drop(shares.take(&number.to_string()).await);
        }
        assert!(shares.tenants.lock().unwrap().len() <= 2 + GONE_MIN);
    }
}
