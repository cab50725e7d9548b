//! Reading ahead: what the next jobs carry, read in one go with the one that is claimed now.
//! Invariant: bounded in jobs and bytes; what it holds is what the ledger holds, because a record changes only after its
//! job was claimed (taken from here) or was put back (forgotten here).
//! Never: is needed; whatever is not here is read from the ledger.
//!
//! Jobs are claimed about in the order of their ids, a tenant's certainly so. One scan of neighbours costs little more
//! than one look-up, and saves the look-ups of those that follow.

use std::collections::{HashMap, VecDeque};

use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_ledger::{Ledger, Scan};
use parking_lot::Mutex;

use super::reading::ReadError;
use super::records;
use super::tables::JOBS;

/// How much is read with the job that is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    jobs: usize,
    bytes: usize,
}

impl Ahead {
    /// Of a ledger in this process: a few rows cost little more than one.
    pub(super) const HERE: Ahead = Ahead { jobs: 24, bytes: 64 << 10 };
    /// Of one on a server: the way there costs more than the rows.
    pub(super) const THERE: Ahead = Ahead { jobs: 192, bytes: 512 << 10 };
}

/// Jobs kept.
const KEPT_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct ReadAhead {
    jobs: HashMap<JobId, Job>,
    /// In the order they were read; some have been taken since.
    order: VecDeque<JobId>,
}

/// The job's record from the ledger; those of its neighbours are kept.
pub(super) async fn read(
    ahead: &Mutex<ReadAhead>,
    ledger: &dyn Ledger,
    id: JobId,
    much: Ahead,
) -> Result<Option<Job>, ReadError> {
    let rows = ledger.scan(JOBS, Scan::UpFrom(id.as_bytes()), much.jobs, much.bytes).await?;
    let mut rows = rows.iter();
    let Some((_, wanted)) = rows.next().filter(|(key, _)| key == id.as_bytes()) else { return Ok(None) };
    let mut ahead = ahead.lock();
    for (_, neighbour) in rows.filter(|(_, value)| !records::is_ended(value)) {
        // A neighbour that cannot be read is its own claim's concern.
        ahead.keep(records::decode_job(neighbour).ok());
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

    /// The record is about to change.
    pub(super) fn forget(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }

    /// Keeps a job's record for its next claim.
    pub(super) fn keep(&mut self, job: Option<Job>) {
        let Some(job) = job else { return };
        if self.order.len() >= KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.jobs.remove(&oldest);
        }
        self.order.push_back(job.id);
        self.jobs.insert(job.id, job);
    }
}
