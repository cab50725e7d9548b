//! Admission: who is let into a lane, and who leaves for it.
//! Invariant: a lane never holds more than its capacity, nor a tenant more than its quota, but for what must get in; a job that is let in stays staged, out of
//! every claim, until it is durable.
//! Never: writes anything down.

use super::slab::{ARRIVALS, Entry, NONE, Slot};
use super::{Lane, Left, Waiting};
use crate::job::Priority;
use crate::policy::OnFull;
use crate::quota::Quota;
use crate::time::Time;

/// What became of a job that asked to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in, staged until [`Lane::publish`].
    Admitted,
    /// It is in, and this job had to leave for it.
    Preempted(Left),
    /// The lane is full.
    Full,
    /// Its tenant has all that it may have.
    OverQuota(Quota),
    /// A job with its id is in the lane; that one stays as it is.
    Duplicate,
}

impl Lane {
    /// Lets a job in, or not. It stays staged, out of every claim, until [`Lane::publish`] says that it is durable.
    pub fn admit(&mut self, job: &Waiting) -> Admission {
        if self.slab.find(job.id).is_some() {
            return Admission::Duplicate;
        }
        if let Some(quota) = self.exceeded(job) {
            return Admission::OverQuota(quota);
        }
        let left = match self.sizes.waiting() < self.policy.capacity {
            true => None,
            false => match self.victim(job.priority) {
                Some(victim) => Some(self.take_out(victim)),
                None => return Admission::Full,
            },
        };
        let slot = self.insert(job);
        self.staged.push(slot);
        left.map_or(Admission::Admitted, Admission::Preempted)
    }

    /// Lets a job in that must get in, whatever the lane's size; staged like any other. `false`, and nothing changes, if
    /// it is here.
    pub fn admit_always(&mut self, job: &Waiting) -> bool {
        let is_new = self.slab.find(job.id).is_none();
        if is_new {
            let slot = self.insert(job);
            self.staged.push(slot);
        }
        is_new
    }

    /// Makes all staged jobs claimable.
    pub fn publish(&mut self, now: Time) {
        for slot in std::mem::take(&mut self.staged) {
            self.settle_in(now, slot);
        }
    }

    /// Puts back a job that the lane had accepted before: at start-up, by replay, by an operator. No limit applies.
    pub fn restore(&mut self, now: Time, job: &Waiting) {
        assert!(self.slab.find(job.id).is_none(), "{} is in the lane already", job.id);
        let slot = self.insert(job);
        self.settle_in(now, slot);
    }

    /// The newest job of the least urgent kind that a newcomer of this priority may push out.
    fn victim(&self, newcomer: Priority) -> Option<Slot> {
        if self.policy.on_full == OnFull::Refuse {
            return None;
        }
        let less_urgent = [Priority::Low, Priority::Normal].into_iter().filter(|&priority| priority > newcomer);
        less_urgent.map(|priority| self.arrivals[priority as usize].tail).find(|&slot| slot != NONE)
    }

    fn insert(&mut self, job: &Waiting) -> Slot {
        let tenant = self.turns.enter(&job.tenant, &self.policy);
        let mut entry = Entry::new(job.id, tenant, job.priority, job.due, job.expires);
        entry.attempt = job.attempt;
        entry.generation = job.generation;
        entry.bytes = job.bytes;
        let slot = self.slab.insert(entry);
        self.slab.push_back::<ARRIVALS>(&mut self.arrivals[job.priority as usize], slot);
        self.count(slot);
        self.turns.tenants[tenant as usize].jobs += 1;
        slot
    }
}
