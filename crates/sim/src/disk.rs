//! What is durable, as somebody outside understands it: jobs, dead letters and replays, read from the rows of the ledger.
//! Invariant: follows from the rows alone, and from what they were before; the store is not asked.
//! Never: decides; the store does, and the witness judges.

use std::collections::BTreeMap;

use entrega::store::ReplayRun;
use entrega::store::local::Record as Row;
use entrega::store::local::tables::{DEAD, HISTORY, JOBS, LIVE};
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState};
use entrega_core::time::Time;
use entrega_ledger::{HeapLedger, Key, Table};

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It waits for an attempt, or one is under way.
    Waiting,
    /// It waits for somebody.
    Blocked {
        /// What went wrong.
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
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The job; of one that ended, as it was before.
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
    /// Dropped if it still waits then.
    pub fn expires(&self) -> Time {
        self.job.expires_at.unwrap_or(Time::NEVER)
    }
}

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
    /// A replay got so far.
    Replay(Box<ReplayRun>),
}

/// What is durable.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Every job there was.
    pub jobs: BTreeMap<JobId, Record>,
    /// Dead letters.
    pub dead: BTreeMap<JobId, DeadLetter>,
    /// Replays.
    pub replays: BTreeMap<String, ReplayRun>,
    /// Jobs as they were handed in, also those that ended as they were taken.
    pub handed_in: BTreeMap<JobId, Job>,
}

fn row(heap: &HeapLedger, table: Table, key: Key) -> Option<Row> {
    heap.get(table, &key).and_then(|value| Row::of(table, &value).ok())
}

impl Disk {
    /// Looks at a job again whose rows were written; says what changed.
    pub fn look(&mut self, heap: &HeapLedger, id: JobId) -> Vec<Change> {
        let mut changes = Vec::new();
        let key = || Key::Id(*id.as_bytes());
        let dead = match row(heap, DEAD, key()) {
            Some(Row::Dead(dead)) => Some(*dead),
            _ => None,
        };
        let record = self.record(heap, id, dead.as_ref());
        if record.as_ref() != self.jobs.get(&id) {
            changes.push(record.clone().map_or(Change::Forget(id), |record| Change::Job(Box::new(record))));
        }
        if dead.as_ref() != self.dead.get(&id) {
            changes.push(dead.clone().map_or(Change::ForgetDead(id), |dead| Change::Dead(Box::new(dead))));
        }
        set(&mut self.jobs, id, record);
        set(&mut self.dead, id, dead);
        changes
    }

    fn record(&self, heap: &HeapLedger, id: JobId, dead: Option<&DeadLetter>) -> Option<Record> {
        let key = || Key::Id(*id.as_bytes());
        let before = self.jobs.get(&id);
        // Without a new attempt its number is the one it had.
        let number = |history: &[Attempt]| match before {
            Some(before) if before.history == history => before.attempt,
            _ => history.last().map_or(0, |attempt| attempt.number),
        };
        let ended = |job: Job, state, reason, generation, history: Vec<Attempt>| Record {
            place: Place::Ended { state, reason },
            attempt: number(&history),
            generation,
            history,
            due: job.due_at,
            job,
        };
        match (row(heap, JOBS, key()), dead) {
            (Some(Row::Job(job)), _) => {
                let live = Key::Scoped(job.lane.as_str().into(), *id.as_bytes());
                let Some(Row::Live { due, attempt, generation, blocked }) = row(heap, LIVE, live) else { return None };
                let history = match row(heap, HISTORY, key()) {
                    Some(Row::History(history)) => history,
                    _ => Vec::new(),
                };
                let place = blocked.map_or(Place::Waiting, |reason| Place::Blocked { reason });
                let job = self.as_handed_in(*job);
                Some(Record { job, place, attempt: attempt.into(), generation, history, due })
            }
            (Some(Row::Ended { state, reason, generation, attempts }), _) => {
                let job = before.map(|before| &before.job).or_else(|| self.handed_in.get(&id))?.clone();
                Some(ended(job, state, reason, generation, attempts))
            }
            (_, Some(dead)) => {
                let earlier = self.dead.get(&id).map_or(0, |earlier| earlier.attempts.len());
                // One that is looked at again, and did not die again, has the attempts that it had.
                let history = match before {
                    Some(before) if matches!(before.place, Place::Ended { .. }) => before.history.clone(),
                    _ => dead.attempts.get(earlier..).unwrap_or_default().to_vec(),
                };
                let job = self.as_handed_in(dead.original_data.clone());
                let reason = Some(dead.last_failure_reason.clone());
                Some(ended(job, JobState::Dlq, reason, dead.generation, history))
            }
            _ => None,
        }
    }

    /// With the time to live and the priority that its caller gave it; a planted bug may have changed them on the way.
    fn as_handed_in(&self, job: Job) -> Job {
        match self.handed_in.get(&job.id) {
            Some(first) if job.accepted_at == first.accepted_at => {
                let expires_at = job.expires_at.or(first.expires_at);
                Job { priority: first.priority, expires_at, ..job }
            }
            _ => job,
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

fn set<T>(map: &mut BTreeMap<JobId, T>, id: JobId, value: Option<T>) {
    match value {
        Some(value) => drop(map.insert(id, value)),
        None => drop(map.remove(&id)),
    }
}
