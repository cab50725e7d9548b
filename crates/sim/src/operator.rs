//! Operators: they pause and resume lanes, cancel and unblock jobs, discard dead letters and have them replayed.
//! Invariant: an operator who is not answered asks again, in the next life if need be; what was answered is held against
//! the store by the witness.
//! Never: looks at the store's memory.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::{
    ChangeError, DeadLetterFilter, DeadLetterStore, JobStore, Registry, ReplayRun, ReplayStatus, StoreError,
};
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::name::LaneName;

use crate::disk::{Disk, Place, Record};
use crate::life::{Life, Stage};
use crate::plan::Order;
use crate::store::WatchedStore;

/// How fast somebody has dead letters replayed who does not wait until the world has healed.
const HASTY_PER_SEC: u32 = 50;
/// How fast somebody does who knows that a breaker which recovers lets one call through at a time, and that a throttle may
/// let one through a second: each has ended when the next one starts.
pub const CAREFUL_PER_SEC: u32 = 1;
/// How often an operator asks again who did not get through.
const RETURNS_MAX: u32 = 40;
const RETURN_AFTER: Duration = Duration::from_millis(300);

/// By then everything must have ended, so long after the world has healed.
const PATIENCE: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer than any breaker stays open or waits for a probe: whoever has proxied jobs replayed before that is told so at
/// once, and a job can be replayed a few times only.
const BREAKERS_REST: Duration = Duration::from_secs(4);

/// Sees to one order of the plan.
pub async fn operate(life: Arc<Life>, store: Arc<WatchedStore>, number: usize) {
    let world = &life.world;
    let (at, order) = &world.plan.orders[number];
    let stage = world.orders.lock()[number];
    if stage == Stage::Over {
        return;
    }
    life.wait_until(*at).await;
    match order {
        Order::Pause { lane, until } => {
            if stage == Stage::Open {
                pause(&life, &store, lane).await;
                world.orders.lock()[number] = Stage::Paused;
            }
            life.wait_until(*until).await;
            resume(&life, &store, lane).await;
        }
        Order::Cancel => cancel(&life, &store).await,
        Order::Unblock => {
            let count = unblock(&life, &store).await;
            world.witness.lock().troubles.unblocked += count;
        }
        Order::Discard => discard(&life, &store).await,
    }
    world.orders.lock()[number] = Stage::Over;
}

async fn pause(life: &Life, store: &WatchedStore, lane: &LaneName) {
    if insist(life, || async { Ok(store.set_paused(lane, true).await?) }).await.is_some() {
        let mut witness = life.world.witness.lock();
        witness.troubles.paused += 1;
        witness.note(life.clock.now(), format_args!("paused {lane}"));
        let now = life.clock.now();
        witness.orders.paused(now, lane);
    }
}

async fn resume(life: &Life, store: &WatchedStore, lane: &LaneName) {
    life.world.witness.lock().orders.resuming(lane);
    if insist(life, || async { Ok(store.set_paused(lane, false).await?) }).await.is_some() {
        life.world.witness.lock().note(life.clock.now(), format_args!("resumed {lane}"));
    }
}

/// Has every lane go on: what the ledger lost may be that somebody was told so.
pub async fn resume_all(life: &Life, store: &WatchedStore) {
    for lane in life.world.plan.lanes.keys() {
        resume(life, store, lane).await;
    }
}

/// Cancels any job that has not ended; one that is being attempted stays as it is.
async fn cancel(life: &Life, store: &WatchedStore) {
    let open = |disk: &Disk| disk.jobs.values().filter(|record| has_not_ended(record)).map(|it| it.job.id).collect();
    let Some(id) = pick(life, open) else { return };
    let rewinds = life.world.witness.lock().troubles.rewinds;
    let answer = insist(life, || async {
        let reason = reason(life, "an operator said so");
        let cancelled = store.cancel(id, &reason).await;
        note_expired(life, &reason, cancelled.as_ref().err());
        cancelled
    });
    let answer = answer.await;
    // An answer is worth what is left of it after a crash.
    life.hurry_crash(2);
    let mut witness = life.world.witness.lock();
    witness.note(life.clock.now(), format_args!("cancelled {id}: {}", answer.is_some()));
    // What was done before the ledger lost its last writes may be lost with them, while its answer was on its way.
    let answer = answer.filter(|_| witness.troubles.rewinds == rewinds);
    let Some(view) = answer else {
        witness.troubles.not_cancelled += 1;
        return;
    };
    witness.troubles.cancelled += 1;
    witness.orders.cancelled(id, view.generation);
    // A replay that is cancelled is the dead letter that it was.
    let expected = if view.generation > 0 { JobState::Dlq } else { JobState::Cancelled };
    if view.state != expected {
        witness.break_promise("cancel_is_final", format!("{id} was cancelled and is {}", view.state));
    }
}

/// Gives any dead letter up that is still open; one that is being replayed stays as it is.
async fn discard(life: &Life, store: &WatchedStore) {
    let open = |disk: &Disk| disk.dead.values().filter(|it| it.status.is_open()).map(|it| it.job_id).collect();
    let Some(id) = pick(life, open) else { return };
    let rewinds = life.world.witness.lock().troubles.rewinds;
    let answer = insist(life, || async {
        let reason = reason(life, "an operator gave it up");
        let discarded = store.discard(id, &reason).await;
        note_expired(life, &reason, discarded.as_ref().err());
        discarded
    });
    let answer = answer.await;
    // An answer is worth what is left of it after a crash.
    life.hurry_crash(2);
    let mut witness = life.world.witness.lock();
    witness.note(life.clock.now(), format_args!("discarded {id}: {}", answer.is_some()));
    match answer.filter(|()| witness.troubles.rewinds == rewinds) {
        Some(()) => {
            witness.troubles.discarded += 1;
            witness.orders.discarded(id);
        }
        None => witness.troubles.not_discarded += 1,
    }
}

/// A reason that nobody gave before.
fn reason(life: &Life, why: &str) -> String {
    format!("{why} ({})", life.world.next_ticket())
}

/// Whoever is told that an order was not carried out, and will not be, holds the store to it.
fn note_expired(life: &Life, reason: &str, error: Option<&ChangeError>) {
    if let Some(ChangeError::Store(StoreError::Unreachable { reason: why })) = error
        && why.contains("will not be")
    {
        let mut witness = life.world.witness.lock();
        witness.troubles.expired_orders += 1;
        witness.note(life.clock.now(), format_args!("not carried out: {reason}"));
        witness.orders.expired(reason);
        drop(witness);
        let disk = life.world.disk.lock();
        let is_done =
            |record: &Record| matches!(&record.place, Place::Ended { reason: Some(why), .. } if why.contains(reason));
        let is_discarded = |dead: &DeadLetter| dead.discard_reason.as_deref().is_some_and(|why| why.contains(reason));
        if disk.jobs.values().any(is_done) || disk.dead.values().any(is_discarded) {
            let detail = format!("an operator was told that nothing happened, and it had: {reason}");
            life.world.witness.lock().break_promise("orders_expire", detail);
        }
    }
}

/// Any one of those that an operator looks for.
fn pick(life: &Life, looked_for: impl Fn(&Disk) -> Vec<JobId>) -> Option<JobId> {
    let found = looked_for(&life.world.disk.lock());
    life.world.rng.lock().choice(found)
}

fn has_not_ended(record: &Record) -> bool {
    !matches!(record.place, Place::Ended { .. })
}

/// Asks until it is answered. A refusal is an answer, too: somebody else was faster, or an attempt is under way.
async fn insist<T, F>(life: &Life, mut ask: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, ChangeError>>,
{
    for _ in 0..RETURNS_MAX {
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(ChangeError::WrongState { .. } | ChangeError::NoReplay(_)) => return None,
            // It may have been lost.
            Err(ChangeError::Unknown) if life.world.plan.loses_writes() => return None,
            Err(ChangeError::Store(StoreError::Unreachable { .. })) => life.wait(RETURN_AFTER).await,
            Err(other) => {
                let checker = match other {
                    ChangeError::Unknown => "no_accepted_job_lost",
                    _ => "engine_goes_on",
                };
                life.world.witness.lock().break_promise(checker, format!("an operator was told: {other}"));
                return None;
            }
        }
    }
    life.world.witness.lock().break_promise("engine_goes_on", "an operator does not get through".into());
    None
}

/// An operator who does not wait until the world has healed; a replay that was begun goes on in the next life.
pub async fn help_early(life: Arc<Life>, store: Arc<WatchedStore>) {
    const EARLY: &str = "early";
    let Some(at) = life.world.plan.early_replay else { return };
    life.wait_until(at).await;
    if !life.world.disk.lock().replays.contains_key(EARLY) {
        help(&life, &store, EARLY, HASTY_PER_SEC).await;
    }
}

/// What an operator does about jobs that are blocked or dead.
pub async fn help(life: &Life, store: &WatchedStore, replay: &str, rate_per_sec: u32) {
    unblock(life, store).await;
    let replay = ReplayRun {
        id: replay.into(),
        filter: DeadLetterFilter::default(),
        rate_per_sec,
        created_at: life.clock.now(),
        status: ReplayStatus::Running,
        total: 0,
        replayed: 0,
        skipped: 0,
        cursor: None,
        sending: Vec::new(),
    };
    insist(life, || async { Ok(store.put_replay(replay.clone()).await?) }).await;
}

/// Lets every blocked job go on; says how many were.
async fn unblock(life: &Life, store: &WatchedStore) -> u32 {
    let blocked: Vec<JobId> = {
        let disk = life.world.disk.lock();
        let blocked = disk.jobs.values().filter(|record| matches!(record.place, Place::Blocked { .. }));
        blocked.map(|record| record.job.id).collect()
    };
    let mut count = 0;
    for id in blocked {
        count += u32::from(insist(life, || store.unblock(id)).await.is_some());
    }
    count
}

/// Waits until everything has ended, has what died replayed and what is blocked unblocked, and waits again.
pub async fn settle_down(life: &Life, store: &WatchedStore) {
    let world = &life.world;
    life.wait_until(world.plan.heal_at).await;
    let deadline = world.plan.heal_at + PATIENCE;
    let mut helped = Vec::new();
    if world.plan.loses_writes() {
        resume_all(life, store).await;
    }
    while life.moment() < deadline && world.witness.lock().is_content() {
        life.wait(LOOK_EVERY).await;
        if world.is_busy() {
            continue;
        }
        // A replay passes over what died later than it was asked for, and after a clock was set back, what died before
        // that may look so: whoever still sees dead letters then asks again.
        let newest = world.disk.lock().newest_dead();
        let died = match helped.last() {
            None => life.clock.now(),
            Some(last) => match newest {
                Some(died) if died >= *last => died,
                _ => return,
            },
        };
        life.wait(died.since(life.clock.now()).max(BREAKERS_REST)).await;
        let replay = format!("all {}", helped.len());
        helped.push(life.clock.now());
        help(life, store, &replay, CAREFUL_PER_SEC).await;
    }
}
