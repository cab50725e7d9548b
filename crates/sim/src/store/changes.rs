//! What operators ask for: a lane paused or resumed, a job cancelled or unblocked, a dead letter discarded.
//! Invariant: one change at a time, and each is answered once it is durable; what is being attempted is not cancelled.

use std::time::Duration;

use entrega::store::{ChangeError, JobView, StoreError};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, NoReplay};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::{Next, NotRemoved};
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;

use super::SimStore;
use super::writer::Command;
use crate::bug::Bug;
use crate::disk::{Change, Place, Record};

impl SimStore {
    /// A call gets through, or it changes nothing.
    pub(super) async fn get_through(&self) -> Result<(), StoreError> {
        self.life.reach().await;
        match self.life.world.plan.outage_until(self.life.moment()) {
            Some(_) => Err(StoreError::Unreachable { reason: "the connection is lost".into() }),
            None => Ok(()),
        }
    }

    /// Pauses or resumes a lane; holds over restarts.
    pub(super) async fn pause_or_resume(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        self.get_through().await?;
        let _one_at_a_time = self.only_one().await?;
        {
            let mut state = self.shared.state.lock();
            let cell = state.lanes.get_mut(lane).ok_or_else(|| self.unknown_lane(lane))?;
            match paused {
                true if self.has(Bug::PauseUnheard) => {}
                true => cell.machine.pause(),
                false => cell.machine.resume(),
            }
        }
        self.change(vec![Change::Pause(lane.clone(), paused)], None).await?;
        if let Some(cell) = self.shared.state.lock().lanes.get(lane).filter(|_| !self.has(Bug::ResumeUnheard)) {
            cell.wake_all();
        }
        Ok(())
    }

    /// Ends a job that waits or is blocked.
    pub(super) async fn cancel_job(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        self.get_through().await?;
        let _one_at_a_time = self.only_one().await?;
        let record = self.record(id)?;
        match &record.place {
            Place::Ended { state, .. } => return Err(wrong(*state, "it has ended")),
            Place::Blocked { .. } => {}
            Place::Waiting => self.take_out(&record)?,
        }
        let mut changes = Vec::new();
        self.drop_job(&self.life.world.disk.lock(), &mut changes, id, JobState::Cancelled, reason);
        let end = changes.iter().find_map(|change| match change {
            Change::Job(record) => Some(view((**record).clone())),
            _ => None,
        });
        match self.has(Bug::CancelBeforeSync) {
            true => self.push(Command::Change { changes, put_back: None, reply: None }),
            false => self.change(changes, None).await?,
        }
        self.life.reach().await;
        end.ok_or(ChangeError::Unknown)
    }

    /// Takes a job that waits out of its lane.
    fn take_out(&self, record: &Record) -> Result<(), ChangeError> {
        let (id, now) = (record.job.id, self.now());
        let mut state = self.shared.state.lock();
        let cell = state.lanes.get_mut(&record.job.lane).ok_or_else(|| self.unknown_lane(&record.job.lane))?;
        let removed = match self.has(Bug::CancelKeepsInLane) {
            true => Ok(()),
            false => cell.machine.remove(id).map(drop),
        };
        match removed {
            Ok(()) => {}
            Err(NotRemoved::Running) if self.has(Bug::CancelRunning) => {
                let held = state.leases.iter().find(|(_, lease)| lease.id == id).map(|(number, _)| *number);
                let lease = held.and_then(|number| state.leases.remove(&number));
                let Some(lease) = lease else { return Err(wrong(JobState::Running, "an attempt is being settled")) };
                let Some(cell) = state.lanes.get_mut(&lease.lane) else { return Ok(()) };
                cell.machine.settle(now, lease.ticket, Next::Leave, Lesson::Nothing, Duration::ZERO);
            }
            Err(_) => return Err(wrong(JobState::Running, "an attempt is under way, or it has just ended")),
        }
        self.life.world.witness.lock().left(now, id);
        Ok(())
    }

    /// Puts a blocked job back in its lane with all its attempts, and with time to make them.
    pub(super) async fn unblock_job(&self, id: JobId) -> Result<(), ChangeError> {
        self.get_through().await?;
        let _one_at_a_time = self.only_one().await?;
        let record = self.record(id)?;
        let state = match record.place {
            Place::Blocked { .. } => None,
            Place::Ended { state, .. } => Some(state),
            Place::Waiting => Some(JobState::Queued),
        };
        if let Some(state) = state {
            return Err(wrong(state, "only a blocked job can be unblocked"));
        }
        let now = self.now();
        let ttl = self.life.world.plan.lanes.get(&record.job.lane).and_then(|policy| policy.ttl).unwrap_or_default();
        let expires_at = record.job.expires_at.map(|old| old.max(now + ttl));
        let attempt = if self.has(Bug::UnblockWithoutAttempts) { record.attempt } else { 0 };
        let job = Job { expires_at, ..record.job };
        let record = Record { job, place: Place::Waiting, attempt, due: now, ..record };
        let change = Change::Job(Box::new(record.clone()));
        Ok(self.change(vec![change], Some(record)).await?)
    }

    /// Gives a dead letter up that waits for somebody; it is kept, with the reason.
    pub(super) async fn discard_letter(&self, id: JobId, reason: &str) -> Result<(), ChangeError> {
        self.get_through().await?;
        let _one_at_a_time = self.only_one().await?;
        let dead = self.life.world.disk.lock().dead.get(&id).cloned().ok_or(ChangeError::Unknown)?;
        match dead.status {
            DeadLetterStatus::Pending => {}
            DeadLetterStatus::Replaying if self.has(Bug::DiscardReplaying) => {}
            status => return Err(NoReplay::NotPending { status }.into()),
        }
        let (status, discard_reason) = (DeadLetterStatus::Discarded, Some(reason.to_owned()));
        let change = match self.has(Bug::DiscardForgets) {
            true => Change::ForgetDead(id),
            false => Change::Dead(Box::new(DeadLetter { status, discard_reason, ..dead })),
        };
        match self.has(Bug::DiscardBeforeSync) {
            true => self.push(Command::Change { changes: vec![change], put_back: None, reply: None }),
            false => self.change(vec![change], None).await?,
        }
        self.life.reach().await;
        Ok(())
    }

    fn record(&self, id: JobId) -> Result<Record, ChangeError> {
        self.life.world.disk.lock().jobs.get(&id).cloned().ok_or(ChangeError::Unknown)
    }
}

fn wrong(state: JobState, hint: &'static str) -> ChangeError {
    ChangeError::WrongState { state, hint }
}

/// What an operator is shown of a job.
fn view(record: Record) -> JobView {
    let Record { job, place, generation, history, .. } = record;
    let (state, reason) = match place {
        Place::Waiting => (JobState::Queued, None),
        Place::Blocked { reason } => (JobState::Blocked, Some(reason)),
        Place::Ended { state, reason } => (state, reason),
    };
    JobView {
        job_id: job.id,
        lane: job.lane,
        company_id: job.tenant,
        endpoint: None,
        priority: job.priority,
        state,
        reason,
        destination: None,
        labels: job.labels,
        accepted_at: job.accepted_at,
        due_at: None,
        expires_at: job.expires_at,
        ended_at: None,
        generation,
        attempts: history,
        result: None,
    }
}
