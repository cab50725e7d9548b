//! Quotas: what one tenant may use up of what all share.
//! Invariant: whoever sets nothing has the defaults, and those leave something to others.
//! Never: counts; whoever keeps a thing counts it and asks here how much may be.

use serde::{Deserialize, Serialize};

use crate::policy::{LanePolicy, OnFull};

/// What an operator set for one tenant; nothing set means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Quotas {
    /// Waiting jobs in one lane.
    pub places: Option<u32>,
    /// Dead letters of one lane.
    pub dead_letters: Option<u32>,
    /// Calls that wait for something: long polls, calls of connectors.
    pub waiting_calls: Option<u32>,
    /// Bytes of jobs that have not ended, and of dead letters, over all lanes.
    pub stored_bytes: Option<u64>,
    /// Calls of the API.
    pub requests_per_second: Option<u32>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quota {
    /// Waiting jobs in a lane.
    Places,
    /// Bytes that are kept.
    StoredBytes,
    /// Calls of the API.
    RequestsPerSecond,
}

impl Quota {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Quota::Places => "places",
            Quota::StoredBytes => "stored_bytes",
            Quota::RequestsPerSecond => "requests_per_second",
        }
    }
}

impl Quotas {
    /// How many jobs of the tenant may wait in a lane: nine tenths of it, so that nobody fills it alone. Where a full lane
    /// pushes out the least urgent, all of it: nobody is kept out there by what another left.
    pub fn places_in(&self, policy: &LanePolicy) -> u32 {
        let shared = match policy.on_full {
            OnFull::Refuse => policy.capacity - policy.capacity / 10,
            OnFull::Preempt => policy.capacity,
        };
        self.places.unwrap_or(shared)
    }

    /// How many dead letters of the tenant a lane keeps: half of what it keeps in all.
    pub fn dead_letters_in(&self, policy: &LanePolicy) -> u32 {
        self.dead_letters.unwrap_or(policy.dead_letters.cap.div_ceil(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_sets_nothing_leaves_something_to_others() {
        let quotas = Quotas::default();
        let (http, proxy) = (LanePolicy::http(), LanePolicy::proxy());
        assert_eq!((quotas.places_in(&http), quotas.places_in(&proxy)), (90_000, 100));
        assert_eq!(quotas.dead_letters_in(&http), 5_000);
        let small = LanePolicy { capacity: 3, ..LanePolicy::http() };
        assert_eq!(quotas.places_in(&small), 3, "a tenth of less than ten is nothing");
        let set = Quotas { places: Some(7), dead_letters: Some(20_000), ..Quotas::default() };
        assert_eq!(
            (set.places_in(&proxy), set.dead_letters_in(&http)),
            (7, 20_000),
            "the cap of the lane holds beside it"
        );
    }
}
