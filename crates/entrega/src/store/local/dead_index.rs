//! The dead letters of one lane, as its owner has them in memory: what is known of each without reading it.
//! Invariant: every entry has one place by age, one by id and one among those of its tenant.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use super::records::carried_bytes;
use crate::store::DeadLetterCursor;

/// What an entry without a failure code is counted under, and found by.
const NO_CODE: &str = "unknown";

/// What is known of an entry without reading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeadMark {
    pub(super) tenant: TenantName,
    pub(super) code: String,
    pub(super) status: DeadLetterStatus,
    pub(super) generation: u8,
    pub(super) expires_at: Time,
    /// What its job carries.
    pub(super) bytes: u32,
}

impl DeadMark {
    pub(super) fn of(dead: &DeadLetter) -> DeadMark {
        DeadMark {
            tenant: dead.original_data.tenant.clone(),
            code: dead.last_failure_code.clone().unwrap_or_else(|| NO_CODE.to_owned()),
            status: dead.status,
            generation: dead.generation,
            expires_at: dead.expires_at(),
            bytes: u32::try_from(carried_bytes(&dead.original_data)).unwrap_or(u32::MAX),
        }
    }
}

/// The entries of one lane by age.
#[derive(Debug, Default)]
pub(super) struct DeadIndex {
    pub(super) by_age: BTreeMap<DeadLetterCursor, DeadMark>,
    by_id: HashMap<JobId, Time>,
    by_tenant: BTreeMap<TenantName, OfTenant>,
    /// How many are pending or being replayed: what people mean by "dead letters".
    open: u32,
}

/// The entries of one tenant, those of its endpoints included.
#[derive(Debug, Default)]
struct OfTenant {
    by_age: BTreeSet<DeadLetterCursor>,
    bytes: u64,
}

impl DeadIndex {
    pub(super) fn put(&mut self, place: DeadLetterCursor, mark: DeadMark) {
        self.remove(place.1);
        self.by_id.insert(place.1, place.0);
        self.open += u32::from(mark.status.is_open());
        let of_tenant = self.by_tenant.entry(mark.tenant.company()).or_default();
        of_tenant.by_age.insert(place);
        of_tenant.bytes += u64::from(mark.bytes);
        self.by_age.insert(place, mark);
    }

    /// Forgets an entry; where it was.
    pub(super) fn remove(&mut self, id: JobId) -> Option<DeadLetterCursor> {
        let place = (self.by_id.remove(&id)?, id);
        let mark = self.by_age.remove(&place)?;
        self.open -= u32::from(mark.status.is_open());
        let company = mark.tenant.company();
        if let Some(of_tenant) = self.by_tenant.get_mut(&company) {
            of_tenant.by_age.remove(&place);
            of_tenant.bytes -= u64::from(mark.bytes);
            if of_tenant.by_age.is_empty() {
                self.by_tenant.remove(&company);
            }
        }
        Some(place)
    }

    /// What the entries of a tenant carry.
    pub(super) fn bytes_of(&self, tenant: &TenantName) -> u64 {
        self.by_tenant.get(&tenant.company()).map_or(0, |of_tenant| of_tenant.bytes)
    }

    /// The entries that have to leave at `now`, at most `max`, each with the reason: those past their time; of a tenant that
    /// has more than its quota its oldest; and past the lane's cap the oldest of whoever has most, so that nobody pushes out
    /// another's. One that is being replayed stays.
    pub(super) fn to_leave(
        &self,
        now: Time,
        cap: u32,
        quota: impl Fn(&TenantName) -> u32,
        max: usize,
    ) -> Vec<(DeadLetterCursor, &'static str)> {
        let may_leave = |place: &&DeadLetterCursor| self.by_age[place].status != DeadLetterStatus::Replaying;
        let past = self.by_age.iter().take_while(|(_, mark)| mark.expires_at <= now).map(|(place, _)| place);
        let past: BTreeSet<DeadLetterCursor> = past.filter(may_leave).take(max).copied().collect();
        let mut leaving: Vec<_> = past.iter().map(|place| (*place, "ttl")).collect();
        let mut in_all = self.by_age.len() - past.len();
        let is_over = |(tenant, of): (&TenantName, &OfTenant)| of.by_age.len() > quota(tenant) as usize;
        if in_all <= cap as usize && !self.by_tenant.iter().any(is_over) {
            return leaving;
        }
        // The entries of each tenant that are left, and how many; whoever has most is on top.
        let (mut rests, mut most) = (Vec::new(), BinaryHeap::new());
        for (tenant, of_tenant) in &self.by_tenant {
            let mut count = of_tenant.by_age.iter().filter(|place| !past.contains(place)).count();
            let mut rest = of_tenant.by_age.iter().filter(may_leave).filter(|place| !past.contains(place));
            let over = count.saturating_sub(quota(tenant) as usize).min(max - leaving.len());
            for place in rest.by_ref().take(over) {
                leaving.push((*place, "quota"));
                (count, in_all) = (count - 1, in_all - 1);
            }
            most.push((count, rests.len()));
            rests.push(rest);
        }
        while in_all > cap as usize
            && leaving.len() < max
            && let Some((count, number)) = most.pop()
        {
            if let Some(place) = rests[number].next() {
                leaving.push((*place, "cap"));
                in_all -= 1;
                most.push((count - 1, number));
            }
        }
        leaving
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// How many are pending or being replayed.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    pub(super) fn mark(&self, id: JobId) -> Option<&DeadMark> {
        self.by_age.get(&(*self.by_id.get(&id)?, id))
    }
}
