//! The simulated ledger: the ledger in memory behind a connection that is slow, breaks off, loses answers and delivers late.
//! Invariant: what it holds outlives every process; a group is there whole or not at all, unless a planted bug says
//! otherwise. Whatever becomes durable, the witness sees.
//! Never: uses a thread or draws chance of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega::store::local::Record;
use entrega::store::local::tables::{DEAD, HISTORY, JOBS, LIVE, ORDERS, REGISTRY};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_ledger::{
    Applied, Beats, Group, Health, HeapLedger, InboxEntry, Key, Ledger, LedgerError, Op, Owning, Room, Rows, Scan,
    Shard, Table, Token, Unit, Verdict,
};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::bug::Bug;
use crate::disk::Change;
use crate::life::Life;

/// The ledger as one process reaches it.
pub struct SimLedger {
    pub(crate) life: Arc<Life>,
    pub(crate) heap: Arc<HeapLedger>,
    /// While the store is opened, nothing is refused.
    is_open: AtomicBool,
    /// Jobs of a write whose writer goes on to its next one before it lets them go.
    held_up: Mutex<Vec<JobId>>,
}

/// One write in so many gets lost on its way, and one arrives late.
const LOST_IN: u32 = 40;
/// One answer in so many to whoever wants to own something, or shows that it does, is lost.
const OWNING_LOST_IN: u32 = 60;
/// Longer than whoever gave an order waits for its answer.
const EXPIRED: Duration = Duration::from_secs(5);
/// One read in so many is not answered.
const UNREAD_IN: u32 = 400;

impl SimLedger {
    /// What the last process left, as this life reaches it.
    pub fn reach(life: &Arc<Life>) -> Arc<SimLedger> {
        let heap = life.world.heap.lock().clone();
        Arc::new(SimLedger { life: life.clone(), heap, is_open: AtomicBool::new(false), held_up: Mutex::default() })
    }

    /// The store is open: from now on reads may fail. Delivers what is late, for as long as the process lives.
    pub fn opened(self: &Arc<Self>) {
        self.is_open.store(true, Ordering::Relaxed);
        tokio::spawn(self.clone().deliver_late());
    }

    fn has(&self, bug: Bug) -> bool {
        self.life.world.has(bug)
    }

    /// Whether something happens that happens one time in so many, until the world has healed.
    fn chances(&self, one_in: u32) -> bool {
        let is_trouble = self.is_open.load(Ordering::Relaxed) && self.life.moment() < self.life.world.plan.heal_at;
        is_trouble && self.life.world.rng.lock().u32(0..one_in) == 0
    }

    async fn deliver_late(self: Arc<Self>) {
        loop {
            self.life.wait(Duration::from_millis(10)).await;
            let now = self.life.moment();
            let due: Vec<_> = self.life.world.late.0.lock().extract_if(.., |(at, _)| *at <= now).collect();
            for (_, mut groups) in due {
                self.life.world.witness.lock().troubles.late_writes += 1;
                if self.has(Bug::RepeatAppliedTwice) {
                    groups.iter_mut().for_each(|group| group.fences.clear());
                }
                // Whoever sent it has long given up.
                drop(self.apply(&groups));
                drop(self.note_handed(&groups).await);
            }
        }
    }

    /// Makes groups durable, for the witness to see.
    pub(crate) fn apply(&self, groups: &[Group]) -> Result<Vec<Applied>, LedgerError> {
        let answers = self.heap.apply(groups)?;
        self.show(groups);
        Ok(answers)
    }

    /// Shows the witness what these groups changed.
    fn show(&self, groups: &[Group]) {
        let (world, now) = (&self.life.world, self.life.clock.now());
        let mut disk = world.disk.lock();
        let mut changes = Vec::new();
        for op in groups.iter().flat_map(|group| &group.units).flat_map(|unit| &unit.ops) {
            let (Op::Put(table, key, _) | Op::Remove(table, key)) = op else { continue };
            match (*table, key) {
                (JOBS | LIVE | HISTORY | DEAD, Key::Id(id) | Key::Scoped(_, id)) => {
                    changes.extend(disk.look(&self.heap, JobId::from_bytes(*id)));
                }
                (REGISTRY, Key::Text(name)) if name.starts_with("replay/") => {
                    let row = self.heap.get(REGISTRY, key);
                    let run = row.and_then(|row| serde_json::from_slice::<entrega::store::ReplayRun>(&row).ok());
                    if let Some(run) = run {
                        disk.replays.insert(run.id.clone(), run.clone());
                        changes.push(Change::Replay(Box::new(run)));
                    }
                }
                _ => {}
            }
        }
        world.witness.lock().durable(now, &changes, &disk);
    }

    /// The jobs that are in the memory of their lane's owner once it knows that each group is written: those that it wrote,
    /// and those that it takes from its inbox.
    fn arriving(&self, group: &Group) -> Vec<JobId> {
        let handed = self.life.world.handed.lock();
        let ops = group.units.iter().flat_map(|unit| &unit.ops);
        ops.filter_map(|op| match op {
            Op::Put(LIVE, Key::Scoped(lane, id), _) if is_under(group, lane) => Some(JobId::from_bytes(*id)),
            Op::Take(_, entry) => handed.get(&(entry.0, entry.1)).copied(),
            _ => None,
        })
        .collect()
    }

    /// Remembers which jobs were left in inboxes.
    async fn note_handed(&self, groups: &[Group]) -> Result<(), LedgerError> {
        for unit in groups.iter().flat_map(|group| &group.units) {
            let job = unit.ops.iter().find_map(|op| match op {
                Op::Put(LIVE, Key::Scoped(_, id), _) => Some(JobId::from_bytes(*id)),
                _ => None,
            });
            let appended = unit.ops.iter().find_map(|op| match op {
                Op::Append(shard, bytes) => Some((shard, bytes)),
                _ => None,
            });
            let Some((job, (shard, bytes))) = job.zip(appended) else { continue };
            let entries = self.heap.inbox(shard, usize::MAX, usize::MAX).await?;
            let entries = entries.into_iter().filter(|entry| *entry.bytes == **bytes);
            self.life.world.handed.lock().extend(entries.map(|entry| ((entry.id.0, entry.id.1), job)));
        }
        Ok(())
    }

    fn lost(doing: &'static str) -> LedgerError {
        LedgerError::Unclear { doing, reason: "the connection broke".into() }
    }

    /// The way to a ledger that nodes share: it takes a moment, and may end nowhere.
    async fn travel(&self, doing: &'static str) -> Result<(), LedgerError> {
        let life = &self.life;
        life.reach().await;
        if !life.is_shared() {
            return Ok(());
        }
        if let Some(until) = life.cut_off_until() {
            let patience = Duration::from_millis(life.world.rng.lock().u64(20..1_500));
            life.wait(until.since(life.moment()).min(patience)).await;
            life.reach().await;
            if life.cut_off_until().is_some() {
                life.world.witness.lock().troubles.cut_off += 1;
                return Err(SimLedger::lost(doing));
            }
        }
        life.wait(life.latency()).await;
        life.reach().await;
        Ok(())
    }

    /// The way back of an answer.
    async fn answered<T>(&self, doing: &'static str, answer: T) -> Result<T, LedgerError> {
        self.life.reach().await;
        match self.chances(OWNING_LOST_IN) {
            true => Err(SimLedger::lost(doing)),
            false => Ok(answer),
        }
    }

    async fn reading(&self, job: Option<JobId>) -> Result<(), LedgerError> {
        let travelled = self.travel("reading").await;
        let read = match travelled.is_ok() && self.chances(UNREAD_IN) {
            true => Err(SimLedger::lost("reading")),
            false => travelled,
        };
        read.inspect_err(|_| self.life.world.witness.lock().unread(self.life.clock.now(), job))
    }

    /// Writes groups without what settlements cause, and has the process killed before it writes all of them, if it is to be
    /// killed at all.
    async fn write_torn(&self, groups: &[Group]) {
        for group in groups.iter().filter(|group| group.units.iter().any(is_cause)) {
            let units = group.units.iter().filter(|unit| !is_cause(unit)).cloned().collect();
            self.life.hurry_crash(1);
            drop(self.apply(&[Group { fences: Vec::new(), units }]));
            self.life.reach().await;
        }
    }
}

/// Whether a unit is a job that another one caused.
pub(crate) fn is_cause(unit: &Unit) -> bool {
    unit.when.iter().any(|when| when.table == DEAD)
}

/// Whether a group is written by the owner of a lane.
fn is_under(group: &Group, lane: &str) -> bool {
    group.fences.iter().any(|fence| fence.shard.as_str().strip_prefix("lane/") == Some(lane))
}

/// The jobs whose rows are written.
fn jobs_in(groups: &[Group]) -> impl Iterator<Item = JobId> {
    let ops = groups.iter().flat_map(|group| &group.units).flat_map(|unit| &unit.ops);
    ops.filter_map(|op| match op {
        Op::Put(JOBS | LIVE, Key::Id(id) | Key::Scoped(_, id), _) => Some(JobId::from_bytes(*id)),
        _ => None,
    })
}

/// The jobs that have left their lane when this is written.
fn dropped_in(groups: &[Group]) -> impl Iterator<Item = JobId> {
    let ops = groups.iter().flat_map(|group| &group.units).flat_map(|unit| &unit.ops);
    ops.filter_map(|op| match op {
        Op::Put(JOBS, Key::Id(id), value) => {
            let is_dropped = matches!(Record::of(JOBS, value), Ok(Record::Ended { state: JobState::Dropped, .. }));
            is_dropped.then(|| JobId::from_bytes(*id))
        }
        _ => None,
    })
}

/// Whether one of these groups is what came of an order.
fn carries_out(groups: &[Group]) -> bool {
    let has_answer = |unit: &Unit| unit.ops.iter().any(|op| matches!(op, Op::Put(ORDERS, ..)));
    let is_taken = |unit: &Unit| unit.ops.iter().any(|op| matches!(op, Op::Take(..)));
    groups.iter().flat_map(|group| &group.units).any(|unit| has_answer(unit) && is_taken(unit))
}

/// What a writer is told who is told too early.
fn all_done(groups: &[Group]) -> Vec<Applied> {
    groups.iter().map(|group| Applied::Applied(vec![Verdict::Done; group.units.len()])).collect()
}

#[async_trait]
impl Ledger for SimLedger {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        self.travel("owning a shard").await?;
        let owning = self.bent_own(shard, node, seen).await?;
        if let Owning::Owned { .. } = owning
            && self.life.is_shared()
        {
            let life = &self.life;
            life.world.witness.lock().owned(life.clock.now(), life.number(), shard, &life.world.disk.lock());
        }
        self.answered("owning a shard", owning).await
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        let asked_at = self.life.moment();
        self.travel("beating").await?;
        let beats = self.bent_beat(held).await?;
        let beats = self.answered("beating", beats).await?;
        // Whoever owns nothing yet can be replaced by nobody.
        let since = if held.is_empty() { self.life.moment() } else { asked_at };
        self.life.world.witness.lock().beaten(self.life.number(), since);
        Ok(beats)
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        self.travel("releasing a shard").await?;
        self.heap.release(shard, token).await?;
        self.answered("releasing a shard", ()).await
    }

    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError> {
        let life = &self.life;
        if life.is_shared() && room == Room::New {
            let held_up = life.world.witness.lock().held_up(life.clock.now(), life.number());
            self.held_up.lock().extend(held_up);
        }
        life.reach().await;
        let groups = &*self.bent(groups);
        if self.has(Bug::AcknowledgeBeforeSync) && self.is_open.load(Ordering::Relaxed) {
            life.world.late.0.lock().push((life.moment() + Duration::from_millis(15), groups.to_vec()));
            return Ok(all_done(groups));
        }
        for id in dropped_in(groups) {
            life.world.witness.lock().leaving(id);
        }
        match life.is_shared() {
            true => self.travel("writing").await?,
            false => {
                life.wait_for_store().await;
                life.wait(life.latency()).await;
                life.reach().await;
            }
        }
        if self.has(Bug::ExpiredOrder) && carries_out(groups) {
            life.wait(EXPIRED).await;
        }
        if self.chances(LOST_IN) {
            let after = Duration::from_millis(life.world.rng.lock().u64(1..2_000));
            life.world.late.0.lock().push((life.moment() + after, groups.to_vec()));
            return Err(SimLedger::lost("writing"));
        }
        if self.has(Bug::TornBatch) {
            self.write_torn(groups).await;
        }
        let answers = self.apply(groups)?;
        let answers = self.bent_answers(groups, answers);
        self.note_handed(groups).await?;
        life.reach().await;
        match self.chances(LOST_IN) {
            true => {
                let mut witness = life.world.witness.lock();
                witness.troubles.answers_lost += 1;
                witness.note(life.clock.now(), format_args!("an answer is lost"));
                drop(witness);
                Err(SimLedger::lost("writing"))
            }
            false => {
                let told: Vec<JobId> = match life.is_shared() {
                    true => (groups.iter().zip(&answers))
                        .filter(|(_, answer)| matches!(answer, Applied::Applied(_)))
                        .flat_map(|(group, _)| self.arriving(group))
                        .collect(),
                    false => jobs_in(groups).collect(),
                };
                let mut witness = life.world.witness.lock();
                witness.told(life.clock.now(), told.into_iter());
                witness.let_go(life.clock.now(), life.number(), std::mem::take(&mut *self.held_up.lock()));
                Ok(answers)
            }
        }
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        let job = keys.first().and_then(|key| match key {
            Key::Id(id) | Key::Scoped(_, id) => Some(JobId::from_bytes(*id)),
            Key::Text(_) => None,
        });
        self.reading(job).await?;
        let found = self.heap.read(table, keys).await?;
        Ok(self.bent_read(table, keys, found))
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        let job = match scan {
            Scan::UpFrom(key) if table == JOBS => <[u8; 16]>::try_from(key).ok().map(JobId::from_bytes),
            _ => None,
        };
        self.reading(job).await?;
        let rows = self.heap.scan(table, scan, rows, bytes).await?;
        Ok(match self.is_open.load(Ordering::Relaxed) {
            true => self.bent_index(table, rows),
            false => self.bent_at_start(table, rows),
        })
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        self.reading(None).await?;
        Ok(self.bent_inbox(self.heap.inbox(shard, entries, bytes).await?))
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        self.travel("signalling").await?;
        let lost_in = self.life.world.plan.nodes.as_ref().map(|nodes| nodes.signals_lost_in);
        if lost_in.is_some_and(|lost_in| self.chances(lost_in)) || self.is_unheard(topic) {
            self.life.world.witness.lock().troubles.signals_lost += 1;
            return Ok(());
        }
        self.heap.signal(topic).await
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.heap.listen()
    }

    fn health(&self) -> Health {
        let is_full = self.life.world.plan.refuses(self.life.moment());
        let free_bytes = Some(if is_full { 0 } else { FREE_BYTES });
        Health { kind: "simulated", durability: "until the run ends", free_bytes, ..Health::default() }
    }
}

/// What is free while the disk is not full: more than any run takes.
const FREE_BYTES: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use entrega_ledger::conformance::{TABLES, exercise};

    use super::*;
    use crate::drift::Drift;
    use crate::plan::START;
    use crate::pulse::Pulse;
    use crate::run::world;

    #[test]
    fn the_simulated_ledger_does_what_every_ledger_must() {
        let (runtime, _pulse) = Pulse::runtime();
        runtime.block_on(exercise(async || {
            let life = Arc::new(Life::new(&world(1, crate::plan::Cast::Alone, None), START, Drift::default(), None));
            let heap = Arc::new(HeapLedger::new(&TABLES));
            SimLedger { life, heap, is_open: AtomicBool::new(false), held_up: Mutex::default() }
        }));
    }
}
