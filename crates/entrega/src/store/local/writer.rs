//! The writer: one thread that turns whatever is waiting into one synced batch.
//! Invariant: a caller is answered, and a job becomes claimable, only after the batch that holds it is durable; batches
//! are written in the order their commands came.
//! Never: waits for more submissions; under load the next batch gathers while this one syncs. Settlements, which
//! nobody waits for, gather a moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Admission, Next, Ticket, Waiting};
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::disk::{Batch, DiskError, Key, Table};
use super::records::{self, Kept, id_key};
use super::{LaneCell, Shared};
use crate::store::Submitted;

/// A job ready to be written: encoded by its caller, so that this thread only writes.
pub(super) struct Prepared {
    pub(super) lane: Arc<LaneCell>,
    pub(super) waiting: Waiting,
    pub(super) job: Vec<u8>,
    /// Its index entry; `None` for one that is done as it is taken.
    pub(super) live: Option<Vec<u8>>,
    /// What it is remembered by, and as what.
    pub(super) once: Vec<(String, Kept)>,
}

/// Submissions of one batch that are remembered; the disk knows them when the batch is written.
type Remembered = HashMap<String, Kept>;

/// An attempt that failed for now. It counts as running until that is durable: nobody claims, cancels or pushes out a
/// job whose history is not on disk.
pub(super) struct Retried {
    pub(super) lane: Arc<LaneCell>,
    pub(super) ticket: Ticket,
    pub(super) at: Time,
    pub(super) lesson: Lesson,
    pub(super) took: Duration,
}

/// What a change does in memory once it is durable.
pub(super) type Then = Box<dyn FnOnce(&Shared) + Send>;

/// Something to write.
pub(super) enum Command {
    /// New jobs.
    Submit { jobs: Vec<Prepared>, reply: oneshot::Sender<Vec<Submitted>>, permit: OwnedSemaphorePermit },
    /// Attempts that ended.
    Settle {
        batch: Batch,
        ended: Vec<JobId>,
        retries: Vec<Retried>,
        /// Jobs of other lanes that they cause.
        causes: Vec<Prepared>,
        permit: OwnedSemaphorePermit,
    },
    /// Anything else; its effect in memory has happened already, or is `then`.
    Change { batch: Batch, ended: Vec<JobId>, then: Option<Then>, reply: oneshot::Sender<()> },
    /// Submissions whose moment to be forgotten has come, with that moment.
    Forget { remembered: Vec<(Time, String)> },
    /// Nothing more comes.
    Stop,
}

impl Command {
    /// How many changes it makes, about.
    pub(super) fn ops(&self) -> usize {
        match self {
            Command::Submit { jobs, .. } => jobs.len() * 2,
            Command::Settle { batch, .. } | Command::Change { batch, .. } => batch.ops.len(),
            Command::Forget { remembered } => remembered.len() * 2,
            Command::Stop => 0,
        }
    }

    /// Whether somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self, Command::Settle { .. } | Command::Forget { .. })
    }
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
}

/// Ends the store with the writer, however that ends: nobody shall wait for one who is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.fail("shut down".into());
    }
}

impl Writer {
    /// Writes until told to stop or until the disk fails.
    pub(super) fn run(self) {
        loop {
            let group = self.shared.queue.take();
            let is_last = group.is_empty() || group.iter().any(|command| matches!(command, Command::Stop));
            if let Err(error) = self.write(group) {
                tracing::error!(errorReason = %error, "The store cannot be written; nothing more is accepted or delivered");
                return;
            }
            if is_last {
                return;
            }
        }
    }

    fn write(&self, group: Vec<Command>) -> Result<(), DiskError> {
        let mut batch = Batch::default();
        let mut touched: BTreeMap<LaneName, Arc<LaneCell>> = BTreeMap::new();
        let mut ended = Vec::new();
        let mut answers = Vec::new();
        let (mut retried, mut thens) = (Vec::new(), Vec::new());
        let mut remembered = Remembered::new();
        for command in group {
            match command {
                Command::Submit { jobs, reply, permit } => {
                    let mut submitted = Vec::with_capacity(jobs.len());
                    for job in jobs {
                        if !touched.contains_key(&job.lane.name) {
                            touched.insert(job.lane.name.clone(), job.lane.clone());
                        }
                        let taken = self.take(job, &mut batch, &mut ended, &mut remembered);
                        submitted.push(taken.map_err(|error| self.give_up(error))?);
                    }
                    answers.push(Answer::Submitted(reply, submitted, permit));
                }
                Command::Settle { batch: more, ended: ids, retries, causes, permit } => {
                    batch.ops.extend(more.ops);
                    for cause in causes {
                        touched.entry(cause.lane.name.clone()).or_insert_with(|| cause.lane.clone());
                        self.let_in(cause, &mut batch).map_err(|error| self.give_up(error))?;
                    }
                    ended.extend(ids);
                    retried.extend(retries);
                    answers.push(Answer::Settled(permit));
                }
                Command::Change { batch: more, ended: ids, then, reply } => {
                    batch.ops.extend(more.ops);
                    ended.extend(ids);
                    thens.extend(then);
                    answers.push(Answer::Changed(reply));
                }
                Command::Forget { remembered: keys } => {
                    for (expires, key) in keys {
                        let forgotten = self.forget(expires, key, &mut batch, &remembered);
                        forgotten.map_err(|error| self.give_up(error))?;
                    }
                }
                Command::Stop => {}
            }
        }
        self.shared.disk.commit(batch).map_err(|error| self.give_up(error))?;
        let now = self.shared.clock.now();
        for lane in touched.values() {
            lane.machine.lock().publish(now);
            lane.wake.notify_one();
        }
        for Retried { lane, ticket, at, lesson, took } in retried {
            let was_running = lane.machine.lock().settle(now, ticket, Next::RetryAt(at), lesson, took);
            assert!(was_running, "{ticket:?} was settled twice");
            lane.wake.notify_one();
        }
        thens.into_iter().for_each(|then| then(&self.shared));
        self.shared.waiters.tell(&ended);
        answers.into_iter().for_each(Answer::give);
        Ok(())
    }

    /// Says why the store ends before anybody who waits for this group is let go: they ask for the reason.
    fn give_up(&self, error: DiskError) -> DiskError {
        self.shared.fail(error.to_string());
        error
    }

    /// Takes a job that another one caused: whatever the lane's size, and once.
    fn let_in(&self, job: Prepared, batch: &mut Batch) -> Result<(), DiskError> {
        let (id, disk) = (job.waiting.id, &*self.shared.disk);
        let came_before = records::load_stored(disk, id)?.is_some() || records::load_dead(disk, id)?.is_some();
        if !came_before && job.lane.machine.lock().admit_always(&job.waiting) {
            batch.put(Table::Jobs, id_key(id), job.job);
            job.live.into_iter().for_each(|live| batch.put(Table::Live, id_key(id), live));
        }
        Ok(())
    }

    /// Takes a job, unless it was taken before.
    fn take(
        &self,
        mut job: Prepared,
        batch: &mut Batch,
        ended: &mut Vec<JobId>,
        remembered: &mut Remembered,
    ) -> Result<Submitted, DiskError> {
        let once = std::mem::take(&mut job.once);
        let now = self.shared.clock.now();
        for (key, kept) in &once {
            let before = match remembered.get(key) {
                Some(kept) => Some(kept.clone()),
                None => self.kept(key)?,
            };
            if let Some(before) = before.filter(|before| before.expires > now) {
                return Ok(match before.request == kept.request {
                    true => Submitted::Repeated { id: before.id },
                    false => Submitted::OtherRequest,
                });
            }
        }
        let submitted = self.admit(job, batch, ended)?;
        if matches!(submitted, Submitted::Accepted { .. }) {
            for (key, kept) in once {
                batch.put(Table::Once, Key::Text(records::expiry_key(kept.expires, &key)), Vec::new());
                batch.put(Table::Once, Key::Text(key.clone()), records::encode(&kept));
                remembered.insert(key, kept);
            }
        }
        Ok(submitted)
    }

    /// Forgets a submission, unless its key has been used anew since.
    fn forget(&self, expires: Time, key: String, batch: &mut Batch, remembered: &Remembered) -> Result<(), DiskError> {
        batch.remove(Table::Once, Key::Text(records::expiry_key(expires, &key)));
        let is_current = |kept: Kept| kept.expires > self.shared.clock.now();
        if !remembered.contains_key(&key) && !self.kept(&key)?.is_some_and(is_current) {
            batch.remove(Table::Once, Key::Text(key));
        }
        Ok(())
    }

    /// What a key was used for. One whose record cannot be read counts as new: that must not end the store.
    fn kept(&self, key: &str) -> Result<Option<Kept>, DiskError> {
        Ok(self.shared.readable(&key, records::load_kept(&*self.shared.disk, key))?.flatten())
    }

    fn admit(&self, job: Prepared, batch: &mut Batch, ended: &mut Vec<JobId>) -> Result<Submitted, DiskError> {
        let Some(live) = job.live else {
            batch.put(Table::Jobs, id_key(job.waiting.id), job.job);
            return Ok(Submitted::Accepted { pushed_out: None });
        };
        let admission = job.lane.machine.lock().admit(&job.waiting);
        let pushed_out = match admission {
            Admission::Admitted => None,
            Admission::Preempted(left) => Some(left),
            Admission::Full => return Ok(Submitted::Full),
            Admission::Duplicate => return Ok(Submitted::Duplicate),
        };
        let id = job.waiting.id;
        batch.put(Table::Jobs, id_key(id), job.job);
        batch.put(Table::Live, id_key(id), live);
        if let Some(left) = &pushed_out {
            ended.push(left.id);
            let reason = "preempted: the lane was full and a more urgent job came";
            self.shared.drop_job(batch, left.id, JobState::Dropped, reason)?;
        }
        Ok(Submitted::Accepted { pushed_out })
    }
}

/// What callers are told once the batch is durable.
enum Answer {
    Submitted(oneshot::Sender<Vec<Submitted>>, Vec<Submitted>, OwnedSemaphorePermit),
    Settled(OwnedSemaphorePermit),
    Changed(oneshot::Sender<()>),
}

impl Answer {
    fn give(self) {
        // A caller that went away has lost only its answer.
        match self {
            Answer::Submitted(reply, submitted, permit) => {
                drop(permit);
                drop(reply.send(submitted));
            }
            Answer::Settled(permit) => drop(permit),
            Answer::Changed(reply) => drop(reply.send(())),
        }
    }
}
