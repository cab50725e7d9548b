//! Dead letters: found, counted, replayed, given up.
//! Invariant: an entry stays until its job was delivered or it was written down and left.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use futures_util::future;

use super::answer::{Reader, micros, time};
use super::listing::LOOKED_AT_ONCE;
use super::{LaneCell, RedisStore, Shared};
use crate::store::paging::PAGE_BYTES_MAX;
use crate::store::{
    ChangeError, Count, CountBy, DeadLetterCursor, DeadLetterFilter, DeadLetterStore, Page, Paged, StoreError, records,
};

/// Entries that one call brings, and that one page looks at in each lane.
const CALL_LOOKS: usize = 200;
const PAGE_LOOKS: usize = 10_000;
/// What an entry without a failure code is counted under, and found by.
const NO_CODE: &str = "unknown";
const HOUR_MS: u64 = 3_600_000;
const PAUSE: Duration = Duration::from_millis(200);

/// Entries of one lane that fit, and how far it was searched (`None`: to the end).
struct Found {
    entries: Vec<DeadLetter>,
    searched_to: Option<DeadLetterCursor>,
}

#[async_trait]
impl DeadLetterStore for RedisStore {
    async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        self.shared.find_dead(id).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, StoreError> {
        let lanes = self.shared.lanes.values();
        let lanes = lanes.filter(|lane| filter.lane.as_ref().is_none_or(|wanted| *wanted == lane.name));
        let found = future::try_join_all(lanes.map(|lane| self.shared.find_in(lane, filter, page))).await?;
        Ok(merge(found, page.limit, filter.oldest_first))
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        let counts = self.shared.lanes.values().map(|lane| self.shared.count_in(lane, by, tenant));
        Ok(future::try_join_all(counts).await?.concat())
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        self.shared.replay(id).await
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        self.shared.discard(id, reason).await
    }
}

/// One page out of several lanes: only as far as every lane was searched.
fn merge(found: Vec<Found>, limit: usize, oldest_first: bool) -> Paged<DeadLetter, DeadLetterCursor> {
    let place = |dead: &DeadLetter| (dead.moved_to_dlq_at, dead.job_id);
    let ends = found.iter().filter_map(|found| found.searched_to);
    let searched_to = if oldest_first { ends.min() } else { ends.max() };
    let mut items: Vec<_> = found.into_iter().flat_map(|found| found.entries).collect();
    items.sort_by_key(place);
    if !oldest_first {
        items.reverse();
    }
    items.retain(|dead| {
        searched_to.is_none_or(|end| if oldest_first { place(dead) <= end } else { place(dead) >= end })
    });
    let next = match items.len() > limit {
        true => items.get(limit.saturating_sub(1)).map(place),
        false => searched_to,
    };
    items.truncate(limit);
    Paged { items, next }
}

impl Shared {
    async fn find_in(
        &self,
        lane: &LaneCell,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Found, StoreError> {
        let now = self.clock.now();
        let mut found = Found { entries: Vec::new(), searched_to: page.after };
        let (mut skipped, mut bytes) = (0, 0);
        while skipped < PAGE_LOOKS {
            let looks = (page.limit + 1).clamp(10, CALL_LOOKS);
            let places = self.places(lane, filter.oldest_first, page.after, skipped, looks).await?;
            let is_last = places.len() < looks;
            skipped += places.len();
            let last = places.last().copied();
            let after = |place: &DeadLetterCursor| {
                page.after.is_none_or(|after| if filter.oldest_first { *place > after } else { *place < after })
            };
            let ids: Vec<_> = places.into_iter().filter(after).map(|(_, id)| id).collect();
            for ids in ids.chunks(LOOKED_AT_ONCE) {
                let looked = self.look(lane, ids).await?;
                let entries = ids.iter().zip(&looked).filter_map(|(id, looked)| self.dead_of(*id, looked));
                for dead in entries.filter(|dead| fits(dead, filter, now)) {
                    bytes += records::carried_bytes(&dead.original_data);
                    found.searched_to = Some((dead.moved_to_dlq_at, dead.job_id));
                    found.entries.push(dead);
                    if bytes > PAGE_BYTES_MAX {
                        return Ok(found);
                    }
                }
            }
            found.searched_to = last.or(found.searched_to);
            if is_last {
                found.searched_to = None;
                break;
            }
            if found.entries.len() > page.limit {
                break;
            }
        }
        Ok(found)
    }

    /// Places in the order of the filter, from the moment of the cursor on.
    async fn places(
        &self,
        lane: &LaneCell,
        oldest_first: bool,
        after: Option<DeadLetterCursor>,
        skipped: usize,
        looks: usize,
    ) -> Result<Vec<DeadLetterCursor>, StoreError> {
        let reader = Reader("a listing of dead letters");
        let from = after.map(|(moved_at, _)| micros(moved_at).to_string());
        let mut command = match oldest_first {
            true => redis::cmd("ZRANGEBYSCORE"),
            false => redis::cmd("ZREVRANGEBYSCORE"),
        };
        command.arg(lane.keys.key("dead:age"));
        match oldest_first {
            true => command.arg(from.as_deref().unwrap_or("-inf")).arg("+inf"),
            false => command.arg(from.as_deref().unwrap_or("+inf")).arg("-inf"),
        };
        command.arg("WITHSCORES").arg("LIMIT").arg(skipped).arg(looks);
        let rows = reader.rows(self.link.ask(&command).await?)?;
        let mut rows = rows.into_iter();
        let mut places = Vec::new();
        while let (Some(id), Some(moved_at)) = (rows.next(), rows.next()) {
            let moved_at: f64 = reader.word(moved_at)?.parse().map_err(|_| reader.wrong("a score"))?;
            places.push((time(moved_at as u64), reader.id(id)?));
        }
        Ok(places)
    }

    async fn count_in(
        &self,
        lane: &LaneCell,
        by: CountBy,
        tenant: Option<&TenantName>,
    ) -> Result<Vec<Count>, StoreError> {
        let reader = Reader("a count of dead letters");
        let answer = self.link.ask(redis::cmd("HGETALL").arg(lane.keys.key("dead:counts"))).await?;
        let mut rows = reader.rows(answer)?.into_iter();
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        while let (Some(field), Some(count)) = (rows.next(), rows.next()) {
            let field = reader.word(field)?;
            let mut parts = field.split('\0');
            let (Some(whose), Some(code), Some(hour)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(reader.wrong(field));
            };
            let whose = TenantName::kept(whose).map_err(|_| reader.wrong(whose))?;
            if tenant.is_some_and(|tenant| !whose.is_of(tenant)) {
                continue;
            }
            let key = match by {
                CountBy::Code => code.to_owned(),
                CountBy::Tenant => whose.company().to_string(),
                CountBy::Lane => lane.name.to_string(),
                CountBy::Hour => Time::from_millis(hour.parse::<u64>().unwrap_or(0) * HOUR_MS).to_string(),
            };
            *counts.entry(key).or_default() += reader.number(&count)?;
        }
        let count = |(key, count)| Count { lane: LaneName::clone(&lane.name), key, count };
        Ok(counts.into_iter().map(count).collect())
    }

    /// An entry that came back carries its earlier attempts along. Its job runs here, so nobody else changes it.
    pub(super) async fn carry_on(&self, lane: &LaneCell, dead: &mut DeadLetter) {
        loop {
            match self.look(lane, &[dead.job_id]).await {
                Ok(mut looked) => {
                    let earlier = looked.pop().and_then(|looked| self.dead_of(dead.job_id, &looked));
                    if let Some(earlier) = earlier {
                        records::carry_on(dead, earlier);
                    }
                    return;
                }
                Err(error) => {
                    tracing::warn!(jobId = %dead.job_id, errorReason = %error, "A dead letter could not be read; it is tried again")
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn fits(dead: &DeadLetter, filter: &DeadLetterFilter, now: Time) -> bool {
    let youngest = filter.older_than_seconds.map(|seconds| now - Duration::from_secs(seconds));
    let code = dead.last_failure_code.as_deref().unwrap_or(NO_CODE);
    filter.tenant.as_ref().is_none_or(|tenant| dead.original_data.tenant.is_of(tenant))
        && filter.code.as_ref().is_none_or(|wanted| wanted == code)
        && filter.status.is_none_or(|status| status == dead.status)
        && youngest.is_none_or(|youngest| dead.moved_to_dlq_at <= youngest)
        && filter.before.is_none_or(|before| dead.moved_to_dlq_at < before)
        && filter.text.as_ref().is_none_or(|text| dead.last_failure_reason.contains(text.as_str()))
}
