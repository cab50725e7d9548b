//! Reading ahead: what the next jobs carry, read before they are claimed.
//! Invariant: bounded in jobs; what it holds is what the ledger holds, because a record changes only after its job was
//! claimed (taken from here), was put back or has left its lane (forgotten here).
//! Never: is needed; whatever is not here is read from the ledger.
//!
//! From a ledger in this process the neighbours of a claimed job are read with it: jobs are claimed about in the order of
//! their ids, a tenant's certainly so, and one scan of neighbours costs little more than one look-up. From a ledger that is
//! far away, `prefetch` reads in the background what the lane is about to give.

use std::collections::{HashMap, VecDeque};

use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_ledger::{Ledger, Scan};
use parking_lot::Mutex;

use super::reading::ReadError;
use super::records;
use super::tables::JOBS;

/// Neighbours that are read with a job, itself included.
const NEIGHBOURS: usize = 24;
/// No more of them after so many bytes.
const NEIGHBOURS_BYTES: usize = 64 << 10;
/// Jobs kept.
const KEPT_MAX: usize = 1024;
/// What a job carries, as long as none was seen.
const JOB_BYTES: usize = 4096;

pub(super) struct ReadAhead {
    jobs: HashMap<JobId, Job>,
    /// In the order they were read; some have been taken since.
    order: VecDeque<JobId>,
    /// How many records were about to change.
    forgotten: u64,
    /// Whether a read in the background is under way.
    is_reading: bool,
    /// What jobs carry, about.
    job_bytes: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead {
            jobs: HashMap::new(),
            order: VecDeque::new(),
            forgotten: 0,
            is_reading: false,
            job_bytes: JOB_BYTES,
        }
    }
}

/// The job's record from the ledger; those of its neighbours are kept.
pub(super) async fn read(ahead: &Mutex<ReadAhead>, ledger: &dyn Ledger, id: JobId) -> Result<Option<Job>, ReadError> {
    let rows = ledger.scan(JOBS, Scan::UpFrom(id.as_bytes()), NEIGHBOURS, NEIGHBOURS_BYTES).await?;
    let mut rows = rows.iter();
    let Some((_, wanted)) = rows.next().filter(|(key, _)| key == id.as_bytes()) else { return Ok(None) };
    let mut ahead = ahead.lock();
    for (_, neighbour) in rows.filter(|(_, value)| !records::is_ended(value)) {
        // A neighbour that cannot be read is its own claim's concern.
        records::decode_job(neighbour).into_iter().for_each(|job| ahead.keep(job));
    }
    records::decode_job(wanted).map(Some)
}

impl ReadAhead {
    /// The job's record, if it was read ahead.
    pub(super) fn take(&mut self, id: JobId) -> Option<Job> {
        self.jobs.remove(&id)
    }

    /// Whether the job's record is here.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// How many are here.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// The record is about to change, or nobody will ask for it.
    pub(super) fn forget(&mut self, id: JobId) {
        self.forgotten += 1;
        self.jobs.remove(&id);
    }

    /// How often a record was about to change: one that was read before the last time may be old.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Begins a read in the background, unless one is under way.
    pub(super) fn begin_read(&mut self) -> bool {
        !std::mem::replace(&mut self.is_reading, true)
    }

    /// It has ended.
    pub(super) fn end_read(&mut self) {
        self.is_reading = false;
    }

    /// What jobs carry, about.
    pub(super) fn job_bytes(&self) -> usize {
        self.job_bytes
    }

    /// So many jobs carried so many bytes.
    pub(super) fn carried(&mut self, bytes: usize, jobs: usize) {
        if let Some(each) = bytes.checked_div(jobs) {
            self.job_bytes = (self.job_bytes + each) / 2;
        }
    }

    /// Keeps a job's record for its next claim.
    pub(super) fn keep(&mut self, job: Job) {
        while self.order.len() >= KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
        self.order.push_back(job.id);
        self.jobs.insert(job.id, job);
    }
}
