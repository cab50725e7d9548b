//! Ends of jobs that were not delivered: dropped, cancelled, expired.
//! Invariant: a dead letter on its way back stays one; whatever else ends keeps its attempts and the reason.

use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_ledger::{Key, Op, Unit};

use super::reading::{ReadError, patiently};
use super::records::{self, Ended, id_key};
use super::tables::{HISTORY, JOBS, LIVE};
use super::{LaneCell, Shared};

impl Shared {
    /// The end of a job that was not delivered. It may have come by one of the `pending` units, which are on their way to
    /// the ledger.
    pub(super) async fn dropped(
        &self,
        lane: &LaneCell,
        id: JobId,
        state: JobState,
        reason: &str,
        pending: &[Unit],
    ) -> Result<Unit, ReadError> {
        if self.dead.lock().contains(id) {
            return self.return_to_dead(lane, id, reason).await;
        }
        let mut unit = Unit::default();
        let job = match pending_job(pending, id) {
            Some(job) => job.map(Some),
            None => patiently(|| records::load_job(&*self.ledger, id)).await,
        };
        let mut end = match self.readable(&id, job)? {
            Some(Some(job)) => Ended::of(job, state, self.clock.now(), 0),
            Some(None) => return Ok(unit),
            None => match patiently(|| records::load_live(&*self.ledger, lane.live_key(id))).await? {
                Some(live) => records::end_of_unreadable(id, live, state, self.clock.now()),
                None => return Ok(unit),
            },
        };
        end.reason = Some(reason.to_owned());
        let history = self.readable(&id, patiently(|| records::load_history(&*self.ledger, id)).await)?;
        let had_history = history.as_ref().is_none_or(|history| !history.is_empty());
        end.attempts = history.unwrap_or_default();
        leave_index(&mut unit, lane, id, had_history);
        unit.put(JOBS, id_key(id), records::encode_ended(&end));
        Ok(unit)
    }
}

/// What a job carries that is on its way to the ledger.
fn pending_job(pending: &[Unit], id: JobId) -> Option<Result<Job, ReadError>> {
    let key = id_key(id);
    pending.iter().rev().flat_map(|unit| unit.ops.iter().rev()).find_map(|op| match op {
        Op::Put(JOBS, at, bytes) if *at == key => Some(records::decode_job(bytes)),
        _ => None,
    })
}

/// Takes a job off the index of jobs that have not ended. What it carried is overwritten or removed by the caller.
pub(super) fn leave_index(unit: &mut Unit, lane: &LaneCell, id: JobId, had_history: bool) {
    unit.remove(LIVE, lane.live_key(id));
    if had_history {
        unit.remove(HISTORY, Key::Id(*id.as_bytes()));
    }
}
