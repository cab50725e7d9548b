//! The dead letters of one lane, as its owner has them in memory: what is known of each without reading it.
//! Invariant: every entry has one place by age and one by id.

use std::collections::{BTreeMap, HashMap};

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

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
}

impl DeadMark {
    pub(super) fn of(dead: &DeadLetter) -> DeadMark {
        DeadMark {
            tenant: dead.original_data.tenant.clone(),
            code: dead.last_failure_code.clone().unwrap_or_else(|| NO_CODE.to_owned()),
            status: dead.status,
            generation: dead.generation,
            expires_at: dead.expires_at(),
        }
    }
}

/// The entries of one lane by age.
#[derive(Debug, Default)]
pub(super) struct DeadIndex {
    pub(super) by_age: BTreeMap<DeadLetterCursor, DeadMark>,
    by_id: HashMap<JobId, Time>,
    /// How many are pending or being replayed: what people mean by "dead letters".
    open: u32,
}

impl DeadIndex {
    pub(super) fn put(&mut self, place: DeadLetterCursor, mark: DeadMark) {
        self.remove(place.1);
        self.by_id.insert(place.1, place.0);
        self.open += u32::from(mark.status.is_open());
        self.by_age.insert(place, mark);
    }

    /// Forgets an entry; where it was.
    pub(super) fn remove(&mut self, id: JobId) -> Option<DeadLetterCursor> {
        let place = (self.by_id.remove(&id)?, id);
        let mark = self.by_age.remove(&place)?;
        self.open -= u32::from(mark.status.is_open());
        Some(place)
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// How many are pending or being replayed.
    pub(super) fn open(&self) -> u32 {
        self.open
    }

    /// All of them, the oldest first, and how many.
    pub(super) fn oldest(&self) -> (impl Iterator<Item = (DeadLetterCursor, &DeadMark)>, usize) {
        (self.by_age.iter().map(|(place, mark)| (*place, mark)), self.by_age.len())
    }

    pub(super) fn mark(&self, id: JobId) -> Option<&DeadMark> {
        self.by_age.get(&(*self.by_id.get(&id)?, id))
    }
}
