//! The writer: turns whatever is waiting into one group of the ledger.
//! Invariant: a caller is answered, and a job becomes claimable, only after the group that holds it is durable; groups are
//! written in the order their commands came, each under the tokens of the lanes it touches.
//! Never: waits for more submissions; under load the next group gathers while this one is written. Settlements, which
//! nobody waits for, gather a moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Admission, Next};
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use entrega_ledger::{Applied, Expect, Fence, Group, Key, LedgerError, Room, Shard, Token, Unit, Verdict};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::command::{Command, Prepared, Retried, Then};
use super::reading::{ASK_AGAIN_AFTER, ReadError, patiently};
use super::records::{self, Kept, id_key};
use super::tables::{DEAD, JOBS, LIVE, ONCE};
use super::{HOUSE, LaneCell, Shared};
use crate::store::{StoreError, Submitted};

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The number of the last group under each lane's token.
    written: BTreeMap<LaneName, u64>,
    /// The token for everything that is no lane's, and the number of the last group under it.
    house: (Token, u64),
    house_shard: Shard,
}

/// Ends the store with the writer, however that ends: nobody shall wait for one who is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.fail("shut down".into());
    }
}

/// One group as it is put together, and what is done once it is durable.
#[derive(Default)]
struct Draft {
    units: Vec<Unit>,
    /// Lanes that it writes for, and whether they get new jobs.
    lanes: BTreeMap<LaneName, (Arc<LaneCell>, bool)>,
    /// Units that take effect only under conditions, and what they are about.
    guarded: Vec<Guarded>,
    ended: Vec<JobId>,
    retried: Vec<Retried>,
    thens: Vec<Then>,
    answers: Vec<Answer>,
    /// What keys are used for by this very group, or that they are forgotten; the ledger knows it when it is written.
    remembered: HashMap<String, Option<Kept>>,
}

/// A job that is there only if its unit took effect.
struct Guarded {
    unit: usize,
    lane: Arc<LaneCell>,
    id: JobId,
    /// Which answer is about it, and which part of that.
    answer: Option<(usize, usize)>,
}

impl Draft {
    /// The unit that whatever has no conditions goes into.
    fn plain(&mut self) -> &mut Unit {
        if self.units.last().is_none_or(|unit| !unit.when.is_empty()) {
            self.units.push(Unit::default());
        }
        self.units.last_mut().expect("there is one now")
    }

    /// Adds what has no conditions.
    fn add(&mut self, change: Unit) {
        let plain = self.plain();
        match plain.ops.is_empty() {
            true => plain.ops = change.ops,
            false => plain.ops.extend(change.ops),
        }
    }

    /// Adds a unit of its own.
    fn guard(&mut self, unit: Unit, lane: &Arc<LaneCell>, id: JobId, answer: Option<(usize, usize)>) {
        self.guarded.push(Guarded { unit: self.units.len(), lane: lane.clone(), id, answer });
        self.units.push(unit);
    }

    fn touch(&mut self, lane: &Arc<LaneCell>, gets_jobs: bool) {
        match self.lanes.get_mut(&lane.name) {
            Some((_, gets)) => *gets |= gets_jobs,
            None => drop(self.lanes.insert(lane.name.clone(), (lane.clone(), gets_jobs))),
        }
    }
}

impl Writer {
    /// With the number of the last group that was written under each lane's token, and under that of the rest.
    pub(super) fn new(shared: Arc<Shared>, written: BTreeMap<LaneName, u64>, house: (Token, u64)) -> Writer {
        Writer { shared, written, house_shard: Shard::new(HOUSE), house }
    }

    /// Writes on a thread of its own.
    pub(super) fn start_thread(self) -> Result<std::thread::JoinHandle<()>, LedgerError> {
        let failed =
            |error: std::io::Error| LedgerError::Broken { doing: "starting the writer", reason: error.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        let thread = std::thread::Builder::new().name("store-writer".into());
        thread.spawn(move || runtime.block_on(self.run())).map_err(failed)
    }

    /// Writes until told to stop or until the ledger fails.
    pub(super) async fn run(mut self) {
        loop {
            let commands = self.shared.queue.take().await;
            let is_last = commands.is_empty() || commands.iter().any(|command| matches!(command, Command::Stop));
            if let Err(error) = self.write(commands).await {
                tracing::error!(errorReason = %error, "The store cannot be written; nothing more is accepted or delivered");
                return;
            }
            if is_last {
                return;
            }
        }
    }

    async fn write(&mut self, commands: Vec<Command>) -> Result<(), ReadError> {
        let written = match self.put_together(commands).await {
            Ok(draft) => self.finish(draft).await,
            Err(error) => Err(error),
        };
        // Why the store ends is said before anybody who waits for this group is let go: they ask for the reason.
        written.inspect_err(|error| self.shared.fail(error.to_string()))
    }

    async fn put_together(&self, commands: Vec<Command>) -> Result<Draft, ReadError> {
        let mut draft = Draft::default();
        for command in commands {
            match command {
                Command::Submit { jobs, reply, permit } => {
                    let answer = draft.answers.len();
                    draft.answers.push(Answer::Submitted(reply, Vec::with_capacity(jobs.len()), permit));
                    for (part, job) in jobs.into_iter().enumerate() {
                        draft.touch(&job.lane, true);
                        let submitted = self.take(job, &mut draft, (answer, part)).await?;
                        if let Answer::Submitted(_, all, _) = &mut draft.answers[answer] {
                            all.push(submitted);
                        }
                    }
                }
                Command::Settle { lane, change, ended, retries, causes, permit } => {
                    draft.touch(&lane, false);
                    draft.add(change);
                    causes.into_iter().for_each(|cause| self.let_in(cause, &mut draft));
                    draft.ended.extend(ended);
                    draft.retried.extend(retries);
                    draft.answers.push(Answer::Settled(permit));
                }
                Command::Change { lane, change, ended, then, reply } => {
                    lane.iter().for_each(|lane| draft.touch(lane, false));
                    draft.add(change);
                    draft.ended.extend(ended);
                    draft.thens.extend(then);
                    draft.answers.push(Answer::Changed(reply));
                }
                Command::Expire { lane, expired } => {
                    draft.touch(&lane, false);
                    for id in expired {
                        let reason = "ttl_expired: it was still waiting when its time to live ended";
                        let end = self.shared.dropped(&lane, id, JobState::Dropped, reason, &draft.units).await?;
                        draft.add(end);
                        draft.ended.push(id);
                    }
                }
                Command::Forget { remembered } => {
                    for (expires, key) in remembered {
                        self.forget(expires, key, &mut draft).await?;
                    }
                }
                Command::Stop => {}
            }
        }
        Ok(draft)
    }

    /// Makes a group durable, and lets everybody know.
    async fn finish(&mut self, mut draft: Draft) -> Result<(), ReadError> {
        let verdicts =
            self.commit(std::mem::take(&mut draft.units), draft.lanes.values().map(|(lane, _)| lane)).await?;
        let now = self.shared.clock.now();
        for Guarded { unit, lane, id, answer } in draft.guarded {
            if verdicts[unit] == Verdict::Done {
                continue;
            }
            // It is staged, so nobody can have claimed it.
            drop(lane.machine.lock().remove(id));
            if let Some((answer, part)) = answer
                && let Answer::Submitted(_, all, _) = &mut draft.answers[answer]
            {
                all[part] = Submitted::Unsaved(StoreError::Unreachable {
                    reason: "its key was used by somebody else at the same moment".into(),
                });
            }
        }
        for (lane, _) in draft.lanes.values().filter(|(_, gets_jobs)| *gets_jobs) {
            lane.machine.lock().publish(now);
            lane.wake.notify_one();
        }
        for Retried { lane, ticket, at, lesson, took } in draft.retried {
            let was_running = lane.machine.lock().settle(now, ticket, Next::RetryAt(at), lesson, took);
            assert!(was_running, "{ticket:?} was settled twice");
            lane.wake.notify_one();
        }
        draft.thens.into_iter().for_each(|then| then(&self.shared));
        self.shared.waiters.tell(&draft.ended);
        draft.answers.into_iter().for_each(Answer::give);
        Ok(())
    }

    /// Writes units under the token of the house and those of these lanes, again and again as long as nobody knows whether it happened.
    pub(super) async fn commit(
        &mut self,
        units: Vec<Unit>,
        lanes: impl Iterator<Item = &Arc<LaneCell>>,
    ) -> Result<Vec<Verdict>, LedgerError> {
        self.house.1 += 1;
        // A late copy of a write that had to be repeated must find that it is none of ours any more, whatever it is about.
        let mut fences = vec![Fence { shard: self.house_shard.clone(), token: self.house.0, seq: self.house.1 }];
        for lane in lanes {
            let seq = self.written.entry(lane.name.clone()).or_default();
            *seq += 1;
            fences.push(Fence { shard: lane.shard.clone(), token: lane.token, seq: *seq });
        }
        let groups = [Group { fences, units }];
        loop {
            let refused = match self.shared.ledger.write(&groups, Room::Must).await {
                Ok(answers) => match answers.into_iter().next() {
                    Some(Applied::Applied(verdicts)) => return Ok(verdicts),
                    Some(Applied::Fenced(shard)) => format!("another process took '{shard}' over"),
                    Some(Applied::Rewound(shard, seq)) => format!("'{shard}' is back at write {seq}"),
                    None => "there was no answer".to_owned(),
                },
                Err(LedgerError::Unclear { .. }) => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            return Err(LedgerError::Broken { doing: "writing the store", reason: refused });
        }
    }

    /// Takes a job that another one caused: whatever the lane's size, and once.
    fn let_in(&self, job: Prepared, draft: &mut Draft) {
        let Prepared { lane, waiting, job, live, .. } = job;
        draft.touch(&lane, true);
        let id = waiting.id;
        if lane.machine.lock().admit_always(&waiting) {
            let mut unit = Unit::default();
            unit.when_absent(JOBS, id_key(id));
            unit.when_absent(DEAD, id_key(id));
            unit.put(JOBS, id_key(id), job);
            live.into_iter().for_each(|live| unit.put(LIVE, lane.live_key(id), live));
            draft.guard(unit, &lane, id, None);
        }
    }

    /// Takes a job, unless it was taken before.
    async fn take(&self, mut job: Prepared, draft: &mut Draft, answer: (usize, usize)) -> Result<Submitted, ReadError> {
        let once = std::mem::take(&mut job.once);
        let now = self.shared.clock.now();
        let mut unit = Unit::default();
        for (key, kept) in &once {
            let (before, expect) = match draft.remembered.get(key) {
                Some(Some(kept)) => (Some(kept.clone()), None),
                Some(None) => (None, Some(Expect::Absent)),
                None => self.kept(key).await?,
            };
            if let Some(before) = before.filter(|before| before.expires > now) {
                return Ok(match before.request == kept.request {
                    true => Submitted::Repeated { id: before.id },
                    false => Submitted::OtherRequest,
                });
            }
            if let Some(expect) = expect {
                unit.when.push(entrega_ledger::When { table: ONCE, key: Key::Text(key.clone()), expect });
            }
        }
        let (id, lane) = (job.waiting.id, job.lane.clone());
        let submitted = self.admit(job, draft, &mut unit).await?;
        if !matches!(submitted, Submitted::Accepted { .. }) {
            return Ok(submitted);
        }
        for (key, kept) in once {
            unit.put(ONCE, Key::Text(records::expiry_key(kept.expires, &key)), Vec::new());
            unit.put(ONCE, Key::Text(key.clone()), records::encode(&kept));
            draft.remembered.insert(key, Some(kept));
        }
        match unit.when.is_empty() {
            true => draft.add(unit),
            false => draft.guard(unit, &lane, id, Some(answer)),
        }
        Ok(submitted)
    }

    /// Forgets a submission, unless its key has been used anew since.
    async fn forget(&self, expires: Time, key: String, draft: &mut Draft) -> Result<(), ReadError> {
        let is_current = match draft.remembered.get(&key) {
            Some(used) => used.is_some(),
            None => self.kept(&key).await?.0.is_some_and(|kept| kept.expires > self.shared.clock.now()),
        };
        let plain = draft.plain();
        plain.remove(ONCE, Key::Text(records::expiry_key(expires, &key)));
        if !is_current {
            plain.remove(ONCE, Key::Text(key.clone()));
            draft.remembered.insert(key, None);
        }
        Ok(())
    }

    /// What a key was used for, and what must still be there when it is used anew. One whose record cannot be read counts
    /// as new: that must not end the store.
    async fn kept(&self, key: &str) -> Result<(Option<Kept>, Option<Expect>), ReadError> {
        let (ledger, keys) = (&self.shared.ledger, [Key::Text(key.to_owned())]);
        let found = patiently(|| async { Ok(ledger.read(ONCE, &keys).await?) }).await?.pop().flatten();
        let Some(bytes) = found else { return Ok((None, Some(Expect::Absent))) };
        let kept = self.shared.readable(&key, records::decode(ONCE, &bytes))?;
        Ok((kept, Some(Expect::Is(bytes))))
    }

    async fn admit(&self, job: Prepared, draft: &mut Draft, unit: &mut Unit) -> Result<Submitted, ReadError> {
        let id = job.waiting.id;
        let Some(live) = job.live else {
            unit.put(JOBS, id_key(id), job.job);
            return Ok(Submitted::Accepted { pushed_out: None });
        };
        let admission = job.lane.machine.lock().admit(&job.waiting);
        let pushed_out = match admission {
            Admission::Admitted => None,
            Admission::Preempted(left) => Some(left),
            Admission::Full => return Ok(Submitted::Full),
            Admission::Duplicate => return Ok(Submitted::Duplicate),
        };
        if let Some(left) = &pushed_out {
            draft.ended.push(left.id);
            let reason = "preempted: the lane was full and a more urgent job came";
            let end = self.shared.dropped(&job.lane, left.id, JobState::Dropped, reason, &draft.units).await?;
            draft.add(end);
        }
        unit.put(JOBS, id_key(id), job.job);
        unit.put(LIVE, job.lane.live_key(id), live);
        Ok(Submitted::Accepted { pushed_out })
    }
}

/// What callers are told once the group is durable.
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
