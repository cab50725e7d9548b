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
use super::turns::encode_end;
use super::{LaneCell, Shared, TimeOf, schema};
use crate::store::{StoreError, Swept, export};

/// How long the nodes leave it at one sweep.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The most that one sweep takes away, and looks at, in each lane.
const SWEPT_MAX: usize = 2_000;
const CALL_LOOKS: usize = 1_000;
const PAGE_LOOKS: usize = 20_000;
/// Dropped jobs whose body is let go at a time.
const COMPACTED_MAX: usize = 200;
const SWEEPING: Reader = Reader("a sweep");

impl Shared {
    pub(super) async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        if !self.may_sweep().await? {
            return Ok(swept);
        }
        for lane in self.lanes.values() {
            swept.jobs += self.sweep_ended(lane).await?;
            swept.dead_letters.extend(self.sweep_dead(lane).await?);
            self.compact(lane).await?;
        }
        Ok(swept)
    }

    /// Whether it is this node's turn.
    async fn may_sweep(&self) -> Result<bool, StoreError> {
        if self.options.time_of == TimeOf::Node {
            return Ok(true);
        }
        let mut turn = redis::cmd("SET");
        turn.arg(schema::sweeper(&self.options.prefix)).arg(&self.node).arg("NX").arg("PX");
        Ok(self.link.ask(turn.arg(SWEEP_EVERY.as_millis() as u64)).await? != Value::Nil)
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

    /// Ids sort by the time they were made, so nothing made within the retention time need be looked at.
    async fn sweep_ended(&self, lane: &LaneCell) -> Result<usize, StoreError> {
        let keep_since = self.clock.now() - self.options.retention;
        let young = JobId::from_parts(keep_since, 0);
        let (mut from, mut swept) = (JobId::MIN, 0);
        for _ in 0..PAGE_LOOKS / CALL_LOOKS {
            let arguments =
                |call: Call| call.arg(from.as_bytes()).arg(micros(keep_since)).arg(young.as_bytes()).arg(CALL_LOOKS);
            let [count, next] = SWEEPING.fields(self.duty(lane, "ended", arguments).await?)?;
            swept += SWEEPING.number(&count)? as usize;
            match SWEEPING.bytes(next)?.and_then(|next| next.try_into().ok()) {
                Some(next) if swept < SWEPT_MAX => from = JobId::from_bytes(next),
                _ => break,
            }
        }
        Ok(swept)
    }

    async fn sweep_dead(&self, lane: &LaneCell) -> Result<Vec<(DeadLetter, &'static str)>, StoreError> {
        let cap = lane.policy.dead_letters.cap;
        let rows = self.duty(lane, "dead", |call| call.arg(cap).arg(SWEPT_MAX)).await?;
        let mut leaving = Vec::new();
        for row in SWEEPING.rows(rows)? {
            let [id, why] = SWEEPING.fields(row)?;
            let id = SWEEPING.id(id)?;
            let why = if SWEEPING.word(why)? == "ttl" { "ttl" } else { "cap" };
            let looked = self.look(lane, &[id]).await?.pop();
            leaving.extend(looked.and_then(|looked| self.dead_of(id, &looked)).map(|dead| (dead, why)));
        }
        if leaving.is_empty() {
            return Ok(leaving);
        }
        if let Some(dir) = &self.options.export_dir {
            export::write_down(dir, self.clock.now(), leaving.iter().map(|(dead, _)| dead))?;
        }
        let ids = |call: Call| leaving.iter().fold(call, |call, (dead, _)| call.arg(dead.job_id.as_bytes()));
        self.duty(lane, "forget", ids).await?;
        Ok(leaving)
    }

    /// Lets the bodies of dropped jobs go; scripts cannot write what is known of a job without reading it.
    async fn compact(&self, lane: &LaneCell) -> Result<(), StoreError> {
        let ids = SWEEPING.ids(self.duty(lane, "dropped", |call| call.arg(COMPACTED_MAX)).await?)?;
        if ids.is_empty() {
            return Ok(());
        }
        let looked = self.look(lane, &ids).await?;
        let ends: Vec<_> =
            ids.iter().zip(&looked).filter_map(|(id, looked)| Some((id, self.dropped_by(*id, looked)?))).collect();
        let pairs = |call: Call| ends.iter().fold(call, |call, (id, end)| call.arg(id.as_bytes()).arg(encode_end(end)));
        self.duty(lane, "compact", pairs).await.map(drop)
    }
}
