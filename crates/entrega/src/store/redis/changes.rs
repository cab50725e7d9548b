//! What operators do to a job: cancel, unblock, replay, discard.
//! Invariant: what was read decides nothing by itself; the script looks again and refuses what has changed.

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, NoReplay};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::time::Time;

use super::answer::{FOREVER, Reader, micros};
use super::link::store_error;
use super::script::{Call, Verb};
use super::submits::state_named;
use super::{LaneCell, Shared};
use crate::store::{ChangeError, JobView, StoreError, records};

impl Shared {
    /// Makes a change; says `ok`, or where the job stands instead.
    pub(super) async fn change(
        &self,
        lane: &LaneCell,
        what: &'static str,
        arguments: impl FnOnce(Call) -> Call,
    ) -> Result<String, StoreError> {
        let call = arguments(Call::new(self, lane, Verb::Change).arg(what));
        Reader(what).word(call.make(self).await.map_err(|error| store_error(&error))?)
    }

    pub(super) async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        let (lane, view) = self.find(id).await?.ok_or(ChangeError::Unknown)?;
        let lane = self.lane(&lane)?;
        let wrong = |state: JobState| {
            let hint = match state {
                JobState::Running => "an attempt is under way; try again when it has ended",
                _ => "it has ended",
            };
            Err(ChangeError::WrongState { state, hint })
        };
        if !view.state.may_become(JobState::Cancelled) {
            return wrong(view.state);
        }
        let reason = shortened(reason);
        match self.change(lane, "cancel", |call| call.arg(id.as_bytes()).arg(reason)).await?.as_str() {
            "ok" => {
                self.waiters.tell(&[id]);
                let ended = self.view(lane, id).await?;
                // One whose record cannot be read has ended all the same.
                Ok(ended.unwrap_or_else(|| JobView {
                    state: JobState::Cancelled,
                    reason: Some(reason.to_owned()),
                    ..view
                }))
            }
            "gone" => {
                let view = self.view(lane, id).await?.ok_or(ChangeError::Unknown)?;
                wrong(view.state)
            }
            other => wrong(state_named(other).unwrap_or(JobState::Running)),
        }
    }

    pub(super) async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        let hint = "only a blocked job can be unblocked";
        let (lane, view) = self.find(id).await?.ok_or(ChangeError::Unknown)?;
        let lane = self.lane(&lane)?;
        if view.state != JobState::Blocked {
            return Err(ChangeError::WrongState { state: view.state, hint });
        }
        let now = self.clock.now();
        let expires = match (view.expires_at, lane.policy.ttl) {
            (Some(old), Some(ttl)) => old.max(now + ttl),
            (old, _) => old.map_or(Time::NEVER, |old| old.max(now)),
        };
        let looked = self.look(lane, &[id]).await?.pop();
        let job = looked.and_then(|looked| records::decode::<Job>(&looked.record?).ok());
        let record = job.map(|job| records::encode_job(&Job { expires_at: expires.finite(), ..job }));
        let arguments =
            |call: Call| call.arg(id.as_bytes()).arg(micros(expires)).arg(record.as_deref().unwrap_or_default());
        match self.change(lane, "unblock", arguments).await?.as_str() {
            "ok" => {
                lane.wake.notify_one();
                Ok(())
            }
            other => Err(ChangeError::WrongState { state: state_named(other).unwrap_or(JobState::Done), hint }),
        }
    }

    pub(super) async fn replay(&self, id: JobId) -> Result<(), ChangeError> {
        let dead = self.pending(id).await?;
        dead.check_replay()?;
        let lane = self.lane(&dead.lane)?;
        let now = self.clock.now();
        let expires_at = lane.policy.ttl.map(|ttl| now + ttl);
        let job = dead.job_to_replay(now, expires_at);
        let arguments = |call: Call| {
            call.arg(id.as_bytes())
                .arg(dead.generation)
                .arg(expires_at.map_or(FOREVER, micros))
                .arg(records::encode_job(&job))
                .arg(job.priority as u8)
        };
        let answer = self.change(lane, "replay", arguments).await?;
        self.changed_or_why(id, &answer).await?;
        lane.wake.notify_one();
        Ok(())
    }

    pub(super) async fn discard(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        let dead = self.pending(id).await?;
        let lane = self.lane(&dead.lane)?;
        let answer = self.change(lane, "discard", |call| call.arg(id.as_bytes()).arg(reason)).await?;
        self.changed_or_why(id, &answer).await
    }

    async fn pending(&self, id: JobId) -> Result<DeadLetter, ChangeError> {
        let dead = self.find_dead(id).await?.ok_or(ChangeError::Unknown)?;
        match dead.status {
            DeadLetterStatus::Pending => Ok(dead),
            status => Err(NoReplay::NotPending { status }.into()),
        }
    }

    /// Somebody else was quicker: says what became of the entry.
    async fn changed_or_why(&self, id: JobId, answer: &str) -> Result<(), ChangeError> {
        if answer == "ok" {
            return Ok(());
        }
        let status = self.pending(id).await?.status;
        Err(NoReplay::NotPending { status }.into())
    }

    /// A job whose record cannot be read is blocked with the reason: nothing of it is thrown away.
    pub(super) async fn set_aside(&self, lane: &LaneCell, id: JobId, token: u64, reason: &str) {
        self.note_unreadable(&id.to_string(), &reason);
        let set_aside = self.change(lane, "set_aside", |call| call.arg(id.as_bytes()).arg(token).arg(reason)).await;
        if let Err(error) = set_aside {
            // Its lease ends, and whoever claims it next comes here again.
            tracing::warn!(jobId = %id, errorReason = %error, "A job that cannot be read could not be set aside");
        }
    }
}

/// As much of a reason as is kept.
fn shortened(reason: &str) -> &str {
    const REASON_BYTES_MAX: usize = 4096;
    &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]
}
