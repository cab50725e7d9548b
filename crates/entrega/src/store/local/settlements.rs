//! Settlements: the end of attempts, as records.
//! Invariant: state, history and dead letter of a job change in one group.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::lane::{self, Next};
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use entrega_ledger::Unit;

use super::Shared;
use super::command::{Cause, Command, Retried};
use super::ends::leave_index;
use super::lanes::OwnedLane;
use super::reading::{ReadError, patiently};
use super::records::{self, Ended, Live, id_key};
use super::submits::prepare;
use super::tables::{DEAD, HISTORY, JOBS, LIVE};
use crate::store::{Held, Settlement, StoreError, Ticket};

/// A running job's place in its lane's machine, and the ownership under which it was claimed.
pub(super) fn place(ticket: Ticket) -> (u64, lane::Ticket) {
    match ticket.0 {
        Held::Place(ownership, place) => (ownership, place),
        Held::Number(_) => panic!("a settlement with another store's ticket"),
    }
}

impl Shared {
    pub(super) async fn settle(&self, lane: &LaneName, mut settlements: Vec<Settlement>) -> Result<(), StoreError> {
        let entry = self.lane(lane)?;
        let permits = self.settle_permits.clone().acquire_many_owned(settlements.len() as u32).await;
        let permit = permits.map_err(|_| self.stopped())?;
        let owned = entry.owned();
        // What was attempted under an ownership that is over is attempted again by whoever owns the lane now.
        let count = settlements.len();
        let ownership = owned.as_ref().map(|owned| owned.hold.number());
        settlements.retain(|settlement| Some(place(settlement.ticket).0) == ownership);
        self.stale.fetch_add((count - settlements.len()) as u64, Ordering::Relaxed);
        let Some(lane) = owned.filter(|_| !settlements.is_empty()) else { return Ok(()) };
        settlements.iter().try_for_each(Settlement::check)?;
        let now = self.clock.now();
        let earlier = self.earlier_letters(&settlements).await?;
        let mut change = Unit::default();
        let (mut leaving, mut retries, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        let causes = settlements.iter().flat_map(|settlement| &settlement.causes);
        let cause = |job: &Job| Ok(Cause { lane: self.lane(&job.lane)?.clone(), job: prepare(job) });
        let causes = causes.map(cause).collect::<Result<_, StoreError>>()?;
        for settlement in settlements {
            let Settlement { lesson, took, .. } = settlement;
            let (_, ticket) = place(settlement.ticket);
            match settlement.transition {
                Transition::Retry { at, .. } => {
                    retries.push(Retried { lane: lane.clone(), ticket, at, lesson, took });
                }
                Transition::Done
                | Transition::Blocked { .. }
                | Transition::DeadLetter { .. }
                | Transition::Dropped { .. } => {
                    let is_blocked = matches!(settlement.transition, Transition::Blocked { .. });
                    lane.block(is_blocked.into());
                    leaving.push((ticket, lesson, took));
                    ended.push(settlement.job.id);
                }
            }
            self.write_settlement(&lane, &mut change, settlement, now, &earlier)?;
        }
        {
            let mut machine = lane.machine.lock();
            for (ticket, lesson, took) in leaving {
                let was_running = machine.settle(now, ticket, Next::Leave, lesson, took);
                assert!(was_running, "{ticket:?} was settled twice");
            }
        }
        self.send(Command::Settle { lane, change, ended, retries, causes, permit })
    }

    /// The dead letters of jobs that were replayed.
    async fn earlier_letters(&self, settlements: &[Settlement]) -> Result<HashMap<JobId, DeadLetter>, ReadError> {
        let replayed = settlements.iter().filter(|settlement| settlement.generation > 0);
        let ids: Vec<JobId> = replayed.map(|settlement| settlement.job.id).collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = patiently(|| async { Ok(self.read_ids(DEAD, &ids).await?) }).await?;
        let letters = found.iter().flatten().map(|bytes| records::decode_json::<DeadLetter>(DEAD, bytes));
        letters.map(|dead| dead.map(|dead| (dead.job_id, dead))).collect()
    }

    fn write_settlement(
        &self,
        lane: &OwnedLane,
        unit: &mut Unit,
        settlement: Settlement,
        now: Time,
        earlier: &HashMap<JobId, DeadLetter>,
    ) -> Result<(), ReadError> {
        let Settlement { job, generation, attempts, transition, answer, .. } = settlement;
        let id = job.id;
        let number = attempts.last().map_or(0, |attempt| attempt.number);
        // One line stands for all attempts in a row that called nobody.
        let had_history = attempts.len() > 1 || number > 1;
        let attempt = u16::try_from(number).unwrap_or(u16::MAX);
        let waiting = |due: Time, blocked| Live { due, attempt, generation, blocked, ..Live::of(&job) };
        match transition {
            Transition::Done => {
                leave_index(unit, lane, id, had_history);
                if let Some(dead) = earlier.get(&id) {
                    self.put_dead(lane, unit, &DeadLetter { status: DeadLetterStatus::Replayed, ..dead.clone() });
                }
                let end = Ended::of(job, JobState::Done, now, generation).with_answer(answer);
                let end = Ended { attempts, ..end };
                unit.put(JOBS, id_key(id), records::encode_ended(&end));
            }
            Transition::Retry { at, .. } => {
                unit.put(LIVE, lane.live_key(id), records::encode(&waiting(at, None)));
                unit.put(HISTORY, id_key(id), records::encode(&attempts));
            }
            Transition::Blocked { failure } => {
                unit.put(LIVE, lane.live_key(id), records::encode(&waiting(now, Some(failure.reason))));
                unit.put(HISTORY, id_key(id), records::encode(&attempts));
            }
            Transition::Dropped { failure } => {
                leave_index(unit, lane, id, had_history);
                let end = Ended::of(job, JobState::Dropped, now, generation);
                let end = Ended { attempts, reason: Some(failure.reason), ..end };
                unit.put(JOBS, id_key(id), records::encode_ended(&end));
            }
            Transition::DeadLetter { failure } => {
                leave_index(unit, lane, id, had_history);
                unit.remove(JOBS, id_key(id));
                let policy = &lane.policy.dead_letters;
                let mut dead = records::dead_letter(job, generation, attempts, failure, policy, now);
                // One that comes back carries its earlier attempts along.
                earlier.get(&id).cloned().into_iter().for_each(|earlier| records::carry_on(&mut dead, earlier));
                dead.check().map_err(|error| ReadError::Record { table: DEAD.name, reason: error.to_string() })?;
                self.put_dead(lane, unit, &dead);
            }
        }
        Ok(())
    }
}
