//! Reading ahead: what the next jobs carry, at hand before they are claimed.
//! Invariant: bounded in jobs, and what was kept at intake in bytes; what it holds is what the ledger holds, because a
//! record changes only after its job was claimed (taken from here), was put back or has left its lane (forgotten here).
//! Never: is needed; whatever is not here is read from the ledger.
//!
//! From a ledger in this process the neighbours of a claimed job are read with it: jobs are claimed about in the order of
//! their ids, a tenant's certainly so, and one scan of neighbours costs little more than one look-up. What goes to a ledger
//! that is far away is kept here as it is written, while there is room: most jobs are attempted a moment after they came.
//! The rest `prefetch` reads in the background when the lane is about to give it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_ledger::{Ledger, Scan};
use foldhash::fast::RandomState;
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
/// What records of all lanes together may take that were kept as they were written.
const WRITTEN_BYTES_MAX: usize = 128 << 20;
/// What one takes beside its bytes, about.
const WRITTEN_OVERHEAD: usize = 128;

/// The bytes that records of all lanes may still take.
#[derive(Clone)]
pub(super) struct WrittenRoom(Arc<AtomicUsize>);

impl WrittenRoom {
    /// Room for what is written to a ledger that is far away. One in this process needs none: it has what was written last
    /// in memory itself.
    pub(super) fn new(is_far: bool) -> WrittenRoom {
        WrittenRoom(Arc::new(AtomicUsize::new(if is_far { WRITTEN_BYTES_MAX } else { 0 })))
    }

    fn take(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

pub(super) struct ReadAhead {
    jobs: HashMap<JobId, Job, RandomState>,
    /// Records as they were written, of jobs that nobody has claimed yet.
    written: HashMap<JobId, Bytes, RandomState>,
    room: WrittenRoom,
    /// So many of the next jobs were found here, less those that were taken since.
    expected: usize,
    /// In the order they were read; some have been taken since.
    order: VecDeque<JobId>,
    /// How many records were about to change.
    forgotten: u64,
    /// Whether a read in the background is under way.
    is_reading: bool,
    /// What jobs carry, about.
    job_bytes: usize,
}

/// The job's record from the ledger; those of its neighbours are kept.
pub(super) async fn read(ahead: &Mutex<ReadAhead>, ledger: &dyn Ledger, id: JobId) -> Result<Option<Job>, ReadError> {
    let rows = ledger.scan(JOBS, Scan::UpFrom(id.as_bytes()), NEIGHBOURS, NEIGHBOURS_BYTES).await?;
    let mut rows = rows.into_shared();
    let Some((_, wanted)) = rows.next().filter(|(key, _)| **key == id.as_bytes()[..]) else { return Ok(None) };
    let mut ahead = ahead.lock();
    for (_, neighbour) in rows.filter(|(_, value)| !records::is_ended(value)) {
        // A neighbour that cannot be read is its own claim's concern.
        records::decode_job(&neighbour).into_iter().for_each(|job| ahead.keep(job));
    }
    records::decode_job(&wanted).map(Some)
}

impl ReadAhead {
    pub(super) fn new(room: WrittenRoom) -> ReadAhead {
        ReadAhead {
            jobs: HashMap::default(),
            written: HashMap::default(),
            room,
            expected: 0,
            order: VecDeque::new(),
            forgotten: 0,
            is_reading: false,
            job_bytes: JOB_BYTES,
        }
    }

    /// The job's record, if it is here.
    pub(super) fn take(&mut self, id: JobId) -> Option<Job> {
        self.expected = self.expected.saturating_sub(1);
        match self.remove_written(id) {
            Some(record) => records::decode_job(&record).ok(),
            None => self.jobs.remove(&id),
        }
    }

    /// Whether the job's record is here.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.written.contains_key(&id) || self.jobs.contains_key(&id)
    }

    /// How many of the next jobs are here, by what the last look found.
    pub(super) fn expected(&self) -> usize {
        self.expected
    }

    /// So many of the next jobs were found here.
    pub(super) fn expect(&mut self, jobs: usize) {
        self.expected = jobs;
    }

    /// Keeps the record of a new job as it is written, if there is room.
    pub(super) fn keep_written(&mut self, id: JobId, record: &[u8]) {
        self.remove_written(id);
        if self.room.take(record.len() + WRITTEN_OVERHEAD) {
            self.written.insert(id, Bytes::copy_from_slice(record));
        }
    }

    fn remove_written(&mut self, id: JobId) -> Option<Bytes> {
        let record = self.written.remove(&id)?;
        self.room.give_back(record.len() + WRITTEN_OVERHEAD);
        Some(record)
    }

    /// The record is about to change, or nobody will ask for it.
    pub(super) fn forget(&mut self, id: JobId) {
        self.forgotten += 1;
        self.remove_written(id);
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

/// A lane that is somebody else's leaves its room to others.
impl Drop for ReadAhead {
    fn drop(&mut self) {
        let bytes = self.written.values().map(|record| record.len() + WRITTEN_OVERHEAD);
        self.room.give_back(bytes.sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    #[test]
    fn records_are_kept_while_there_is_room_and_leave_it_to_others() {
        let room = WrittenRoom(Arc::new(AtomicUsize::new(2 * (WRITTEN_OVERHEAD + 10))));
        let (mut one, mut other) = (ReadAhead::new(room.clone()), ReadAhead::new(room.clone()));
        one.keep_written(id(1), &[0; 10]);
        one.keep_written(id(1), &[0; 10]);
        other.keep_written(id(2), &[0; 10]);
        other.keep_written(id(3), &[0; 10]);
        assert_eq!((one.has(id(1)), other.has(id(2)), other.has(id(3))), (true, true, false));
        one.forget(id(1));
        other.keep_written(id(3), &[0; 10]);
        assert!(!one.has(id(1)) && other.has(id(3)));
        drop(other.take(id(2)));
        drop(other);
        assert_eq!(room.0.load(Ordering::Relaxed), 2 * (WRITTEN_OVERHEAD + 10), "all of it is free again");
    }

    #[test]
    fn a_ledger_in_this_process_needs_none() {
        let mut ahead = ReadAhead::new(WrittenRoom::new(false));
        ahead.keep_written(id(1), &[0; 10]);
        assert!(!ahead.has(id(1)));
    }
}
