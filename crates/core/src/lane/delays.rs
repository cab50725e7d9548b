//! Jobs that are not due yet, soonest first.
//! Invariant: every delayed entry has a mark here; a mark whose entry has gone or moved is skipped.
//! Never: walks the heap for one job; leftovers are swept when they outnumber the living.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::slab::{Place, Slab, Slot};
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Delays {
    heap: BinaryHeap<Reverse<(Time, Slot)>>,
    living: usize,
}

impl Delays {
    /// Marks an entry that has just become `Delayed`.
    pub(super) fn insert(&mut self, due: Time, slot: Slot) {
        self.heap.push(Reverse((due, slot)));
        self.living += 1;
    }

    /// An entry left before it was due.
    pub(super) fn forget(&mut self, slab: &Slab) {
        self.living -= 1;
        if self.heap.len() > 64 && self.heap.len() > 2 * self.living {
            self.heap.retain(|Reverse((due, slot))| is_living(slab, *due, *slot));
        }
    }

    /// Takes one entry that is due.
    pub(super) fn pop_due(&mut self, now: Time, slab: &Slab) -> Option<Slot> {
        while let Some(&Reverse((due, slot))) = self.heap.peek() {
            if due > now {
                return None;
            }
            self.heap.pop();
            if is_living(slab, due, slot) {
                self.living -= 1;
                return Some(slot);
            }
        }
        None
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }
}

fn is_living(slab: &Slab, due: Time, slot: Slot) -> bool {
    slab[slot].place == Place::Delayed && slab[slot].due == due
}
