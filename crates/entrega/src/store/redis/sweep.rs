//! Sweeping: what has been kept long enough leaves.
//! Invariant: one node sweeps at a time; a dead letter leaves only after it was written down (unless that is switched
//! off); one that is being replayed stays.

use std::time::Duration;

use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use redis::Value;

use super::answer::{Reader, micros};
use super::link::store_error;
use super::script::{Call, Verb};
use super::settlements::encode_end;
use super::{LaneCell, Shared, TimeOf, schema};
use crate::store::{StoreError, Swept, export};

/// How long the nodes leave it at one sweep.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Ended jobs that one call looks at, and that one sweep does in each lane: 20 000 a second can end.
const CALL_LOOKS: usize = 1_000;
const PAGE_LOOKS: usize = 200_000;
/// Dead letters that one sweep takes away in each lane, and that one call brings.
const SWEPT_MAX: usize = 2_000;
const CALL_DEAD: usize = 100;
/// Dropped jobs whose body is let go at a time, and in one sweep.
const COMPACTED_MAX: usize = 200;
const COMPACTIONS_MAX: usize = 50;
const SWEEPING: Reader = Reader("a sweep");

impl Shared {
    pub(super) async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        if !self.may_sweep().await? {
            return Ok(swept);
        }
        for lane in self.lanes.values() {
            // What left is reported, also if the next could not: nobody else knows of it.
            if let Err(error) = self.sweep_lane(lane, &mut swept).await {
                tracing::error!(lane = %lane.name, errorReason = %error, "A lane could not be swept; it is tried again");
            }
        }
        Ok(swept)
    }

    async fn sweep_lane(&self, lane: &LaneCell, swept: &mut Swept) -> Result<(), StoreError> {
        swept.dead_letters.extend(self.sweep_dead(lane).await?);
        swept.jobs += self.sweep_ended(lane).await?;
        self.compact(lane).await
    }

    /// Whether it is this node's turn.
    async fn may_sweep(&self) -> Result<bool, StoreError> {
        if self.options.time_of == TimeOf::Node {
            return Ok(true);
        }
        self.lock(&schema::sweeper(&self.options.prefix), SWEEP_EVERY).await
    }

    async fn duty(
        &self,
        lane: &LaneCell,
        name: &'static str,
        arguments: impl FnOnce(Call) -> Call,
    ) -> Result<Value, StoreError> {
        let call = arguments(Call::new(self, lane, Verb::Sweep).arg(name));
        call.make(self).await.map_err(|error| store_error(&error))
    }

    /// Ids sort by the time they were made, so nothing made within the retention time need be looked at. Each sweep goes
    /// on where the last one of this node stopped: jobs that wait for long must not hide the ended ones behind them.
    async fn sweep_ended(&self, lane: &LaneCell) -> Result<usize, StoreError> {
        let keep_since = self.clock.now() - self.options.retention;
        let young = JobId::from_parts(keep_since, 0);
        let mut from = std::mem::replace(&mut *lane.sweep_from.lock(), JobId::MIN);
        let mut swept = 0;
        for _ in 0..PAGE_LOOKS / CALL_LOOKS {
            let arguments =
                |call: Call| call.arg(from.as_bytes()).arg(micros(keep_since)).arg(young.as_bytes()).arg(CALL_LOOKS);
            let [count, next] = SWEEPING.fields(self.duty(lane, "ended", arguments).await?)?;
            swept += SWEEPING.number(&count)? as usize;
            match SWEEPING.bytes(next)?.and_then(|next| next.try_into().ok()) {
                Some(next) => from = JobId::from_bytes(next),
                None => return Ok(swept),
            }
        }
        *lane.sweep_from.lock() = from;
        Ok(swept)
    }

    async fn sweep_dead(&self, lane: &LaneCell) -> Result<Vec<(DeadLetter, &'static str)>, StoreError> {
        let cap = lane.policy.dead_letters.cap;
        let rows = self.duty(lane, "dead", |call| call.arg(cap).arg(SWEPT_MAX)).await?;
        let mut chosen = Vec::new();
        for row in SWEEPING.rows(rows)? {
            let [id, why] = SWEEPING.fields(row)?;
            chosen.push((SWEEPING.id(id)?, if SWEEPING.word(why)? == "ttl" { "ttl" } else { "cap" }));
        }
        let mut leaving = Vec::new();
        for some in chosen.chunks(CALL_DEAD) {
            let ids: Vec<_> = some.iter().map(|(id, _)| *id).collect();
            let looked = self.look(lane, &ids).await?;
            let dead =
                some.iter().zip(&looked).filter_map(|((id, why), looked)| Some((self.dead_of(*id, looked)?, *why)));
            leaving.extend(dead);
        }
        if leaving.is_empty() {
            return Ok(leaving);
        }
        if let Some(dir) = &self.options.export_dir {
            export::write_down(dir, self.clock.now(), leaving.iter().map(|(dead, _)| dead))?;
        }
        for some in leaving.chunks(CALL_LOOKS) {
            let ids = |call: Call| some.iter().fold(call, |call, (dead, _)| call.arg(dead.job_id.as_bytes()));
            self.duty(lane, "forget", ids).await?;
        }
        Ok(leaving)
    }

    /// Lets the bodies of dropped jobs go; scripts cannot write what is known of a job without reading it.
    async fn compact(&self, lane: &LaneCell) -> Result<(), StoreError> {
        for _ in 0..COMPACTIONS_MAX {
            if self.compact_some(lane).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// How many there were.
    async fn compact_some(&self, lane: &LaneCell) -> Result<usize, StoreError> {
        let ids = SWEEPING.ids(self.duty(lane, "dropped", |call| call.arg(COMPACTED_MAX)).await?)?;
        if ids.is_empty() {
            return Ok(0);
        }
        let looked = self.look(lane, &ids).await?;
        let ends: Vec<_> =
            ids.iter().zip(&looked).filter_map(|(id, looked)| Some((id, self.dropped_by(*id, looked)?))).collect();
        let pairs = |call: Call| ends.iter().fold(call, |call, (id, end)| call.arg(id.as_bytes()).arg(encode_end(end)));
        self.duty(lane, "compact", pairs).await?;
        Ok(ends.len())
    }
}
