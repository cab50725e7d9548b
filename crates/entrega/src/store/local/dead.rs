//! Dead letters: kept, counted, replayed, given up.
//! Invariant: the index in memory says which entries there are and what is happening to them; the entries themselves
//! are on disk.
//! Never: loses an entry to a replay; it stays until its job was delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, GENERATIONS_MAX, NoReplay};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;

use super::disk::{Batch, DiskError, Order, Table};
use super::jobs::blocking;
use super::records::{self, Live, id_key};
use super::{LocalStore, Shared};
use crate::store::paging::PAGE_BYTES_MAX;
use crate::store::{
    ChangeError, Count, CountBy, DeadLetterCursor, DeadLetterFilter, DeadLetterStore, Page, Paged, StoreError,
};

/// The most entries that one page reads from disk.
const LOOKED_AT_MAX: usize = 10_000;
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
    pub(super) fn recover_dead(&self) -> Result<(), DiskError> {
        let mut index = self.dead.lock();
        self.disk.scan(Table::Dead, Order::UpFrom(&[]), &mut |_, bytes| {
            match records::decode_json::<DeadLetter>(Table::Dead, bytes) {
                Ok(dead) => index.put(&dead),
                Err(error) => self.note_unreadable("dead", &error),
            }
            ControlFlow::Continue(())
        })
    }

    pub(super) fn put_dead(&self, batch: &mut Batch, dead: &DeadLetter) {
        self.dead.lock().put(dead);
        batch.put(Table::Dead, id_key(dead.job_id), records::encode_json(dead));
    }

    /// The job of an entry was delivered.
    pub(super) fn mark_replayed(&self, batch: &mut Batch, id: JobId) -> Result<(), DiskError> {
        if let Some(mut dead) = records::load_dead(&*self.disk, id)? {
            dead.status = DeadLetterStatus::Replayed;
            self.put_dead(batch, &dead);
        }
        Ok(())
    }

    /// The job of an entry was dropped or cancelled on its way: the entry waits again.
    pub(super) fn return_to_dead(&self, batch: &mut Batch, id: JobId, reason: &str) -> Result<(), DiskError> {
        super::leave_index(batch, id, true);
        batch.remove(Table::Jobs, id_key(id));
        if let Some(mut dead) = records::load_dead(&*self.disk, id)? {
            let tried = self.readable(&id, records::load_history(&*self.disk, id))?.unwrap_or_default();
            dead.failed_attempts += tried.len() as u32;
            dead.attempts.extend(tried);
            dead.status = DeadLetterStatus::Pending;
            dead.last_failure_reason = format!("{} (its replay was ended: {reason})", dead.last_failure_reason);
            self.put_dead(batch, &dead);
        }
        Ok(())
    }

    fn list_dead(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, DiskError> {
        let places = self.dead.lock().places(self.clock.now(), filter, page.after);
        let (mut items, mut bytes, mut last) = (Vec::new(), 0, None);
        let was_cut = places.len() == LOOKED_AT_MAX;
        for place in places {
            if items.len() == page.limit || bytes > PAGE_BYTES_MAX {
                return Ok(Paged { items, next: last });
            }
            last = Some(place);
            let dead = records::load_dead(&*self.disk, place.1)?;
            let has_text = |dead: &DeadLetter| {
                filter.text.as_ref().is_none_or(|text| dead.last_failure_reason.contains(text.as_str()))
            };
            if let Some(dead) = dead.filter(has_text) {
                bytes += records::carried_bytes(&dead.original_data);
                items.push(dead);
            }
        }
        Ok(Paged { items, next: last.filter(|_| was_cut) })
    }

    fn pending(&self, id: JobId) -> Result<DeadLetter, ChangeError> {
        let known = self.dead.lock().mark(id).map(|mark| (mark.status, mark.generation));
        let (status, generation) = known.ok_or(ChangeError::Unknown)?;
        if status != DeadLetterStatus::Pending {
            return Err(NoReplay::NotPending { status }.into());
        }
        let dead = records::load_dead(&*self.disk, id).map_err(StoreError::from)?.ok_or(ChangeError::Unknown)?;
        debug_assert_eq!(dead.generation, generation);
        Ok(dead)
    }
}

#[async_trait]
impl DeadLetterStore for LocalStore {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(records::load_dead(&*self.shared.disk, id)?)
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        let (shared, filter) = (self.shared.clone(), filter.clone());
        blocking(move || shared.list_dead(&filter, page)).await
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        Ok(self.shared.dead.lock().counts(by, tenant))
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let mut dead = shared.pending(id)?;
        dead.check_replay()?;
        let lane = shared.lane(&dead.lane)?;
        let now = shared.clock.now();
        dead.status = DeadLetterStatus::Replaying;
        dead.generation = (dead.generation + 1).min(GENERATIONS_MAX);
        // The job takes its new time to live along: a retry writes its index entry from it.
        let expires_at = lane.policy.ttl.map(|ttl| now + ttl);
        let job = dead.job_to_replay(now, expires_at);
        let live = Live { generation: dead.generation, ..Live::of(&job) };
        let mut batch = Batch::default();
        batch.put(Table::Jobs, id_key(id), records::encode(&job));
        batch.put(Table::Live, id_key(id), records::encode(&live));
        shared.put_dead(&mut batch, &dead);
        let lane = lane.clone();
        Ok(shared.change_then(batch, move |shared| lane.put_back(shared, id, &live)).await?)
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let _one_at_a_time = shared.changes.lock().await;
        shared.settled().await?;
        let mut dead = shared.pending(id)?;
        dead.status = DeadLetterStatus::Discarded;
        dead.discard_reason = Some(reason.to_owned());
        let mut batch = Batch::default();
        shared.put_dead(&mut batch, &dead);
        Ok(shared.change(batch, Vec::new()).await?)
    }
}
