//! Prefetch: what the next jobs of a lane carry, read in the background from a ledger that takes long to answer.
//! Invariant: one read of a lane is under way at a time, bounded in jobs and, by what jobs carried so far, in bytes; what
//! is kept is what the ledger holds.
//! Never: is needed; whatever was claimed and is not here is read by its claim.

use std::sync::Arc;

use entrega_core::id::JobId;

use super::Shared;
use super::lanes::OwnedLane;
use super::read_ahead::ReadAhead;
use super::records;
use super::tables::JOBS;

/// The most jobs that one read asks for.
const JOBS_MAX: usize = 256;
/// And the fewest, however much each carries.
const JOBS_MIN: usize = 8;
/// About how many bytes one read may give.
const BYTES_MAX: usize = 512 << 10;

impl ReadAhead {
    /// How many jobs the next read asks for, by what those before it carried.
    fn at_once(&self) -> usize {
        (BYTES_MAX / self.job_bytes().max(1)).clamp(JOBS_MIN, JOBS_MAX)
    }
}

impl Shared {
    /// Reads what the next jobs carry, if so few of them are at hand that a claim may soon have to wait.
    pub(super) fn prefetch(self: &Arc<Self>, lane: &Arc<OwnedLane>) {
        let at_once = {
            let mut ahead = lane.read_ahead.lock();
            let at_once = ahead.at_once();
            if ahead.expected() >= at_once || !ahead.begin_read() {
                return;
            }
            at_once
        };
        let upcoming = lane.machine.lock().upcoming(at_once * 2);
        let (wanted, forgotten) = {
            let mut ahead = lane.read_ahead.lock();
            let mut wanted: Vec<JobId> = upcoming.iter().filter(|id| !ahead.has(**id)).copied().collect();
            ahead.expect(upcoming.len() - wanted.len());
            wanted.truncate(at_once);
            if wanted.is_empty() {
                ahead.end_read();
                return;
            }
            (wanted, ahead.forgotten())
        };
        tokio::spawn(read(self.clone(), lane.clone(), wanted, forgotten));
    }
}

async fn read(shared: Arc<Shared>, lane: Arc<OwnedLane>, wanted: Vec<JobId>, forgotten: u64) {
    let found = shared.read_ids(JOBS, &wanted).await.unwrap_or_default();
    let mut jobs = Vec::with_capacity(found.len());
    let mut bytes = 0;
    for value in found.iter().flatten().filter(|value| !records::is_ended(value)) {
        bytes += value.len();
        // One that cannot be read is its own claim's concern.
        jobs.extend(records::decode_job(value).ok());
    }
    let machine = lane.machine.lock();
    // One that was claimed meanwhile was read by its claim.
    jobs.retain(|job| machine.is_waiting(job.id));
    drop(machine);
    let mut ahead = lane.read_ahead.lock();
    ahead.end_read();
    // A record that has changed since it was read must not be taken for what the ledger holds.
    if ahead.forgotten() == forgotten {
        ahead.carried(bytes, found.len());
        let here = ahead.expected();
        ahead.expect(here + jobs.len());
        jobs.into_iter().for_each(|job| ahead.keep(job));
    }
}
