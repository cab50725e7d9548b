//! Turns as an onlooker counts them: how often others went since somebody began to wait.
//! Invariant: knows nothing of rings and quanta; only that nobody may wait for more than one turn of each other.

use std::collections::BTreeMap;

use entrega_core::name::TenantName;

/// Who waits in one lane at one priority, and how often each other went since.
#[derive(Debug, Default)]
pub struct Turns {
    waiting: BTreeMap<TenantName, BTreeMap<TenantName, u32>>,
}

impl Turns {
    /// These wait, from now on if they did not before; others do not.
    pub fn line_up<'a>(&mut self, tenants: impl Iterator<Item = &'a TenantName>) {
        let mut before = std::mem::take(&mut self.waiting);
        for tenant in tenants {
            self.waiting.entry(tenant.clone()).or_insert_with(|| before.remove(tenant).unwrap_or_default());
        }
    }

    /// A tenant goes; gives whoever had to watch that too often.
    pub fn serve(&mut self, tenant: &TenantName, batch: u32) -> Option<TenantName> {
        let mut passed_over = None;
        for (other, went) in &mut self.waiting {
            if other == tenant {
                went.clear();
                continue;
            }
            let count = went.entry(tenant.clone()).or_default();
            *count += 1;
            if *count > batch {
                passed_over = Some(other.clone());
            }
        }
        passed_over
    }

    /// A tenant had its turn, and nothing came of it.
    pub fn had(&mut self, tenant: &TenantName) {
        self.waiting.entry(tenant.clone()).and_modify(BTreeMap::clear);
    }

    /// A tenant has nothing more that may go.
    pub fn leave(&mut self, tenant: &TenantName) {
        self.waiting.remove(tenant);
    }
}
