//! Looking at jobs, wherever they stand.
//! Invariant: a listing is ordered by id, newest first, and a page looks at a bounded number of records.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use entrega_ledger::{Key, Table};

use super::Shared;
use super::reading::{From, PAGE_ROWS, ReadError, job_of, visit};
use super::records::{self, Ended, Live, Stored};
use super::tables::{DEAD, HISTORY, JOBS, LIVE};
use crate::store::paging::{Found, PAGE_BYTES_MAX, merge};
use crate::store::{JobFilter, JobView, Page, Paged};

/// The most records of one table, or of one lane in the index, that a page looks at.
const LOOKED_AT_MAX: usize = 20_000;
/// Said of a job that was given another's answer, once that is not kept any more.
const ANSWER_GONE: &str = "it was given a cached answer, which is not kept any more";
/// How often a job is looked for that moves while it is looked at.
const LOOKS_MAX: usize = 3;

/// Turns a record that fits a filter into a row.
type Fits<'a, T> = &'a (dyn Fn(JobId, &[u8]) -> Result<Option<T>, ReadError> + Sync);

impl Shared {
    pub(super) async fn view(&self, id: JobId) -> Result<Option<JobView>, ReadError> {
        for _ in 0..LOOKS_MAX {
            let stored = match self.readable(&id, records::load_stored(&*self.ledger, id).await)? {
                Some(stored) => stored,
                None => match self.find_live_anywhere(id).await? {
                    Some(live) => return self.view_live(id, live, None).await.map(Some),
                    None => None,
                },
            };
            let job = match stored {
                Some(Stored::Ended(ended)) => {
                    let mut views = [ended.view(id)];
                    self.fill_answers(&mut views).await?;
                    return Ok(views.into_iter().next());
                }
                Some(Stored::Job(job)) => job,
                None => return Ok(records::load_dead(&*self.ledger, id).await?.map(records::view_of_dead)),
            };
            let live_key = Key::Scoped(job.lane.as_str().into(), *id.as_bytes());
            if let Some(live) = records::load_live(&*self.ledger, live_key).await? {
                return self.view_live(id, live, Some(job)).await.map(Some);
            }
            // It ended between the two looks.
        }
        Ok(None)
    }

    /// The index entry of a job that has not ended.
    pub(super) async fn find_live(&self, id: JobId) -> Result<Option<Live>, ReadError> {
        match self.readable(&id, records::load_stored(&*self.ledger, id).await)? {
            Some(Some(Stored::Job(job))) => {
                let live_key = Key::Scoped(job.lane.as_str().into(), *id.as_bytes());
                records::load_live(&*self.ledger, live_key).await
            }
            Some(_) => Ok(None),
            None => self.find_live_anywhere(id).await,
        }
    }

    /// The same for a job whose record does not say in which lane it is.
    async fn find_live_anywhere(&self, id: JobId) -> Result<Option<Live>, ReadError> {
        let scopes: Vec<Arc<str>> = self.scopes.read().clone();
        let keys: Vec<Key> = scopes.into_iter().map(|scope| Key::Scoped(scope, *id.as_bytes())).collect();
        let found = self.ledger.read(LIVE, &keys).await?.into_iter().flatten().next();
        found.map(|bytes| records::decode(LIVE, &bytes)).transpose()
    }

    fn state_of(&self, id: JobId, live: &Live) -> (JobState, Time) {
        if live.blocked.is_some() {
            return (JobState::Blocked, live.due);
        }
        let now = self.clock.now();
        let lane = self.owned(&live.lane);
        match lane.as_ref().and_then(|lane| lane.machine.lock().explain(now, id)) {
            Some(why) => (why.state, why.due),
            // Its attempt has ended, and the settlement is being written.
            None if lane.is_some() => (JobState::Running, live.due),
            // Another node's: what its entry says. Whether it runs just now, its owner knows.
            None if live.attempt > 0 => (JobState::RetryWait, live.due),
            None if live.generation > 0 => (JobState::Replaying, live.due),
            None if live.due > now || !self.lanes.contains_key(&live.lane) => (JobState::Idle, live.due),
            None if self.registered.read().is_paused(&live.lane) => (JobState::Idle, live.due),
            None => (JobState::Queued, live.due),
        }
    }

    async fn view_live(&self, id: JobId, live: Live, job: Option<Job>) -> Result<JobView, ReadError> {
        let attempts = self.readable(&id, records::load_history(&*self.ledger, id).await)?.unwrap_or_default();
        Ok(self.view_of(id, live, job, attempts))
    }

    fn view_of(&self, id: JobId, live: Live, job: Option<Job>, attempts: Vec<Attempt>) -> JobView {
        let (state, due) = self.state_of(id, &live);
        JobView {
            job_id: id,
            destination: job.as_ref().and_then(|job| job.destination.clone()),
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
            attempts,
            result: None,
        }
    }

    pub(super) async fn list(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, ReadError> {
        let is_wanted = |lane: &_, tenant: &TenantName| {
            filter.lane.as_ref().is_none_or(|wanted| wanted == lane)
                && filter.tenant.as_ref().is_none_or(|wanted| tenant.is_of(wanted))
        };
        let in_state = |state: JobState| filter.wants(state);
        let mut found = Vec::new();
        let scopes: Vec<Arc<str>> = match &filter.lane {
            Some(lane) => vec![lane.as_str().into()],
            None => self.scopes.read().clone(),
        };
        for scope in scopes {
            let fits = |id: JobId, bytes: &[u8]| {
                let live = records::decode::<Live>(LIVE, bytes)?;
                let fits = is_wanted(&live.lane, &live.tenant) && in_state(self.state_of(id, &live).0);
                Ok(fits.then_some((id, live)))
            };
            let live = self.find(LIVE, Key::prefix(&scope), page, &fits).await?;
            found.push(self.views_of(live).await?);
        }
        let ended = |id: JobId, bytes: &[u8]| {
            if !records::is_ended(bytes) {
                return Ok(None);
            }
            let ended = records::decode_ended(JOBS, bytes)?;
            let fits = is_wanted(&ended.lane, &ended.tenant) && in_state(ended.state);
            Ok(fits.then(|| ended.view(id)))
        };
        found.push(self.find(JOBS, Vec::new(), page, &ended).await?);
        let dead = |_: JobId, bytes: &[u8]| {
            let dead = records::decode_json::<DeadLetter>(DEAD, bytes)?;
            let is_at_rest = matches!(dead.status, DeadLetterStatus::Pending | DeadLetterStatus::Discarded);
            let fits = is_at_rest && is_wanted(&dead.lane, &dead.original_data.tenant) && in_state(JobState::Dlq);
            Ok(fits.then(|| records::view_of_dead(dead)))
        };
        found.push(self.find(DEAD, Vec::new(), page, &dead).await?);
        let mut paged = merge(found, page.limit, |view: &JobView| view.job_id);
        let filled = self.fill_answers(&mut paged.items).await?;
        if filled < paged.items.len() {
            paged.items.truncate(filled);
            paged.next = paged.items.last().map(|view| view.job_id);
        }
        Ok(paged)
    }

    /// Gives views the bodies that their records do not hold because they are other jobs' answers; how many views can be
    /// shown before they carry too much, at least one.
    async fn fill_answers(&self, views: &mut [JobView]) -> Result<usize, ReadError> {
        let source = |view: &JobView| view.result.as_ref()?.source.clone();
        let mut jobs: Vec<JobId> = views.iter().filter_map(source).map(|source| source.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut bodies = HashMap::new();
        for (job, found) in jobs.iter().zip(self.read_ids(JOBS, &jobs).await?) {
            let stored = found.map(|bytes| records::decode_stored(&bytes)).transpose();
            if let Some(Stored::Ended(Ended { answer: Some(answer), .. })) = self.readable(job, stored)?.flatten() {
                bodies.insert(*job, answer.body);
            }
        }
        let mut bytes = 0;
        for (number, view) in views.iter_mut().enumerate() {
            let Some(source) = source(view) else { continue };
            let body = match bodies.get(&source.job) {
                Some(body) => Some(body.clone()),
                // Its own job has not ended yet, or is forgotten.
                None => self
                    .cached_answer(&source.key)
                    .await?
                    .filter(|kept| kept.job == source.job)
                    .map(|kept| kept.answer.body),
            };
            bytes += body.as_ref().map_or(0, |body| body.0.len());
            if bytes > PAGE_BYTES_MAX && number > 0 {
                return Ok(number);
            }
            match body {
                Some(body) => view.result.iter_mut().for_each(|result| result.body = body.clone()),
                None => (view.result, view.reason) = (None, Some(ANSWER_GONE.to_owned())),
            }
        }
        Ok(views.len())
    }

    /// Blocked jobs, from the index alone.
    pub(super) async fn blocked(
        &self,
        lane: &LaneName,
        page: Page<JobId>,
    ) -> Result<Paged<(JobId, TenantName), JobId>, ReadError> {
        let prefix = Key::prefix(lane.as_str());
        let from = match page.after {
            Some(id) => [&*prefix, id.as_bytes(), &[0]].concat(),
            None => prefix.clone(),
        };
        let (mut found, mut looked_at) = (Paged { items: Vec::new(), next: None }, 0);
        visit(&*self.ledger, LIVE, From::Up(from), PAGE_ROWS, |key, bytes| {
            let Some(id) = key.strip_prefix(&*prefix).map(job_of) else { return ControlFlow::Break(()) };
            let Some(id) = id else { return ControlFlow::Continue(()) };
            match records::decode::<Live>(LIVE, bytes) {
                Ok(live) if live.blocked.is_some() => found.items.push((id, live.tenant)),
                Ok(_) => {}
                Err(error) => self.note_unreadable(LIVE.name, &error),
            }
            looked_at += 1;
            if found.items.len() >= page.limit || looked_at >= LOOKED_AT_MAX {
                found.next = Some(id);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(found)
    }

    /// The rows of jobs that have not ended, with what they carry and their attempts.
    async fn views_of(&self, live: Found<(JobId, Live)>) -> Result<Found<JobView>, ReadError> {
        let ids: Vec<JobId> = live.rows.iter().map(|(id, _)| *id).collect();
        let (jobs, histories) = (self.read_ids(JOBS, &ids).await?, self.read_ids(HISTORY, &ids).await?);
        let mut rows = Vec::with_capacity(ids.len());
        for (((id, live), job), history) in live.rows.into_iter().zip(jobs).zip(histories) {
            let job = job.map(|bytes| records::decode_stored(&bytes)).transpose();
            let job = match self.readable(&id, job)?.flatten() {
                // It ended between the two looks, and is found among those.
                Some(Stored::Ended(_)) => continue,
                Some(Stored::Job(job)) => Some(job),
                None => None,
            };
            let history = history.map(|bytes| records::decode(HISTORY, &bytes)).transpose();
            let attempts = self.readable(&id, history)?.flatten().unwrap_or_default();
            rows.push(self.view_of(id, live, job, attempts));
        }
        Ok(Found { rows, searched_to: live.searched_to })
    }

    /// Rows below a page's beginning whose keys are this prefix and an id.
    async fn find<T: Send>(
        &self,
        table: Table,
        prefix: Vec<u8>,
        page: Page<JobId>,
        fits: Fits<'_, T>,
    ) -> Result<Found<T>, ReadError> {
        let mut found = Found { rows: Vec::new(), searched_to: None };
        let mut looked_at = 0;
        let below = match page.after {
            Some(id) => Some([&*prefix, id.as_bytes()].concat()),
            // Behind every id.
            None => (!prefix.is_empty()).then(|| [&*prefix, &[0xff; 17]].concat()),
        };
        let rows = (page.limit + 1).min(PAGE_ROWS);
        visit(&*self.ledger, table, From::Down(below), rows, |key, bytes| {
            let Some(id) = key.strip_prefix(&*prefix).map(job_of) else { return ControlFlow::Break(()) };
            let Some(id) = id else { return ControlFlow::Continue(()) };
            match fits(id, bytes) {
                Ok(row) => found.rows.extend(row),
                Err(error) => self.note_unreadable(table.name, &error),
            }
            looked_at += 1;
            match found.rows.len() > page.limit || looked_at >= LOOKED_AT_MAX {
                true => {
                    found.searched_to = Some(id);
                    ControlFlow::Break(())
                }
                false => ControlFlow::Continue(()),
            }
        })
        .await?;
        Ok(found)
    }
}
