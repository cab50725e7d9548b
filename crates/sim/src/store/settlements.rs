//! What becomes of a settled job on the disk.
//! Invariant: state, history, dead letter and causes of a settlement are one batch.

use std::time::Duration;

use entrega::store::Settlement;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::decide::{Failure, Transition};
use entrega_core::job::{Job, JobState, Payload};
use entrega_core::lane::Next;
use entrega_core::name::LaneName;
use entrega_core::time::Time;

use super::writer::{Command, Retried};
use super::{Lease, SimStore};
use crate::bug::Bug;
use crate::disk::{Change, Disk, Place, Record};

impl SimStore {
    /// Hands settlements to the writer. One under an old lease changes nothing.
    pub(super) fn settle_now(&self, lane: &LaneName, settlements: Vec<Settlement>) {
        let now = self.now();
        let (mut changes, mut retries, mut causes) = (Vec::new(), Vec::new(), Vec::new());
        for settlement in settlements {
            let number = settlement.ticket.number().unwrap_or_default();
            let lease = self.shared.state.lock().leases.remove(&number);
            self.life.world.witness.lock().settling(now, &settlement, lease.is_none());
            if lease.is_none() && !self.is_bent(&settlement) {
                continue;
            }
            self.leave_lane(now, lane, lease, &settlement, &mut retries);
            if !self.has(Bug::ForgetCauses) {
                causes.extend(settlement.causes.iter().map(|cause| self.cause(cause)));
            }
            let disk = self.life.world.disk.lock();
            let settled = self.settled(&disk, settlement, now);
            if self.has(Bug::SettleTwice) {
                changes.extend(settled.clone());
            }
            changes.extend(settled);
        }
        self.push(Command::Settle { changes, retries, causes });
    }

    /// Whether a settlement under an old lease counts although it should not.
    fn is_bent(&self, settlement: &Settlement) -> bool {
        let state = self.shared.state.lock();
        let has_another = |lease: &Lease| lease.id == settlement.job.id && lease.node != self.node;
        self.has(Bug::NoFence) || self.has(Bug::NoFenceBetweenNodes) && state.leases.values().any(has_another)
    }

    /// What the lane machine learns now; a retry waits until it is durable.
    fn leave_lane(
        &self,
        now: Time,
        lane: &LaneName,
        lease: Option<Lease>,
        settlement: &Settlement,
        retries: &mut Vec<Retried>,
    ) {
        let Some(Lease { ticket, .. }) = lease else { return };
        let Settlement { lesson, took, .. } = *settlement;
        if let Transition::Retry { at, .. } = settlement.transition {
            retries.push(Retried { lane: lane.clone(), ticket, at, lesson, took });
            return;
        }
        let mut state = self.shared.state.lock();
        let Some(cell) = state.lanes.get_mut(lane) else { return };
        let next = if self.has(Bug::KeepAfterEnd) { Next::RetryAt(now) } else { Next::Leave };
        let was_running = cell.machine.settle(now, ticket, next, lesson, took);
        self.life.world.witness.lock().learned(now, lane, lesson);
        assert!(was_running, "{ticket:?} was settled twice");
        if !self.is_lone() {
            // Another node may have room for whoever had to wait for this.
            cell.wake_all();
        }
    }

    /// A job that is caused, unless it is bent.
    fn cause(&self, cause: &Job) -> Job {
        let mut cause = cause.clone();
        if self.has(Bug::DoubleEventNumber)
            && let Payload::Event(event) = &mut cause.payload
        {
            let text = String::from_utf8_lossy(&event.body.0).replace("\"sequenceNumber\":2", "\"sequenceNumber\":1");
            event.body.0 = text.into_bytes().into();
        }
        cause
    }

    fn settled(&self, disk: &Disk, settlement: Settlement, now: Time) -> Vec<Change> {
        let Settlement { job, generation, mut attempts, transition, .. } = settlement;
        let id = job.id;
        let attempt = attempts.last().map_or(0, |attempt| attempt.number);
        if self.has(Bug::ForgetHistory) && matches!(transition, Transition::Retry { .. }) {
            attempts.clear();
        }
        let reason =
            |failure: &Failure| if self.has(Bug::ForgetReason) { String::new() } else { failure.reason.clone() };
        let mut due = now;
        let mut dead = None;
        let place = match transition {
            Transition::Done => {
                let earlier = disk.dead.get(&id).filter(|_| generation > 0 && !self.has(Bug::ReplayWithoutRemoving));
                dead = earlier.map(|dead| DeadLetter { status: DeadLetterStatus::Replayed, ..dead.clone() });
                Place::Ended { state: JobState::Done, reason: None }
            }
            Transition::Retry { at, .. } => {
                due = at;
                Place::Waiting
            }
            Transition::Blocked { failure } => Place::Blocked { reason: reason(&failure) },
            Transition::DeadLetter { failure } => {
                let failure = Failure { reason: reason(&failure), code: failure.code };
                let entry = Record { attempt, generation, history: attempts.clone(), due, ..Record::new(job.clone()) };
                dead = Some(self.dead_letter(disk, &entry, &failure, now));
                Place::Ended { state: JobState::Dlq, reason: Some(failure.reason) }
            }
        };
        let record = Record { job, place, attempt, generation, history: attempts, due };
        let dead = dead.map(|dead| Change::Dead(Box::new(dead)));
        dead.into_iter().chain([Change::Job(Box::new(record))]).collect()
    }

    /// The entry of a job that gave up; one that came back carries its earlier attempts along.
    fn dead_letter(&self, disk: &Disk, record: &Record, failure: &Failure, now: Time) -> DeadLetter {
        let policy = &self.life.world.plan.lanes[&record.job.lane];
        let earlier = disk.dead.get(&record.job.id).map(|dead| dead.attempts.clone()).unwrap_or_default();
        let attempts: Vec<_> = earlier.into_iter().chain(record.history.iter().cloned()).collect();
        let ttl: Duration = policy.dead_letters.ttl;
        DeadLetter {
            job_id: record.job.id,
            outbox_id: record.job.id.is_mail().then_some(record.job.id),
            company_id: record.job.tenant.company(),
            lane: record.job.lane.clone(),
            enqueued_at: record.job.accepted_at,
            original_data: record.job.clone(),
            failed_attempts: attempts.len() as u32,
            last_failure_reason: failure.reason.clone(),
            last_failure_code: Some(failure.code.clone()),
            last_failure_timestamp: now,
            moved_to_dlq_at: now,
            ttl: ttl.as_millis() as u64,
            status: DeadLetterStatus::Pending,
            attempts,
            generation: record.generation,
            discard_reason: None,
        }
    }
}
