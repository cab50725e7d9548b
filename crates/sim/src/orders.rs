//! Orders as an operator judges them: what is paused stands still, what was cancelled is never attempted again.
//! Invariant: knows what operators were told and what is claimed; the store is not asked.

use std::collections::{BTreeMap, BTreeSet};

use entrega_core::id::JobId;
use entrega_core::name::LaneName;

use crate::witness::Broken;

/// What operators were told is so.
#[derive(Debug, Default)]
pub struct Orders {
    paused: BTreeSet<LaneName>,
    /// With the generation that was cancelled: a replay that was cancelled is a dead letter, and may be replayed again.
    cancelled: BTreeMap<JobId, u8>,
}

impl Orders {
    /// An operator was told that the lane stands still.
    pub fn paused(&mut self, lane: &LaneName) {
        self.paused.insert(lane.clone());
    }

    /// An operator asks for the lane to go on: from now on it may, whenever it is told.
    pub fn resuming(&mut self, lane: &LaneName) {
        self.paused.remove(lane);
    }

    /// An operator was told that the job is not attempted any more.
    pub fn cancelled(&mut self, id: JobId, generation: u8) {
        self.cancelled.insert(id, generation);
    }

    /// Whether a job may leave its lane. What had left it before the pause runs on.
    pub fn check_claim(&self, lane: &LaneName, id: JobId, generation: u8) -> Result<(), Broken> {
        match self.paused.contains(lane) {
            true => Err(("pause_holds", format!("is claimed while {lane} is paused"))),
            false => self.check_start(id, generation),
        }
    }

    /// Whether a job may be attempted.
    pub fn check_start(&self, id: JobId, generation: u8) -> Result<(), Broken> {
        match self.cancelled.get(&id) {
            Some(cancelled) if generation <= *cancelled => {
                Err(("cancel_is_final", "is attempted after it was cancelled".into()))
            }
            _ => Ok(()),
        }
    }
}
