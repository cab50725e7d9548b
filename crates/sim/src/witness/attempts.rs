//! What is seen of attempts: what reaches destinations, and what comes of it.

use entrega::store::{ClaimedJob, Settlement};
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;

use super::{Broken, Witness};
use crate::disk::Place;
use crate::route::question;

impl Witness {
    /// Whether starts of such jobs are counted: others may wait behind settlements of their lane.
    pub(super) fn counts_starts(&self, job: &Job) -> bool {
        let policy = &self.plan.lanes[&job.lane];
        let is_own = self.plan.endpoint_rate.is_some() && job.tenant.is_endpoint();
        policy.throttle.is_some() || policy.cadence.is_some() || is_own
    }

    /// What reaches a destination, as that counts it. What the proxy asks is counted when it does.
    pub(super) fn count_start(&mut self, now: Time, job: &ClaimedJob) -> Result<(), Broken> {
        let Job { lane, tenant, .. } = &job.job;
        if self.rewound.is_adrift(lane) {
            // It was written down before it was begun, and that was lost.
            return Ok(());
        }
        let own = self.plan.endpoint_rate.filter(|_| tenant.is_endpoint());
        let policy = self.plan.lanes[lane].clone();
        self.starts.add(self.drift.moment(now), (lane, tenant), &policy, own)
    }

    /// Somebody says what came of an attempt; whether that still holds the job.
    pub fn settling(&mut self, now: Time, settlement: &Settlement) -> bool {
        let number = settlement.ticket.number().unwrap_or_default();
        self.note(now, format_args!("settling {}", settlement.job.id));
        let claimed = self.hands.settling(now, number);
        if claimed.is_none() {
            return false;
        }
        self.settled.insert(settlement.job.id, number);
        if let Some((question, answer)) = question(&settlement.job).zip(settlement.answer.as_ref())
            && let Some(at) = claimed
        {
            self.given(at, &question, answer);
        }
        true
    }

    /// The gates of a lane learn something once the store knows that the retry of a job is durable.
    pub fn will_learn(&mut self, lane: &LaneName, id: JobId, lesson: Lesson) {
        self.to_learn.insert(id, (lane.clone(), lesson));
    }

    /// An attempt told something about its destination.
    pub fn learned(&mut self, now: Time, lane: &LaneName, lesson: Lesson) {
        let policy = self.plan.lanes[lane].clone();
        self.breakers.learned(now, now, lane, &policy, lesson);
    }

    /// A destination is called.
    pub fn started(&mut self, now: Time, node: usize, job: &ClaimedJob) {
        let id = job.job.id;
        self.note(now, format_args!("start {id} #{}", job.attempt));
        let moment = self.drift.moment(now);
        let is_late = self.owners.has_just_resumed(node, moment);
        let started = self.hands.started(moment, job, !is_late && self.counts_starts(&job.job));
        let started = match self.rewound.excuse(&job.job.lane, moment, started) {
            Ok(None) => {
                self.troubles.overlapped += 1;
                return;
            }
            Ok(Some(node)) => Ok(node),
            Err(broken) => Err(broken),
        };
        let checked = started
            .and_then(|node| self.owners.check(node, moment))
            .and_then(|()| self.orders.check_start(id, job.generation))
            .and_then(|()| if is_late { Ok(()) } else { self.count_start(now, job) });
        self.judge(checked.map_err(|(checker, why)| (checker, format!("{id} {why}"))));
        let may_differ = self.rewound.may_differ(&job.job.lane, id);
        if !may_differ && self.jobs.get(&id).is_some_and(|seen| matches!(seen.place, Place::Ended { .. })) {
            self.break_promise("no_double_settle", format!("{id} is attempted after its end"));
        }
    }

    /// A destination asked not to be called about this job before a moment.
    pub fn asked(&mut self, job: &ClaimedJob, until: Time) {
        self.asked.insert((job.job.id, job.ticket.number().unwrap_or_default()), until);
    }
}
