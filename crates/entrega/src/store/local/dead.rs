//! Dead letters: kept, counted, replayed, given up.
//! Invariant: the index in memory says which entries there are and what is happening to them; the entries themselves
//! are in the ledger.
//! Never: loses an entry to a replay; it stays until its job was delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, GENERATIONS_MAX, NoReplay};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use entrega_ledger::Unit;

use super::ends::leave_index;
use super::reading::{From, PAGE_ROWS, ReadError, patiently, visit};
use super::records::{self, Live, id_key};
use super::tables::{DEAD, JOBS, LIVE};
use super::{LaneCell, LocalStore, Shared};
use crate::store::paging::PAGE_BYTES_MAX;
use crate::store::{
    ChangeError, Count, CountBy, DeadLetterCursor, DeadLetterFilter, DeadLetterStore, Page, Paged, StoreError,
};

/// The most entries that one page looks at.
const LOOKED_AT_MAX: usize = 10_000;
/// The most entries that are asked for in one call; a mail may have megabytes.
const READ_AT_ONCE: usize = 32;
const HOUR_MS: u64 = 3_600_000;
/// What an entry without a failure code is counted under, and found by.
const NO_CODE: &str = "unknown";

/// What is known of an entry without reading it.
#[derive(Clone, Debug)]
pub(super) struct DeadMark {
    pub(super) lane: LaneName,
    tenant: TenantName,
    code: String,
    pub(super) status: DeadLetterStatus,
    generation: u8,
    pub(super) expires_at: Time,
}

/// All entries by age.
#[derive(Debug, Default)]
pub(super) struct DeadIndex {
    by_age: BTreeMap<DeadLetterCursor, DeadMark>,
    by_lane: BTreeMap<LaneName, BTreeSet<DeadLetterCursor>>,
    by_id: HashMap<JobId, Time>,
    /// Entries per lane that are pending or being replayed: what people mean by "dead letters".
    open: BTreeMap<LaneName, u32>,
}

impl DeadIndex {
    fn put(&mut self, dead: &DeadLetter) {
        self.remove(dead.job_id);
        let place = (dead.moved_to_dlq_at, dead.job_id);
        self.by_id.insert(dead.job_id, dead.moved_to_dlq_at);
        self.by_lane.entry(dead.lane.clone()).or_default().insert(place);
        let mark = DeadMark {
            lane: dead.lane.clone(),
            tenant: dead.original_data.tenant.clone(),
            code: dead.last_failure_code.clone().unwrap_or_else(|| NO_CODE.to_owned()),
            status: dead.status,
            generation: dead.generation,
            expires_at: dead.expires_at(),
        };
        if mark.status.is_open() {
            *self.open.entry(mark.lane.clone()).or_default() += 1;
        }
        self.by_age.insert(place, mark);
    }

    pub(super) fn remove(&mut self, id: JobId) {
        let Some(moved_at) = self.by_id.remove(&id) else { return };
        let Some(mark) = self.by_age.remove(&(moved_at, id)) else { return };
        if let Some(places) = self.by_lane.get_mut(&mark.lane) {
            places.remove(&(moved_at, id));
        }
        if let Some(open) = self.open.get_mut(&mark.lane) {
            *open -= u32::from(mark.status.is_open());
        }
    }

    pub(super) fn contains(&self, id: JobId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// How many of a lane's entries are pending or being replayed.
    pub(super) fn open_in(&self, lane: &LaneName) -> u32 {
        self.open.get(lane).copied().unwrap_or(0)
    }

    /// The oldest entries of each lane.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (&LaneName, impl Iterator<Item = (JobId, &DeadMark)>, usize)> {
        self.by_lane.iter().map(|(lane, places)| {
            let marks = places.iter().filter_map(|place| Some((place.1, self.by_age.get(place)?)));
            (lane, marks, places.len())
        })
    }

    fn mark(&self, id: JobId) -> Option<&DeadMark> {
        self.by_age.get(&(*self.by_id.get(&id)?, id))
    }

    /// Places that fit what the index knows, in the filter's order.
    fn places(&self, now: Time, filter: &DeadLetterFilter, after: Option<DeadLetterCursor>) -> Vec<DeadLetterCursor> {
        let youngest = filter.older_than_seconds.map(|seconds| now - Duration::from_secs(seconds));
        let fits = |(&place, mark): (&DeadLetterCursor, &DeadMark)| {
            let fits = filter.lane.as_ref().is_none_or(|lane| *lane == mark.lane)
                && filter.tenant.as_ref().is_none_or(|tenant| mark.tenant.is_of(tenant))
                && filter.code.as_ref().is_none_or(|code| *code == mark.code)
                && filter.status.is_none_or(|status| status == mark.status)
                && youngest.is_none_or(|youngest| place.0 <= youngest)
                && filter.before.is_none_or(|before| place.0 < before);
            fits.then_some(place)
        };
        match filter.oldest_first {
            true => {
                let start = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
                let range = self.by_age.range((start, std::ops::Bound::Unbounded));
                range.filter_map(fits).take(LOOKED_AT_MAX).collect()
            }
            false => {
                let end = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
                let range = self.by_age.range((std::ops::Bound::Unbounded, end)).rev();
                range.filter_map(fits).take(LOOKED_AT_MAX).collect()
            }
        }
    }

    fn counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Vec<Count> {
        let mut counts: BTreeMap<(LaneName, String), u64> = BTreeMap::new();
        for ((moved_at, _), mark) in &self.by_age {
            if !mark.status.is_open() || tenant.is_some_and(|tenant| !mark.tenant.is_of(tenant)) {
                continue;
            }
            let key = match by {
                CountBy::Code => mark.code.clone(),
                CountBy::Tenant => mark.tenant.company().to_string(),
                CountBy::Lane => mark.lane.to_string(),
                CountBy::Hour => Time::from_millis(moved_at.as_millis() / HOUR_MS * HOUR_MS).to_string(),
            };
            *counts.entry((mark.lane.clone(), key)).or_default() += 1;
        }
        counts.into_iter().map(|((lane, key), count)| Count { lane, key, count }).collect()
    }
}

impl Shared {
    pub(super) async fn recover_dead(&self) -> Result<(), ReadError> {
        let mut found = DeadIndex::default();
        visit(&*self.ledger, DEAD, From::Up(Vec::new()), PAGE_ROWS, |_, bytes| {
            match records::decode_json::<DeadLetter>(DEAD, bytes) {
                Ok(dead) => found.put(&dead),
                Err(error) => self.note_unreadable("dead", &error),
            }
            ControlFlow::Continue(())
        })
        .await?;
        *self.dead.lock() = found;
        Ok(())
    }

    pub(super) fn put_dead(&self, unit: &mut Unit, dead: &DeadLetter) {
        self.dead.lock().put(dead);
        unit.put(DEAD, id_key(dead.job_id), records::encode_json(dead));
    }

    /// The job of an entry was dropped or cancelled on its way: the entry waits again.
    pub(super) async fn return_to_dead(&self, lane: &LaneCell, id: JobId, reason: &str) -> Result<Unit, ReadError> {
        let mut unit = Unit::default();
        leave_index(&mut unit, lane, id, true);
        unit.remove(JOBS, id_key(id));
        if let Some(mut dead) = patiently(|| records::load_dead(&*self.ledger, id)).await? {
            let tried = patiently(|| records::load_history(&*self.ledger, id)).await;
            let tried = self.readable(&id, tried)?.unwrap_or_default();
            dead.failed_attempts += tried.len() as u32;
            dead.attempts.extend(tried);
            dead.status = DeadLetterStatus::Pending;
            dead.last_failure_reason = format!("{} (its replay was ended: {reason})", dead.last_failure_reason);
            self.put_dead(&mut unit, &dead);
        }
        Ok(unit)
    }

    async fn list_dead(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, ReadError> {
        let places = self.dead.lock().places(self.clock.now(), filter, page.after);
        let (mut items, mut bytes, mut last) = (Vec::new(), 0, None);
        let was_cut = places.len() == LOOKED_AT_MAX;
        let has_text = |dead: &DeadLetter| {
            filter.text.as_ref().is_none_or(|text| dead.last_failure_reason.contains(text.as_str()))
        };
        for some in places.chunks(READ_AT_ONCE) {
            let ids: Vec<JobId> = some.iter().map(|place| place.1).collect();
            let found = self.read_ids(DEAD, &ids).await?;
            for (place, found) in some.iter().zip(found) {
                if items.len() == page.limit || bytes > PAGE_BYTES_MAX {
                    return Ok(Paged { items, next: last });
                }
                last = Some(*place);
                let dead = found.map(|bytes| records::decode_json::<DeadLetter>(DEAD, &bytes)).transpose()?;
                if let Some(dead) = dead.filter(has_text) {
                    bytes += records::carried_bytes(&dead.original_data);
                    items.push(dead);
                }
            }
        }
        Ok(Paged { items, next: last.filter(|_| was_cut) })
    }

    /// An entry that waits for somebody. The index knows of an end before the ledger does: what is read must be what the
    /// index speaks of, or the entry as it was before would take the place of what it is.
    async fn pending(&self, id: JobId) -> Result<DeadLetter, ChangeError> {
        for is_last in [false, false, true] {
            let known = self.dead.lock().mark(id).map(|mark| (mark.status, mark.generation));
            let known = known.ok_or(ChangeError::Unknown)?;
            if known.0 != DeadLetterStatus::Pending {
                return Err(NoReplay::NotPending { status: known.0 }.into());
            }
            let dead = records::load_dead(&*self.ledger, id).await.map_err(StoreError::from)?;
            let dead = dead.ok_or(ChangeError::Unknown)?;
            if is_last || (dead.status, dead.generation) == known {
                return Ok(dead);
            }
            self.settled().await?;
        }
        Err(ChangeError::Unknown)
    }
}

#[async_trait]
impl DeadLetterStore for LocalStore {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(records::load_dead(&*self.shared.ledger, id).await?)
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        Ok(self.shared.list_dead(filter, page).await?)
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        Ok(self.shared.dead.lock().counts(by, tenant))
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let mut dead = shared.pending(id).await?;
        dead.check_replay()?;
        let lane = shared.lane(&dead.lane)?;
        let now = shared.clock.now();
        dead.status = DeadLetterStatus::Replaying;
        dead.generation = (dead.generation + 1).min(GENERATIONS_MAX);
        // The job takes its new time to live along: a retry writes its index entry from it.
        let expires_at = lane.policy.ttl.map(|ttl| now + ttl);
        let job = dead.job_to_replay(now, expires_at);
        let live = Live { generation: dead.generation, ..Live::of(&job) };
        let mut change = Unit::default();
        change.put(JOBS, id_key(id), records::encode(&job));
        change.put(LIVE, lane.live_key(id), records::encode(&live));
        shared.put_dead(&mut change, &dead);
        let put_back = lane.clone();
        let then = move |shared: &Shared| put_back.put_back(shared, id, &live);
        Ok(shared.change_then(Some(lane), change, then).await?)
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let mut dead = shared.pending(id).await?;
        dead.status = DeadLetterStatus::Discarded;
        dead.discard_reason = Some(reason.to_owned());
        let mut change = Unit::default();
        shared.put_dead(&mut change, &dead);
        let lane = shared.lanes.get(&dead.lane);
        Ok(shared.change(lane, change, Vec::new()).await?)
    }
}
