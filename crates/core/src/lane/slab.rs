//! The entries of a lane: one small record per job, threaded onto lists, found by id.
//! Invariant: an entry is on at most one queue and one arrival list, and its slot is in the index while it is used.
//! Never: holds a payload; a million entries must stay small.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::id::JobId;
use crate::job::Priority;
use crate::time::Time;

/// Where an entry lies.
pub(super) type Slot = u32;

/// No slot.
pub(super) const NONE: Slot = u32::MAX;

/// Entries are kept in pages, so that growing never copies a million of them.
const PAGE: usize = 4096;

/// The list of a tenant's ready jobs of one priority, or of running ones that are not slow.
pub(super) const QUEUE: usize = 0;
/// The list of all waiting jobs of one priority, oldest first.
pub(super) const ARRIVALS: usize = 1;

/// What an entry is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    /// Admitted, but not yet safe on disk.
    Staged,
    /// On its tenant's queue.
    Ready,
    /// In the heap of delays.
    Delayed,
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: Slot,
    next: Slot,
}

const UNLINKED: Link = Link { prev: NONE, next: NONE };

/// One job, as the machine sees it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: JobId,
    pub(super) due: Time,
    pub(super) expires: Time,
    links: [Link; 2],
    pub(super) tenant: u32,
    /// What the job's record takes up.
    pub(super) bytes: u32,
    pub(super) attempt: u16,
    pub(super) generation: u8,
    pub(super) priority: Priority,
    pub(super) place: Place,
    /// Whether it runs past the gates.
    pub(super) is_past: bool,
    /// Of a running job in a lane with slow attempts: whether it holds one of the lane's slots. `due` is then its start.
    pub(super) has_slot: bool,
    /// Whether it was found to be slow; one that was not stands among the young.
    pub(super) is_slow: bool,
}

impl Entry {
    pub(super) fn new(id: JobId, tenant: u32, priority: Priority, due: Time, expires: Time) -> Entry {
        Entry {
            id,
            due,
            expires,
            links: [UNLINKED; 2],
            tenant,
            bytes: 0,
            attempt: 0,
            generation: 0,
            priority,
            place: Place::Staged,
            is_past: false,
            has_slot: false,
            is_slow: false,
        }
    }
}

/// A list threaded through the entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) head: Slot,
    pub(super) tail: Slot,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE, tail: NONE };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// All entries of a lane.
#[derive(Debug)]
pub(super) struct Slab {
    pages: Vec<Box<[Entry]>>,
    /// Free slots, threaded by the queue link.
    free: Slot,
    index: HashTable<Slot>,
}

impl Slab {
    pub(super) fn new() -> Slab {
        Slab { pages: Vec::new(), free: NONE, index: HashTable::new() }
    }

    /// Puts an entry in. The id must be new to the lane.
    pub(super) fn insert(&mut self, entry: Entry) -> Slot {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        self.free = self[slot].links[QUEUE].next;
        let hash = entry.id.hash();
        self[slot] = entry;
        let pages = &self.pages;
        self.index.insert_unique(hash, slot, |&slot| at(pages, slot).id.hash());
        slot
    }

    /// Takes an entry out; it must be on no list.
    pub(super) fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self[slot].clone();
        let found = self.index.find_entry(entry.id.hash(), |&other| other == slot);
        found.expect("a used slot is in the index").remove();
        self[slot].place = Place::Free;
        self[slot].links[QUEUE].next = self.free;
        self.free = slot;
        entry
    }

    pub(super) fn find(&self, id: JobId) -> Option<Slot> {
        self.index.find(id.hash(), |&slot| self[slot].id == id).copied()
    }

    pub(super) fn push_back<const L: usize>(&mut self, list: &mut List, slot: Slot) {
        self[slot].links[L] = Link { prev: list.tail, next: NONE };
        match list.tail {
            NONE => list.head = slot,
            tail => self[tail].links[L].next = slot,
        }
        list.tail = slot;
    }

    pub(super) fn push_front<const L: usize>(&mut self, list: &mut List, slot: Slot) {
        self[slot].links[L] = Link { prev: NONE, next: list.head };
        match list.head {
            NONE => list.tail = slot,
            head => self[head].links[L].prev = slot,
        }
        list.head = slot;
    }

    pub(super) fn unlink<const L: usize>(&mut self, list: &mut List, slot: Slot) {
        let Link { prev, next } = self[slot].links[L];
        match prev {
            NONE => list.head = next,
            prev => self[prev].links[L].next = next,
        }
        match next {
            NONE => list.tail = prev,
            next => self[next].links[L].prev = prev,
        }
        self[slot].links[L] = UNLINKED;
    }

    /// The entry behind this one on its list.
    pub(super) fn after<const L: usize>(&self, slot: Slot) -> Slot {
        self[slot].links[L].next
    }

    fn grow(&mut self) {
        let first = self.pages.len() * PAGE;
        let mut page = vec![Entry::new(JobId::MIN, 0, Priority::Low, Time::ZERO, Time::ZERO); PAGE];
        for (offset, entry) in page.iter_mut().enumerate() {
            entry.place = Place::Free;
            let is_last = offset + 1 == PAGE;
            entry.links[QUEUE].next = if is_last { NONE } else { (first + offset + 1) as Slot };
        }
        self.pages.push(page.into_boxed_slice());
        self.free = first as Slot;
    }
}

fn at(pages: &[Box<[Entry]>], slot: Slot) -> &Entry {
    &pages[slot as usize / PAGE][slot as usize % PAGE]
}

impl Index<Slot> for Slab {
    type Output = Entry;
    fn index(&self, slot: Slot) -> &Entry {
        at(&self.pages, slot)
    }
}

impl IndexMut<Slot> for Slab {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.pages[slot as usize / PAGE][slot as usize % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_within_a_cache_line() {
        assert!(size_of::<Entry>() <= 64, "{} bytes", size_of::<Entry>());
    }

    #[test]
    fn slots_are_used_again() {
        let mut slab = Slab::new();
        let entry =
            |n: u128| Entry::new(JobId::from_parts(Time::ZERO, n), 0, Priority::Normal, Time::ZERO, Time::NEVER);
        let slots: Vec<_> = (0..10_000).map(|n| slab.insert(entry(n))).collect();
        assert_eq!(slab.find(JobId::from_parts(Time::ZERO, 5000)), Some(slots[5000]));
        assert_eq!(slab.remove(slots[5000]).id, JobId::from_parts(Time::ZERO, 5000));
        assert_eq!(slab.find(JobId::from_parts(Time::ZERO, 5000)), None);
        assert_eq!(slab.insert(entry(20_000)), slots[5000]);
    }
}
