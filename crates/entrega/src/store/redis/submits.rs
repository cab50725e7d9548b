//! New jobs: gathered while a call is under way, then taken in one.
//! Invariant: a caller is answered when its jobs are in; a call carries a bounded number of jobs and bytes.
//! Never: repeats a submission that may have taken effect; the caller is told that it cannot be known.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState, Priority};
use entrega_core::lane::Left;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::answer::{FOREVER, Reader, micros};
use super::link::store_error;
use super::script::{Call, Verb};
use super::settlements::encode_end;
use super::{LaneCell, Shared, schema};
use crate::store::{KeptAnswer, NewEntry, Once, StoreError, Submitted, records};

/// Jobs that may wait for their call at once.
const WAITING_MAX: usize = 4096;
/// A call ends after so many jobs or bytes.
const CALL_JOBS: usize = 1000;
const CALL_BYTES: usize = 4 << 20;

struct Submission {
    jobs: Vec<NewEntry>,
    reply: oneshot::Sender<Result<Vec<Submitted>, StoreError>>,
    _permit: OwnedSemaphorePermit,
}

/// The submissions of a lane that wait.
pub(super) struct Submits {
    waiting: Mutex<VecDeque<Submission>>,
    some: Notify,
    permits: Arc<Semaphore>,
}

impl Default for Submits {
    fn default() -> Submits {
        Submits { waiting: Mutex::default(), some: Notify::new(), permits: Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

impl Submits {
    /// Hands jobs of this lane in.
    pub(super) async fn submit(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        let gone = || StoreError::Stopped { reason: "it is shutting down".into() };
        let room = jobs.len().min(WAITING_MAX) as u32;
        let permit = self.permits.clone().acquire_many_owned(room).await.map_err(|_| gone())?;
        let (reply, taken) = oneshot::channel();
        self.waiting.lock().push_back(Submission { jobs, reply, _permit: permit });
        self.some.notify_one();
        taken.await.map_err(|_| gone())?
    }

    fn take(&self) -> Vec<Submission> {
        let mut waiting = self.waiting.lock();
        let (mut jobs, mut bytes, mut count) = (0, 0, 0);
        for submission in waiting.iter() {
            jobs += submission.jobs.len();
            bytes += submission.jobs.iter().map(|entry| records::carried_bytes(&entry.job)).sum::<usize>();
            if count > 0 && (jobs > CALL_JOBS || bytes > CALL_BYTES) {
                break;
            }
            count += 1;
        }
        waiting.drain(..count).collect()
    }
}

/// Takes what waits, until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        lane.submits.some.notified().await;
        loop {
            let group = lane.submits.take();
            if group.is_empty() {
                break;
            }
            shared.take_in(&lane, group).await;
        }
    }
}

impl Shared {
    async fn take_in(&self, lane: &LaneCell, group: Vec<Submission>) {
        let call = Call::new(self, lane, Verb::Submit).arg("new");
        let entries = group.iter().flat_map(|submission| &submission.jobs);
        let call = entries.fold(call, |call, entry| self.carry(call, &entry.job, &entry.once, entry.answer.as_ref()));
        let mut answers = match call.make(self).await {
            Ok(Value::Array(rows)) => rows.into_iter(),
            Ok(other) => return refuse(group, &|| Reader("a submission").wrong(format!("{other:?}"))),
            Err(error) => {
                let error = store_error(&error);
                if matches!(error, StoreError::MemoryFull) {
                    self.rejected.fetch_add(group.len() as u64, Ordering::Relaxed);
                    return refuse(group, &|| StoreError::MemoryFull);
                }
                return refuse(group, &|| error.clone());
            }
        };
        let mut pushed_out = Vec::new();
        for Submission { jobs, reply, .. } in group {
            let rows: Vec<Value> = answers.by_ref().take(jobs.len()).collect();
            let submitted = rows.into_iter().map(read_answer).collect::<Result<Vec<_>, _>>();
            pushed_out.extend(submitted.iter().flatten().filter_map(left_by));
            // A caller that went away has lost only its answer.
            drop(reply.send(submitted));
        }
        self.waiters.tell(&pushed_out);
        lane.wake.notify_one();
    }

    /// Puts in jobs that must get in, and that may have come before.
    pub(super) async fn put_in(&self, lane: &LaneCell, jobs: &[Job]) -> Result<(), StoreError> {
        let call = Call::new(self, lane, Verb::PutIn).arg("sure");
        let call = jobs.iter().fold(call, |call, job| self.carry(call, job, &[], None));
        call.make(self).await.map_err(|error| store_error(&error))?;
        lane.wake.notify_one();
        Ok(())
    }

    fn carry(&self, call: Call, job: &Job, once: &[Once], answer: Option<&KeptAnswer>) -> Call {
        let record = match answer {
            Some(answer) => encode_end(&records::Ended::answered(job.clone(), answer.clone())),
            None => records::encode_job(job),
        };
        let call = call
            .arg(job.id.as_bytes())
            .arg(job.tenant.as_str())
            .arg(job.priority as u8)
            .arg(micros(job.due_at))
            .arg(job.expires_at.map_or(FOREVER, micros))
            .arg(record)
            .arg(u8::from(answer.is_some()))
            .arg(once.len());
        once.iter().fold(call, |call, once| {
            call.arg(schema::once(&self.options.prefix, &job.tenant, &once.key))
                .arg(&once.request[..])
                .arg(micros(once.expires))
        })
    }
}

fn refuse(group: Vec<Submission>, why: &dyn Fn() -> StoreError) {
    for submission in group {
        // A caller that went away has lost only its answer.
        drop(submission.reply.send(Err(why())));
    }
}

fn left_by(submitted: &Submitted) -> Option<JobId> {
    match submitted {
        Submitted::Accepted { pushed_out } => pushed_out.as_ref().map(|left| left.id),
        _ => None,
    }
}

fn read_answer(row: Value) -> Result<Submitted, StoreError> {
    let reader = Reader("a submission");
    match &row {
        Value::Array(fields) if fields.len() == 1 => {
            let [id] = reader.fields(row)?;
            return Ok(Submitted::Repeated { id: reader.id(id)? });
        }
        Value::Array(_) => return Ok(Submitted::Accepted { pushed_out: Some(read_left(reader, row)?) }),
        _ => {}
    }
    match reader.word(row)?.as_str() {
        "accepted" => Ok(Submitted::Accepted { pushed_out: None }),
        "full" => Ok(Submitted::Full),
        "duplicate" => Ok(Submitted::Duplicate),
        "other_request" => Ok(Submitted::OtherRequest),
        other => Err(reader.wrong(other)),
    }
}

/// A job that left: id, tenant, priority, state.
pub(super) fn read_left(reader: Reader, row: Value) -> Result<Left, StoreError> {
    let [id, tenant, priority, state] = reader.fields(row)?;
    Ok(Left {
        id: reader.id(id)?,
        tenant: reader.tenant(tenant)?,
        priority: read_priority(reader, &priority)?,
        state: read_state(reader, state)?,
    })
}

pub(super) fn read_priority(reader: Reader, value: &Value) -> Result<Priority, StoreError> {
    let number = reader.number(value)?;
    let found = usize::try_from(number).ok().and_then(|number| Priority::ALL.get(number).copied());
    found.ok_or_else(|| reader.wrong(format!("priority {number}")))
}

pub(super) fn read_state(reader: Reader, value: Value) -> Result<JobState, StoreError> {
    let word = reader.word(value)?;
    state_named(&word).ok_or_else(|| reader.wrong(format!("state {word}")))
}

/// The state of this name.
pub(super) fn state_named(word: &str) -> Option<JobState> {
    JobState::ALL.into_iter().find(|state| state.as_str() == word)
}
