//! Looking at jobs, wherever they stand.
//! Invariant: a listing is ordered by id, newest first, and a page looks at a bounded number of records.

use std::ops::ControlFlow;

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::name::TenantName;
use entrega_core::time::Time;

use super::Shared;
use super::disk::{DiskError, Order, Table};
use super::records::{self, Live, Stored};
use crate::store::paging::{Found, merge};
use crate::store::{JobFilter, JobView, Page, Paged};

/// The most records of one table that a page looks at.
const LOOKED_AT_MAX: usize = 20_000;

/// Turns a record that fits a filter into a row.
type Fits<'a> = &'a dyn Fn(JobId, &[u8]) -> Result<Option<JobView>, DiskError>;

impl Shared {
    pub(super) fn view(&self, id: JobId) -> Result<Option<JobView>, DiskError> {
        if let Some(live) = records::load_live(&*self.disk, id)? {
            return self.view_live(id, live).map(Some);
        }
        if let Some(Stored::Ended(ended)) = records::load_stored(&*self.disk, id)? {
            return Ok(Some(ended.view(id)));
        }
        Ok(records::load_dead(&*self.disk, id)?.map(records::view_of_dead))
    }

    fn state_of(&self, id: JobId, live: &Live) -> (JobState, Time) {
        if live.blocked.is_some() {
            return (JobState::Blocked, live.due);
        }
        let now = self.clock.now();
        let lane = self.lanes.get(&live.lane);
        match lane.and_then(|lane| lane.machine.lock().explain(now, id)) {
            Some(why) => (why.state, why.due),
            // Without a lane it waits; with one, its attempt has ended and the settlement is being written.
            None if lane.is_none() => (JobState::Idle, live.due),
            None => (JobState::Running, live.due),
        }
    }

    fn view_live(&self, id: JobId, live: Live) -> Result<JobView, DiskError> {
        let (state, due) = self.state_of(id, &live);
        let job = self.readable(&id, records::load_job(&*self.disk, id))?.flatten();
        Ok(JobView {
            job_id: id,
            destination: job.as_ref().and_then(records::destination),
            lane: live.lane,
            endpoint: live.tenant.endpoint_name().map(str::to_owned),
            company_id: live.tenant.company(),
            priority: live.priority,
            state,
            reason: live.blocked,
            accepted_at: job.as_ref().map_or_else(|| id.made_at(), |job| job.accepted_at),
            labels: job.map(|job| job.labels).unwrap_or_default(),
            due_at: Some(due),
            expires_at: live.expires.finite(),
            ended_at: None,
            generation: live.generation,
            attempts: self.readable(&id, records::load_history(&*self.disk, id))?.unwrap_or_default(),
            result: None,
        })
    }

    pub(super) fn list(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, DiskError> {
        let is_wanted = |lane: &_, tenant: &TenantName| {
            filter.lane.as_ref().is_none_or(|wanted| wanted == lane)
                && filter.tenant.as_ref().is_none_or(|wanted| tenant.is_of(wanted))
        };
        let in_state = |state: JobState| filter.wants(state);
        let live = self.find(Table::Live, page, &|id, bytes| {
            let live = records::decode::<Live>(Table::Live, bytes)?;
            let fits = is_wanted(&live.lane, &live.tenant) && in_state(self.state_of(id, &live).0);
            fits.then(|| self.view_live(id, live)).transpose()
        })?;
        let ended = self.find(Table::Jobs, page, &|id, bytes| {
            if !records::is_ended(bytes) {
                return Ok(None);
            }
            let ended = records::decode_ended(Table::Jobs, bytes)?;
            let fits = is_wanted(&ended.lane, &ended.tenant) && in_state(ended.state);
            Ok(fits.then(|| ended.view(id)))
        })?;
        let dead = self.find(Table::Dead, page, &|_, bytes| {
            let dead = records::decode_json::<DeadLetter>(Table::Dead, bytes)?;
            let is_at_rest = matches!(dead.status, DeadLetterStatus::Pending | DeadLetterStatus::Discarded);
            let fits = is_at_rest && is_wanted(&dead.lane, &dead.original_data.tenant) && in_state(JobState::Dlq);
            Ok(fits.then(|| records::view_of_dead(dead)))
        })?;
        Ok(merge(vec![live, ended, dead], page.limit, |view| view.job_id))
    }

    fn find(&self, table: Table, page: Page<JobId>, fits: Fits<'_>) -> Result<Found<JobView>, DiskError> {
        let mut found = Found { rows: Vec::new(), searched_to: None };
        let mut looked_at = 0;
        let below = page.after.map(|id| *id.as_bytes());
        self.disk.scan(table, Order::DownFrom(below.as_ref().map(|key| key.as_slice())), &mut |key, bytes| {
            let Some(id) = <[u8; 16]>::try_from(key).ok().map(JobId::from_bytes) else {
                return ControlFlow::Continue(());
            };
            match fits(id, bytes) {
                Ok(row) => found.rows.extend(row),
                Err(error) => self.note_unreadable(table.name(), &error),
            }
            looked_at += 1;
            match found.rows.len() > page.limit || looked_at >= LOOKED_AT_MAX {
                true => {
                    found.searched_to = Some(id);
                    ControlFlow::Break(())
                }
                false => ControlFlow::Continue(()),
            }
        })?;
        Ok(found)
    }
}
