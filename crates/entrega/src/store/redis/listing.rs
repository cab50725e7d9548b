//! Looking at jobs and lanes.
//! Invariant: a listing is ordered by id, newest first; a page looks at a bounded number of jobs, in short calls.

use std::time::Duration;

use entrega_core::breaker::{BreakerFigures, BreakerState};
use entrega_core::cadence::CadenceFigures;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Priority};
use entrega_core::lane::{Explanation, GateKind, Hold, LaneSizes};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use futures_util::future;
use redis::Value;

use super::answer::{Packed, Reader, time};
use super::link::store_error;
use super::script::{Call, Verb};
use super::settlements::END;
use super::submits::{read_priority, read_state, state_named};
use super::{LaneCell, Shared};
use crate::store::paging::{Found, merge};
use crate::store::records::{self, BadRecord, Ended};
use crate::store::{JobFilter, JobView, LaneView, Page, Paged, StoreError};

/// Jobs that one call looks at, and that one page does.
const CALL_LOOKS: usize = 1000;
/// Records that one call brings: they may have megabytes, and while Redis sends them it does nothing else.
pub(super) const LOOKED_AT_ONCE: usize = 8;
const PAGE_LOOKS: usize = 20_000;
const LOOKING: Reader = Reader("a look at a job");

/// Everything there is about a job.
pub(super) struct Looked {
    pub(super) entry: Option<LiveRow>,
    why: Option<String>,
    pub(super) record: Option<Vec<u8>>,
    history: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    dead: Option<Vec<u8>>,
    mark: Option<Mark>,
    tried: Option<Vec<u8>>,
}

/// The entry of a job that has not ended.
pub(super) struct LiveRow {
    state: JobState,
    priority: Priority,
    generation: u8,
    due: Time,
    expires: Time,
    tenant: TenantName,
}

/// What has happened to a dead letter since it was buried.
struct Mark {
    status: DeadLetterStatus,
    generation: u8,
    discarded: Option<String>,
    notes: Vec<String>,
}

impl Shared {
    pub(super) async fn look(&self, lane: &LaneCell, ids: &[JobId]) -> Result<Vec<Looked>, StoreError> {
        let call = ids.iter().fold(Call::new(self, lane, Verb::Look), |call, id| call.arg(id.as_bytes()));
        let rows = call.make(self).await.map_err(|error| store_error(&error))?;
        LOOKING.rows(rows)?.into_iter().map(read_looked).collect()
    }

    pub(super) async fn view(&self, lane: &LaneCell, id: JobId) -> Result<Option<JobView>, StoreError> {
        let looked = self.look(lane, &[id]).await?.pop();
        Ok(looked.and_then(|looked| self.view_of(lane, id, looked)))
    }

    /// A job by its id alone: every lane is asked at once.
    pub(super) async fn find(&self, id: JobId) -> Result<Option<(LaneName, JobView)>, StoreError> {
        let views = self.lanes.values().map(|lane| async move {
            let view = self.view(lane, id).await?;
            Ok::<_, StoreError>(view.map(|view| (lane.name.clone(), view)))
        });
        Ok(future::try_join_all(views).await?.into_iter().flatten().next())
    }

    pub(super) async fn find_dead(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        let entries = self.lanes.values().map(|lane| async move {
            let looked = self.look(lane, &[id]).await?.pop();
            Ok::<_, StoreError>(looked.and_then(|looked| self.dead_of(id, &looked)))
        });
        Ok(future::try_join_all(entries).await?.into_iter().flatten().next())
    }

    fn view_of(&self, lane: &LaneCell, id: JobId, looked: Looked) -> Option<JobView> {
        if let Some(entry) = looked.entry {
            return Some(self.view_live(lane, id, entry, looked.why, looked.record, looked.history));
        }
        if let Some(end) = looked.record.as_deref().and_then(end_of) {
            return self.readable(id, end).map(|end| end.view(id));
        }
        if looked.end.is_some() {
            return self.dropped_by(id, &looked).map(|end| end.view(id));
        }
        self.dead_of(id, &looked).map(records::view_of_dead)
    }

    fn view_live(
        &self,
        lane: &LaneCell,
        id: JobId,
        entry: LiveRow,
        why: Option<String>,
        record: Option<Vec<u8>>,
        history: Option<Vec<u8>>,
    ) -> JobView {
        let job = record.and_then(|record| self.readable(id, records::decode::<Job>(&record)));
        JobView {
            job_id: id,
            destination: job.as_ref().and_then(records::destination),
            lane: lane.name.clone(),
            endpoint: entry.tenant.endpoint_name().map(str::to_owned),
            company_id: entry.tenant.company(),
            priority: entry.priority,
            state: entry.state,
            reason: why,
            accepted_at: job.as_ref().map_or_else(|| id.made_at(), |job| job.accepted_at),
            labels: job.map(|job| job.labels).unwrap_or_default(),
            due_at: Some(entry.due),
            expires_at: entry.expires.finite(),
            ended_at: None,
            generation: entry.generation,
            attempts: self.read_history(id, history.as_deref()),
            result: None,
        }
    }

    /// The end of a job that a script dropped: what it carried is still there.
    fn dropped_of(&self, id: JobId, end: &[u8], record: &[u8], history: Option<&[u8]>) -> Option<Ended> {
        let mut fields = Packed(end);
        let (at, state, reason) = (fields.moment()?, state_named(&fields.short_text()?)?, fields.text()?);
        let job = self.readable(id, records::decode::<Job>(record))?;
        let attempts = self.read_history(id, history);
        Some(Ended { reason: Some(reason), attempts, ..Ended::of(job, state, at, 0) })
    }

    /// The same, if the job was dropped.
    pub(super) fn dropped_by(&self, id: JobId, looked: &Looked) -> Option<Ended> {
        let (end, record) = (looked.end.as_deref()?, looked.record.as_deref()?);
        self.dropped_of(id, end, record, looked.history.as_deref())
    }

    fn read_history(&self, id: JobId, history: Option<&[u8]>) -> Vec<Attempt> {
        history.and_then(|bytes| self.readable(id, records::decode(bytes))).unwrap_or_default()
    }

    /// A dead letter with what has happened to it since.
    pub(super) fn dead_of(&self, id: JobId, looked: &Looked) -> Option<DeadLetter> {
        let mut dead: DeadLetter = self.readable(id, records::decode_json(looked.dead.as_deref()?))?;
        let mark = looked.mark.as_ref()?;
        dead.status = mark.status;
        dead.generation = mark.generation;
        dead.discard_reason.clone_from(&mark.discarded);
        for note in &mark.notes {
            dead.last_failure_reason = format!("{} (its replay was ended: {note})", dead.last_failure_reason);
        }
        let mut tried = Packed(looked.tried.as_deref().unwrap_or_default());
        while let Some(length) = tried.take(4) {
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
            let attempts = self.read_history(id, tried.take(length as usize));
            dead.failed_attempts += attempts.len() as u32;
            dead.attempts.extend(attempts);
        }
        Some(dead)
    }

    /// `None`, and a note, for a record that cannot be read.
    pub(super) fn readable<T>(&self, id: JobId, read: Result<T, BadRecord>) -> Option<T> {
        read.inspect_err(|error| self.note_unreadable(&id.to_string(), error)).ok()
    }

    pub(super) async fn list(
        &self,
        filter: &JobFilter,
        page: Page<JobId>,
    ) -> Result<Paged<JobView, JobId>, StoreError> {
        let lanes = self.lanes.values().filter(|lane| filter.lane.as_ref().is_none_or(|name| *name == lane.name));
        let found = future::try_join_all(lanes.map(|lane| self.list_lane(lane, filter, page))).await?;
        Ok(merge(found, page.limit, |view| view.job_id))
    }

    async fn list_lane(
        &self,
        lane: &LaneCell,
        filter: &JobFilter,
        page: Page<JobId>,
    ) -> Result<Found<JobView>, StoreError> {
        let mut found = Found { rows: Vec::new(), searched_to: page.after };
        for _ in 0..PAGE_LOOKS / CALL_LOOKS {
            let call = Call::new(self, lane, Verb::List)
                .arg(found.searched_to.as_ref().map(|id| id.as_bytes().as_slice()).unwrap_or_default())
                .arg(page.limit + 1 - found.rows.len())
                .arg(CALL_LOOKS)
                .arg(filter.tenant.as_ref().map(TenantName::as_str).unwrap_or_default())
                .arg(filter.states.iter().map(|state| format!(",{state},")).collect::<String>());
            let answer = call.make(self).await.map_err(|error| store_error(&error))?;
            let [ids, last] = LOOKING.fields(answer)?;
            let ids = LOOKING.ids(ids)?;
            for ids in ids.chunks(LOOKED_AT_ONCE) {
                let looked = self.look(lane, ids).await?;
                let views = ids.iter().zip(looked).filter_map(|(id, looked)| self.view_of(lane, *id, looked));
                let is_wanted = |view: &JobView| filter.tenant.as_ref().is_none_or(|wanted| whose(view).is_of(wanted));
                found.rows.extend(views.filter(is_wanted));
            }
            found.searched_to = LOOKING.bytes(last)?.and_then(|last| last.try_into().ok()).map(JobId::from_bytes);
            if found.searched_to.is_none() || found.rows.len() > page.limit {
                break;
            }
        }
        Ok(found)
    }

    pub(super) async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        let rows = self.lanes.values().map(|lane| {
            let call = Call::new(self, lane, Verb::Figures).arg("explain").arg(self.node_of(lane)).arg(id.as_bytes());
            async move { LOOKING.rows(call.make(self).await.map_err(|error| store_error(&error))?) }
        });
        let rows = future::try_join_all(rows).await?.into_iter().find(|row| !row.is_empty());
        let Some(row) = rows else { return Ok(None) };
        let [state, attempt, due, holds] = LOOKING.fields(Value::Array(row))?;
        let holds = LOOKING.rows(holds)?.into_iter().map(read_hold).collect::<Result<_, _>>()?;
        Ok(Some(Explanation {
            state: read_state(LOOKING, state)?,
            attempt: LOOKING.small(&attempt)?,
            due: time(LOOKING.number(&due)?),
            holds,
        }))
    }

    pub(super) async fn lane_view(&self, lane: &LaneCell) -> Result<LaneView, StoreError> {
        let call = Call::new(self, lane, Verb::Figures).arg("lane").arg(self.node_of(lane));
        let answer = call.make(self).await.map_err(|error| store_error(&error))?;
        let [paused, sizes, blocked, dead, hold, breaker, cadence, oldest] = LOOKING.fields(answer)?;
        let paused = LOOKING.number(&paused)? == 1;
        let mut counts = [[0; 5]; 3];
        for (count, value) in counts.as_flattened_mut().iter_mut().zip(LOOKING.rows(sizes)?) {
            *count = LOOKING.small(&value)?;
        }
        Ok(LaneView {
            name: lane.name.clone(),
            policy: lane.policy.clone(),
            sizes: LaneSizes::from_counts(counts, paused),
            blocked: LOOKING.small(&blocked)?,
            dead_letters: LOOKING.small(&dead)?,
            paused,
            hold: matches!(hold, Value::Array(_)).then(|| read_hold(hold)).transpose()?,
            breaker: matches!(breaker, Value::Array(_)).then(|| read_breaker(breaker)).transpose()?,
            cadence: matches!(cadence, Value::Array(_)).then(|| read_cadence(cadence)).transpose()?,
            oldest: LOOKING.ids(oldest)?.iter().map(JobId::made_at).min(),
        })
    }
}

/// The tenant of a job, or its endpoint.
fn whose(view: &JobView) -> TenantName {
    view.endpoint.as_deref().map_or_else(|| view.company_id.clone(), |name| view.company_id.endpoint(name))
}

/// The end of a job, if the record is one.
fn end_of(record: &[u8]) -> Option<Result<Ended, BadRecord>> {
    let mut fields = Packed(record.strip_prefix(&[END])?);
    fields.moment()?;
    fields.short_text()?;
    fields.short_text()?;
    Some(records::decode_ended(fields.0))
}

fn read_looked(row: Value) -> Result<Looked, StoreError> {
    let [entry, why, record, history, end, dead, mark, tried] = LOOKING.fields(row)?;
    Ok(Looked {
        entry: matches!(entry, Value::Array(_)).then(|| read_live(entry)).transpose()?,
        why: LOOKING.text(why)?,
        record: LOOKING.bytes(record)?,
        history: LOOKING.bytes(history)?,
        end: LOOKING.bytes(end)?,
        dead: LOOKING.bytes(dead)?,
        mark: matches!(mark, Value::Array(_)).then(|| read_mark(mark)).transpose()?,
        tried: LOOKING.bytes(tried)?,
    })
}

fn read_live(row: Value) -> Result<LiveRow, StoreError> {
    let [state, priority, generation, _attempt, due, expires, tenant] = LOOKING.fields(row)?;
    Ok(LiveRow {
        state: read_state(LOOKING, state)?,
        priority: read_priority(LOOKING, &priority)?,
        generation: LOOKING.small(&generation)?,
        due: time(LOOKING.number(&due)?),
        expires: time(LOOKING.number(&expires)?),
        tenant: LOOKING.tenant(tenant)?,
    })
}

fn read_mark(row: Value) -> Result<Mark, StoreError> {
    let [status, generation, discarded, notes] = LOOKING.fields(row)?;
    let status = match LOOKING.number(&status)? {
        1 => DeadLetterStatus::Pending,
        2 => DeadLetterStatus::Replaying,
        3 => DeadLetterStatus::Replayed,
        4 => DeadLetterStatus::Discarded,
        other => return Err(LOOKING.wrong(format!("status {other}"))),
    };
    let notes = LOOKING.rows(notes)?.into_iter().map(|note| LOOKING.word(note)).collect::<Result<_, _>>()?;
    Ok(Mark { status, generation: LOOKING.small(&generation)?, discarded: LOOKING.text(discarded)?, notes })
}

fn read_breaker(row: Value) -> Result<BreakerFigures, StoreError> {
    let [state, until, opened, half_opened, closed] = LOOKING.fields(row)?;
    let word = LOOKING.word(state)?;
    let state = match (word.as_str(), LOOKING.moment(&until)?) {
        ("open", Some(until)) => BreakerState::Open(until),
        ("half_open", _) => BreakerState::HalfOpen,
        ("closed", _) => BreakerState::Closed,
        _ => return Err(LOOKING.wrong(format!("breaker {word}"))),
    };
    let [opened, half_opened, closed] = [opened, half_opened, closed].map(|count| LOOKING.number(&count));
    Ok(BreakerFigures { state, opened: opened?, half_opened: half_opened?, closed: closed? })
}

fn read_cadence(row: Value) -> Result<CadenceFigures, StoreError> {
    let [interval, penalties] = LOOKING.fields(row)?;
    let interval = Duration::from_micros(LOOKING.number(&interval)?);
    Ok(CadenceFigures { interval, penalties: LOOKING.number(&penalties)? })
}

fn read_hold(row: Value) -> Result<Hold, StoreError> {
    let [gate, until] = LOOKING.fields(row)?;
    let word = LOOKING.word(gate)?;
    let gate = GateKind::ALL.into_iter().find(|gate| gate.as_str() == word);
    let gate = gate.ok_or_else(|| LOOKING.wrong(format!("gate {word}")))?;
    Ok(Hold { gate, until: LOOKING.moment(&until)? })
}
