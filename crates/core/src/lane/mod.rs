//! The lane machine: admission, order, gates and delays of one lane, as a value.
//! Invariant: every job given to it is in exactly one place until it is taken out: staged, ready, delayed or running.
//! Never: holds payloads, reads a clock, sends or stores anything.

mod accounts;
mod admission;
mod delays;
mod explain;
mod gate;
mod slab;
mod slow;
mod starts;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::time::Duration;

pub use self::accounts::Usage;
pub use self::admission::Admission;
pub use self::explain::{Explanation, LaneSizes, TenantFigures};
pub use self::gate::{Gate, GateKind, GateMemory, Hold, Way};
pub use self::slow::{SLOW_AFTER, SlowBounds, attempts_max};
pub use self::starts::Starts;

use self::delays::Delays;
use self::slab::{ARRIVALS, List, Place, Slab, Slot};
use self::turns::Turns;
use crate::id::JobId;
use crate::job::{JobState, Priority};
use crate::name::TenantName;
use crate::outcome::Lesson;
use crate::policy::{LanePolicy, Scope};
use crate::throttle::Rate;
use crate::time::Time;

/// The most delayed or expired jobs that one claim moves, so that no claim takes long.
const MOVES_PER_CLAIM_MAX: usize = 4096;

/// A job as the machine needs to know it.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Its id; new to the lane.
    pub id: JobId,
    /// Who it is for.
    pub tenant: TenantName,
    /// How urgent.
    pub priority: Priority,
    /// Not before this.
    pub due: Time,
    /// Dropped if still waiting then.
    pub expires: Time,
    /// Attempts so far.
    pub attempt: u16,
    /// Replays so far.
    pub generation: u8,
    /// What its record takes up.
    pub bytes: u32,
}

/// A job that left the lane while waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its id.
    pub id: JobId,
    /// The tenant.
    pub tenant: TenantName,
    /// How urgent it was.
    pub priority: Priority,
    /// Where it stood.
    pub state: JobState,
}

/// A running job's place; names it in [`Lane::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: Slot,
    id: JobId,
}

/// A job to attempt now.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its id.
    pub id: JobId,
    /// For its settlement.
    pub ticket: Ticket,
    /// The tenant.
    pub tenant: TenantName,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Replays so far.
    pub generation: u8,
    /// Its end.
    pub expires: Time,
    /// Whether it was let past an open breaker: its destination is not to be called.
    pub past_breaker: bool,
}

/// What a claim gave.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// To attempt, in this order.
    pub jobs: Vec<Claimed>,
    /// Expired on their way out: dropped.
    pub expired: Vec<Left>,
    /// When to ask again if nothing happens before.
    pub wake_at: Option<Time>,
}

/// What becomes of a settled job's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It leaves: delivered, dead or blocked.
    Leave,
    /// It waits for another attempt.
    RetryAt(Time),
}

/// Why a job could not be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRemoved {
    /// No such job waits here.
    #[error("no such job in this lane")]
    Unknown,
    /// An attempt is under way.
    #[error("an attempt of the job is under way")]
    Running,
}

/// One lane.
#[derive(Debug)]
pub struct Lane {
    policy: Arc<LanePolicy>,
    slab: Slab,
    arrivals: [List; 3],
    delays: Delays,
    turns: Turns,
    gate: Option<Gate>,
    paused: bool,
    staged: Vec<Slot>,
    sizes: LaneSizes,
    /// How many of those that run went past the gates.
    past: u32,
    /// Where attempts may become slow: those that are not, in the order of their starts.
    young: List,
}

impl Lane {
    /// An empty lane.
    pub fn new(policy: Arc<LanePolicy>) -> Lane {
        Lane {
            slab: Slab::new(),
            arrivals: [List::EMPTY; 3],
            delays: Delays::default(),
            turns: Turns::new(&policy),
            gate: Gate::new(&policy, Scope::Lane),
            paused: false,
            staged: Vec::new(),
            sizes: LaneSizes::default(),
            past: 0,
            young: List::EMPTY,
            policy,
        }
    }

    /// Moves an entry from wherever it comes to ready or delayed.
    fn settle_in(&mut self, now: Time, slot: Slot) {
        let due = self.slab[slot].due;
        self.place(slot, if due > now { Place::Delayed } else { Place::Ready });
        match due > now {
            true => self.delays.insert(&self.slab, slot),
            false => self.turns.enqueue(&mut self.slab, slot),
        }
    }

    fn place(&mut self, slot: Slot, place: Place) {
        self.uncount(slot);
        self.slab[slot].place = place;
        self.count(slot);
    }

    /// Takes up to `max` jobs to attempt now.
    pub fn claim(&mut self, now: Time, max: usize) -> Claims {
        let mut claims = Claims::default();
        self.release_due(now);
        self.turns.unpark_due(now);
        self.find_slow(now);
        while claims.jobs.len() < max && claims.expired.len() < MOVES_PER_CLAIM_MAX {
            let way = self.way(now);
            if let Way::Held(hold) = way {
                claims.wake_at = hold.until.or_else(|| self.next_slot(now));
                return claims;
            }
            let Some(slot) = self.turns.front(now) else { break };
            if self.slab[slot].expires <= now {
                claims.expired.push(self.take_out(slot));
            } else {
                claims.jobs.push(self.start(now, slot, way == Way::Past));
            }
        }
        let next = [self.delays.next_due(&self.slab), self.turns.next_unpark(), self.next_slot(now)];
        let next = next.into_iter().flatten().min();
        // Enough for one claim; behind the expired there may be more at once.
        let is_tired = claims.expired.len() >= MOVES_PER_CLAIM_MAX;
        claims.wake_at = if is_tired { Some(now) } else { next };
        claims
    }

    fn release_due(&mut self, now: Time) {
        for _ in 0..MOVES_PER_CLAIM_MAX {
            let Some(slot) = self.delays.pop_due(now, &self.slab) else { return };
            self.place(slot, Place::Ready);
            self.turns.enqueue(&mut self.slab, slot);
        }
    }

    /// How the next job may leave the lane, whoever's it is.
    fn way(&self, now: Time) -> Way {
        if self.paused {
            return Way::Held(Hold { gate: GateKind::Paused, until: None });
        }
        if self.slots_taken() >= self.policy.concurrency {
            return Way::Held(Hold { gate: GateKind::Concurrency, until: None });
        }
        self.gate.as_ref().map_or(Way::Through, |gate| gate.way(now, self.sizes.running() - self.past))
    }

    fn start(&mut self, now: Time, slot: Slot, past_breaker: bool) -> Claimed {
        self.turns.dequeue(&mut self.slab, slot);
        let (tenant, priority) = (self.slab[slot].tenant, self.slab[slot].priority);
        self.slab.unlink::<ARRIVALS>(&mut self.arrivals[priority as usize], slot);
        let has_slot = !self.starts_slow(tenant);
        self.turns.serve(now, tenant, priority);
        self.place(slot, Place::Running);
        self.watch(now, slot, has_slot);
        let entry = &mut self.slab[slot];
        entry.attempt = entry.attempt.saturating_add(1);
        entry.is_past = past_breaker;
        if past_breaker {
            self.past += 1;
        } else {
            let own = self.turns.tenants[tenant as usize].gate.as_deref_mut();
            self.gate.iter_mut().chain(own).for_each(|gate| gate.start(now, entry.id));
        }
        Claimed {
            id: entry.id,
            ticket: Ticket { slot, id: entry.id },
            tenant: self.turns.tenants[tenant as usize].name.clone(),
            attempt: entry.attempt.into(),
            generation: entry.generation,
            expires: entry.expires,
            past_breaker,
        }
    }

    /// Ends an attempt; from one that went past the gates they learn nothing, whatever it says. `false`, and nothing
    /// changes, if the ticket is not that of a running job.
    pub fn settle(&mut self, now: Time, ticket: Ticket, next: Next, lesson: Lesson, took: Duration) -> bool {
        let Ticket { slot, id } = ticket;
        if self.slab[slot].id != id || self.slab[slot].place != Place::Running {
            return false;
        }
        let number = self.slab[slot].tenant;
        self.unwatch(slot, lesson != Lesson::Unused);
        if std::mem::take(&mut self.slab[slot].is_past) {
            self.past -= 1;
        } else {
            let own = self.turns.tenants[number as usize].gate.as_deref_mut();
            self.gate.iter_mut().chain(own).for_each(|gate| gate.learn(now, id, lesson, took));
        }
        self.turns.settled(number);
        match next {
            Next::Leave => {
                self.uncount(slot);
                self.slab.remove(slot);
                self.turns.tenants[number as usize].jobs -= 1;
            }
            Next::RetryAt(at) => {
                // A retry is older than whatever arrived since: it is the last to be pushed out.
                let priority = self.slab[slot].priority;
                self.slab.push_front::<ARRIVALS>(&mut self.arrivals[priority as usize], slot);
                self.slab[slot].due = at;
                self.settle_in(now, slot);
            }
        }
        true
    }

    /// Undoes a start that came to nothing before anybody was called: the job waits until `at` with the number it had, and
    /// one that may go at once has its turn again. Of a whole claim the last is given back first.
    /// `false`, and nothing changes, if the ticket is not that of a running job.
    pub fn give_back(&mut self, now: Time, ticket: Ticket, at: Time) -> bool {
        let was_running = self.return_job(now, ticket, at, Lesson::Unused);
        if was_running && at <= now {
            self.turns.undo_turn(&mut self.slab, ticket.slot);
        }
        was_running
    }

    /// An attempt was cut off, and nobody knows whom it had called by then: the job waits until `at` with the number it had,
    /// and the start counts. `false`, and nothing changes, if the ticket is not that of a running job.
    pub fn cut_off(&mut self, now: Time, ticket: Ticket, at: Time) -> bool {
        self.return_job(now, ticket, at, Lesson::Nothing)
    }

    fn return_job(&mut self, now: Time, ticket: Ticket, at: Time, lesson: Lesson) -> bool {
        let Ticket { slot, id } = ticket;
        if self.slab[slot].id != id || self.slab[slot].place != Place::Running {
            return false;
        }
        // Sizes count what waits by its number, so it has the old one before it waits.
        self.slab[slot].attempt = self.slab[slot].attempt.saturating_sub(1);
        self.settle(now, ticket, Next::RetryAt(at), lesson, Duration::ZERO)
    }

    /// About the next jobs to be claimed for their first attempt, out of `max` that are looked at, for whoever reads
    /// ahead what they carry. A guess: nothing is decided by it.
    pub fn upcoming(&self, max: usize) -> Vec<JobId> {
        let upcoming = self.turns.upcoming(&self.slab, max).into_iter().map(|slot| &self.slab[slot]);
        upcoming.filter(|entry| entry.attempt == 0).map(|entry| entry.id).collect()
    }

    /// Whether a job is here and no attempt of it is under way.
    pub fn is_waiting(&self, id: JobId) -> bool {
        self.slab.find(id).is_some_and(|slot| self.slab[slot].place != Place::Running)
    }

    /// Takes out a job that waits.
    pub fn remove(&mut self, id: JobId) -> Result<Left, NotRemoved> {
        let slot = self.slab.find(id).ok_or(NotRemoved::Unknown)?;
        match self.slab[slot].place {
            Place::Running => Err(NotRemoved::Running),
            _ => Ok(self.take_out(slot)),
        }
    }

    fn take_out(&mut self, slot: Slot) -> Left {
        match self.slab[slot].place {
            Place::Staged => self.staged.retain(|&staged| staged != slot),
            Place::Ready => self.turns.dequeue(&mut self.slab, slot),
            Place::Delayed | Place::Running | Place::Free => {}
        }
        let state = self.state_of(slot);
        let was_delayed = self.slab[slot].place == Place::Delayed;
        let priority = self.slab[slot].priority;
        self.slab.unlink::<ARRIVALS>(&mut self.arrivals[priority as usize], slot);
        self.uncount(slot);
        let entry = self.slab.remove(slot);
        self.turns.tenants[entry.tenant as usize].jobs -= 1;
        if was_delayed {
            self.delays.forget(&self.slab);
        }
        Left { id: entry.id, tenant: self.turns.tenants[entry.tenant as usize].name.clone(), priority, state }
    }

    /// Stops starting anything; what runs, runs on.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Goes on.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Treats every throttle of the lane, and the tick of its cadence, as used up at `now`: a process that starts does
    /// not know what the one before it sent last.
    pub fn assume_spent(&mut self, now: Time) {
        if let Some(gate) = &mut self.gate {
            gate.assume_spent(now);
        }
        self.turns.assume_spent(now);
    }

    /// Sets a tenant's share of turns.
    pub fn set_weight(&mut self, tenant: &TenantName, weight: u32) {
        let number = self.turns.enter(tenant, &self.policy);
        self.turns.tenants[number as usize].weight = weight.max(1);
    }

    /// Sets a tenant's own throttle, which holds beside the lane's, or takes it away. Starts that were counted count on,
    /// as long as it is not taken away. Without turns nobody can be held back alone, and nothing happens.
    pub fn set_throttle(&mut self, tenant: &TenantName, rate: Option<Rate>) {
        let number = match rate {
            _ if !self.turns.is_round_robin() => None,
            Some(_) => Some(self.turns.enter(tenant, &self.policy)),
            None => self.turns.find(tenant),
        };
        if let Some(number) = number {
            self.turns.set_throttle(number, rate);
        }
    }

    /// Forgets the figures of tenants that have had nothing to do for long, where it knows many: whoever may name tenants or
    /// endpoints must not be able to fill the memory with names. One that comes back begins anew.
    pub fn forget_idle(&mut self, now: Time) {
        self.turns.forget_idle(now);
    }

    /// The policy it keeps.
    pub fn policy(&self) -> &Arc<LanePolicy> {
        &self.policy
    }
}
