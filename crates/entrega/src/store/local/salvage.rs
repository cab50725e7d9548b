//! Salvage: what can be read of a damaged store goes into a new one, and its indexes are made anew.
//! Invariant: whatever job can be read and has not ended waits again; whatever cannot is named.
//! Never: changes the damaged store.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::Attempt;
use entrega_ledger::{Group, Key, Ledger, LedgerError, LsmLedger, Room, Salvaged, Scrubbed, Unit, salvage};

use super::dead::mark_key;
use super::dead_index::DeadMark;
use super::reading::{From, PAGE_ROWS, ReadError, job_of, visit};
use super::records::{self, Live, Stored};
use super::tables::{DEAD, HISTORY, JOBS, LIVE, MARKS, TABLES, id_key};

/// Changes that are written together.
const TOGETHER: usize = 500;

/// What a salvage came to.
#[derive(Clone, Debug, Default)]
pub struct SalvageReport {
    /// What was read, and the places that could not be.
    pub ledger: Salvaged,
    /// Jobs that wait in the new store.
    pub waiting: u64,
    /// Ended jobs in it.
    pub ended: u64,
    /// Dead letters in it.
    pub dead: u64,
    /// Entries of indexes that had to be made anew.
    pub reindexed: u64,
    /// Jobs that are known to have been there, and whose record cannot be read.
    pub lost: Vec<JobId>,
}

impl SalvageReport {
    /// Whether everything could be read.
    pub fn is_whole(&self) -> bool {
        self.ledger.damaged.is_empty() && self.lost.is_empty()
    }
}

/// Reads what can be read in the data directory `from` into a new one.
pub async fn salvage_store(from: &Path, to: &Path) -> Result<SalvageReport, ReadError> {
    let (saved, ledger) = salvage(from, to, &TABLES)?;
    let mut report = SalvageReport { ledger, ..SalvageReport::default() };
    let mut lost = BTreeSet::new();
    let mut units = index_jobs(&saved, &mut report, &mut lost).await?;
    units.extend(index_dead(&saved, &mut report, &mut lost).await?);
    units.extend(drop_orphans(&saved, &mut report, &mut lost).await?);
    let hit: Vec<JobId> = report.ledger.hit.iter().map(|id| JobId::from_bytes(*id)).collect();
    let keys: Vec<Key> = hit.iter().map(|id| id_key(*id)).collect();
    let (jobs, dead) = (saved.read(JOBS, &keys).await?, saved.read(DEAD, &keys).await?);
    let found = jobs.into_iter().zip(dead).map(|(job, dead)| job.is_some() || dead.is_some());
    lost.extend(hit.into_iter().zip(found).filter(|(_, is_found)| !is_found).map(|(id, _)| id));
    report.lost = lost.into_iter().collect();
    for some in units.chunks(TOGETHER) {
        saved.write(&[Group { fences: Vec::new(), units: some.to_vec() }], Room::Must).await?;
    }
    Ok(report)
}

/// Reads all tables of a store that nobody has open, and says which are not as they were written.
pub fn scrub_store(data: &Path) -> Result<Scrubbed, LedgerError> {
    LsmLedger::open(data, &TABLES)?.scrub()
}

/// Jobs that wait and have no index entry get one.
async fn index_jobs(
    saved: &LsmLedger,
    report: &mut SalvageReport,
    lost: &mut BTreeSet<JobId>,
) -> Result<Vec<Unit>, ReadError> {
    let mut jobs = Vec::new();
    visit(saved, JOBS, From::Up(Vec::new()), PAGE_ROWS, |key, bytes| {
        let Some(id) = job_of(key) else { return ControlFlow::Continue(()) };
        match records::decode_stored(&Bytes::copy_from_slice(bytes)) {
            Ok(Stored::Job(job)) => jobs.push((id, Live::of(&job))),
            Ok(Stored::Ended(_)) => report.ended += 1,
            Err(_) => drop(lost.insert(id)),
        }
        ControlFlow::Continue(())
    })
    .await?;
    let mut units = Vec::new();
    for some in jobs.chunks(TOGETHER) {
        let keys = |key: &dyn Fn(&(JobId, Live)) -> Key| some.iter().map(key).collect::<Vec<_>>();
        let live_key = |(id, live): &(JobId, Live)| Key::Scoped(live.lane.as_str().into(), *id.as_bytes());
        let entries = saved.read(LIVE, &keys(&live_key)).await?;
        let histories = saved.read(HISTORY, &keys(&|(id, _)| id_key(*id))).await?;
        for ((job, entry), history) in some.iter().zip(entries).zip(histories) {
            report.waiting += 1;
            if entry.is_some_and(|bytes| records::decode::<Live>(LIVE, &bytes).is_ok()) {
                continue;
            }
            let attempts = history.and_then(|bytes| records::decode::<Vec<Attempt>>(HISTORY, &bytes).ok());
            let attempt = attempts.and_then(|attempts| attempts.last().map(|last| last.number)).unwrap_or(0);
            let live = Live { attempt: attempt.try_into().unwrap_or(u16::MAX), ..job.1.clone() };
            let mut unit = Unit::default();
            unit.put(LIVE, live_key(job), records::encode(&live));
            units.push(unit);
            report.reindexed += 1;
        }
    }
    Ok(units)
}

/// Dead letters without a mark get one.
async fn index_dead(
    saved: &LsmLedger,
    report: &mut SalvageReport,
    lost: &mut BTreeSet<JobId>,
) -> Result<Vec<Unit>, ReadError> {
    let mut marks = Vec::new();
    visit(saved, DEAD, From::Up(Vec::new()), PAGE_ROWS, |key, bytes| {
        match (job_of(key), records::decode_json::<DeadLetter>(DEAD, bytes)) {
            (Some(_), Ok(dead)) => {
                let key = mark_key(dead.lane.as_str(), (dead.moved_to_dlq_at, dead.job_id));
                marks.push((key, DeadMark::of(&dead)));
            }
            (Some(id), Err(_)) => drop(lost.insert(id)),
            (None, _) => {}
        }
        ControlFlow::Continue(())
    })
    .await?;
    report.dead = marks.len() as u64;
    let keys: Vec<Key> = marks.iter().map(|(key, _)| Key::Text(key.clone())).collect();
    let found = saved.read(MARKS, &keys).await?;
    let missing = marks.into_iter().zip(found).filter(|(_, found)| found.is_none());
    let units: Vec<Unit> = missing
        .map(|((key, mark), _)| {
            let mut unit = Unit::default();
            unit.put(MARKS, Key::Text(key), records::encode(&mark));
            unit
        })
        .collect();
    report.reindexed += units.len() as u64;
    Ok(units)
}

/// Index entries of jobs that are gone name what is lost, and leave.
async fn drop_orphans(
    saved: &LsmLedger,
    report: &mut SalvageReport,
    lost: &mut BTreeSet<JobId>,
) -> Result<Vec<Unit>, ReadError> {
    let mut entries = Vec::new();
    visit(saved, LIVE, From::Up(Vec::new()), PAGE_ROWS, |key, _| {
        let split = key.iter().position(|byte| *byte == 0).map(|at| key.split_at(at));
        if let Some((lane, id)) = split
            && let (Ok(lane), Some(id)) = (std::str::from_utf8(lane), job_of(&id[1..]))
        {
            entries.push((lane.to_owned(), id));
        }
        ControlFlow::Continue(())
    })
    .await?;
    let mut units = Vec::new();
    for some in entries.chunks(TOGETHER) {
        let keys: Vec<Key> = some.iter().map(|(_, id)| id_key(*id)).collect();
        let (jobs, dead) = (saved.read(JOBS, &keys).await?, saved.read(DEAD, &keys).await?);
        for (((lane, id), job), dead) in some.iter().zip(jobs).zip(dead) {
            if job.as_ref().is_some_and(|bytes| !records::is_ended(bytes)) || dead.is_some() {
                continue;
            }
            if job.is_none() {
                lost.insert(*id);
            }
            let mut unit = Unit::default();
            unit.remove(LIVE, Key::Scoped(lane.as_str().into(), *id.as_bytes()));
            units.push(unit);
            report.reindexed += 1;
        }
    }
    Ok(units)
}
