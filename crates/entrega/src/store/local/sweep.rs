//! Sweeping: what has been kept long enough leaves, and the free space is looked at.
//! Invariant: a dead letter leaves only after it was written down in the export file of the day (unless that is
//! switched off); one that is being replayed stays.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::time::Time;
use entrega_ledger::{Key, Table, Unit};

use super::Shared;
use super::reading::{From, ReadError, job_of, visit};
use super::records::{self, id_key};
use super::tables::{DEAD, JOBS, MAIL, ONCE};
use crate::store::{StoreError, Swept, export};

/// The most that one sweep takes away.
const SWEPT_MAX: usize = 2_000;
/// The most ended jobs that one sweep looks at.
const LOOKED_AT_MAX: usize = 20_000;

/// What a sweep takes away.
pub(super) struct Chosen {
    pub(super) change: Unit,
    pub(super) swept: Swept,
    /// Submissions that may happen again. Callers may hand them in at any time, so the writer looks once more.
    pub(super) remembered: Vec<(Time, String)>,
}

impl Shared {
    pub(super) fn disk_full(&self) -> StoreError {
        let free = self.ledger.health().free_bytes.unwrap_or(0);
        StoreError::DiskFull { free_mib: free >> 20, needed_mib: self.options.free_bytes_min >> 20 }
    }

    /// Closes the intake when too little space is free, and opens it again.
    pub(super) fn look_at_space(&self) {
        let is_full = self.ledger.health().free_bytes.is_some_and(|free| free < self.options.free_bytes_min);
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            match is_full {
                true => tracing::error!("{}; new work is refused, deliveries go on", self.disk_full()),
                false => tracing::info!("There is room on the disk again; new work is taken"),
            }
        }
    }

    pub(super) async fn choose_sweep(&self) -> Result<Chosen, StoreError> {
        self.look_at_space();
        let mut change = Unit::default();
        let jobs = self.choose_ended(&mut change).await?;
        let dead_letters = self.choose_dead(&mut change).await?;
        for (expires, key) in self.expired(MAIL).await? {
            change.remove(MAIL, Key::Text(records::expiry_key(expires, &key)));
            change.remove(MAIL, Key::Text(key));
        }
        Ok(Chosen { change, swept: Swept { jobs, dead_letters }, remembered: self.expired(ONCE).await? })
    }

    /// Ids sort by the time they were made, so nothing made within the retention time need be looked at. Each sweep goes
    /// on where the last one stopped: jobs that wait for long must not hide the ended ones behind them.
    async fn choose_ended(&self, change: &mut Unit) -> Result<usize, ReadError> {
        let keep_since = self.clock.now() - self.options.retention;
        let mut looked_at = 0;
        let before = change.ops.len();
        let from = std::mem::replace(&mut *self.sweep_from.lock(), JobId::MIN);
        // Mostly the first row is too young to be looked at.
        visit(&*self.ledger, JOBS, From::Up(from.as_bytes().to_vec()), 1, |key, bytes| {
            let Some(id) = job_of(key) else { return ControlFlow::Continue(()) };
            if id.made_at() >= keep_since {
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX || change.ops.len() - before >= SWEPT_MAX {
                *self.sweep_from.lock() = id;
                return ControlFlow::Break(());
            }
            if records::is_ended(bytes) {
                match records::decode_ended(JOBS, bytes) {
                    Ok(ended) if ended.ended_at < keep_since => change.remove(JOBS, id_key(id)),
                    Ok(_) => {}
                    Err(error) => self.note_unreadable("ended", &error),
                }
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(change.ops.len() - before)
    }

    /// Records whose moment has passed, with the row that says so.
    async fn expired(&self, table: Table) -> Result<Vec<(Time, String)>, ReadError> {
        let now = self.clock.now();
        let mut found = Vec::new();
        visit(&*self.ledger, table, From::Up(records::EXPIRY.into()), 1, |row, _| {
            let expired = records::expired_key(row).filter(|(expires, _)| found.len() < SWEPT_MAX && *expires <= now);
            let Some((expires, key)) = expired else { return ControlFlow::Break(()) };
            found.push((expires, key.to_owned()));
            ControlFlow::Continue(())
        })
        .await?;
        Ok(found)
    }

    async fn choose_dead(&self, change: &mut Unit) -> Result<Vec<(DeadLetter, &'static str)>, StoreError> {
        let mut leaving = Vec::new();
        for (id, why) in self.dead_to_leave() {
            match records::load_dead(&*self.ledger, id).await {
                Ok(Some(dead)) => leaving.push((dead, why)),
                Ok(None) => self.dead.lock().remove(id),
                Err(error) => self.note_unreadable("dead", &error),
            }
        }
        if let Some(dir) = &self.options.export_dir
            && !leaving.is_empty()
        {
            export::write_down(dir, self.clock.now(), leaving.iter().map(|(dead, _)| dead))?;
        }
        for (dead, _) in &leaving {
            self.dead.lock().remove(dead.job_id);
            change.remove(DEAD, id_key(dead.job_id));
        }
        Ok(leaving)
    }

    /// Entries past their TTL or past their lane's cap, oldest first.
    fn dead_to_leave(&self) -> Vec<(JobId, &'static str)> {
        let now = self.clock.now();
        let index = self.dead.lock();
        let mut leaving = Vec::new();
        for (lane, marks, count) in index.lanes() {
            let cap = self.lanes.get(lane).map_or(u32::MAX, |lane| lane.policy.dead_letters.cap) as usize;
            let mut over = count.saturating_sub(cap);
            for (id, mark) in marks {
                let why = match () {
                    _ if mark.status == DeadLetterStatus::Replaying => continue,
                    _ if mark.expires_at <= now => "ttl",
                    _ if over > 0 => "cap",
                    _ => break,
                };
                over = over.saturating_sub(1);
                leaving.push((id, why));
                if leaving.len() == SWEPT_MAX {
                    return leaving;
                }
            }
        }
        leaving
    }
}
