//! Turns: which tenant goes next.
//! Invariant: a tenant with ready jobs is on a ring unless it is parked; it is served at most its quantum in a row, then
//! goes to the back. So the front has always waited longest. Where priorities count over the whole lane, each has a ring;
//! where they count within a tenant, all are on the first, and each gives its most urgent job.
//! Never: searches; choosing costs the same with ten tenants as with a hundred thousand.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use super::accounts::Accounts;
use super::gate::{Gate, GateKind, Hold};
use super::slab::{List, NONE, QUEUE, Slab, Slot};
use super::slow::SlowBounds;
use crate::job::Priority;
use crate::name::TenantName;
use crate::policy::{LanePolicy, Scope};
use crate::throttle::Rate;
use crate::time::Time;

/// Tenants that a lane knows before any is forgotten.
pub(super) const IDLE_KEPT: usize = 1_000;
/// How long a tenant has had nothing to do before it is forgotten.
pub(super) const IDLE_FOR: Duration = Duration::from_hours(1);
const LOOK_FOR_IDLE_EVERY: Duration = Duration::from_secs(60);

/// Why a tenant is off the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parked {
    No,
    /// One of its own attempts must end first.
    UntilSettle,
    /// A moment must come first.
    Until(Time),
}

/// One tenant in one lane.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: TenantName,
    /// Where what it takes up is counted.
    pub(super) account: u32,
    /// `false` of one that was forgotten and whose number is free.
    is_known: bool,
    /// Its jobs in the lane, wherever they stand.
    pub(super) jobs: u32,
    queues: [List; 3],
    on_ring: [bool; 3],
    parked: Parked,
    pub(super) running: u32,
    /// How many of those that run are slow.
    pub(super) slow: u32,
    /// Whether one was slow, and none has ended in time since.
    pub(super) is_slow: bool,
    pub(super) weight: u32,
    pub(super) gate: Option<Box<Gate>>,
    /// The round in which it was last served or joined.
    round: u64,
    pub(super) processed: u64,
    pub(super) last_processed_at: Time,
    pub(super) consecutive: u32,
}

/// The tenants in line, of all priorities or of one.
#[derive(Debug, Default)]
struct Ring {
    order: VecDeque<u32>,
    /// What is left of the front's quantum; 0 before its turn began.
    left: u32,
}

#[derive(Debug)]
pub(super) struct Turns {
    pub(super) tenants: Vec<Tenant>,
    by_name: HashMap<TenantName, u32>,
    pub(super) accounts: Accounts,
    /// Numbers of tenants that were forgotten.
    free: Vec<u32>,
    rings: [Ring; 3],
    parked: BinaryHeap<Reverse<(Time, u32)>>,
    /// How many are off the rings until one of their own attempts ends.
    parked_until_settle: u32,
    rounds: u64,
    batch: u32,
    tenant_concurrency: u32,
    /// Where attempts may become slow: how many may be, and how many hold no slot.
    pub(super) slow: Option<SlowBounds>,
    pub(super) slow_taken: u32,
    is_round_robin: bool,
    /// Whether a job is urgent within its tenant or over the whole lane.
    priority_scope: Scope,
    /// Tenants seen for the first time start with their throttle used up at this moment.
    spent_at: Option<Time>,
    /// How many tenants have a throttle of their own.
    own_throttles: u32,
    looks_for_idle_at: Time,
}

impl Tenant {
    /// Whether it may be forgotten: whoever comes back after that begins as it would have gone on.
    fn is_idle(&self, now: Time) -> bool {
        let is_off = self.jobs == 0 && self.parked == Parked::No && self.on_ring == [false; 3];
        let is_plain = self.weight == 1 && self.gate.as_ref().is_none_or(|gate| gate.is_fresh(now));
        is_off && is_plain && self.last_processed_at + IDLE_FOR <= now
    }
}

impl Turns {
    pub(super) fn new(policy: &LanePolicy) -> Turns {
        Turns {
            tenants: Vec::new(),
            by_name: HashMap::new(),
            accounts: Accounts::default(),
            free: Vec::new(),
            rings: Default::default(),
            parked: BinaryHeap::new(),
            parked_until_settle: 0,
            rounds: 0,
            batch: policy.fairness.max_jobs_per_tenant_batch,
            tenant_concurrency: policy.tenant_concurrency,
            slow: SlowBounds::of(policy),
            slow_taken: 0,
            is_round_robin: policy.fairness.enable_round_robin,
            priority_scope: policy.priority_scope,
            spent_at: None,
            own_throttles: 0,
            looks_for_idle_at: Time::ZERO,
        }
    }

    /// Treats every tenant's throttle as used up at `now`.
    pub(super) fn assume_spent(&mut self, now: Time) {
        self.spent_at = Some(now);
        for gate in self.tenants.iter_mut().filter_map(|tenant| tenant.gate.as_mut()) {
            gate.assume_spent(now);
        }
    }

    /// Since when tenants that were not seen before count as spent.
    pub(super) fn spent_at(&self) -> Option<Time> {
        self.spent_at
    }

    pub(super) fn find(&self, name: &TenantName) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The tenant's number, made on first sight.
    pub(super) fn enter(&mut self, name: &TenantName, policy: &LanePolicy) -> u32 {
        if let Some(&number) = self.by_name.get(name) {
            return number;
        }
        let account = self.accounts.enter(name);
        let mut gate = Gate::new(policy, Scope::Tenant).map(Box::new);
        if let (Some(gate), Some(spent_at)) = (&mut gate, self.spent_at) {
            gate.assume_spent(spent_at);
        }
        let tenant = Tenant {
            name: name.clone(),
            account,
            is_known: true,
            jobs: 0,
            queues: [List::EMPTY; 3],
            on_ring: [false; 3],
            parked: Parked::No,
            running: 0,
            slow: 0,
            is_slow: false,
            weight: 1,
            gate,
            round: self.rounds,
            processed: 0,
            last_processed_at: Time::ZERO,
            consecutive: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.tenants[number as usize] = tenant;
                number
            }
            None => {
                self.tenants.push(tenant);
                self.tenants.len() as u32 - 1
            }
        };
        self.by_name.insert(name.clone(), number);
        number
    }

    /// The numbers of all tenants that are known, in the order in which they came.
    pub(super) fn known(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.tenants.len() as u32).filter(|number| self.tenants[*number as usize].is_known)
    }

    /// Forgets tenants that have had nothing to do for long and whose gates hold nothing at `now`, where many are known.
    pub(super) fn forget_idle(&mut self, now: Time) {
        let over = self.by_name.len().saturating_sub(IDLE_KEPT);
        if over == 0 || now < self.looks_for_idle_at {
            return;
        }
        self.looks_for_idle_at = now + LOOK_FOR_IDLE_EVERY;
        // Without turns everybody's jobs stand in the queue of the first.
        let first = u32::from(!self.is_round_robin);
        let idle = |number: &u32| *number >= first && self.tenants[*number as usize].is_idle(now);
        let gone: Vec<u32> = self.known().filter(idle).take(over).collect();
        for number in gone {
            let tenant = &mut self.tenants[number as usize];
            (tenant.is_known, tenant.gate) = (false, None);
            self.accounts.leave(tenant.account);
            self.by_name.remove(&tenant.name);
            self.free.push(number);
        }
    }

    /// Whose queue a tenant's jobs stand in: with turns off, everybody's jobs stand in the first one's.
    fn queue_owner(&self, tenant: u32) -> u32 {
        if self.is_round_robin { tenant } else { 0 }
    }

    /// Puts a ready job at the end of its tenant's queue.
    pub(super) fn enqueue(&mut self, slab: &mut Slab, slot: Slot) {
        let priority = slab[slot].priority;
        let owner = self.queue_owner(slab[slot].tenant);
        let queue = &mut self.tenants[owner as usize].queues[priority as usize];
        slab.push_back::<QUEUE>(queue, slot);
        self.join(owner, priority);
    }

    /// Takes a ready job off its queue, wherever it stands.
    pub(super) fn dequeue(&mut self, slab: &mut Slab, slot: Slot) {
        let owner = self.queue_owner(slab[slot].tenant) as usize;
        let queue = &mut self.tenants[owner].queues[slab[slot].priority as usize];
        slab.unlink::<QUEUE>(queue, slot);
    }

    /// Where tenants with jobs of a priority stand in line.
    fn ring(&self, priority: Priority) -> usize {
        match self.priority_scope {
            Scope::Lane => priority as usize,
            Scope::Tenant => 0,
        }
    }

    /// A tenant's most urgent job of those that a ring is about.
    fn head(&self, number: u32, ring: usize) -> Slot {
        let queues = &self.tenants[number as usize].queues;
        match self.priority_scope {
            Scope::Lane => queues[ring].head,
            Scope::Tenant => queues.iter().map(|queue| queue.head).find(|&head| head != NONE).unwrap_or(NONE),
        }
    }

    fn join(&mut self, number: u32, priority: Priority) {
        let ring = self.ring(priority);
        let tenant = &mut self.tenants[number as usize];
        if tenant.parked == Parked::No && !tenant.on_ring[ring] {
            if tenant.on_ring == [false; 3] {
                tenant.round = self.rounds;
            }
            tenant.on_ring[ring] = true;
            self.rings[ring].order.push_back(number);
        }
    }

    /// The next job by priority and turn, still on its queue. Tenants that may not go are parked on the way.
    pub(super) fn front(&mut self, now: Time) -> Option<Slot> {
        (0..self.rings.len()).find_map(|ring| self.front_of(now, ring))
    }

    fn front_of(&mut self, now: Time, ring: usize) -> Option<Slot> {
        while let Some(&number) = self.rings[ring].order.front() {
            let head = self.head(number, ring);
            if head == NONE {
                self.leave(ring);
                continue;
            }
            match self.hold(now, number) {
                None => return Some(head),
                Some(hold) => self.park(number, ring, hold),
            }
        }
        None
    }

    /// Takes the front of a ring off it.
    fn leave(&mut self, ring: usize) {
        self.rings[ring].left = 0;
        if let Some(number) = self.rings[ring].order.pop_front() {
            self.tenants[number as usize].on_ring[ring] = false;
        }
    }

    fn park(&mut self, number: u32, ring: usize, hold: Hold) {
        self.leave(ring);
        let tenant = &mut self.tenants[number as usize];
        if tenant.parked != Parked::No {
            return;
        }
        match hold.until {
            None => {
                tenant.parked = Parked::UntilSettle;
                self.parked_until_settle += 1;
            }
            Some(time) => {
                tenant.parked = Parked::Until(time);
                self.parked.push(Reverse((time, number)));
            }
        }
    }

    /// What keeps a tenant from going now.
    pub(super) fn hold(&self, now: Time, number: u32) -> Option<Hold> {
        let tenant = &self.tenants[number as usize];
        let limit = match self.slow {
            Some(bounds) if tenant.is_slow => bounds.tenant_limit(self.slow_taken),
            _ => self.tenant_concurrency,
        };
        if tenant.running >= limit && self.is_round_robin {
            return Some(Hold { gate: GateKind::TenantConcurrency, until: None });
        }
        tenant.gate.as_ref()?.way(now, tenant.running).hold()
    }

    /// How many jobs a tenant's turn has.
    fn quantum(&self, owner: u32) -> u32 {
        self.batch.saturating_mul(self.tenants[owner as usize].weight).max(1)
    }

    /// Counts the job that [`Turns::front`] gave as this tenant's turn.
    pub(super) fn serve(&mut self, now: Time, tenant: u32, priority: Priority) {
        let owner = self.queue_owner(tenant) as usize;
        let (quantum, place) = (self.quantum(owner as u32), self.ring(priority));
        let ring = &mut self.rings[place];
        if ring.left == 0 {
            ring.left = quantum;
            self.rounds += 1;
            self.tenants[owner].consecutive = 0;
        }
        ring.left -= 1;
        let is_over = ring.left == 0;
        if self.head(owner as u32, place) == NONE {
            self.leave(place);
        } else if is_over {
            self.rings[place].order.rotate_left(1);
        }
        self.tenants[owner].round = self.rounds;
        let tenant = &mut self.tenants[tenant as usize];
        tenant.consecutive += 1;
        tenant.running += 1;
        tenant.processed += 1;
        tenant.last_processed_at = now;
    }

    /// Undoes a turn that came to nothing: its job, which is on its queue again, and its tenant are at the front once more.
    /// Whoever was served last is undone first.
    pub(super) fn undo_turn(&mut self, slab: &mut Slab, slot: Slot) {
        let (tenant, priority) = (slab[slot].tenant, slab[slot].priority);
        let owner = self.queue_owner(tenant);
        let queue = &mut self.tenants[owner as usize].queues[priority as usize];
        slab.unlink::<QUEUE>(queue, slot);
        slab.push_front::<QUEUE>(queue, slot);
        let (quantum, ring) = (self.quantum(owner), self.ring(priority));
        let ring = &mut self.rings[ring];
        // It went to the back just now: few can have come since.
        match ring.order.iter().rposition(|&other| other == owner) {
            // Whoever is alone begins its next turn at once.
            Some(0) if ring.left >= quantum => ring.left = 1,
            Some(0) => ring.left += 1,
            Some(place) => {
                ring.order.remove(place);
                ring.order.push_front(owner);
                ring.left = 1;
            }
            None => {}
        }
        let tenant = &mut self.tenants[tenant as usize];
        tenant.consecutive = tenant.consecutive.saturating_sub(1);
        tenant.processed = tenant.processed.saturating_sub(1);
    }

    /// One of the tenant's attempts ended.
    pub(super) fn settled(&mut self, number: u32) {
        let tenant = &mut self.tenants[number as usize];
        tenant.running -= 1;
        let has_gate = tenant.gate.is_some();
        // A gate may have opened with what this attempt taught it; a throttle's moment is not changed by it.
        if tenant.parked == Parked::UntilSettle || (has_gate && tenant.parked != Parked::No) {
            self.unpark(number);
        }
    }

    /// One of the tenant's attempts is slow: more of them may be under way now.
    pub(super) fn found_slow(&mut self, number: u32) {
        let tenant = &mut self.tenants[number as usize];
        tenant.slow += 1;
        tenant.is_slow = true;
        if tenant.parked == Parked::UntilSettle {
            self.unpark(number);
        }
    }

    /// Lets tenants whose moment has come back onto the rings.
    pub(super) fn unpark_due(&mut self, now: Time) {
        while self.next_unpark().is_some_and(|time| time <= now) {
            if let Some(Reverse((_, number))) = self.parked.pop() {
                self.unpark(number);
            }
        }
    }

    /// Sets or takes away a tenant's own throttle. A tenant that it held is looked at again.
    pub(super) fn set_throttle(&mut self, number: u32, rate: Option<Rate>) {
        let tenant = &mut self.tenants[number as usize];
        let gate = tenant.gate.get_or_insert_default();
        self.own_throttles -= u32::from(gate.has_own_throttle());
        let has_changed = gate.set_own_throttle(rate);
        self.own_throttles += u32::from(gate.has_own_throttle());
        tenant.gate.take_if(|gate| !gate.can_hold());
        if has_changed && tenant.parked != Parked::No {
            self.unpark(number);
        }
    }

    /// Whether anybody waits for the end of one of its own attempts.
    pub(super) fn awaits_end(&self) -> bool {
        self.parked_until_settle > 0
    }

    /// Whether any tenant has a throttle of its own.
    pub(super) fn has_own_throttles(&self) -> bool {
        self.own_throttles > 0
    }

    /// About the next `max` jobs to be claimed, in about that order: turns as they stand now, and nobody held.
    pub(super) fn upcoming(&self, slab: &Slab, max: usize) -> Vec<Slot> {
        let mut upcoming = Vec::with_capacity(max);
        for (place, ring) in self.rings.iter().enumerate() {
            let of_ring = ring.order.iter().take(max).map(|&number| (number, self.head(number, place)));
            let mut heads: Vec<(u32, Slot)> = of_ring.collect();
            while !heads.is_empty() && upcoming.len() < max {
                heads.retain_mut(|(number, head)| {
                    for _ in 0..self.quantum(*number) {
                        if *head == NONE || upcoming.len() == max {
                            break;
                        }
                        upcoming.push(*head);
                        *head = self.behind(slab, *number, *head);
                    }
                    *head != NONE
                });
            }
        }
        upcoming
    }

    /// The job of a tenant that follows one of its ready jobs.
    fn behind(&self, slab: &Slab, number: u32, slot: Slot) -> Slot {
        let next = slab.after::<QUEUE>(slot);
        if next != NONE || self.priority_scope == Scope::Lane {
            return next;
        }
        let less_urgent = &self.tenants[number as usize].queues[slab[slot].priority as usize + 1..];
        less_urgent.iter().map(|queue| queue.head).find(|&head| head != NONE).unwrap_or(NONE)
    }

    /// Whether one tenant can be held back while others go.
    pub(super) fn is_round_robin(&self) -> bool {
        self.is_round_robin
    }

    fn unpark(&mut self, number: u32) {
        let was = std::mem::replace(&mut self.tenants[number as usize].parked, Parked::No);
        self.parked_until_settle -= u32::from(was == Parked::UntilSettle);
        for priority in Priority::ALL {
            if !self.tenants[number as usize].queues[priority as usize].is_empty() {
                self.join(number, priority);
            }
        }
    }

    /// When the next parked tenant comes back. One that came back by a settlement has left its mark behind.
    pub(super) fn next_unpark(&mut self) -> Option<Time> {
        while let Some(&Reverse((time, number))) = self.parked.peek() {
            if self.tenants[number as usize].parked == Parked::Until(time) {
                return Some(time);
            }
            self.parked.pop();
        }
        None
    }

    /// How many turns others had since this tenant, which waits, was served.
    pub(super) fn rounds_without_processing(&self, number: u32) -> u64 {
        let tenant = &self.tenants[number as usize];
        match tenant.queues.iter().all(List::is_empty) {
            true => 0,
            false => self.rounds - tenant.round,
        }
    }
}
