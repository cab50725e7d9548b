//! The witness: sees what is claimed, called and made durable, keeps the trace, and judges.
//! Invariant: it believes nobody: what it knows of a job comes from the disk, from answers to callers and from what
//! reaches destinations. The first broken promise is kept, with the name of the checker that saw it.
//! Never: changes what happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega::store::ClaimedJob;
use entrega_core::id::JobId;
use entrega_core::job::{JobState, Priority};
use entrega_core::lane::Left;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::throttle::Rate;
use entrega_core::time::Time;

use crate::disk::{Change, Disk, Place, Record};
use crate::drift::Drift;
use crate::orders::Orders;
use crate::plan::{End, START};
use crate::troubles::Troubles;
use crate::turns::Turns;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who saw it.
    pub checker: &'static str,
    /// What was seen.
    pub detail: String,
}

/// What is known of a job.
#[derive(Clone, Debug)]
struct Seen {
    lane: LaneName,
    tenant: TenantName,
    priority: Priority,
    due: Time,
    expires: Time,
    place: Place,
    generation: u8,
    /// Attempts settled in this generation, since it was last unblocked.
    settled: u32,
    /// All of this generation.
    history: usize,
    /// All there were.
    told: u32,
    /// Whether it stands in its lane: durable, waiting, and in nobody's hands.
    in_lane: bool,
    /// Whether it was claimed and neither settled nor taken over since.
    in_hands: bool,
}

/// Sees and judges one run.
pub struct Witness {
    lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
    /// What every endpoint allows.
    endpoint_rate: Option<Rate>,
    jobs: BTreeMap<JobId, Seen>,
    acknowledged: BTreeMap<JobId, Time>,
    /// By lane, and by tenant where each has a throttle; when they really were, as a destination counts them.
    starts: BTreeMap<(LaneName, Option<TenantName>), Vec<Time>>,
    /// What a destination asked for last.
    asked: BTreeMap<JobId, Time>,
    /// Which job each key of a tenant made.
    keys: BTreeMap<(TenantName, String), JobId>,
    turns: BTreeMap<(LaneName, Priority), Turns>,
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
    /// For a run with these lanes and endpoints.
    pub fn new(lanes: BTreeMap<LaneName, Arc<LanePolicy>>, endpoint_rate: Option<Rate>) -> Witness {
        Witness {
            lanes,
            endpoint_rate,
            jobs: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            starts: BTreeMap::new(),
            asked: BTreeMap::new(),
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

    /// Whether all promises were kept so far.
    pub fn is_content(&self) -> bool {
        self.violation.is_none()
    }

    /// What was seen, and what was broken.
    pub fn close(self) -> (Vec<String>, Option<Violation>, Troubles) {
        (self.trace, self.violation, self.troubles)
    }

    /// A caller was told that its job is safe.
    pub fn acknowledged(&mut self, now: Time, id: JobId) {
        self.note(now, format_args!("accepted {id}"));
        self.acknowledged.insert(id, now);
    }

    /// A batch is durable.
    pub fn durable(&mut self, now: Time, changes: &[Change]) {
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
                    let seen = self.jobs.get(&dead.job_id);
                    let is_on_its_way = seen.is_some_and(|seen| !matches!(seen.place, Place::Ended { .. }));
                    if let Err((checker, why)) = self.orders.check_letter(dead, is_on_its_way) {
                        self.break_promise(checker, format!("{} {why}", dead.job_id));
                    }
                }
                Change::Once((_, key), id) => self.note(now, format_args!("once {key} {id}")),
                Change::Stopped(stopped) => {
                    self.note(now, format_args!("durable starts of {} lanes", stopped.starts.len()));
                }
                Change::Pause(lane, paused) => self.note(now, format_args!("durable {lane} paused: {paused}")),
                Change::Replay(run) => self.note(now, format_args!("replay {} {:?}", run.replayed, run.status)),
            }
        }
    }

    fn job_durable(&mut self, now: Time, record: &Record) {
        let id = record.job.id;
        self.note(now, format_args!("durable {id} #{} g{} {:?}", record.attempt, record.generation, record.place));
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
        let is_settled = match moved(&seen, record) {
            Ok(is_settled) => is_settled,
            Err((checker, why)) => return self.break_promise(checker, format!("{id} {why}")),
        };
        if is_settled && record.history.last().is_some_and(|attempt| attempt.code == "http_429") {
            let asked = self.asked.get(&id).copied().unwrap_or(Time::ZERO);
            if record.place == Place::Waiting && record.due < asked {
                self.break_promise("never_early", format!("{id} comes back before its destination allows"));
            }
        }
        let told = seen.told + u32::from(is_settled);
        self.jobs.insert(id, Seen { told, ..Seen::new(record) });
    }

    /// Jobs left their lane, to be attempted or because they expired.
    pub fn claimed(&mut self, now: Time, lane: &LaneName, jobs: &[ClaimedJob], expired: &[Left]) {
        for left in expired {
            self.dropped(now, left.id);
        }
        let policy = self.lanes[lane].clone();
        let has_turns = policy.tenant_concurrency >= policy.concurrency;
        if has_turns && !jobs.is_empty() {
            self.line_up(now, lane);
        }
        for job in jobs {
            let id = job.job.id;
            self.note(now, format_args!("claimed {id} {lane} #{} g{}", job.attempt, job.generation));
            let Some(seen) = self.jobs.get(&id).cloned() else {
                self.break_promise("no_accepted_job_lost", format!("{id} is attempted before it is durable"));
                continue;
            };
            let is_allowed = self.orders.check_claim(lane, id, job.generation);
            if let Err((checker, why)) = is_allowed.and_then(|()| may_go(now, &seen, job, &policy)) {
                self.break_promise(checker, format!("{id} {why}"));
            }
            if has_turns {
                self.check_order(now, lane, id, &seen, policy.fairness.max_jobs_per_tenant_batch);
            }
            self.jobs.entry(id).and_modify(|seen| (seen.in_lane, seen.in_hands) = (false, true));
        }
    }

    fn ready<'a>(&'a self, now: Time, lane: &'a LaneName) -> impl Iterator<Item = (&'a JobId, &'a Seen)> {
        self.jobs
            .iter()
            .filter(move |(_, seen)| seen.in_lane && seen.lane == *lane && seen.due <= now && seen.expires > now)
    }

    /// Whoever has a job that may go is in line from now on.
    fn line_up(&mut self, now: Time, lane: &LaneName) {
        let ready: Vec<_> = self.ready(now, lane).map(|(_, seen)| (seen.priority, seen.tenant.clone())).collect();
        for priority in Priority::ALL {
            let of_priority = ready.iter().filter(|(of, _)| *of == priority).map(|(_, tenant)| tenant);
            self.turns.entry((lane.clone(), priority)).or_default().line_up(of_priority);
        }
    }

    fn check_order(&mut self, now: Time, lane: &LaneName, id: JobId, seen: &Seen, batch: u32) {
        let urgent = self.ready(now, lane).find(|(other, more)| **other != id && more.priority < seen.priority);
        if let Some((other, _)) = urgent {
            let detail = format!("{id} goes before {other}, which is more urgent");
            self.break_promise("priority_strict", detail);
        }
        let turns = self.turns.entry((lane.clone(), seen.priority)).or_default();
        if let Some(passed_over) = turns.serve(&seen.tenant, batch) {
            let detail = format!("{id} of {}: {passed_over} waits for more than a turn of it", seen.tenant);
            self.break_promise("turns_fair", detail);
        }
        let has_more = self
            .ready(now, lane)
            .any(|(other, more)| *other != id && more.priority == seen.priority && more.tenant == seen.tenant);
        if !has_more && let Some(turns) = self.turns.get_mut(&(lane.clone(), seen.priority)) {
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
    }

    /// The lease of an attempt ended; its job waits again.
    pub fn lease_lost(&mut self, now: Time, id: JobId) {
        self.troubles.leases_lost += 1;
        self.note(now, format_args!("lease lost {id}"));
        self.jobs.entry(id).and_modify(|seen| (seen.in_lane, seen.in_hands) = (true, false));
    }

    /// A destination is called.
    pub fn started(&mut self, now: Time, job: &ClaimedJob) {
        let (id, lane) = (job.job.id, &job.job.lane);
        self.note(now, format_args!("start {id} #{}", job.attempt));
        if let Err((checker, why)) = self.orders.check_start(id, job.generation) {
            self.break_promise(checker, format!("{id} {why}"));
        }
        if self.jobs.get(&id).is_some_and(|seen| matches!(seen.place, Place::Ended { .. })) {
            self.break_promise("no_double_settle", format!("{id} is attempted after its end"));
        }
        let now = self.drift.moment(now);
        let policy = self.lanes[lane].clone();
        let by_tenant = policy.throttle.as_ref().is_some_and(|throttle| throttle.scope == Scope::Tenant);
        let starts = self.starts.entry((lane.clone(), by_tenant.then(|| job.job.tenant.clone()))).or_default();
        let nth_last = |n: u32| starts.len().checked_sub(n as usize).map(|index| starts[index]);
        let of_lane = policy.throttle.as_ref().map(|throttle| (throttle.max_requests, throttle.per));
        let own = self.endpoint_rate.filter(|_| job.job.tenant.is_endpoint());
        let is_too_many = (of_lane.into_iter())
            .chain(own.map(|rate| (rate.max_requests, rate.per())))
            .any(|(max, per)| nth_last(max).is_some_and(|before| now < before + per));
        let paced = policy.cadence.as_ref();
        let is_too_soon =
            paced.and_then(|cadence| nth_last(1).map(|before| now < before + cadence.min)).unwrap_or(false);
        starts.push(now);
        if is_too_many || is_too_soon {
            self.break_promise("throttle_respected", format!("{id} in {lane} is one start too many"));
        }
    }

    /// A destination asked not to be called about this job before a moment.
    pub fn asked(&mut self, id: JobId, until: Time) {
        self.asked.insert(id, until);
    }

    /// The process starts again from what is on the disk.
    pub fn reopened(&mut self, now: Time, disk: &Disk) {
        self.note(now, format_args!("open with {} jobs", disk.waiting().count()));
        let lost = self.acknowledged.keys().find(|id| !disk.jobs.contains_key(id)).copied();
        if let Some(id) = lost {
            self.break_promise("no_accepted_job_lost", format!("{id} was accepted and is gone"));
        }
        if let Err((checker, why)) = self.orders.check_kept(disk) {
            self.break_promise(checker, why);
        }
        self.turns.clear();
        for (id, seen) in &mut self.jobs {
            seen.in_hands = false;
            seen.in_lane = disk.jobs.get(id).is_some_and(|record| record.place == Place::Waiting);
        }
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
        let told: Vec<_> = self.jobs.iter().map(|(id, seen)| (*id, seen.told)).collect();
        if let Err(detail) = crate::events::check_gapless(disk, &told) {
            self.break_promise("events_gapless", detail);
        }
    }
}

fn is_done(record: &Record) -> bool {
    matches!(record.place, Place::Ended { state: JobState::Done, .. })
}

impl Seen {
    fn new(record: &Record) -> Seen {
        Seen {
            lane: record.job.lane.clone(),
            tenant: record.job.tenant.clone(),
            priority: record.job.priority,
            due: record.due,
            expires: record.expires(),
            place: record.place.clone(),
            generation: record.generation,
            settled: record.attempt,
            history: record.history.len(),
            told: 0,
            in_lane: record.place == Place::Waiting,
            in_hands: false,
        }
    }
}

/// A checker and what it saw.
pub type Broken = (&'static str, String);

/// Whether a move of a job is legal, and whether an attempt was settled by it.
fn moved(seen: &Seen, record: &Record) -> Result<bool, Broken> {
    let (attempt, history) = (record.attempt, record.history.len());
    let is_same = (attempt, history, record.generation) == (seen.settled, seen.history, seen.generation);
    match (&seen.place, &record.place) {
        (Place::Ended { state: JobState::Dlq, .. }, Place::Waiting) => match record.generation == seen.generation + 1 {
            true => Ok(false),
            false => Err(("attempts_bounded", "is replayed without being counted".into())),
        },
        (Place::Ended { state, .. }, Place::Ended { state: JobState::Cancelled, .. }) => {
            Err(("cancel_is_final", format!("was {state} and is cancelled")))
        }
        (_, Place::Ended { state: JobState::Cancelled, .. }) if seen.in_hands => {
            Err(("cancel_is_final", "is cancelled while it is attempted".into()))
        }
        (Place::Ended { .. }, _) => Err(("no_double_settle", format!("ended before and is {:?}", record.place))),
        (Place::Blocked { .. }, Place::Waiting) if attempt == 0 && history == seen.history => Ok(false),
        (Place::Blocked { .. }, Place::Waiting) => {
            Err(("attempts_bounded", format!("is unblocked with {attempt} attempts used up")))
        }
        (Place::Blocked { .. }, Place::Ended { state: JobState::Cancelled, .. }) => Ok(false),
        (_, Place::Ended { state: JobState::Dropped | JobState::Cancelled, .. }) if is_same => Ok(false),
        // A replay that was dropped on its way is a dead letter again.
        (_, Place::Ended { state: JobState::Dlq, .. }) if is_same && seen.generation > 0 => Ok(false),
        _ if attempt == seen.settled + 1 && history == seen.history + 1 => Ok(true),
        _ if attempt <= seen.settled => {
            Err(("no_double_settle", format!("is settled again as attempt {attempt} of {}", seen.settled)))
        }
        _ => Err(("attempts_bounded", format!("has {attempt} attempts and {history} records of them"))),
    }
}

/// Whether a job may be attempted now.
fn may_go(now: Time, seen: &Seen, job: &ClaimedJob, policy: &LanePolicy) -> Result<(), Broken> {
    match () {
        _ if !seen.in_lane => Err(("no_double_settle", "is in somebody's hands or ended".into())),
        _ if now < seen.due => Err(("never_early", "is not due".into())),
        _ if now >= seen.expires => Err(("ttl_respected", "is past its time to live".into())),
        _ if job.attempt > policy.retry.attempts => {
            Err(("attempts_bounded", format!("gets attempt {} of {}", job.attempt, policy.retry.attempts)))
        }
        _ if job.attempt != seen.settled + 1 || job.history.len() != seen.history => {
            Err(("attempts_bounded", format!("gets attempt {} after {} settled ones", job.attempt, seen.settled)))
        }
        _ => Ok(()),
    }
}
