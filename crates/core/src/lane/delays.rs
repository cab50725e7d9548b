//! Jobs that are not due yet, soonest first; of those due at one moment the older id.
//! Invariant: every delayed entry has a mark here; a mark whose entry has gone or moved is skipped.
//! Never: walks the heap for one job; leftovers are swept when they outnumber the living.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::slab::{Place, Slab, Slot};
use crate::id::JobId;
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Delays {
    heap: BinaryHeap<Reverse<(Time, JobId, Slot)>>,
    living: usize,
}

impl Delays {
    /// Marks an entry that has just become `Delayed`.
    pub(super) fn insert(&mut self, slab: &Slab, slot: Slot) {
        self.heap.push(Reverse((slab[slot].due, slab[slot].id, slot)));
        self.living += 1;
    }

    /// An entry left before it was due.
    pub(super) fn forget(&mut self, slab: &Slab) {
        self.living -= 1;
        if self.heap.len() > 64 && self.heap.len() > 2 * self.living {
            self.heap.retain(|Reverse(mark)| is_living(slab, mark));
        }
    }

    /// Takes one entry that is due.
    pub(super) fn pop_due(&mut self, now: Time, slab: &Slab) -> Option<Slot> {
        self.next_due(slab).filter(|&due| due <= now)?;
        let Reverse((_, _, slot)) = self.heap.pop()?;
        self.living -= 1;
        Some(slot)
    }

    /// When the next one is due.
    pub(super) fn next_due(&mut self, slab: &Slab) -> Option<Time> {
        while let Some(Reverse(mark)) = self.heap.peek() {
            if is_living(slab, mark) {
                return Some(mark.0);
            }
            self.heap.pop();
        }
        None
    }
}

fn is_living(slab: &Slab, &(due, id, slot): &(Time, JobId, Slot)) -> bool {
    let entry = &slab[slot];
    entry.place == Place::Delayed && entry.due == due && entry.id == id
}
