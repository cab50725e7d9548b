//! What a lane can tell about itself: sizes, a job's state, why a job does not move, a tenant's figures.
//! Invariant: reading changes nothing.
//! Never: walks the jobs; sizes are kept as they change.

use serde::{Deserialize, Serialize};

use super::Lane;
use super::gate::{GateKind, Hold};
use super::slab::{Entry, NONE, Place, Slot};
use crate::breaker::BreakerFigures;
use crate::cadence::CadenceFigures;
use crate::id::JobId;
use crate::job::{JobState, Priority};
use crate::name::TenantName;
use crate::time::Time;

/// The kinds of entries that are counted apart.
const KINDS: usize = 5;

/// How many jobs are where, by priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSizes {
    counts: [[u32; KINDS]; 3],
    is_paused: bool,
    /// How many of those that run hold no slot.
    pub(super) slow: u32,
}

impl LaneSizes {
    /// Sizes that another lane machine counted: by priority, of running, retried, replayed, delayed and ready jobs.
    pub fn from_counts(counts: [[u32; KINDS]; 3], is_paused: bool) -> LaneSizes {
        LaneSizes { counts, is_paused, slow: 0 }
    }

    fn kind(entry: &Entry) -> usize {
        match entry.place {
            Place::Running => 0,
            _ if entry.attempt > 0 => 1,
            _ if entry.generation > 0 => 2,
            Place::Delayed => 3,
            _ => 4,
        }
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        self.counts[entry.priority as usize][LaneSizes::kind(entry)] += 1;
    }

    pub(super) fn sub(&mut self, entry: &Entry) {
        self.counts[entry.priority as usize][LaneSizes::kind(entry)] -= 1;
    }

    /// How many of this priority are in this state.
    pub fn count(&self, priority: Priority, state: JobState) -> u32 {
        let counts = &self.counts[priority as usize];
        match (state, self.is_paused) {
            (JobState::Running, _) => counts[0],
            (JobState::RetryWait, _) => counts[1],
            (JobState::Replaying, _) => counts[2],
            (JobState::Idle, false) => counts[3],
            (JobState::Queued, false) => counts[4],
            (JobState::Idle, true) => counts[3] + counts[4],
            _ => 0,
        }
    }

    /// How many are in this state.
    pub fn in_state(&self, state: JobState) -> u32 {
        Priority::ALL.iter().map(|&priority| self.count(priority, state)).sum()
    }

    /// How many attempts are under way.
    pub fn running(&self) -> u32 {
        self.counts.iter().map(|counts| counts[0]).sum()
    }

    /// How many of them hold no slot: they are slow, or their tenant is.
    pub fn slow(&self) -> u32 {
        self.slow
    }

    /// How many wait, for whatever reason.
    pub fn waiting(&self) -> u32 {
        self.counts.iter().map(|counts| counts[1..].iter().sum::<u32>()).sum()
    }
}

/// Why a job has not run yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Where it stands.
    pub state: JobState,
    /// The attempts so far, one under way included.
    pub attempt: u32,
    /// Not before this.
    pub due: Time,
    /// Every gate that is shut for it, the outermost first. Empty: it is running.
    pub holds: Vec<Hold>,
}

/// One tenant in one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantFigures {
    /// The tenant.
    pub tenant: TenantName,
    /// When one of its jobs last started.
    pub last_processed_at: Option<Time>,
    /// Turns of others since.
    pub rounds_without_processing: u64,
    /// 1 is most urgent.
    pub current_priority: u32,
    /// Starts so far.
    pub total_processed: u64,
    /// Jobs in a row in its current or last turn.
    pub consecutive_batch_count: u32,
    /// Its share of turns.
    pub weight: u32,
    /// Attempts under way.
    pub running: u32,
}

impl Lane {
    pub(super) fn state_of(&self, slot: Slot) -> JobState {
        let entry = &self.slab[slot];
        match entry.place {
            Place::Running => JobState::Running,
            _ if entry.attempt > 0 => JobState::RetryWait,
            _ if entry.generation > 0 => JobState::Replaying,
            Place::Delayed => JobState::Idle,
            _ if self.paused => JobState::Idle,
            _ => JobState::Queued,
        }
    }

    /// Why a job does not move: which gates, until when. `None` if it is not here.
    pub fn explain(&self, now: Time, id: JobId) -> Option<Explanation> {
        let slot = self.slab.find(id)?;
        let entry = &self.slab[slot];
        let mut holds = Vec::new();
        if entry.place != Place::Running {
            if self.paused {
                holds.push(Hold { gate: GateKind::Paused, until: None });
            }
            if entry.due > now {
                holds.push(Hold { gate: GateKind::Delay, until: Some(entry.due) });
            }
            holds.extend(self.way(now).hold().filter(|hold| hold.gate != GateKind::Paused));
            holds.extend(self.turns.hold(now, entry.tenant));
            if holds.is_empty() {
                holds.push(Hold { gate: GateKind::Turn, until: None });
            }
        }
        Some(Explanation { state: self.state_of(slot), attempt: entry.attempt.into(), due: entry.due, holds })
    }

    /// How many jobs are where.
    pub fn sizes(&self) -> LaneSizes {
        LaneSizes { is_paused: self.paused, ..self.sizes.clone() }
    }

    /// Since when the oldest waiting job waits.
    pub fn oldest(&self) -> Option<Time> {
        let heads = self.arrivals.iter().map(|list| list.head).filter(|&head| head != NONE);
        heads.map(|head| self.slab[head].id.made_at()).min()
    }

    /// What holds the whole lane, if anything.
    pub fn held_by(&self, now: Time) -> Option<Hold> {
        self.way(now).hold()
    }

    /// How the lane's breaker stands, where it has one.
    pub fn breaker(&self, now: Time) -> Option<BreakerFigures> {
        self.gate.as_ref()?.breaker_figures(now)
    }

    /// How the lane's cadence stands, where it has one.
    pub fn cadence(&self) -> Option<CadenceFigures> {
        self.gate.as_ref()?.cadence_figures()
    }

    /// The figures of one tenant.
    pub fn tenant(&self, name: &TenantName) -> Option<TenantFigures> {
        self.turns.find(name).map(|number| self.figures(number))
    }

    /// The figures of every tenant that the lane knows.
    pub fn tenants(&self) -> impl Iterator<Item = TenantFigures> + '_ {
        self.turns.known().map(|number| self.figures(number))
    }

    fn figures(&self, number: u32) -> TenantFigures {
        let tenant = &self.turns.tenants[number as usize];
        let rounds = self.turns.rounds_without_processing(number);
        TenantFigures {
            tenant: tenant.name.clone(),
            last_processed_at: (tenant.last_processed_at > Time::ZERO).then_some(tenant.last_processed_at),
            rounds_without_processing: rounds,
            current_priority: self.policy.fairness.priority(rounds),
            total_processed: tenant.processed,
            consecutive_batch_count: tenant.consecutive,
            weight: tenant.weight,
            running: tenant.running,
        }
    }
}
