//! The simulated disk: what survives a crash.
//! Invariant: a batch of changes is there whole or not at all; what is here is what the next life of the process finds.
//! Never: decides; the store does, and the witness judges.

use std::collections::{BTreeMap, BTreeSet};

use entrega::store::ReplayRun;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState};
use entrega_core::lane::{Starts, Waiting};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It waits for an attempt, or one is under way.
    Waiting,
    /// It waits for somebody.
    Blocked {
        /// Why.
        reason: String,
    },
    /// It ended.
    Ended {
        /// How.
        state: JobState,
        /// Why, where that needs saying.
        reason: Option<String>,
    },
}

/// What is kept of a job.
#[derive(Clone, Debug)]
pub struct Record {
    /// The job.
    pub job: Job,
    /// Where it stands.
    pub place: Place,
    /// Attempts that were settled in this generation.
    pub attempt: u32,
    /// Replays so far.
    pub generation: u8,
    /// The attempts of this generation.
    pub history: Vec<Attempt>,
    /// Not before this.
    pub due: Time,
}

impl Record {
    /// Of a job that was just taken.
    pub fn new(job: Job) -> Record {
        Record { due: job.due_at, job, place: Place::Waiting, attempt: 0, generation: 0, history: Vec::new() }
    }

    /// Dropped if it still waits then.
    pub fn expires(&self) -> Time {
        self.job.expires_at.unwrap_or(Time::NEVER)
    }

    /// As the lane machine knows it.
    pub fn waiting(&self) -> Waiting {
        Waiting {
            id: self.job.id,
            tenant: self.job.tenant.clone(),
            priority: self.job.priority,
            due: self.due,
            expires: self.expires(),
            attempt: u16::try_from(self.attempt).unwrap_or(u16::MAX),
            generation: self.generation,
        }
    }
}

/// A submission that happens once, by tenant and key.
pub type OnceKey = (TenantName, String);

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    /// A job is so now.
    Job(Box<Record>),
    /// A job is gone; no rule allows that.
    Forget(JobId),
    /// A dead letter is so now.
    Dead(Box<DeadLetter>),
    /// A dead letter is gone; no rule allows that here.
    ForgetDead(JobId),
    /// A key was used for this job.
    Once(OnceKey, JobId),
    /// A replay got so far.
    Replay(Box<ReplayRun>),
    /// A lane is paused now, or not.
    Pause(LaneName, bool),
    /// The process stopped in order; these were the last starts.
    Stopped(Stopped),
}

/// What an orderly stop leaves.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// When, by the clock.
    pub at: Time,
    /// The last starts of lanes whose gates count them.
    pub starts: BTreeMap<LaneName, Starts>,
}

/// What is durable.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Every job there was.
    pub jobs: BTreeMap<JobId, Record>,
    /// Dead letters.
    pub dead: BTreeMap<JobId, DeadLetter>,
    /// Keys that were used.
    pub once: BTreeMap<OnceKey, JobId>,
    /// Replays.
    pub replays: BTreeMap<String, ReplayRun>,
    /// Until the next start.
    pub stopped: Option<Stopped>,
    /// Lanes that stand still until somebody says otherwise.
    pub paused: BTreeSet<LaneName>,
}

impl Disk {
    /// Writes all of a batch.
    pub fn commit(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Job(record) => drop(self.jobs.insert(record.job.id, *record)),
                Change::Forget(id) => drop(self.jobs.remove(&id)),
                Change::Dead(dead) => drop(self.dead.insert(dead.job_id, *dead)),
                Change::ForgetDead(id) => drop(self.dead.remove(&id)),
                Change::Once(key, id) => drop(self.once.insert(key, id)),
                Change::Replay(run) => drop(self.replays.insert(run.id.clone(), *run)),
                Change::Stopped(stopped) => self.stopped = Some(stopped),
                Change::Pause(lane, true) => {
                    self.paused.insert(lane);
                }
                Change::Pause(lane, false) => {
                    self.paused.remove(&lane);
                }
            }
        }
    }

    /// When the last of the dead letters died that are still open.
    pub fn newest_dead(&self) -> Option<Time> {
        self.dead.values().filter(|dead| dead.status.is_open()).map(|dead| dead.moved_to_dlq_at).max()
    }

    /// Jobs that wait or run.
    pub fn waiting(&self) -> impl Iterator<Item = &Record> {
        self.jobs.values().filter(|record| record.place == Place::Waiting)
    }
}
