//! Orders as an operator judges them: what is paused stands still, what was cancelled is never attempted again, and what
//! was discarded neither, and it is still there to be seen.
//! Invariant: knows what operators were told and what is claimed; the store is not asked.

use std::collections::{BTreeMap, BTreeSet};

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::time::Time;

use crate::disk::Disk;
use crate::witness::Broken;

/// What operators were told is so.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    /// Since when.
    paused: BTreeMap<LaneName, Time>,
    /// Reasons of orders of which operators were told that they were not carried out, and will not be.
    expired: BTreeSet<String>,
    /// With the generation that was cancelled: a replay that was cancelled is a dead letter, and may be replayed again.
    cancelled: BTreeMap<JobId, u8>,
    discarded: BTreeSet<JobId>,
}

impl Orders {
    /// The ledger has lost what it had after these were carried out. Whether a lane that was resumed since is paused again, nobody
    /// knows.
    pub fn lost(&mut self, mut before: Orders) {
        before.paused.retain(|lane, _| self.paused.contains_key(lane));
        before.expired.append(&mut self.expired);
        *self = before;
    }

    /// An operator was told that the lane stands still.
    pub fn paused(&mut self, now: Time, lane: &LaneName) {
        self.paused.insert(lane.clone(), now);
    }

    /// An operator was told that what it asked for with this reason does not happen.
    pub fn expired(&mut self, reason: &str) {
        self.expired.insert(reason.to_owned());
    }

    /// Whether something may have this reason.
    pub fn check_reason(&self, reason: Option<&str>) -> Result<(), Broken> {
        match reason.and_then(|reason| self.expired.iter().find(|expired| reason.contains(expired.as_str()))) {
            Some(_) => Err(("orders_expire", "is done although its operator was told that it is not".into())),
            None => Ok(()),
        }
    }

    /// An operator asks for the lane to go on: from now on it may, whenever it is told.
    pub fn resuming(&mut self, lane: &LaneName) {
        self.paused.remove(lane);
    }

    /// An operator was told that the job is not attempted any more.
    pub fn cancelled(&mut self, id: JobId, generation: u8) {
        self.cancelled.insert(id, generation);
    }

    /// An operator was told that the dead letter is given up.
    pub fn discarded(&mut self, id: JobId) {
        self.discarded.insert(id);
    }

    /// Whether a dead letter may be as it is now, while its job is on its way or has ended.
    pub fn check_letter(&self, dead: &DeadLetter, is_on_its_way: bool) -> Result<(), Broken> {
        let reason = dead.discard_reason.as_deref().unwrap_or_default();
        match dead.status {
            DeadLetterStatus::Discarded if is_on_its_way => {
                Err(("discard_is_final", "is discarded while its job is on its way".into()))
            }
            DeadLetterStatus::Discarded if reason.trim().is_empty() => {
                Err(("ends_have_reasons", "is discarded without a reason".into()))
            }
            DeadLetterStatus::Discarded => Ok(()),
            status if self.discarded.contains(&dead.job_id) => {
                Err(("discard_is_final", format!("was discarded and is {status}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether everything that was discarded is still kept, and as such.
    pub fn check_kept(&self, disk: &Disk) -> Result<(), Broken> {
        for id in &self.discarded {
            let status = disk.dead.get(id).map(|dead| dead.status);
            if status != Some(DeadLetterStatus::Discarded) {
                let found = status.map_or("gone", DeadLetterStatus::as_str);
                return Err(("discard_is_final", format!("{id} was discarded and is {found}")));
            }
        }
        Ok(())
    }

    /// Whether a job may leave its lane; what was said before a moment must have been heard by then. What had left it
    /// before the pause runs on.
    pub fn check_claim(&self, before: Time, lane: &LaneName, id: JobId, generation: u8) -> Result<(), Broken> {
        match self.paused.get(lane).is_some_and(|since| *since <= before) {
            true => Err(("pause_holds", format!("is claimed while {lane} is paused"))),
            false => self.check_start(id, generation),
        }
    }

    /// Whether a job may be attempted.
    pub fn check_start(&self, id: JobId, generation: u8) -> Result<(), Broken> {
        match self.cancelled.get(&id) {
            _ if self.discarded.contains(&id) => {
                Err(("discard_is_final", "is attempted after it was discarded".into()))
            }
            Some(cancelled) if generation <= *cancelled => {
                Err(("cancel_is_final", "is attempted after it was cancelled".into()))
            }
            _ => Ok(()),
        }
    }
}
