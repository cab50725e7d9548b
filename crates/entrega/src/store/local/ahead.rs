//! Reading ahead: what the next jobs carry, read in one go with the one that is claimed now.
//! Invariant: bounded in jobs and bytes; what it holds is what the disk holds, because a record changes only after its
//! job was claimed (taken from here) or was put back (forgotten here).
//! Never: is needed; whatever is not here is read from the disk.
//!
//! Jobs are claimed about in the order of their ids, a tenant's certainly so. One scan of neighbours costs little more
//! than one look-up, and saves the look-ups of those that follow.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;

use entrega_core::id::JobId;
use entrega_core::job::Job;

use super::disk::{Disk, DiskError, Order, Table};
use super::records;

/// Jobs read with the one that is wanted.
const AHEAD_JOBS: usize = 24;
/// The scan ends after so many bytes.
const AHEAD_BYTES: usize = 64 << 10;
/// Jobs kept.
const KEPT_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Ahead {
    jobs: HashMap<JobId, Job>,
    /// In the order they were read; some have been taken since.
    order: VecDeque<JobId>,
}

impl Ahead {
    /// The job's record, from here or from the disk.
    pub(super) fn take(&mut self, disk: &dyn Disk, id: JobId) -> Result<Option<Job>, DiskError> {
        match self.jobs.remove(&id) {
            Some(job) => Ok(Some(job)),
            None => self.read(disk, id),
        }
    }

    /// The record is about to change.
    pub(super) fn forget(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }

    fn read(&mut self, disk: &dyn Disk, wanted: JobId) -> Result<Option<Job>, DiskError> {
        let mut found = None;
        let (mut jobs, mut bytes) = (0, 0);
        disk.scan(Table::Jobs, Order::UpFrom(wanted.as_bytes()), &mut |key, value| {
            let is_wanted = key == wanted.as_bytes();
            if found.is_none() && !is_wanted {
                return ControlFlow::Break(());
            }
            jobs += 1;
            bytes += value.len();
            if is_wanted {
                found = Some(records::decode_job(value));
            } else if !records::is_ended(value) {
                // A neighbour that cannot be read is its own claim's concern.
                self.keep(records::decode_job(value).ok());
            }
            match jobs < AHEAD_JOBS && bytes < AHEAD_BYTES {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        found.transpose()
    }

    fn keep(&mut self, job: Option<Job>) {
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
