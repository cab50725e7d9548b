//! Slow attempts: in a lane with many destinations, waiting for an answer costs a socket and no slot.
//! Invariant: an attempt that has been under way for [`SLOW_AFTER`] holds no slot as long as there is room for slow ones, and
//! a tenant of whom one is slow takes none for its next. Attempts without a slot are bounded for each tenant and in total.
//! Never: sets a timer for an attempt; those under way stand in the order of their starts, and a claim looks at the first.
//!
//! A share of what is free, and not a fixed number, bounds each tenant: however many of them hang, some room is left for the
//! attempts of the next one, which would hold their slots without it.

use std::time::Duration;

use super::Lane;
use super::slab::{NONE, Place, QUEUE, Slot};
use crate::policy::{Destinations, LanePolicy};
use crate::time::Time;

/// An attempt that has been under way for so long is slow. Longer than an answer from nearby takes, and short enough for the
/// slots of a lane not to fill up before it is noticed that a destination hangs.
pub const SLOW_AFTER: Duration = Duration::from_millis(100);

/// Slow attempts for each slot of a lane.
const SLOW_PER_SLOT: u32 = 32;
/// The most slow attempts of a lane, unless it has more slots than that.
const SLOW_MAX: u32 = 2048;
/// Attempts of a slow tenant for each slot that it may have.
const TENANT_SLOW_PER_SLOT: u32 = 4;
/// A slow tenant may have one part in so many of the room that is left.
const SHARE_OF_FREE: u32 = 4;

/// The bounds of slow attempts in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowBounds {
    /// How many attempts may be under way without a slot.
    pub max: u32,
    /// How many attempts of one slow tenant may be under way.
    pub tenant_max: u32,
}

impl SlowBounds {
    /// The bounds of a lane; `None` where every attempt holds a slot: all go to one destination, or nobody can be held alone.
    pub fn of(policy: &LanePolicy) -> Option<SlowBounds> {
        let is_wide = policy.destinations == Destinations::Many && policy.fairness.enable_round_robin;
        is_wide.then(|| SlowBounds {
            max: policy.concurrency.saturating_mul(SLOW_PER_SLOT).min(SLOW_MAX.max(policy.concurrency)),
            // Whoever listens at an endpoint counts on its limit, however long the answers take.
            tenant_max: match policy.calls_endpoints {
                true => policy.tenant_concurrency,
                false => policy.tenant_concurrency.saturating_mul(TENANT_SLOW_PER_SLOT),
            },
        })
    }

    /// How many attempts a slow tenant may have under way while `used` of the lane's hold no slot.
    pub(super) fn tenant_limit(self, used: u32) -> u32 {
        ((self.max - used) / SHARE_OF_FREE).clamp(1, self.tenant_max)
    }
}

/// The most attempts that a lane may have under way: those with a slot, and slow ones.
pub fn attempts_max(policy: &LanePolicy) -> u32 {
    policy.concurrency + SlowBounds::of(policy).map_or(0, |bounds| bounds.max)
}

impl Lane {
    /// How many slots are taken.
    pub(super) fn slots_taken(&self) -> u32 {
        self.sizes.running() - self.sizes.slow()
    }

    /// Whether the next attempt of a tenant takes no slot.
    pub(super) fn starts_slow(&self, tenant: u32) -> bool {
        let has_room = |bounds: SlowBounds| self.sizes.slow() < bounds.max;
        self.turns.slow.is_some_and(has_room) && self.turns.tenants[tenant as usize].is_slow
    }

    /// A job was started: it stands behind those that were started before it.
    pub(super) fn watch(&mut self, now: Time, slot: Slot, has_slot: bool) {
        if self.turns.slow.is_none() {
            return;
        }
        let entry = &mut self.slab[slot];
        (entry.due, entry.has_slot, entry.is_slow) = (now, has_slot, false);
        self.slab.push_back::<QUEUE>(&mut self.young, slot);
        if !has_slot {
            self.take_no_slot();
        }
    }

    /// An attempt is about to end; `is_heard` where it shows how its destination is.
    pub(super) fn unwatch(&mut self, slot: Slot, is_heard: bool) {
        if self.turns.slow.is_none() {
            return;
        }
        let (has_slot, is_slow, number) =
            (self.slab[slot].has_slot, self.slab[slot].is_slow, self.slab[slot].tenant as usize);
        let tenant = &mut self.turns.tenants[number];
        match is_slow {
            true => tenant.slow -= 1,
            false => {
                // One that answers in time takes slots again, once nothing of it hangs.
                tenant.is_slow &= !(is_heard && tenant.slow == 0);
                self.slab.unlink::<QUEUE>(&mut self.young, slot);
            }
        }
        if !has_slot {
            self.sizes.slow -= 1;
            self.turns.slow_taken -= 1;
        }
    }

    /// Finds the attempts that have become slow; they give their slots up as long as there is room for them.
    pub(super) fn find_slow(&mut self, now: Time) {
        while let Some(slot) = self.oldest_young().filter(|&slot| self.slab[slot].due + SLOW_AFTER <= now) {
            if self.slab[slot].has_slot {
                if self.turns.slow.is_none_or(|bounds| self.sizes.slow() >= bounds.max) {
                    return;
                }
                self.slab[slot].has_slot = false;
                self.take_no_slot();
            }
            self.slab.unlink::<QUEUE>(&mut self.young, slot);
            self.slab[slot].is_slow = true;
            self.turns.found_slow(self.slab[slot].tenant);
        }
    }

    /// When the next attempt becomes slow, where somebody waits for its slot or for its tenant to have room. One that is and
    /// keeps its slot waits for another to end.
    pub(super) fn next_slot(&self, now: Time) -> Option<Time> {
        let is_awaited = self.slots_taken() >= self.policy.concurrency || self.turns.awaits_end();
        let oldest = self.oldest_young().filter(|_| is_awaited && !self.paused);
        oldest.map(|slot| self.slab[slot].due + SLOW_AFTER).filter(|at| *at > now)
    }

    fn take_no_slot(&mut self) {
        self.sizes.slow += 1;
        self.turns.slow_taken += 1;
    }

    fn oldest_young(&self) -> Option<Slot> {
        let slot = Some(self.young.head).filter(|&slot| slot != NONE);
        debug_assert!(slot.is_none_or(|slot| self.slab[slot].place == Place::Running));
        slot
    }
}
