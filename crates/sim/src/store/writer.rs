//! The writer: whatever is waiting becomes one batch on the disk.
//! Invariant: admission, commit and publication happen in this order, and only here, so that nothing is claimable that
//! a crash could take away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::{KeptAnswer, NewEntry, Submitted};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::{Admission, Next, Ticket};
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;
use tokio::sync::oneshot;

use super::{SimStore, State, entry};
use crate::bug::Bug;
use crate::disk::{Change, Disk, Place, Record};

/// An attempt that failed for now; it counts as running until that is durable.
pub(super) struct Retried {
    pub(super) lane: LaneName,
    pub(super) ticket: Ticket,
    pub(super) at: Time,
    pub(super) lesson: Lesson,
    pub(super) took: Duration,
}

/// Something to write.
pub(super) enum Command {
    Take { entries: Vec<NewEntry>, reply: oneshot::Sender<Vec<Submitted>> },
    Settle { changes: Vec<Change>, retries: Vec<Retried>, causes: Vec<Job> },
    Change { changes: Vec<Change>, put_back: Option<Box<Record>>, reply: Option<oneshot::Sender<()>> },
}

/// What is done once a batch is durable.
#[derive(Default)]
struct Afterwards {
    touched: BTreeSet<LaneName>,
    retries: Vec<Retried>,
    put_back: Vec<Record>,
    taken: Vec<(oneshot::Sender<Vec<Submitted>>, Vec<Submitted>)>,
    changed: Vec<oneshot::Sender<()>>,
}

impl SimStore {
    /// Writes for as long as the process lives.
    pub(super) async fn write_on(self: Arc<Self>) {
        loop {
            self.shared.bell.notified().await;
            self.life.reach().await;
            let (mut changes, mut afterwards) = self.put_together();
            if self.has(Bug::AcknowledgeBeforeSync) {
                answer(std::mem::take(&mut afterwards.taken));
            }
            let latency = self.life.latency();
            self.life.wait(latency).await;
            self.life.reach().await;
            if self.has(Bug::TornBatch) {
                let rest = changes.split_off(changes.len() / 2);
                if !changes.is_empty() {
                    self.life.hurry_crash(1);
                }
                self.commit(std::mem::replace(&mut changes, rest), Afterwards::default());
                self.life.reach().await;
            }
            self.commit(changes, afterwards);
            self.life.reach().await;
        }
    }

    /// One batch of everything that waits.
    fn put_together(&self) -> (Vec<Change>, Afterwards) {
        let mut state = self.shared.state.lock();
        let disk = self.life.world.disk.lock();
        let (mut changes, mut afterwards) = (Vec::new(), Afterwards::default());
        for command in std::mem::take(&mut state.queue) {
            match command {
                Command::Take { entries, reply } => {
                    let take = |entry| {
                        let NewEntry { job, once, answer } = entry;
                        afterwards.touched.insert(job.lane.clone());
                        let known = once.iter().find_map(|once| {
                            let key = (job.tenant.clone(), once.key.clone());
                            let in_batch = changes.iter().find_map(|change| match change {
                                Change::Once(used, id) if *used == key => Some(*id),
                                _ => None,
                            });
                            in_batch.or_else(|| disk.once.get(&key).copied())
                        });
                        if let Some(id) = known {
                            return Submitted::Repeated { id };
                        }
                        let (id, tenant) = (job.id, job.tenant.clone());
                        let submitted = match answer {
                            Some(answer) => self.take_answered(&mut changes, job, &answer),
                            None => self.admit(&mut state, &disk, &mut changes, job),
                        };
                        if matches!(submitted, Submitted::Accepted { .. }) && !self.has(Bug::ForgetOnce) {
                            changes.extend(once.into_iter().map(|once| Change::Once((tenant.clone(), once.key), id)));
                        }
                        submitted
                    };
                    let submitted = entries.into_iter().map(take).collect();
                    afterwards.taken.push((reply, submitted));
                }
                Command::Settle { changes: more, retries, causes } => {
                    changes.extend(more);
                    afterwards.retries.extend(retries);
                    for cause in causes {
                        self.let_in(&mut state, &disk, &mut changes, &mut afterwards, cause);
                    }
                }
                Command::Change { changes: more, put_back, reply } => {
                    changes.extend(more);
                    afterwards.put_back.extend(put_back.map(|record| *record));
                    afterwards.changed.extend(reply);
                }
            }
        }
        (changes, afterwards)
    }

    /// Takes a job whose answer is known: it is done.
    fn take_answered(&self, changes: &mut Vec<Change>, job: Job, answer: &KeptAnswer) -> Submitted {
        self.life.world.witness.lock().answered(&job, answer);
        let place = Place::Ended { state: JobState::Done, reason: None };
        changes.push(Change::Job(Box::new(Record { place, ..Record::new(job) })));
        Submitted::Accepted { pushed_out: None }
    }

    fn admit(&self, state: &mut State, disk: &Disk, changes: &mut Vec<Change>, job: Job) -> Submitted {
        let record = Record::new(job);
        let Some(cell) = state.lanes.get_mut(&record.job.lane) else { return Submitted::Full };
        let pushed_out = match cell.machine.admit(&entry(&record, self.life.world.bug)) {
            Admission::Admitted => None,
            Admission::Preempted(left) => Some(left),
            Admission::Full => return Submitted::Full,
            Admission::Duplicate => return Submitted::Duplicate,
        };
        changes.push(Change::Job(Box::new(record)));
        if let Some(left) = &pushed_out {
            self.life.world.witness.lock().dropped(self.now(), left.id);
            let reason = "preempted: the lane was full and a more urgent job came";
            self.drop_job(disk, changes, left.id, JobState::Dropped, reason);
        }
        Submitted::Accepted { pushed_out }
    }

    /// Takes a job that another one caused: whatever the lane's size, and once.
    fn let_in(&self, state: &mut State, disk: &Disk, changes: &mut Vec<Change>, afterwards: &mut Afterwards, job: Job) {
        let record = Record::new(job);
        let Some(cell) = state.lanes.get_mut(&record.job.lane) else { return };
        if !disk.jobs.contains_key(&record.job.id) && cell.machine.admit_always(&entry(&record, self.life.world.bug)) {
            afterwards.touched.insert(record.job.lane.clone());
            changes.push(Change::Job(Box::new(record)));
        }
    }

    /// Writes the end of a job that was not delivered. A dead letter on its way back stays one.
    pub(super) fn drop_job(&self, disk: &Disk, changes: &mut Vec<Change>, id: JobId, state: JobState, reason: &str) {
        let in_batch = changes.iter().rev().find_map(|change| match change {
            Change::Job(record) if record.job.id == id => Some((**record).clone()),
            _ => None,
        });
        let Some(record) = in_batch.or_else(|| disk.jobs.get(&id).cloned()) else { return };
        let reason = if self.has(Bug::ForgetReason) { "" } else { reason };
        let state = match disk.dead.get(&id) {
            Some(dead) => {
                let mut dead = dead.clone();
                dead.failed_attempts += record.attempt;
                dead.attempts.extend(record.history.clone());
                dead.status = entrega_core::dead_letter::DeadLetterStatus::Pending;
                changes.push(Change::Dead(Box::new(dead)));
                JobState::Dlq
            }
            None => state,
        };
        let place = Place::Ended { state, reason: Some(reason.to_owned()) };
        changes.push(match self.has(Bug::ExpireSilently) {
            true => Change::Forget(id),
            false => Change::Job(Box::new(Record { place, ..record })),
        });
    }

    fn commit(&self, changes: Vec<Change>, afterwards: Afterwards) {
        let world = &self.life.world;
        let now = self.now();
        {
            let mut disk = world.disk.lock();
            world.witness.lock().durable(now, &changes);
            disk.commit(changes);
        }
        let mut state = self.shared.state.lock();
        for lane in &afterwards.touched {
            let Some(cell) = state.lanes.get_mut(lane) else { continue };
            cell.machine.publish(now);
            if !self.has(Bug::ForgetToWake) {
                cell.wake_all();
            }
        }
        for Retried { lane, ticket, at, lesson, took } in afterwards.retries {
            let Some(cell) = state.lanes.get_mut(&lane) else { continue };
            let next = match world.bug {
                Some(Bug::LoseRetry) => Next::Leave,
                Some(Bug::RetryEarly) => Next::RetryAt(now),
                _ => Next::RetryAt(at),
            };
            let was_running = cell.machine.settle(now, ticket, next, lesson, took);
            world.witness.lock().learned(now, &lane, lesson);
            assert!(was_running, "{ticket:?} was settled twice");
            cell.wake_all();
        }
        for record in afterwards.put_back {
            let Some(cell) = state.lanes.get_mut(&record.job.lane) else { continue };
            cell.machine.restore(now, &entry(&record, world.bug));
            cell.wake_all();
        }
        drop(state);
        answer(afterwards.taken);
        for reply in afterwards.changed {
            // A caller that went away has lost only its answer.
            let _ = reply.send(());
        }
    }
}

fn answer(taken: Vec<(oneshot::Sender<Vec<Submitted>>, Vec<Submitted>)>) {
    // A caller that went away has lost only its answer.
    taken.into_iter().for_each(|(reply, submitted)| drop(reply.send(submitted)));
}
