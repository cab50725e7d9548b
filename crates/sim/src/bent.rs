//! Planted bugs of the ledger: rows that are changed, forgotten or made up on their way.
//! Invariant: without a planted bug everything passes as it is.

use std::borrow::Cow;

use entrega::store::local::Record;
use entrega::store::local::tables::{DEAD, HISTORY, IDEMPOTENCY, JOBS, LIVE, ORDERS, REGISTRY};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_ledger::{Group, Key, Op, Rows, Table};

use crate::bug::Bug;
use crate::ledger::{SimLedger, is_cause};

/// Longer than any throttle's period or tick.
const LONG_AGO_MS: u64 = 2_000;

fn letter(value: &[u8]) -> Option<DeadLetter> {
    serde_json::from_slice(value).ok()
}

fn is_end(value: &[u8], state: JobState) -> bool {
    matches!(Record::of(JOBS, value), Ok(Record::Ended { state: ended, .. }) if ended == state)
}

impl SimLedger {
    /// Groups as the ledger gets them.
    pub(crate) fn bent<'a>(&self, groups: &'a [Group]) -> Cow<'a, [Group]> {
        let Some(bug) = self.life.world.bug else { return Cow::Borrowed(groups) };
        let mut groups = groups.to_vec();
        for unit in groups.iter_mut().flat_map(|group| &mut group.units) {
            let is_job = unit.ops.iter().any(|op| matches!(op, Op::Put(LIVE, ..)));
            unit.ops.retain(|op| self.keeps(op, is_job));
            let is_cause = is_cause(unit);
            if bug == Bug::ExpiredOrder {
                unit.when.retain(|when| when.table != ORDERS);
            }
            match bug {
                Bug::ForgetCauses if is_cause => unit.ops.clear(),
                Bug::ForgetEnd => forget_ends(&mut unit.ops),
                _ => unit.ops = std::mem::take(&mut unit.ops).into_iter().filter_map(|op| bent_op(bug, op)).collect(),
            }
        }
        Cow::Owned(groups)
    }

    /// Rows as a store gets them that is being opened.
    pub(crate) fn bent_at_start(&self, table: Table, rows: Rows) -> Rows {
        let (world, now) = (&self.life.world, self.life.clock.now());
        if world.bug.is_none() {
            return rows;
        }
        let mut bent = Rows::default();
        for (key, value) in rows.iter() {
            let made = key.last_chunk().map(|id| JobId::from_bytes(*id).made_at());
            let value = match world.bug {
                Some(Bug::SkipTheFuture) if table == LIVE && made.is_some_and(|made| made > now) => continue,
                Some(Bug::PauseForgotten) if table == REGISTRY && key.starts_with(b"paused/") => continue,
                Some(Bug::EndpointThrottleForgotten) if table == REGISTRY && key.starts_with(b"endpoint/") => {
                    without_throttle(value)
                }
                _ => Cow::Borrowed(value),
            };
            bent.push(key, &value, usize::MAX, usize::MAX);
        }
        bent
    }

    /// Whether the last starts are made up: of an orderly stop that never was, or was too long ago by a clock that was set,
    /// or of a node that knows nothing of others.
    pub(crate) fn forgets_starts(&self) -> bool {
        let (world, now) = (&self.life.world, self.life.clock.now());
        let is_old = world.stopped_at.lock().is_some_and(|at| now.since(at).as_millis() as u64 > LONG_AGO_MS);
        match world.bug {
            Some(Bug::ThrottleForgotten) => !self.life.is_shared(),
            Some(Bug::BelieveTheClock) => is_old && !self.life.is_shared(),
            Some(Bug::ThrottlePerNode) => self.life.is_shared(),
            _ => false,
        }
    }

    /// What a planted bug does to the rows between two lives.
    pub(crate) fn bend_between_lives(&self) {
        if !self.life.world.has(Bug::DropOnCrash) {
            return;
        }
        let disk = self.life.world.disk.lock();
        let lost = disk.waiting().find(|record| record.attempt > 0).map(|record| record.job.clone());
        drop(disk);
        if let Some(job) = lost {
            let id = *job.id.as_bytes();
            let live = Key::Scoped(job.lane.as_str().into(), id);
            let ops = vec![Op::Remove(JOBS, Key::Id(id)), Op::Remove(LIVE, live)];
            let unit = entrega_ledger::Unit { when: Vec::new(), ops };
            drop(self.apply(&[Group { fences: Vec::new(), units: vec![unit] }]));
        }
    }
}

/// One operation as the ledger gets it; `None` if it is forgotten.
fn bent_op(bug: Bug, op: Op) -> Option<Op> {
    let Op::Put(table, key, value) = op else { return Some(op) };
    let status = || letter(&value).filter(|_| table == DEAD).map(|dead| dead.status);
    match bug {
        Bug::ForgetHistory if table == HISTORY => None,
        Bug::ForgetOnce if table == IDEMPOTENCY => None,
        Bug::ExpireSilently if table == JOBS && is_end(&value, JobState::Dropped) => Some(Op::Remove(table, key)),
        Bug::ReplayWithoutRemoving if status() == Some(DeadLetterStatus::Replayed) => None,
        Bug::ReplayUncounted if status() == Some(DeadLetterStatus::Pending) => {
            let dead = letter(&value).map(|dead| DeadLetter { generation: dead.generation.saturating_sub(1), ..dead });
            Some(Op::Put(table, key, dead.map_or(value, |dead| json(&dead))))
        }
        Bug::DiscardReturns if status() == Some(DeadLetterStatus::Discarded) => {
            let dead = letter(&value).map(|dead| DeadLetter { status: DeadLetterStatus::Pending, ..dead });
            Some(Op::Put(table, key, dead.map_or(value, |dead| json(&dead))))
        }
        Bug::DiscardForgets if status() == Some(DeadLetterStatus::Discarded) => Some(Op::Remove(table, key)),
        _ => Some(Op::Put(table, key, value)),
    }
}

/// Leaves out that jobs were delivered, and everything that goes with it.
fn forget_ends(ops: &mut Vec<Op>) {
    let ended: Vec<Key> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Put(JOBS, key, value) if is_end(value, JobState::Done) => Some(key.clone()),
            _ => None,
        })
        .collect();
    let is_of_ended = |key: &Key| match key {
        Key::Scoped(_, id) => ended.contains(&Key::Id(*id)),
        key => ended.contains(key),
    };
    ops.retain(|op| !matches!(op, Op::Put(_, key, _) | Op::Remove(_, key) if is_of_ended(key)));
}

fn without_throttle(value: &[u8]) -> Cow<'_, [u8]> {
    let Ok(mut endpoint) = serde_json::from_slice::<serde_json::Value>(value) else { return Cow::Borrowed(value) };
    endpoint["throttle"] = serde_json::Value::Null;
    Cow::Owned(endpoint.to_string().into_bytes())
}

fn json(dead: &DeadLetter) -> Vec<u8> {
    serde_json::to_vec(dead).expect("plain data encodes")
}
