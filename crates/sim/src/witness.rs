//! The witness: sees what is claimed, called and made durable, keeps the trace, and judges.
//! Invariant: it believes nobody: what it knows of a job comes from the disk, from answers to callers and from what
//! reaches destinations. The first broken promise is kept, with the name of the checker that saw it.
//! Never: changes what happens.
//!
//! # Layout
//! - here: the way of a job; `attempts`: what reaches destinations, and what comes of it; `proxy`: questions and answers;
//!   `api`: calls through the connector; `nodes`: who owns what; `rewind`: what a ledger lost

mod answers;
mod api;
mod attempts;
mod breakers;
mod events;
mod hands;
mod nodes;
mod orders;
pub mod passes;
mod proxy;
mod rewind;
mod seen;
mod starts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use entrega::store::{ClaimedJob, ReplayRun, ReplayStatus};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::id::JobId;
use entrega_core::job::{JobState, Priority};
use entrega_core::lane::Left;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Lesson;
use entrega_core::policy::Scope;
use entrega_core::time::Time;

use self::answers::Answers;
pub use self::api::Waiting;
use self::breakers::Breakers;
use self::hands::Hands;
pub use self::nodes::Attempting;
use self::orders::Orders;
use self::passes::Passes;
use self::seen::Seen;
use self::starts::Starts;
use crate::disk::{Change, Disk, Place, Record};
use crate::drift::Drift;
use crate::plan::{End, NO_LIMIT, Plan, START};
use crate::troubles::Troubles;
use crate::turns::Turns;

pub use self::nodes::By;
use self::nodes::Owners;
pub use self::rewind::Memory;
use self::rewind::Rewound;

/// At least as long as a job waits whose record could not be read.
const UNREAD_FOR: Duration = Duration::from_millis(250);

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who saw it.
    pub checker: &'static str,
    /// What was seen.
    pub detail: String,
}

/// Sees and judges one run.
pub struct Witness {
    plan: Arc<Plan>,
    jobs: BTreeMap<JobId, Seen>,
    acknowledged: BTreeMap<JobId, Time>,
    starts: Starts,
    owners: Owners,
    rewound: Rewound,
    hands: Hands,
    breakers: Breakers,
    answers: Answers,
    passes: Passes,
    /// What a destination asked of an attempt of a job.
    asked: BTreeMap<(JobId, u64), Time>,
    /// By which attempt each job was settled last.
    settled: BTreeMap<JobId, u64>,
    /// What the gates of a lane learn once the store knows that a retry is durable.
    to_learn: BTreeMap<JobId, (LaneName, Lesson)>,
    /// Dead letters that waited when a replay was asked for and were not sent on their way since, by replay.
    replays: BTreeMap<String, BTreeSet<JobId>>,
    /// Which job each key of a tenant made.
    keys: BTreeMap<(TenantName, String), JobId>,
    turns: BTreeMap<(LaneName, Option<Priority>), Turns>,
    /// What operators were told.
    pub orders: Orders,
    /// How wrong the clock is that things are told by.
    drift: Drift,
    trace: Vec<String>,
    violation: Option<Violation>,
    /// How often things went wrong.
    pub troubles: Troubles,
}

impl Witness {
    /// For a run of this plan.
    pub fn new(plan: Arc<Plan>) -> Witness {
        Witness {
            hands: Hands::default(),
            breakers: Breakers::default(),
            answers: Answers::new(plan.keeping, plan.asking_timeout()),
            passes: Passes::new(plan.limits.throttle),
            plan,
            jobs: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            starts: Starts::default(),
            owners: Owners::default(),
            rewound: Rewound::default(),
            asked: BTreeMap::new(),
            settled: BTreeMap::new(),
            to_learn: BTreeMap::new(),
            replays: BTreeMap::new(),
            keys: BTreeMap::new(),
            turns: BTreeMap::new(),
            orders: Orders::default(),
            drift: Drift::default(),
            trace: Vec::new(),
            violation: None,
            troubles: Troubles::default(),
        }
    }

    /// Writes a line of the trace.
    pub fn note(&mut self, now: Time, line: std::fmt::Arguments<'_>) {
        self.trace.push(format!("{:>9} {line}", self.drift.moment(now).since(START).as_micros()));
    }

    /// From this moment on, whatever is seen is told by a clock that is so wrong.
    pub fn set_clock(&mut self, moment: Time, drift: Drift) {
        self.troubles.clocks_set += u32::from(self.drift != drift);
        self.drift = drift;
        self.note(drift.shown(moment), format_args!("the clock is {} ms ahead", drift.ms));
    }

    /// Keeps the first broken promise.
    pub fn break_promise(&mut self, checker: &'static str, detail: String) {
        self.trace.push(format!("broken {checker}: {detail}"));
        self.violation.get_or_insert(Violation { checker, detail });
    }

    /// Keeps what a checker saw, if it saw anything.
    fn judge(&mut self, checked: Result<(), Broken>) {
        if let Err((checker, why)) = checked {
            self.break_promise(checker, why);
        }
    }

    /// Whether all promises were kept so far.
    pub fn is_content(&self) -> bool {
        self.violation.is_none()
    }

    /// What was seen, and what was broken.
    pub fn close(&mut self) -> (Vec<String>, Option<Violation>, Troubles) {
        (std::mem::take(&mut self.trace), self.violation.take(), self.troubles)
    }

    /// A caller was told that its job is safe.
    pub fn acknowledged(&mut self, now: Time, id: JobId) {
        self.note(now, format_args!("accepted {id}"));
        // What the ledger lost after it had answered, nobody could know.
        if !self.rewound.has_lost(id) {
            self.acknowledged.insert(id, now);
        }
    }

    /// A batch is durable.
    pub fn durable(&mut self, now: Time, changes: &[Change], disk: &Disk) {
        for change in changes {
            match change {
                Change::Job(record) => self.job_durable(now, record),
                Change::Forget(id) => self.note(now, format_args!("forgotten {id}")),
                Change::ForgetDead(id) => self.note(now, format_args!("dead letter {id} forgotten")),
                Change::Dead(dead) => {
                    self.note(now, format_args!("dead letter {} {}", dead.job_id, dead.status));
                    if let Err(bad) = dead.check() {
                        self.break_promise("ends_have_reasons", bad.to_string());
                    }
                    if dead.status == DeadLetterStatus::Replaying {
                        for left in self.replays.values_mut() {
                            left.remove(&dead.job_id);
                        }
                    }
                    let seen = self.jobs.get(&dead.job_id);
                    let is_on_its_way = seen.is_some_and(|seen| !matches!(seen.place, Place::Ended { .. }));
                    let checked = (self.orders.check_letter(dead, is_on_its_way))
                        .and_then(|()| self.orders.check_reason(dead.discard_reason.as_deref()));
                    self.judge(checked.map_err(|(checker, why)| (checker, format!("{} {why}", dead.job_id))));
                }
                Change::Replay(run) => self.replay_durable(now, run, disk),
            }
        }
    }

    /// A job that waits is about to be dropped.
    pub fn leaving(&mut self, id: JobId) {
        self.jobs.entry(id).and_modify(|seen| seen.is_leaving = true);
    }

    /// Somebody is about to cancel a job, or did not after all; several may try at once.
    pub fn cancelling(&mut self, id: JobId, has_begun: bool) {
        let change = |cancels: u32| if has_begun { cancels + 1 } else { cancels.saturating_sub(1) };
        self.jobs.entry(id).and_modify(|seen| seen.cancels = change(seen.cancels));
    }

    /// What a job carries could not be read just now: it waits a moment, however urgent it is.
    pub fn unread(&mut self, now: Time, id: Option<JobId>) {
        self.troubles.unread += 1;
        self.note(now, format_args!("a read is not answered"));
        if let Some(seen) = id.and_then(|id| self.jobs.get_mut(&id)) {
            seen.unread_until = now + UNREAD_FOR;
            // It was its tenant's turn.
            let ring = ring_of(&self.plan, &seen.lane, seen.priority);
            let turns = self.turns.get_mut(&(seen.lane.clone(), ring));
            turns.into_iter().for_each(|turns| turns.had(&seen.tenant));
        }
    }

    /// The store was told that a write is durable: what waits may go, and gates learn what came of retries.
    pub fn told(&mut self, now: Time, ids: impl Iterator<Item = JobId>) {
        for id in ids {
            if let Some((lane, lesson)) = self.to_learn.remove(&id) {
                self.learned(now, &lane, lesson);
            }
            if let Some(seen) = self.jobs.get_mut(&id) {
                seen.in_lane = seen.place == Place::Waiting && !seen.in_hands;
                seen.in_lane_at = now;
            }
        }
    }

    /// A replay got so far. One that is finished has met every letter that it was asked for.
    fn replay_durable(&mut self, now: Time, run: &ReplayRun, disk: &Disk) {
        self.note(now, format_args!("replay {} {} {:?}", run.id, run.replayed, run.status));
        // By the clocks, too: a replay passes over what died in the future.
        let fits = |dead: &&DeadLetter| dead.moved_to_dlq_at <= run.created_at && dead.check_replay().is_ok();
        let fitting = || disk.dead.values().filter(fits).map(|dead| dead.job_id);
        let waiting = self.replays.entry(run.id.clone()).or_insert_with(|| fitting().collect());
        let left = fitting().find(|id| waiting.contains(id));
        if let Some(id) = left.filter(|_| run.status == ReplayStatus::Finished) {
            self.break_promise("replays_complete", format!("{} is over and left {id} behind", run.id));
        }
    }

    fn job_durable(&mut self, now: Time, record: &Record) {
        let id = record.job.id;
        let due = self.drift.moment(record.due).since(START).as_millis();
        let line = format_args!("durable {id} #{} g{} due {due} {:?}", record.attempt, record.generation, record.place);
        self.note(now, line);
        if let Place::Blocked { reason } = &record.place
            && reason.trim().is_empty()
        {
            self.break_promise("ends_have_reasons", format!("{id} is blocked without a reason"));
        }
        if let Place::Ended { state, reason } = &record.place
            && *state != JobState::Done
            && reason.as_deref().is_none_or(|reason| reason.trim().is_empty())
        {
            self.break_promise("ends_have_reasons", format!("{id} is {state} without a reason"));
        }
        if let Place::Ended { reason, .. } = &record.place {
            let checked = self.orders.check_reason(reason.as_deref());
            self.judge(checked.map_err(|(checker, why)| (checker, format!("{id} {why}"))));
        }
        let Some(seen) = self.jobs.get(&id).cloned() else {
            self.jobs.insert(id, Seen::new(record));
            let key = record.job.idempotency_key.iter().map(|key| (record.job.tenant.clone(), key.clone()));
            for key in key {
                if let Some(first) = self.keys.insert(key.clone(), id) {
                    self.break_promise("once_is_once", format!("{} is {id} and was {first}", key.1));
                }
            }
            return;
        };
        let is_settled = match seen.moved(record) {
            Ok(is_settled) => is_settled,
            Err((checker, why)) => return self.break_promise(checker, format!("{id} {why}")),
        };
        if is_settled && record.history.last().is_some_and(|attempt| attempt.code == "http_429") {
            let settled = self.settled.get(&id).map(|number| (id, *number));
            let asked = settled.and_then(|attempt| self.asked.get(&attempt)).copied().unwrap_or(Time::ZERO);
            if record.place == Place::Waiting && record.due < asked {
                self.break_promise("never_early", format!("{id} comes back before its destination allows"));
            }
        }
        if is_settled && self.hands.are_at(id) {
            self.break_promise("no_double_settle", format!("{id} is settled while another is at it"));
        }
        let told = seen.told + u32::from(is_settled);
        let is_leaving = seen.is_leaving && record.place == Place::Waiting;
        let cancels = if record.place == Place::Waiting { seen.cancels } else { 0 };
        self.jobs.insert(id, Seen { told, is_leaving, cancels, ..Seen::new(record) });
    }

    /// Jobs left their lane, to be attempted or because they expired.
    pub fn claimed(&mut self, now: Time, by: By, lane: &LaneName, jobs: &[ClaimedJob], expired: &[Left]) {
        for left in expired {
            self.dropped(now, left.id);
        }
        let policy = self.plan.lanes[lane].clone();
        let has_turns = policy.tenant_concurrency == NO_LIMIT;
        if has_turns && !jobs.is_empty() {
            self.line_up(by.asked_at, lane);
        }
        for job in jobs {
            let id = job.job.id;
            self.note(
                now,
                format_args!("claimed {id} {lane} #{} g{} of {}", job.attempt, job.generation, job.job.tenant),
            );
            if self.owners.has_moved(by, lane) {
                // It must not be begun any more.
                self.hands.claimed_in_vain(self.drift.moment(now), by.node, job);
                continue;
            }
            let moment = self.drift.moment(now);
            if self.rewound.may_differ(lane, id) {
                // Its owner goes by what the ledger has lost, until it notices.
                let checked = self.hands.claimed(moment, by.node, job, &policy);
                self.judge(checked.map_err(|(checker, why)| (checker, format!("{id} {why}"))));
                self.jobs.entry(id).and_modify(|seen| (seen.in_lane, seen.in_hands) = (false, true));
                continue;
            }
            let Some(seen) = self.jobs.get(&id).cloned() else {
                self.break_promise("no_accepted_job_lost", format!("{id} is attempted before it is durable"));
                continue;
            };
            let checked = (self.orders.check_claim(self.heard_before(by), lane, id, job.generation))
                .and_then(|()| seen.may_go(now, by, job, &policy))
                .and_then(|()| self.hands.claimed(moment, by.node, job, &policy))
                .and_then(|()| self.check_gates(now, by, job));
            self.judge(checked.map_err(|(checker, why)| (checker, format!("{id} {why}"))));
            if has_turns {
                self.check_order(by.asked_at, lane, id, &seen, policy.fairness.max_jobs_per_tenant_batch);
            }
            self.jobs.entry(id).and_modify(|seen| (seen.in_lane, seen.in_hands) = (false, true));
        }
    }

    /// What goes past a breaker calls nobody.
    fn check_gates(&mut self, now: Time, by: By, job: &ClaimedJob) -> Result<(), Broken> {
        if job.past_breaker {
            self.troubles.past_breaker += 1;
            return Ok(());
        }
        self.breakers.check_claim(now, by.asked_at, &job.job.lane)
    }

    fn ready<'a>(&'a self, now: Time, lane: &'a LaneName) -> impl Iterator<Item = (&'a JobId, &'a Seen)> {
        self.jobs.iter().filter(|(_, seen)| !seen.is_leaving && seen.cancels == 0).filter(move |(_, seen)| {
            let since = seen.due.max(seen.unread_until).max(seen.in_lane_at);
            seen.in_lane && seen.lane == *lane && since <= now && seen.expires > now
        })
    }

    /// Whoever has a job that may go is in line from now on.
    fn line_up(&mut self, now: Time, lane: &LaneName) {
        let ring = |seen: &Seen| ring_of(&self.plan, lane, seen.priority);
        let ready: Vec<_> = self.ready(now, lane).map(|(_, seen)| (ring(seen), seen.tenant.clone())).collect();
        for ring in [None, Some(Priority::High), Some(Priority::Normal), Some(Priority::Low)] {
            let of_ring = ready.iter().filter(|(of, _)| *of == ring).map(|(_, tenant)| tenant);
            self.turns.entry((lane.clone(), ring)).or_default().line_up(of_ring);
        }
    }

    fn check_order(&mut self, now: Time, lane: &LaneName, id: JobId, seen: &Seen, batch: u32) {
        let ring = ring_of(&self.plan, lane, seen.priority);
        let counts = |more: &Seen| ring.is_some() || more.tenant == seen.tenant;
        let urgent =
            self.ready(now, lane).find(|(other, more)| **other != id && more.priority < seen.priority && counts(more));
        if let Some((other, _)) = urgent {
            let detail = format!("{id} goes before {other}, which is more urgent");
            self.break_promise("priority_strict", detail);
        }
        let turns = self.turns.entry((lane.clone(), ring)).or_default();
        if let Some(passed_over) = turns.serve(&seen.tenant, batch) {
            let detail = format!("{id} of {}: {passed_over} waits for more than a turn of it", seen.tenant);
            self.break_promise("turns_fair", detail);
        }
        self.leave_line(now, id, seen);
    }

    /// Whoever has nothing more that may go does not wait; should it come back, it begins to wait then.
    fn leave_line(&mut self, now: Time, id: JobId, seen: &Seen) {
        let ring = |of: &Seen| ring_of(&self.plan, &seen.lane, of.priority);
        let is_same = |more: &Seen| ring(more) == ring(seen) && more.tenant == seen.tenant;
        let has_more = self.ready(now, &seen.lane).any(|(other, more)| *other != id && is_same(more));
        let ring = ring(seen);
        if !has_more && let Some(turns) = self.turns.get_mut(&(seen.lane.clone(), ring)) {
            turns.leave(&seen.tenant);
        }
    }

    /// A job was pushed out, or expired.
    pub fn dropped(&mut self, now: Time, id: JobId) {
        self.troubles.dropped += 1;
        self.left(now, id);
    }

    /// A job left its lane while it waited.
    pub fn left(&mut self, now: Time, id: JobId) {
        self.note(now, format_args!("left {id}"));
        self.jobs.entry(id).and_modify(|seen| seen.in_lane = false);
        if let Some(seen) = self.jobs.get(&id).cloned() {
            self.leave_line(now, id, &seen);
        }
    }

    /// The process starts again from what is on the disk.
    pub fn reopened(&mut self, now: Time, disk: &Disk) {
        self.note(now, format_args!("open with {} jobs", disk.waiting().count()));
        self.check_disk(disk);
        self.to_learn.clear();
        self.turns.clear();
        self.hands.clear();
        self.breakers.clear();
        self.answers.forgotten();
        self.passes.forgotten();
        for (id, seen) in &mut self.jobs {
            seen.in_hands = false;
            seen.in_lane = disk.jobs.get(id).is_some_and(|record| record.place == Place::Waiting);
        }
    }

    /// Whatever somebody was told is safe must be there.
    fn check_disk(&mut self, disk: &Disk) {
        let lost = self.acknowledged.keys().find(|id| !disk.jobs.contains_key(id)).copied();
        if let Some(id) = lost {
            self.break_promise("no_accepted_job_lost", format!("{id} was accepted and is gone"));
        }
        self.judge(self.orders.check_kept(disk));
    }

    /// A life of the process ended.
    pub fn life_over(&mut self, now: Time, is_killed: bool, end: Option<End>) {
        let is_cut = is_killed && !matches!(end, Some(End::Crash { .. }));
        let how = match is_killed {
            true if is_cut => "cut",
            true => "crash",
            false => "stop",
        };
        self.note(now, format_args!("{how}"));
        self.troubles.crashes += u32::from(is_killed);
        self.troubles.cuts += u32::from(is_cut);
        self.troubles.stops += u32::from(!is_killed && end.is_some());
    }

    /// After all has healed and had time to end.
    pub fn finish(&mut self, now: Time, disk: &Disk) {
        self.reopened(now, disk);
        let gone = self.jobs.keys().find(|id| !disk.jobs.contains_key(id)).copied();
        if let Some(id) = gone {
            self.break_promise("no_accepted_job_lost", format!("{id} was durable and is gone"));
        }
        let blocked = || disk.jobs.values().find(|record| matches!(record.place, Place::Blocked { .. }));
        let stuck = disk.waiting().next().or_else(blocked);
        if let Some(record) = stuck {
            let detail = format!("{} in {} is {:?}", record.job.id, record.job.lane, record.place);
            self.break_promise("nothing_stuck_after_heal", detail);
        }
        for dead in disk.dead.values().filter(|dead| dead.status.is_open()) {
            let is_done = disk.jobs.get(&dead.job_id).is_some_and(is_done);
            let (checker, what) = match is_done {
                true => ("no_double_settle", "is delivered and a dead letter as well"),
                false => ("nothing_stuck_after_heal", "is a dead letter that was not replayed"),
            };
            self.break_promise(checker, format!("{} {what}", dead.job_id));
        }
        let told = self.jobs.iter().filter(|(id, _)| !self.rewound.has_lost(**id));
        let told: Vec<_> = told.map(|(id, seen)| (*id, seen.told)).collect();
        if let Err(detail) = events::check_gapless(disk, &told) {
            self.break_promise("events_gapless", detail);
        }
    }
}

fn is_done(record: &Record) -> bool {
    matches!(record.place, Place::Ended { state: JobState::Done, .. })
}

/// A checker and what it saw.
pub type Broken = (&'static str, String);

/// Where a tenant waits for its turn: at its job's priority, or once for all where priorities count within a tenant.
fn ring_of(plan: &Plan, lane: &LaneName, priority: Priority) -> Option<Priority> {
    (plan.lanes[lane].priority_scope == Scope::Lane).then_some(priority)
}
