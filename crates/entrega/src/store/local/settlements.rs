//! Settlements: the end of attempts, as records.
//! Invariant: state, history and dead letter of a job change in one batch.

use std::sync::atomic::Ordering;

use entrega_core::dead_letter::DeadLetter;
use entrega_core::decide::Transition;
use entrega_core::job::JobState;
use entrega_core::lane::{self, Next};
use entrega_core::name::LaneName;
use entrega_core::time::Time;

use super::disk::{Batch, DiskError, Table};
use super::jobs::prepare;
use super::records::{self, Ended, Live, id_key};
use super::writer::{Command, Retried};
use super::{Shared, leave_index};
use crate::store::{Held, Settlement, StoreError, Ticket};

fn place(ticket: Ticket) -> lane::Ticket {
    match ticket.0 {
        Held::Place(place) => place,
        Held::Lease(_) => panic!("a settlement with another store's ticket"),
    }
}

impl Shared {
    pub(super) async fn settle(&self, lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        let lane = self.lane(lane)?;
        let permits = self.settle_permits.clone().acquire_many_owned(settlements.len() as u32).await;
        let permit = permits.map_err(|_| self.stopped())?;
        settlements.iter().try_for_each(Settlement::check)?;
        let now = self.clock.now();
        let mut batch = Batch::default();
        let (mut leaving, mut retries, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        let causes = settlements.iter().flat_map(|settlement| &settlement.causes);
        let causes = causes.map(|job| prepare(self, job, &[])).collect::<Result<_, _>>()?;
        for settlement in settlements {
            let Settlement { lesson, took, .. } = settlement;
            let ticket = place(settlement.ticket);
            match settlement.transition {
                Transition::Retry { at, .. } => {
                    retries.push(Retried { lane: lane.clone(), ticket, at, lesson, took });
                }
                Transition::Done | Transition::Blocked { .. } | Transition::DeadLetter { .. } => {
                    let is_blocked = matches!(settlement.transition, Transition::Blocked { .. });
                    lane.blocked.fetch_add(is_blocked.into(), Ordering::Relaxed);
                    leaving.push((ticket, lesson, took));
                    ended.push(settlement.job.id);
                }
            }
            self.write_settlement(&mut batch, settlement, now)?;
        }
        {
            let mut machine = lane.machine.lock();
            for (ticket, lesson, took) in leaving {
                let was_running = machine.settle(now, ticket, Next::Leave, lesson, took);
                assert!(was_running, "{ticket:?} was settled twice");
            }
        }
        self.send(Command::Settle { batch, ended, retries, causes, permit })
    }

    fn write_settlement(&self, batch: &mut Batch, settlement: Settlement, now: Time) -> Result<(), DiskError> {
        let Settlement { job, generation, attempts, transition, answer, .. } = settlement;
        let id = job.id;
        let had_history = attempts.len() > 1;
        let number = attempts.last().map_or(0, |attempt| attempt.number);
        let attempt = u16::try_from(number).unwrap_or(u16::MAX);
        let waiting = |due: Time, blocked| Live { due, attempt, generation, blocked, ..Live::of(&job) };
        match transition {
            Transition::Done => {
                leave_index(batch, id, had_history);
                if generation > 0 {
                    self.mark_replayed(batch, id)?;
                }
                let end = Ended { attempts, answer, ..Ended::of(job, JobState::Done, now, generation) };
                batch.put(Table::Jobs, id_key(id), records::encode_ended(&end));
            }
            Transition::Retry { at, .. } => {
                batch.put(Table::Live, id_key(id), records::encode(&waiting(at, None)));
                batch.put(Table::History, id_key(id), records::encode(&attempts));
            }
            Transition::Blocked { failure } => {
                batch.put(Table::Live, id_key(id), records::encode(&waiting(now, Some(failure.reason))));
                batch.put(Table::History, id_key(id), records::encode(&attempts));
            }
            Transition::DeadLetter { failure } => {
                leave_index(batch, id, had_history);
                batch.remove(Table::Jobs, id_key(id));
                let policy = self.lanes.get(&job.lane).map(|lane| lane.policy.dead_letters.clone()).unwrap_or_default();
                self.bury(batch, records::dead_letter(job, generation, attempts, failure, &policy, now))?;
            }
        }
        Ok(())
    }

    /// Writes a dead letter; one that came back carries its earlier attempts along.
    fn bury(&self, batch: &mut Batch, mut dead: DeadLetter) -> Result<(), DiskError> {
        if let Some(earlier) = records::load_dead(&*self.disk, dead.job_id)? {
            records::carry_on(&mut dead, earlier);
        }
        dead.check().map_err(|error| DiskError::Record { table: "dead", reason: error.to_string() })?;
        self.put_dead(batch, &dead);
        Ok(())
    }
}
