//! Ends of jobs that were not delivered: dropped, cancelled, expired.
//! Invariant: a dead letter on its way back stays one; whatever else ends keeps its attempts and the reason.

use std::collections::HashMap;

use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_ledger::{Key, Unit};

use super::Shared;
use super::lanes::OwnedLane;
use super::reading::{ReadError, patiently};
use super::records::{self, Ended, id_key};
use super::tables::{HISTORY, JOBS, LIVE};

/// What jobs carry that are on their way to the ledger.
pub(super) type Pending = HashMap<JobId, Bytes>;

impl Shared {
    /// The end of jobs that were not delivered. Some may be on their way to the ledger.
    pub(super) async fn dropped(
        &self,
        lane: &OwnedLane,
        ids: &[JobId],
        state: JobState,
        reason: &str,
        pending: &Pending,
    ) -> Result<Unit, ReadError> {
        let mut unit = Unit::default();
        ids.iter().for_each(|id| lane.read_ahead.lock().forget(*id));
        let (letters, ids): (Vec<_>, Vec<_>) = ids.iter().partition(|id| lane.dead.lock().contains(**id));
        for id in letters {
            self.return_to_dead(lane, &mut unit, id, reason).await?;
        }
        let jobs = patiently(|| async { Ok(self.read_ids(JOBS, &ids).await?) }).await?;
        let histories = patiently(|| async { Ok(self.read_ids(HISTORY, &ids).await?) }).await?;
        for ((id, job), history) in ids.into_iter().zip(jobs).zip(histories) {
            let stored = pending.get(&id).cloned().or(job);
            let Some(stored) = stored.filter(|bytes| !records::is_ended(bytes)) else { continue };
            let mut end = match self.readable(&id, records::decode_job(&stored))? {
                Some(job) => Ended::of(job, state, self.clock.now(), 0),
                None => match patiently(|| records::load_live(&*self.ledger, lane.live_key(id))).await? {
                    Some(live) => records::end_of_unreadable(id, live, state, self.clock.now()),
                    None => continue,
                },
            };
            end.reason = Some(reason.to_owned());
            let had_history = history.is_some();
            let history = history.map(|bytes| records::decode(HISTORY, &bytes)).transpose();
            end.attempts = self.readable(&id, history)?.flatten().unwrap_or_default();
            leave_index(&mut unit, lane, id, had_history);
            unit.put(JOBS, id_key(id), records::encode_ended(&end));
        }
        Ok(unit)
    }
}

/// Takes a job off the index of jobs that have not ended. What it carried is overwritten or removed by the caller.
pub(super) fn leave_index(unit: &mut Unit, lane: &OwnedLane, id: JobId, had_history: bool) {
    unit.remove(LIVE, lane.live_key(id));
    if had_history {
        unit.remove(HISTORY, Key::Id(*id.as_bytes()));
    }
}
