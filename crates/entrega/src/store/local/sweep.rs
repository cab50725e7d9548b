//! Sweeping: what has been kept long enough leaves.
//! Invariant: a dead letter leaves only after it was written down in the export file of the day (unless that is
//! switched off); one that is being replayed stays. An owner sweeps the dead letters of its lanes, and one node whatever
//! belongs to no lane.

use std::ops::ControlFlow;
use std::sync::Arc;

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Expect, Key, Table, Unit, When};

use super::Shared;
use super::dead::mark_key;
use super::lanes::OwnedLane;
use super::orders::stale_before;
use super::reading::{From, ReadError, job_of, visit};
use super::records::{self, IdempotencyRecord, id_key};
use super::tables::{CALLS, DEAD, IDEMPOTENCY, JOBS, MAIL, MARKS, ORDERS};
use crate::store::{DeadLetterCursor, StoreError, Swept, export};

/// The most of each kind that one sweep takes away. Whoever sweeps comes again soon where it was so many: ten times a second
/// that is more than is delivered.
const SWEPT_MAX: usize = 5_000;
/// The most ended jobs that one sweep looks at.
const LOOKED_AT_MAX: usize = 20_000;

/// Where the sweep of ended jobs stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepFrom {
    /// The next job to look at.
    next: JobId,
    /// The first one that this round left.
    left: Option<JobId>,
    /// Rounds since one began with the first id of all.
    rounds: u32,
    has_ended: bool,
}

/// After so many rounds one begins with the first id of all.
const ROUNDS_MAX: u32 = 600;

impl SweepFrom {
    pub(super) const FIRST: SweepFrom = SweepFrom { next: JobId::MIN, left: None, rounds: 0, has_ended: false };

    /// Where this sweep begins.
    fn begin(self) -> SweepFrom {
        match (self.has_ended, self.rounds) {
            (false, _) => self,
            (true, ROUNDS_MAX..) => SweepFrom::FIRST,
            (true, rounds) => {
                SweepFrom { next: self.left.unwrap_or(self.next), left: None, rounds: rounds + 1, has_ended: false }
            }
        }
    }

    /// All jobs up to this one were looked at.
    fn end_round(&mut self, id: JobId) {
        self.left.get_or_insert(id);
        self.has_ended = true;
    }
}

impl Shared {
    pub(super) async fn sweep(&self) -> Result<Swept, StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        self.settled().await?;
        self.look_at_space();
        let mut swept = Swept::default();
        for lane in self.all_owned() {
            lane.machine.lock().forget_idle(self.clock.now());
            let left = self.sweep_dead(&lane).await?;
            swept.has_more |= left.len() >= SWEPT_MAX;
            swept.dead_letters.extend(left);
        }
        let house = self.house.read().clone();
        let Some(house) = house else { return Ok(swept) };
        let mut unit = Unit::default();
        swept.jobs = self.choose_ended(&mut unit).await?;
        swept.has_more |= swept.jobs >= SWEPT_MAX;
        self.choose_orders(&mut unit).await?;
        self.choose_nodes(&mut unit);
        self.stamp(&mut unit);
        let mut units = vec![unit];
        for table in [IDEMPOTENCY, MAIL, CALLS] {
            swept.has_more |= self.choose_expired(table, &mut units).await? >= SWEPT_MAX;
        }
        units.retain(|unit| !unit.ops.is_empty());
        if !units.is_empty() {
            self.write_under(house, units).await?;
        }
        self.sweep_replays().await?;
        swept.dead_letters.extend(self.sweep_unowned().await?);
        Ok(swept)
    }

    /// Ids sort by the time they were made, so nothing made within the retention time need be looked at. Each sweep goes
    /// on where the last one stopped: jobs that wait for long must not hide the ended ones behind them. A new round begins with
    /// the first job that the last one left, for below it there is nothing but what was removed; every so often it begins with
    /// the first id of all, as a job may be older than its record.
    async fn choose_ended(&self, unit: &mut Unit) -> Result<usize, ReadError> {
        let keep_since = self.clock.now() - self.options.retention;
        let mut looked_at = 0;
        let mut sweep = self.sweep_from.lock().begin();
        let from = From::Up(sweep.next.as_bytes().to_vec());
        // Mostly the first row is too young to be looked at.
        visit(&*self.ledger, JOBS, from, 1, |key, bytes| {
            let Some(id) = job_of(key) else { return ControlFlow::Continue(()) };
            sweep.next = id;
            if id.made_at() >= keep_since {
                sweep.end_round(id);
                return ControlFlow::Break(());
            }
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX || unit.ops.len() >= SWEPT_MAX {
                return ControlFlow::Break(());
            }
            let mut is_removed = false;
            if records::is_ended(bytes) {
                match records::decode_ended(JOBS, bytes) {
                    Ok(ended) if ended.ended_at < keep_since => {
                        unit.remove(JOBS, id_key(id));
                        is_removed = true;
                    }
                    Ok(_) => {}
                    Err(error) => self.note_unreadable("ended", &error),
                }
            }
            if !is_removed {
                sweep.left.get_or_insert(id);
            }
            ControlFlow::Continue(())
        })
        .await?;
        if looked_at <= LOOKED_AT_MAX && unit.ops.len() < SWEPT_MAX {
            // All rows were seen.
            let next = sweep.next;
            sweep.end_round(next);
        }
        *self.sweep_from.lock() = sweep;
        Ok(unit.ops.len())
    }

    /// Answers that nobody came for.
    async fn choose_orders(&self, unit: &mut Unit) -> Result<(), ReadError> {
        let stale = stale_before(self.clock.now());
        let mut looked_at = 0;
        visit(&*self.ledger, ORDERS, From::Up(Vec::new()), 1, |key, _| {
            looked_at += 1;
            if looked_at > SWEPT_MAX || key >= stale.as_bytes() {
                return ControlFlow::Break(());
            }
            unit.remove(ORDERS, Key::Text(String::from_utf8_lossy(key).into_owned()));
            ControlFlow::Continue(())
        })
        .await?;
        Ok(())
    }

    /// Records whose moment has passed, each on the condition that it was not used anew.
    async fn choose_expired(&self, table: Table, units: &mut Vec<Unit>) -> Result<usize, ReadError> {
        let now = self.clock.now();
        let expired = self.expired(table, now).await?;
        let count = expired.len();
        let keys: Vec<Key> = expired.iter().map(|(_, key)| Key::Text(key.clone())).collect();
        let found = self.ledger.read(table, &keys).await?;
        for ((expires, key), found) in expired.into_iter().zip(found) {
            let mut unit = Unit::default();
            unit.remove(table, Key::Text(records::expiry_key(expires, &key)));
            if let Some(bytes) = found
                && !is_current(table, &bytes, now)
            {
                unit.remove(table, Key::Text(key.clone()));
                unit.when.push(When { table, key: Key::Text(key), expect: Expect::Is(bytes) });
            }
            units.push(unit);
        }
        Ok(count)
    }

    /// Records whose moment has passed, with the row that says so.
    async fn expired(&self, table: Table, now: Time) -> Result<Vec<(Time, String)>, ReadError> {
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

    /// Entries of a lane past their TTL, past their tenant's quota or past the lane's cap leave.
    async fn sweep_dead(&self, lane: &Arc<OwnedLane>) -> Result<Vec<(DeadLetter, &'static str)>, StoreError> {
        let mut leaving = Vec::new();
        for (place, why) in self.dead_to_leave(lane) {
            match records::load_dead(&*self.ledger, place.1).await {
                Ok(Some(dead)) => leaving.push((dead, why)),
                Ok(None) => drop(lane.dead.lock().remove(place.1)),
                Err(error @ ReadError::Record { .. }) => self.note_unreadable("dead", &error),
                Err(error) => return Err(error.into()),
            }
        }
        if leaving.is_empty() {
            return Ok(leaving);
        }
        self.write_down(&leaving)?;
        let mut unit = Unit::default();
        for (dead, _) in &leaving {
            let place = lane.dead.lock().remove(dead.job_id);
            place.into_iter().for_each(|place| unit.remove(MARKS, Key::Text(mark_key(&lane.scope, place))));
            unit.remove(DEAD, id_key(dead.job_id));
        }
        self.change(lane, unit, Vec::new()).await?;
        Ok(leaving)
    }

    /// Writes entries that leave into the export file of the day.
    fn write_down(&self, leaving: &[(DeadLetter, &'static str)]) -> Result<(), StoreError> {
        match &self.options.export_dir {
            Some(dir) => {
                export::write_down(dir, self.clock.now(), leaving.iter().map(|(dead, _)| dead), self.options.show)
            }
            None => Ok(()),
        }
    }

    fn dead_to_leave(&self, lane: &OwnedLane) -> Vec<(DeadLetterCursor, &'static str)> {
        let quota = |tenant: &TenantName| self.tenant_settings(tenant).quotas.dead_letters_in(&lane.policy);
        lane.dead.lock().to_leave(self.clock.now(), lane.policy.dead_letters.cap, quota, SWEPT_MAX)
    }

    /// Entries past their TTL whose lane is not in the configuration, so that nobody owns it.
    async fn sweep_unowned(&self) -> Result<Vec<(DeadLetter, &'static str)>, StoreError> {
        let now = self.clock.now();
        let is_known = |scope: &Arc<str>| self.lanes.values().any(|lane| lane.scope == *scope);
        let scopes: Vec<Arc<str>> = self.scopes.read().iter().filter(|scope| !is_known(scope)).cloned().collect();
        let (mut leaving, mut units) = (Vec::new(), Vec::new());
        for scope in scopes {
            let mut places = Vec::new();
            self.visit_marks(&scope, None, false, |place, mark| {
                let leaves = mark.status != DeadLetterStatus::Replaying && mark.expires_at <= now;
                places.extend(leaves.then_some(place));
                if leaves && places.len() < SWEPT_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .await?;
            for place in places {
                let read = self.ledger.read(DEAD, &[id_key(place.1)]).await.map_err(ReadError::from)?;
                let mut unit = Unit::default();
                unit.remove(MARKS, Key::Text(mark_key(&scope, place)));
                if let Some(bytes) = read.into_iter().next().flatten() {
                    let dead = records::decode_json::<DeadLetter>(DEAD, &bytes);
                    leaving.extend(self.readable(&place.1, dead)?.map(|dead| (dead, "ttl")));
                    unit.remove(DEAD, id_key(place.1));
                    unit.when.push(When { table: DEAD, key: id_key(place.1), expect: Expect::Is(bytes) });
                }
                units.push(unit);
            }
        }
        if !units.is_empty() {
            self.write_down(&leaving)?;
            let node = self.node.read().clone();
            self.write_under(node, units).await?;
        }
        Ok(leaving)
    }
}

/// Whether a record that was to be forgotten has been used anew. One that cannot be read has not.
fn is_current(table: Table, bytes: &[u8], now: Time) -> bool {
    match table {
        IDEMPOTENCY => records::decode::<IdempotencyRecord>(table, bytes).is_ok_and(|kept| kept.expires > now),
        MAIL => records::decode_json::<records::Noted>(table, bytes).is_ok_and(|noted| noted.expires > now),
        // Whatever it holds, its moment comes first.
        _ => records::decode::<Time>(table, bytes).is_ok_and(|expires| expires > now),
    }
}
