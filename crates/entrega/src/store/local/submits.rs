//! New jobs: looked up by their keys, then written by whoever owns their lane, or left for it.
//! Invariant: a job is accepted once its record, its index entry and its keys are durable in one group, on any node and
//! whether or not its lane has an owner just now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::name::LaneName;
use entrega_ledger::{Expect, Key, Op, Unit, When};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::command::{Command, NotWritten, Prepared, Taken};
use super::lanes::LaneEntry;
use super::order::Entry;
use super::reading::ReadError;
use super::records::{self, Ended, IdempotencyRecord, Live, RecordState, id_key};
use super::tables::{DEAD, IDEMPOTENCY, JOBS, LIVE};
use super::writer::remember;
use super::{SUBMITS_WAITING_MAX, Shared};
use crate::store::{Idempotency, NewEntry, StoreError, Submitted};

/// How often a job is tried again that lost a race, or whose lane has just moved.
const TRIES_MAX: usize = 8;

/// What keys were found to be used for.
type Used = HashMap<String, Option<Bytes>>;

/// A job on its way to the writer, with its place in the submission.
type Placed = (usize, Prepared);

impl Shared {
    pub(super) async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        if self.is_full.load(Ordering::Relaxed) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(self.no_room());
        }
        jobs.iter().try_for_each(|entry| self.lane(&entry.job.lane).map(drop))?;
        let mut answers: Vec<Option<Submitted>> = vec![None; jobs.len()];
        for round in 0..TRIES_MAX {
            if round > 0 {
                self.find_written(&jobs, &mut answers).await?;
            }
            let open: Vec<usize> = (0..jobs.len()).filter(|place| answers[*place].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let used = self.used(open.iter().map(|place| &jobs[*place])).await?;
            let mut by_lane: BTreeMap<&LaneName, Vec<Placed>> = BTreeMap::new();
            for place in open {
                match self.prepare_new(&jobs[place], &used)? {
                    Ok(prepared) => by_lane.entry(&jobs[place].job.lane).or_default().push((place, prepared)),
                    Err(known) => answers[place] = Some(known),
                }
            }
            self.take_by_lane(by_lane, &jobs, &mut answers).await?;
        }
        if answers.contains(&Some(Submitted::Unsaved(StoreError::MemoryFull))) {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        let unsaved = || Submitted::Unsaved(StoreError::Unreachable { reason: "others were always faster".into() });
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(unsaved)).collect())
    }

    /// Looks for jobs whose write was refused in the end because their lane had moved: an earlier copy of it, whose answer
    /// was lost, may have been applied before that.
    async fn find_written(&self, jobs: &[NewEntry], answers: &mut [Option<Submitted>]) -> Result<(), ReadError> {
        let open: Vec<usize> = (0..jobs.len()).filter(|place| answers[*place].is_none()).collect();
        let ids: Vec<JobId> = open.iter().map(|place| jobs[*place].job.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        for table in [JOBS, DEAD] {
            let found = self.read_ids(table, &ids).await?;
            for (place, _) in open.iter().zip(found).filter(|(_, found)| found.is_some()) {
                answers[*place] = Some(Submitted::Accepted { pushed_out: None });
            }
        }
        Ok(())
    }

    /// The job that was taken under a key, while that is remembered.
    pub(super) async fn taken_under(&self, key: &str) -> Result<Option<JobId>, ReadError> {
        let kept = records::load_idempotency(&*self.ledger, key).await?;
        let now = self.clock.now();
        Ok(kept.filter(|kept| kept.expires > now && kept.state.is_none()).map(|kept| kept.id))
    }

    /// What the keys of new jobs are used for, in one read.
    async fn used(&self, jobs: impl Iterator<Item = &NewEntry>) -> Result<Used, ReadError> {
        let keys = jobs.flat_map(|entry| {
            entry.idempotency.iter().map(|used| records::submission_key(&entry.job.tenant, &used.key))
        });
        let names: Vec<String> = keys.collect();
        if names.is_empty() {
            return Ok(Used::new());
        }
        let keys: Vec<Key> = names.iter().cloned().map(Key::Text).collect();
        Ok(names.into_iter().zip(self.ledger.read(IDEMPOTENCY, &keys).await?).collect())
    }

    /// A job as it is written, or what is known of it already.
    fn prepare_new(&self, entry: &NewEntry, used: &Used) -> Result<Result<Prepared, Submitted>, StoreError> {
        let NewEntry { job, idempotency, answer } = entry;
        let (now, mut remembered) = (self.clock.now(), Vec::with_capacity(idempotency.len()));
        for one in idempotency {
            let key = records::submission_key(&job.tenant, &one.key);
            let found = used.get(&key).cloned().flatten();
            // One whose record cannot be read counts as new: that must not keep anybody out.
            let before = match &found {
                Some(bytes) => self.readable(&key, records::decode::<IdempotencyRecord>(IDEMPOTENCY, bytes))?,
                None => None,
            };
            if let Some(before) = before.filter(|before| before.expires > now) {
                match before.request == one.request {
                    _ if before.id == job.id => return Ok(Err(Submitted::Accepted { pushed_out: None })),
                    false => return Ok(Err(Submitted::OtherRequest)),
                    true => match before.state {
                        None => return Ok(Err(Submitted::Repeated { id: before.id })),
                        // The same was asked for another way and came to nothing: the key is free for it.
                        Some(RecordState::Running(until)) if until <= now => {}
                        Some(_) => return Ok(Err(Submitted::OtherRequest)),
                    },
                }
            }
            let expect = found.map_or(Expect::Absent, Expect::Is);
            let when = When { table: IDEMPOTENCY, key: Key::Text(key.clone()), expect };
            remembered.push((key, record(job, one), when));
        }
        let prepared = Prepared { idempotency: remembered, ..prepare(job) };
        Ok(Ok(match answer {
            Some(answer) => {
                let end = Ended::answered(job.clone(), answer.clone());
                Prepared { job: records::encode_ended(&end), live: None, ..prepared }
            }
            None => prepared,
        }))
    }

    async fn take_by_lane(
        &self,
        by_lane: BTreeMap<&LaneName, Vec<Placed>>,
        jobs: &[NewEntry],
        answers: &mut [Option<Submitted>],
    ) -> Result<(), StoreError> {
        let count: usize = by_lane.values().map(Vec::len).sum();
        let room = count.min(SUBMITS_WAITING_MAX) as u32;
        let permits = self.submit_permits.clone().acquire_many_owned(room).await;
        let mut permit = permits.map_err(|_| self.stopped())?;
        let (mut taking, mut handing) = (Vec::new(), Vec::new());
        for (name, placed) in by_lane {
            let lane = self.lane(name)?;
            let part = permit.split(placed.len().min(permit.num_permits())).expect("no more than there are");
            match lane.acting() {
                Some(owned) => {
                    let (places, jobs): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
                    let (reply, durable) = oneshot::channel();
                    self.send(Command::Submit { lane: owned, jobs, reply, permit: part })?;
                    taking.push((places, durable));
                }
                None => handing.push(self.hand(lane, placed, part, answers)?),
            }
        }
        for (places, durable) in taking {
            let taken = durable.await.map_err(|_| self.stopped())?;
            for (place, taken) in places.into_iter().zip(taken) {
                answers[place] = submitted(taken, || self.no_room());
            }
        }
        for Handing { lane, places, durable } in handing {
            let handed = durable.await.map_err(|_| self.stopped())?;
            self.poke(&lane);
            for (number, place) in places.into_iter().enumerate() {
                answers[place] = match &handed {
                    Err(refused) => Some(Submitted::Unsaved((*refused).into())),
                    Ok(took_effect) if took_effect[number] => Some(Submitted::Accepted { pushed_out: None }),
                    Ok(_) if jobs[place].idempotency.is_empty() => Some(Submitted::Duplicate),
                    // Who used its key is looked up again.
                    Ok(_) => None,
                };
            }
        }
        Ok(())
    }

    /// Leaves jobs for the owner of their lane, as far as that has room by what it showed last.
    fn hand(
        &self,
        lane: &Arc<LaneEntry>,
        placed: Vec<Placed>,
        permit: OwnedSemaphorePermit,
        answers: &mut [Option<Submitted>],
    ) -> Result<Handing, StoreError> {
        let (mut places, mut units) = (Vec::new(), Vec::new());
        for (place, job) in placed {
            if job.live.is_some()
                && let Err(refused) = lane.published.lock().take_in(&lane.policy, &job.waiting.tenant)
            {
                answers[place] = Some(refused);
                continue;
            }
            places.push(place);
            units.push(handed(lane, job, self.options.node));
        }
        let (reply, durable) = oneshot::channel();
        self.send(Command::Hand { units, reply, permit })?;
        Ok(Handing { lane: lane.clone(), places, durable })
    }
}

/// Jobs on their way to the owner of their lane.
struct Handing {
    lane: Arc<LaneEntry>,
    /// Where they stand in their submission.
    places: Vec<usize>,
    durable: oneshot::Receiver<Result<Vec<bool>, NotWritten>>,
}

/// A job as its lane's owner finds it.
fn handed(lane: &LaneEntry, job: Prepared, taker: u64) -> Unit {
    let Prepared { waiting, job, live, idempotency } = job;
    let id = waiting.id;
    let mut unit = Unit::default();
    unit.when_absent(JOBS, id_key(id));
    unit.when_absent(DEAD, id_key(id));
    unit.put(JOBS, id_key(id), job);
    if let Some(live) = live {
        unit.ops.push(Op::Append(lane.shard.clone(), Entry::taken(id, &live, taker)));
        unit.put(LIVE, Key::Scoped(lane.scope.clone(), *id.as_bytes()), live);
    }
    remember(&mut unit, idempotency);
    unit
}

fn submitted(taken: Taken, no_room: impl FnOnce() -> StoreError) -> Option<Submitted> {
    match taken {
        Taken::Accepted(pushed_out) => Some(Submitted::Accepted { pushed_out }),
        Taken::Full => Some(Submitted::Full),
        Taken::OverQuota(quota) => Some(Submitted::OverQuota(quota)),
        Taken::Duplicate => Some(Submitted::Duplicate),
        Taken::NoRoom => Some(Submitted::Unsaved(no_room())),
        Taken::Raced | Taken::Moved => None,
    }
}

fn record(job: &Job, used: &Idempotency) -> IdempotencyRecord {
    let expires = job.accepted_at + used.lasts;
    IdempotencyRecord { request: used.request, id: job.id, expires, state: None }
}

/// A job as it is written, without anything it is remembered by.
pub(super) fn prepare(job: &Job) -> Prepared {
    let live = Live::of(job);
    Prepared {
        waiting: live.waiting(job.id),
        live: Some(records::encode(&live)),
        job: records::encode_job(job),
        idempotency: Vec::new(),
    }
}
