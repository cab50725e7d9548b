//! Room on the disk: what new work may still take.
//! Invariant: whatever is taken has room for its journal, its table and its end, beside what the operator wants free; so what
//! was taken can be delivered and recorded, however full the disk is.
//! Never: refuses what frees room or must be known: settlements, ends, retention.

use std::sync::atomic::Ordering;

use super::Shared;
use super::command::Prepared;
use crate::store::StoreError;

/// A record is written twice: into the journal, and later into a table.
const COPIES: u64 = 2;
/// What the end of a job takes in journal and table, and an attempt or two before it.
const END_BYTES: u64 = 512;
/// Beside its record, of every job: keys, lengths, the index.
const OVERHEAD_BYTES: u64 = 256;
/// With so much free nobody counts what waits.
const PLENTY: u64 = 4 << 30;
/// New work that was refused is taken again when so much is free beyond what must be, so that it is not taken and refused in
/// turns.
const REOPEN_BYTES: u64 = 32 << 20;

/// What one group of new work may take.
pub(super) struct Reserve(Option<u64>);

impl Reserve {
    /// Takes room for jobs; `false`, and nothing is taken, if there is not enough.
    pub(super) fn take(&mut self, jobs: &[Prepared]) -> bool {
        let Some(left) = &mut self.0 else { return true };
        let record = |job: &Prepared| (job.job.len() + job.live.as_ref().map_or(0, Vec::len)) as u64 + OVERHEAD_BYTES;
        let needed: u64 = jobs.iter().map(|job| record(job) * COPIES + END_BYTES).sum();
        match left.checked_sub(needed) {
            Some(rest) => *left = rest,
            None => return false,
        }
        true
    }
}

impl Shared {
    /// Why no new work is taken.
    pub(super) fn no_room(&self) -> StoreError {
        let health = self.ledger.health();
        match health.free_bytes {
            Some(free) => {
                let needed = self.options.free_bytes_min.saturating_add(self.owed(health.reserved_bytes));
                StoreError::DiskFull { free_mib: free >> 20, needed_mib: needed >> 20 }
            }
            None => StoreError::MemoryFull,
        }
    }

    /// What must still be written for what was taken.
    fn owed(&self, by_ledger: u64) -> u64 {
        let waiting: u64 = self.all_owned().map(|lane| u64::from(lane.machine.lock().sizes().waiting())).sum();
        by_ledger + waiting * END_BYTES
    }

    /// Bytes that new work may take; `None` where there is no limit.
    fn room(&self) -> Option<u64> {
        let least = Some(self.options.free_bytes_min).filter(|least| *least > 0)?;
        let health = self.ledger.health();
        let beyond = health.free_bytes?.saturating_sub(least);
        match beyond > PLENTY {
            true => Some(beyond / 2),
            false => Some(beyond.saturating_sub(self.owed(health.reserved_bytes))),
        }
    }

    /// What the next group of new work may take.
    pub(super) fn reserve(&self) -> Reserve {
        Reserve(self.room())
    }

    /// Closes the intake: there is no room for what came.
    pub(super) fn close_intake(&self) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::error!("{}; new work is refused, deliveries go on", self.no_room());
        }
    }

    /// Closes the intake when too little space is free, and opens it again.
    pub(super) fn look_at_space(&self) {
        match self.room() {
            Some(0) => self.close_intake(),
            Some(room) if room < REOPEN_BYTES => {}
            _ => {
                if self.is_full.swap(false, Ordering::Relaxed) {
                    tracing::info!("There is room on the disk again; new work is taken");
                }
            }
        }
    }

    /// Refuses a new record that can wait until there is room.
    pub(super) fn refuse_when_full(&self) -> Result<(), StoreError> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(self.no_room()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use entrega_core::id::JobId;
    use entrega_core::job::Priority;
    use entrega_core::lane::Waiting;
    use entrega_core::name::TenantName;
    use entrega_core::time::Time;

    use super::*;

    fn job(bytes: usize) -> Prepared {
        let waiting = Waiting {
            id: JobId::MIN,
            tenant: TenantName::new("acme").unwrap(),
            priority: Priority::Normal,
            due: Time::ZERO,
            expires: Time::NEVER,
            attempt: 0,
            generation: 0,
            bytes: 0,
        };
        Prepared { waiting, job: vec![0; bytes], live: None, idempotency: Vec::new() }
    }

    /// Free space was looked at once a second: a burst of large jobs met the end of the disk before that.
    #[test]
    fn a_burst_takes_no_more_than_there_is() {
        let mut reserve = Reserve(Some(10_000_000));
        let taken = (0..20).take_while(|_| reserve.take(&[job(1_000_000)])).count();
        assert_eq!(taken, 4, "each is written twice, and needs room for its end");
        assert!(reserve.take(&[job(100)]), "a small one still fits");
        assert!(!reserve.take(&[job(100), job(1_000_000)]), "what comes together is taken together");
        assert!(Reserve(None).take(&[job(1_000_000)]), "where there is no limit, there is none");
    }
}
