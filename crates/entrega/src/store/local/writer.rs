//! The writer: turns whatever is waiting into groups of the ledger, in one write.
//! Invariant: a caller is answered, and a job becomes claimable, only after the group that holds it is durable; groups are
//! written in the order their commands came, each under the tokens of the shards it speaks for.
//! Never: waits for more submissions; under load the next groups gather while these are written. Settlements, which
//! nobody waits for, gather a moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::{Admission, Left, Next, Waiting};
use entrega_core::policy::OnFull;
use entrega_core::quota::Quota;
use entrega_ledger::{Applied, EntryId, Key, LedgerError, Op, Room, Unit, Verdict, When};

use super::Shared;
use super::command::{Cause, Change, Command, NotWritten, Prepared, Retried, Taken};
use super::draft::{Answer, Draft, Guarded, Part, took_effect};
use super::lanes::OwnedLane;
use super::order::Entry;
use super::reading::{ASK_AGAIN_AFTER, ReadError, patiently};
use super::records::{self, IdempotencyRecord, id_key};
use super::tables::{DEAD, IDEMPOTENCY, JOBS, LIVE};

pub(super) struct Writer {
    shared: Arc<Shared>,
}

/// Ends the store with the writer, however that ends: nobody shall wait for one who is gone.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.fail("shut down".into());
    }
}

/// What became of a part.
type Written = Result<Vec<Verdict>, NotWritten>;

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Writer {
        Writer { shared }
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
    pub(super) async fn run(self) {
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

    async fn write(&self, commands: Vec<Command>) -> Result<(), ReadError> {
        let written = match self.put_together(commands).await {
            Ok(draft) => self.write_draft(draft).await,
            Err(error) => Err(error),
        };
        // Why the store ends is said before anybody who waits for this group is let go: they ask for the reason.
        written.inspect_err(|error| self.shared.fail(error.to_string()))
    }

    async fn put_together(&self, commands: Vec<Command>) -> Result<Draft, ReadError> {
        let mut draft = Draft::new(self.shared.cluster.is_some());
        let mut reserve = self.shared.reserve();
        for command in commands {
            match command {
                Command::Submit { lane, jobs, reply, permit } if !reserve.take(&jobs) => {
                    self.shared.close_intake();
                    let refused = vec![Taken::NoRoom; jobs.len()];
                    draft.part(&lane.hold, Room::New).answers.push(Answer::Taken(reply, refused, permit));
                }
                Command::Submit { lane, jobs, reply, permit } => {
                    let part = draft.part(&lane.hold, Room::New);
                    let answer = part.answers.len();
                    part.answers.push(Answer::Taken(reply, Vec::with_capacity(jobs.len()), permit));
                    part.gets_jobs(&lane);
                    for (place, job) in jobs.into_iter().enumerate() {
                        let taken = self.take(&lane, job, &mut draft, (answer, place)).await?;
                        if let Answer::Taken(_, all, _) = &mut draft.part(&lane.hold, Room::New).answers[answer] {
                            all.push(taken);
                        }
                    }
                }
                Command::Hand { units, reply, permit } => {
                    let node = self.shared.node.read().clone();
                    let part = draft.part(&node, Room::New);
                    let places = units.into_iter().map(|unit| part.add(unit)).collect();
                    part.answers.push(Answer::Handed(reply, places, permit));
                }
                Command::Settle { lane, change, ended, retries, causes, permit } => {
                    let part = draft.part(&lane.hold, Room::Must);
                    part.add(change);
                    part.rest(&lane, ended);
                    part.retried.extend(retries);
                    part.answers.push(Answer::Settled(permit));
                    causes.into_iter().for_each(|cause| self.let_in(&lane, cause, &mut draft));
                }
                Command::Change { change: Change { hold, lane, units, ended, then }, reply } => {
                    let part = draft.part(&hold, Room::Must);
                    let places = units.into_iter().map(|unit| part.add(unit)).collect();
                    match lane {
                        Some(lane) => part.rest(&lane, ended),
                        None => part.ended.extend(ended),
                    }
                    part.answers.push(Answer::Changed(reply, places, then));
                }
                Command::Arrive { lane, jobs, reply } => {
                    let left = self.arrive(&lane, jobs, &mut draft).await?;
                    draft.part(&lane.hold, Room::Must).answers.push(Answer::Arrived(reply, lane, left));
                }
                Command::Expire { lane, expired } => {
                    let reason = "ttl_expired: it was still waiting when its time to live ended";
                    self.drop_jobs(&lane, &expired, reason, Room::Must, &mut draft).await?;
                }
                Command::Stop => {}
            }
        }
        Ok(draft)
    }

    async fn write_draft(&self, draft: Draft) -> Result<(), ReadError> {
        let (mut must, new) = draft.into_parts();
        let mut parts = Vec::with_capacity(must.len() + new.len());
        if !must.is_empty() {
            let written = self.commit(&mut must, Room::Must).await?;
            parts.extend(must.into_iter().zip(written));
        }
        for part in new {
            let mut one = [part];
            let written = self.commit(&mut one, Room::New).await?;
            parts.extend(one.into_iter().zip(written));
        }
        // Whatever is not durable leaves its machine before anything is let loose there.
        for (part, written) in &mut parts {
            self.take_back(part, written).await?;
        }
        parts.into_iter().for_each(|(part, written)| self.finish(part, &written));
        Ok(())
    }

    /// Writes parts, again and again as long as nobody knows whether it happened.
    async fn commit(&self, parts: &mut [Part], room: Room) -> Result<Vec<Written>, LedgerError> {
        let groups: Vec<_> = parts.iter_mut().map(Part::group).collect();
        let _asking = self.shared.cluster.as_ref().map(|cluster| cluster.asking(self.shared.clock.now()));
        loop {
            let answers = match self.shared.ledger.write(&groups, room).await {
                Ok(answers) => answers,
                Err(LedgerError::Unclear { .. }) if !self.shared.stop.is_cancelled() => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                    continue;
                }
                Err(LedgerError::Full { .. }) if room == Room::New => return Ok(vec![Err(NotWritten::Full)]),
                Err(error) => return Err(error),
            };
            let (mut written, mut rewound) = (Vec::with_capacity(parts.len()), None);
            for (part, answer) in parts.iter().zip(answers) {
                written.push(match answer {
                    Applied::Applied(verdicts) => {
                        part.holds.iter().for_each(|hold| hold.wrote());
                        Ok(verdicts)
                    }
                    Applied::Fenced(shard) if self.shared.is_own_node(&shard) => {
                        rewound = rewound.or_else(|| Some((part.hold_of(&shard)?.clone(), None)));
                        Err(NotWritten::Moved)
                    }
                    Applied::Fenced(shard) => {
                        self.shared.fenced(&shard, part)?;
                        Err(NotWritten::Moved)
                    }
                    Applied::Rewound(shard, seq) => {
                        rewound = rewound.or_else(|| Some((part.hold_of(&shard)?.clone(), Some(seq))));
                        Err(NotWritten::Moved)
                    }
                });
            }
            if let Some((hold, at)) = rewound {
                self.shared.rewound(&hold, at).await?;
            }
            return Ok(written);
        }
    }

    /// Lets everybody know what became of a part.
    fn finish(&self, part: Part, written: &Written) {
        let now = self.shared.clock.now();
        for lane in &part.gets_jobs {
            lane.machine.lock().publish(now);
            lane.wake.notify_one();
        }
        for Retried { lane, ticket, at, lesson, took } in part.retried {
            let was_running = lane.machine.lock().settle(now, ticket, Next::RetryAt(at), lesson, took);
            assert!(was_running, "{ticket:?} was settled twice");
            lane.wake.notify_one();
        }
        if written.is_ok() {
            self.shared.waiters.notify(&part.ended);
            self.shared.notify_takers(&part.lanes, &part.ended);
        }
        part.answers.into_iter().for_each(|answer| answer.give(&self.shared, written));
    }

    /// New jobs that were not written leave their machine, and those come back that had to leave for them. Where the lane is
    /// somebody else's, all of its memory goes.
    async fn take_back(&self, part: &mut Part, written: &Written) -> Result<(), ReadError> {
        let why = match written {
            Ok(verdicts) => {
                for Guarded { unit, lane, id, answer } in &part.guarded {
                    if verdicts[*unit] == Verdict::Done {
                        continue;
                    }
                    // It is staged, so nobody can have claimed it.
                    lane.remove_staged(*id);
                    if answer.is_none() {
                        // Another node took the same job meanwhile, and its word of it may have been read already.
                        self.bring_back(lane, *id).await?;
                    }
                    if let Some((answer, place)) = answer
                        && let Answer::Taken(_, all, _) = &mut part.answers[*answer]
                    {
                        all[*place] = Taken::Raced;
                    }
                }
                return Ok(());
            }
            Err(NotWritten::Moved) => Taken::Moved,
            Err(NotWritten::Full) => Taken::NoRoom,
        };
        for answer in &mut part.answers {
            match answer {
                Answer::Taken(_, all, _) => {
                    let accepted = all.iter_mut().filter(|taken| matches!(taken, Taken::Accepted(_)));
                    accepted.for_each(|taken| *taken = why.clone());
                }
                Answer::Settled(_) => drop(self.shared.stale.fetch_add(1, Ordering::Relaxed)),
                Answer::Handed(..) | Answer::Changed(..) | Answer::Arrived(..) => {}
            }
        }
        part.staged.iter().for_each(|(lane, id)| lane.remove_staged(*id));
        if *written == Err(NotWritten::Full) {
            for (lane, id) in &part.pushed_out {
                self.bring_back(lane, *id).await?;
            }
        }
        Ok(())
    }

    /// Puts a job back whose index entry says that it waits.
    async fn bring_back(&self, lane: &Arc<OwnedLane>, id: JobId) -> Result<(), ReadError> {
        let live_key = lane.live_key(id);
        let live = patiently(|| records::load_live(&*self.shared.ledger, live_key.clone())).await?;
        if let Some(live) = live.filter(|live| live.blocked.is_none()) {
            lane.put_back(&self.shared, id, &live);
        }
        Ok(())
    }

    /// Takes a job that another one caused: whatever the lane's size, and once. Where another node owns its lane, that node
    /// finds it in its inbox.
    fn let_in(&self, by: &Arc<OwnedLane>, cause: Cause, draft: &mut Draft) {
        let Cause { job: Prepared { waiting, job, live, .. }, lane } = cause;
        let id = waiting.id;
        let mut unit = Unit::default();
        unit.when_absent(JOBS, id_key(id));
        unit.when_absent(DEAD, id_key(id));
        // What is about to be handed over would take this group with it.
        match lane.owned().filter(|owned| !owned.is_leaving.load(Ordering::SeqCst)) {
            Some(owned) => {
                live.into_iter().for_each(|live| unit.put(LIVE, owned.live_key(id), live));
                if owned.machine.lock().admit_always(&waiting) {
                    owned.keep_written(&waiting, &job, self.shared.clock.now());
                    let part = draft.joined(&by.hold, &owned.hold);
                    part.gets_jobs(&owned);
                    unit.put(JOBS, id_key(id), job);
                    part.guard(unit, &owned, id, None);
                }
            }
            None => {
                unit.put(JOBS, id_key(id), job);
                if let Some(live) = live {
                    unit.ops.push(Op::Append(lane.shard.clone(), Entry::caused(id, &live)));
                    unit.put(LIVE, Key::Scoped(lane.scope.clone(), *id.as_bytes()), live);
                }
                draft.part(&by.hold, Room::Must).add(unit);
                self.shared.poke(&lane);
            }
        }
    }

    /// Takes a job, unless it was taken before.
    async fn take(
        &self,
        lane: &Arc<OwnedLane>,
        job: Prepared,
        draft: &mut Draft,
        answer: (usize, usize),
    ) -> Result<Taken, ReadError> {
        let Prepared { waiting, job, live, idempotency } = job;
        let mut unit = Unit::default();
        let mut pushed_out = None;
        if live.is_some() {
            if self.shared.is_over_bytes(&waiting) {
                return Ok(Taken::OverQuota(Quota::StoredBytes));
            }
            let admission = lane.machine.lock().admit(&waiting);
            match admission {
                Admission::Admitted => {}
                Admission::OverQuota(quota) => return Ok(Taken::OverQuota(quota)),
                Admission::Preempted(left) => pushed_out = Some(left),
                Admission::Full => return Ok(Taken::Full),
                Admission::Duplicate => return Ok(Taken::Duplicate),
            }
        }
        if let Some(left) = &pushed_out {
            let reason = "preempted: the lane was full and a more urgent job came";
            self.drop_jobs(lane, &[left.id], reason, Room::New, draft).await?;
            draft.part(&lane.hold, Room::New).pushed_out.push((lane.clone(), left.id));
        }
        if let Some(live) = live {
            lane.keep_written(&waiting, &job, self.shared.clock.now());
            unit.put(LIVE, lane.live_key(waiting.id), live);
        }
        unit.put(JOBS, id_key(waiting.id), job);
        remember(&mut unit, idempotency);
        let part = draft.part(&lane.hold, Room::New);
        part.staged.push((lane.clone(), waiting.id));
        part.guard(unit, lane, waiting.id, Some(answer));
        Ok(Taken::Accepted(pushed_out))
    }

    /// Takes in what came by the inbox and was accepted by whoever left it: past the lane's size, or at the cost of another,
    /// or itself, with a record. Gives those that had to leave.
    async fn arrive(
        &self,
        lane: &Arc<OwnedLane>,
        jobs: Vec<(EntryId, Waiting)>,
        draft: &mut Draft,
    ) -> Result<Vec<Left>, ReadError> {
        let reason = "preempted: the lane was full and a more urgent job came";
        let mut dropped = Vec::new();
        for (entry, waiting) in jobs {
            let shard = lane.hold.shard.clone();
            draft.part(&lane.hold, Room::Must).plain().ops.push(Op::Take(shard, entry));
            let admission = lane.machine.lock().admit(&waiting);
            match admission {
                Admission::Admitted | Admission::Duplicate => {}
                Admission::Preempted(left) => dropped.push(left),
                // Whoever took it answered for it.
                Admission::OverQuota(_) => drop(lane.machine.lock().admit_always(&waiting)),
                Admission::Full if lane.policy.on_full == OnFull::Refuse => {
                    lane.machine.lock().admit_always(&waiting);
                }
                Admission::Full => {
                    let Waiting { id, tenant, priority, .. } = waiting;
                    dropped.push(Left { id, tenant, priority, state: JobState::Queued });
                }
            }
        }
        draft.part(&lane.hold, Room::Must).gets_jobs(lane);
        // The end of one that is itself on its way to the ledger stands behind its beginning: what is new is written last.
        let is_new = |left: &&Left| draft.is_new(lane, left.id);
        let (new, old): (Vec<&Left>, Vec<&Left>) = dropped.iter().partition(is_new);
        for (left, room) in [(old, Room::Must), (new, Room::New)] {
            let ids: Vec<JobId> = left.iter().map(|left| left.id).collect();
            if !ids.is_empty() {
                self.drop_jobs(lane, &ids, reason, room, draft).await?;
            }
        }
        Ok(dropped)
    }

    /// Ends jobs that were not delivered and have left the machine.
    async fn drop_jobs(
        &self,
        lane: &Arc<OwnedLane>,
        ids: &[JobId],
        reason: &str,
        room: Room,
        draft: &mut Draft,
    ) -> Result<(), ReadError> {
        let pending =
            ids.iter().filter_map(|id| Some((*id, Bytes::copy_from_slice(draft.pending(JOBS, *id)?)))).collect();
        let end = self.shared.dropped(lane, ids, JobState::Dropped, reason, &pending).await?;
        let part = draft.part(&lane.hold, room);
        part.add(end);
        part.rest(lane, ids.iter().copied());
        Ok(())
    }
}

/// Writes down what a job is remembered by, on the condition that nobody used it since.
pub(super) fn remember(unit: &mut Unit, idempotency: Vec<(String, IdempotencyRecord, When)>) {
    for (key, kept, when) in idempotency {
        unit.when.push(when);
        unit.put(IDEMPOTENCY, Key::Text(records::expiry_key(kept.expires, &key)), Vec::new());
        unit.put(IDEMPOTENCY, Key::Text(key), records::encode(&kept));
    }
}

impl Answer {
    fn give(self, shared: &Shared, written: &Written) {
        let told = |places: &[Option<usize>]| written.as_ref().map(|done| took_effect(places, done)).map_err(|no| *no);
        // A caller that went away has lost only its answer.
        match self {
            Answer::Taken(reply, taken, permit) => {
                drop(permit);
                drop(reply.send(taken));
            }
            Answer::Handed(reply, places, permit) => {
                drop(permit);
                drop(reply.send(told(&places)));
            }
            Answer::Settled(permit) => drop(permit),
            Answer::Changed(reply, places, then) => {
                let told = told(&places);
                let has_effect = told.as_ref().is_ok_and(|done| done.first().is_none_or(|first| *first));
                then.filter(|_| has_effect).into_iter().for_each(|then| then(shared));
                reply.into_iter().for_each(|reply| drop(reply.send(told.clone())));
            }
            Answer::Arrived(reply, lane, left) => {
                if written.is_ok() && !left.is_empty() {
                    lane.pushed_out.lock().extend(left);
                    lane.wake.notify_one();
                }
                reply.send(()).unwrap_or_default();
            }
        }
    }
}
