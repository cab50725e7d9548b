//! Dead letters: kept, counted, replayed, given up.
//! Invariant: a mark beside each entry says what it is, lane by lane and by age, so that any node can list them; the owner
//! of a lane has the marks of its entries in memory, and only it changes them.
//! Never: loses an entry to a replay; it stays until its job was delivered.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, GENERATIONS_MAX, NoReplay};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use entrega_ledger::{Expect, Key, Unit, When};

use super::command::Then;
use super::dead_index::{DeadIndex, DeadMark};
use super::ends::leave_index;
use super::lanes::OwnedLane;
use super::order::{Order, Receipt};
use super::reading::{From, PAGE_ROWS, ReadError, patiently, visit};
use super::records::{self, Live, id_key};
use super::tables::{DEAD, JOBS, LIVE, MARKS};
use super::{LocalStore, Shared};
use crate::store::paging::PAGE_BYTES_MAX;
use crate::store::{
    ChangeError, Count, CountBy, DeadLetterCursor, DeadLetterFilter, DeadLetterStore, Page, Paged, StoreError,
};

/// The most entries of one lane that one page looks at.
const LOOKED_AT_MAX: usize = 10_000;
/// The most entries that are asked for in one call; a mail may have megabytes.
const READ_AT_ONCE: usize = 32;
const HOUR_MS: u64 = 3_600_000;

/// Where the mark of an entry is; those of a lane sort by age, and those of one moment as their ids do, whatever they are
/// the ids of.
pub(super) fn mark_key(lane: &str, (moved_at, id): DeadLetterCursor) -> String {
    format!("{lane}/{:015}/{:032x}", moved_at.as_millis(), u128::from_be_bytes(*id.as_bytes()))
}

/// The place that follows a lane's name in the key of a mark.
fn place_of(rest: &str) -> Option<DeadLetterCursor> {
    let (moved_at, id) = rest.split_once('/')?;
    let id = JobId::from_bytes(u128::from_str_radix(id, 16).ok()?.to_be_bytes());
    Some((Time::from_millis(moved_at.parse().ok()?), id))
}

/// The rows of an entry, for whoever puts one into a ledger from outside.
pub fn dead_letter_rows(dead: &DeadLetter) -> Unit {
    let mut unit = Unit::default();
    let mark = mark_key(dead.lane.as_str(), (dead.moved_to_dlq_at, dead.job_id));
    unit.put(MARKS, Key::Text(mark), records::encode(&DeadMark::of(dead)));
    unit.put(DEAD, id_key(dead.job_id), records::encode_json(dead));
    unit
}

/// Places that fit a filter, and the last one that was looked at if there may be more behind it.
#[derive(Default)]
struct Places {
    fits: Vec<DeadLetterCursor>,
    cut_at: Option<DeadLetterCursor>,
}

fn fits(filter: &DeadLetterFilter, now: Time, place: DeadLetterCursor, mark: &DeadMark) -> bool {
    let youngest = filter.older_than_seconds.map(|seconds| now - Duration::from_secs(seconds));
    filter.tenant.as_ref().is_none_or(|tenant| mark.tenant.is_of(tenant))
        && filter.code.as_ref().is_none_or(|code| *code == mark.code)
        && filter.status.is_none_or(|status| status == mark.status)
        && youngest.is_none_or(|youngest| place.0 <= youngest)
        && filter.before.is_none_or(|before| place.0 < before)
}

impl Shared {
    /// Reads the marks of a lane's entries into its memory.
    pub(super) async fn load_dead(&self, lane: &OwnedLane) -> Result<(), ReadError> {
        let mut found = DeadIndex::default();
        let visited = self.visit_marks(&lane.scope, None, false, |place, mark| {
            found.put(place, mark);
            ControlFlow::Continue(())
        });
        match visited.await? {
            0 => {}
            gaps => return Err(ReadError::Gaps { table: MARKS.name, gaps }),
        }
        *lane.dead.lock() = found;
        Ok(())
    }

    /// Visits the marks of a lane, behind this place, the oldest or the newest first. Gives how often some may be missing.
    pub(super) async fn visit_marks(
        &self,
        scope: &str,
        after: Option<DeadLetterCursor>,
        is_newest_first: bool,
        mut see: impl FnMut(DeadLetterCursor, DeadMark) -> ControlFlow<()> + Send,
    ) -> Result<usize, ReadError> {
        let prefix = format!("{scope}/");
        let from = match (is_newest_first, after) {
            (false, None) => From::Up(prefix.clone().into_bytes()),
            (false, Some(place)) => From::Up([mark_key(scope, place).as_bytes(), &[0]].concat()),
            // The sign after the slash.
            (true, None) => From::Down(Some(format!("{scope}0").into_bytes())),
            (true, Some(place)) => From::Down(Some(mark_key(scope, place).into_bytes())),
        };
        let visited = visit(&*self.ledger, MARKS, from, PAGE_ROWS, |key, value| {
            let key = String::from_utf8_lossy(key);
            let Some(rest) = key.strip_prefix(&prefix) else { return ControlFlow::Break(()) };
            match (place_of(rest), records::decode::<DeadMark>(MARKS, value)) {
                (Some(place), Ok(mark)) => return see(place, mark),
                (_, Err(error)) => self.note_unreadable(&key, &error),
                (None, Ok(_)) => {}
            }
            ControlFlow::Continue(())
        });
        Ok(visited.await?)
    }

    pub(super) fn put_dead(&self, lane: &OwnedLane, unit: &mut Unit, dead: &DeadLetter) {
        let place = (dead.moved_to_dlq_at, dead.job_id);
        let mut index = lane.dead.lock();
        if let Some(before) = index.remove(dead.job_id).filter(|before| *before != place) {
            unit.remove(MARKS, Key::Text(mark_key(&lane.scope, before)));
        }
        index.put(place, DeadMark::of(dead));
        unit.ops.extend(dead_letter_rows(dead).ops);
    }

    /// The job of an entry was dropped or cancelled on its way: the entry waits again.
    pub(super) async fn return_to_dead(
        &self,
        lane: &OwnedLane,
        unit: &mut Unit,
        id: JobId,
        reason: &str,
    ) -> Result<(), ReadError> {
        leave_index(unit, lane, id, true);
        unit.remove(JOBS, id_key(id));
        if let Some(mut dead) = patiently(|| records::load_dead(&*self.ledger, id)).await? {
            let tried = patiently(|| records::load_history(&*self.ledger, id)).await;
            let tried = self.readable(&id, tried)?.unwrap_or_default();
            dead.failed_attempts += tried.len() as u32;
            dead.attempts.extend(tried);
            dead.status = DeadLetterStatus::Pending;
            dead.last_failure_reason = format!("{} (its replay was ended: {reason})", dead.last_failure_reason);
            self.put_dead(lane, unit, &dead);
        }
        Ok(())
    }

    /// Places that fit, in the filter's order, of all lanes that it is about.
    async fn places(&self, filter: &DeadLetterFilter, page: Page<DeadLetterCursor>) -> Result<Places, ReadError> {
        let scopes: Vec<Arc<str>> = match &filter.lane {
            Some(lane) => vec![lane.as_str().into()],
            None => self.scopes.read().clone(),
        };
        let now = self.clock.now();
        // Which entries have a text in them is known only once they are read.
        let enough = if filter.text.is_some() { LOOKED_AT_MAX } else { page.limit + 1 };
        let mut all = Places::default();
        let is_before = |one: DeadLetterCursor, other| (one < other) == filter.oldest_first && one != other;
        for scope in scopes {
            let (mut found, mut looked_at) = (Places::default(), 0);
            self.visit_marks(&scope, page.after, !filter.oldest_first, |place, mark| {
                if fits(filter, now, place, &mark) {
                    found.fits.push(place);
                }
                looked_at += 1;
                match found.fits.len() >= enough || looked_at >= LOOKED_AT_MAX {
                    true => {
                        found.cut_at = Some(place);
                        ControlFlow::Break(())
                    }
                    false => ControlFlow::Continue(()),
                }
            })
            .await?;
            all.fits.append(&mut found.fits);
            all.cut_at = match (all.cut_at, found.cut_at) {
                (Some(one), Some(other)) => Some(if is_before(one, other) { one } else { other }),
                (one, other) => one.or(other),
            };
        }
        all.fits.sort_unstable();
        if !filter.oldest_first {
            all.fits.reverse();
        }
        // Behind where one lane was left, others are not known to be next.
        all.fits.retain(|place| all.cut_at.is_none_or(|cut_at| !is_before(cut_at, *place)));
        Ok(all)
    }

    async fn list_dead(
        &self,
        filter: &DeadLetterFilter,
        page: Page<DeadLetterCursor>,
    ) -> Result<Paged<DeadLetter, DeadLetterCursor>, ReadError> {
        let places = self.places(filter, page).await?;
        let (mut items, mut bytes, mut last) = (Vec::new(), 0, None);
        let has_text = |dead: &DeadLetter| {
            filter.text.as_ref().is_none_or(|text| dead.last_failure_reason.contains(text.as_str()))
        };
        for some in places.fits.chunks(READ_AT_ONCE) {
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
        Ok(Paged { items, next: places.cut_at })
    }

    /// An entry that waits for somebody. The index knows of an end before the ledger does: what is read must be what the
    /// index speaks of, or the entry as it was before would take the place of what it is.
    async fn pending(&self, lane: &OwnedLane, id: JobId) -> Result<DeadLetter, ChangeError> {
        for is_last in [false, false, true] {
            let known = lane.dead.lock().mark(id).map(|mark| (mark.status, mark.generation));
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

    async fn dead_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, ReadError> {
        let mut counts: BTreeMap<(LaneName, String), u64> = BTreeMap::new();
        let scopes: Vec<Arc<str>> = self.scopes.read().clone();
        for scope in scopes {
            let Ok(lane) = LaneName::new(&scope) else { continue };
            self.visit_marks(&scope, None, false, |(moved_at, _), mark| {
                if mark.status.is_open() && tenant.is_none_or(|tenant| mark.tenant.is_of(tenant)) {
                    let key = match by {
                        CountBy::Code => mark.code,
                        CountBy::Tenant => mark.tenant.company().to_string(),
                        CountBy::Lane => lane.to_string(),
                        CountBy::Hour => Time::from_millis(moved_at.as_millis() / HOUR_MS * HOUR_MS).to_string(),
                    };
                    *counts.entry((lane.clone(), key)).or_default() += 1;
                }
                ControlFlow::Continue(())
            })
            .await?;
        }
        Ok(counts.into_iter().map(|((lane, key), count)| Count { lane, key, count }).collect())
    }

    /// The lane of an entry.
    async fn lane_of_dead(&self, id: JobId) -> Result<LaneName, ChangeError> {
        let dead = records::load_dead(&*self.ledger, id).await.map_err(StoreError::from)?;
        Ok(dead.ok_or(ChangeError::Unknown)?.lane)
    }

    /// Sends the job of an entry on its way again, in a lane of this node's.
    pub(super) async fn replay_here(
        &self,
        lane: &Arc<OwnedLane>,
        id: JobId,
        receipt: Option<&Receipt>,
    ) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        self.settled().await?;
        let mut dead = self.pending(lane, id).await?;
        dead.check_replay()?;
        let now = self.clock.now();
        dead.status = DeadLetterStatus::Replaying;
        dead.generation = (dead.generation + 1).min(GENERATIONS_MAX);
        // The job takes its new time to live along: a retry writes its index entry from it.
        let expires_at = lane.policy.ttl.map(|ttl| now + ttl);
        let job = dead.job_to_replay(now, expires_at);
        let live = Live { generation: dead.generation, ..Live::of(&job) };
        let mut unit = Unit::default();
        unit.put(JOBS, id_key(id), records::encode_job(&job));
        unit.put(LIVE, lane.live_key(id), records::encode(&live));
        self.put_dead(lane, &mut unit, &dead);
        let put_back = lane.clone();
        let then: Then = Box::new(move |shared| put_back.put_back(shared, id, &live));
        Ok(self.change_ordered(lane, id, unit, Some(then), receipt).await?)
    }

    /// Gives an entry of one of this node's lanes up.
    pub(super) async fn discard_here(
        &self,
        lane: &Arc<OwnedLane>,
        id: JobId,
        reason: &str,
        receipt: Option<&Receipt>,
    ) -> Result<(), ChangeError> {
        let _one_at_a_time = self.changes.lock().await;
        self.settled().await?;
        let mut dead = self.pending(lane, id).await?;
        dead.status = DeadLetterStatus::Discarded;
        dead.discard_reason = Some(reason.to_owned());
        let mut unit = Unit::default();
        self.put_dead(lane, &mut unit, &dead);
        Ok(self.change_ordered(lane, id, unit, None, receipt).await?)
    }

    /// The same for an entry whose lane is not in the configuration, so that nobody owns it.
    async fn discard_unowned(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        let read = self.ledger.read(DEAD, &[id_key(id)]).await.map_err(ReadError::from).map_err(StoreError::from)?;
        let bytes = read.into_iter().next().flatten().ok_or(ChangeError::Unknown)?;
        let mut dead = records::decode_json::<DeadLetter>(DEAD, &bytes).map_err(StoreError::from)?;
        if dead.status != DeadLetterStatus::Pending {
            return Err(NoReplay::NotPending { status: dead.status }.into());
        }
        dead.status = DeadLetterStatus::Discarded;
        dead.discard_reason = Some(reason.to_owned());
        let mut unit = dead_letter_rows(&dead);
        unit.when.push(When { table: DEAD, key: id_key(id), expect: Expect::Is(bytes) });
        let node = self.node.read().clone();
        match self.write_under(node, vec![unit]).await?[0] {
            true => Ok(()),
            false => {
                Err(StoreError::Unreachable { reason: "somebody else changed it at the same moment".into() }.into())
            }
        }
    }
}

impl OwnedLane {
    /// Remembers an entry as the ledger has it, or that there is none.
    pub(super) fn know_dead(&self, id: JobId, dead: Option<&DeadLetter>) {
        let mut index = self.dead.lock();
        index.remove(id);
        if let Some(dead) = dead {
            index.put((dead.moved_to_dlq_at, dead.job_id), DeadMark::of(dead));
        }
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
        // Whoever died here is there to be listed once that is written.
        self.shared.bounded(self.shared.settled()).await?;
        Ok(self.shared.list_dead(filter, page).await?)
    }

    async fn dead_letter_counts(&self, by: CountBy, tenant: Option<&TenantName>) -> Result<Vec<Count>, StoreError> {
        Ok(self.shared.dead_counts(by, tenant).await?)
    }

    async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let name = shared.lane_of_dead(id).await?;
        let lane = shared.lane(&name)?;
        match lane.acting() {
            Some(owned) => Shared::vouched(&owned, shared.bounded(shared.replay_here(&owned, id, None)).await),
            None => shared.order(lane, Order::Replay { id }).await?.done(),
        }
    }

    async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        let shared = &self.shared;
        let name = shared.lane_of_dead(id).await?;
        let Some(lane) = shared.lanes.get(&name) else { return shared.discard_unowned(id, reason).await };
        match lane.acting() {
            Some(owned) => Shared::vouched(&owned, shared.bounded(shared.discard_here(&owned, id, reason, None)).await),
            None => shared.order(lane, Order::Discard { id, reason: reason.to_owned() }).await?.done(),
        }
    }
}
