//! Replays of many dead letters, at a pace.
//! Invariant: a run meets each entry once, oldest first, and none that died after the run was asked for: it cannot
//! loop. Its progress is durable, so it goes on after a restart; each entry counts once, wherever it was interrupted.

use std::collections::HashMap;
use std::time::Duration;

use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::time::Time;

use crate::env::Env;
use crate::store::{ChangeError, DeadLetterCursor, DeadLetterFilter, Page, ReplayRun, ReplayStatus, StoreError};

/// How much of its pace a run may catch up after it was held up, beside the one that was nearly due before.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

/// When each run last went on.
#[derive(Default)]
pub(super) struct Replayer {
    last: HashMap<String, Time>,
}

impl Replayer {
    /// Lets every run go on by as much as its pace allows. One that cannot does not keep the others from it.
    pub(super) async fn turn(&mut self, env: &Env) -> Result<(), StoreError> {
        for run in env.store.replays_to_carry_on().await? {
            let id = run.id.clone();
            if let Err(error) = self.go_on(env, run).await {
                tracing::error!(replayId = id, errorReason = %error, "A replay could not go on; it is tried again");
            }
        }
        Ok(())
    }

    async fn go_on(&mut self, env: &Env, mut run: ReplayRun) -> Result<(), StoreError> {
        let now = env.clock.now();
        let last = *self.last.entry(run.id.clone()).or_insert(now);
        let (count, paid_until) = allowance(run.rate_per_sec, last, now);
        if count == 0 {
            return Ok(());
        }
        self.last.insert(run.id.clone(), paid_until);
        // What another process, or a store that failed, left half done comes first.
        let resumed = finish(env, &mut run, count).await;
        let sent = match resumed {
            Ok(done) if run.sending.is_empty() && done < count => self.send_more(env, &mut run, count - done).await,
            other => other.map(drop),
        };
        // What was sent was sent, also if the next could not be.
        let written = env.store.put_replay(run).await;
        sent.and(written)
    }

    /// Sends the next entries, up to `count`; which they are is written down first.
    async fn send_more(&mut self, env: &Env, run: &mut ReplayRun, count: usize) -> Result<(), StoreError> {
        let filter = DeadLetterFilter {
            status: Some(DeadLetterStatus::Pending),
            before: Some(deadline(run)),
            oldest_first: true,
            ..run.filter.clone()
        };
        let page = env.store.dead_letters(&filter, Page { after: run.cursor, limit: count }).await?;
        run.sending = page.items.iter().map(|dead| (dead.moved_to_dlq_at, dead.job_id)).collect();
        if run.sending.is_empty() {
            run.cursor = page.next;
        } else {
            env.store.put_replay(run.clone()).await?;
        }
        for place in run.sending.clone() {
            send(env, run, place).await?;
        }
        if page.next.is_none() {
            run.status = ReplayStatus::Finished;
            self.last.remove(&run.id);
            tracing::info!(target: "audit", replayId = run.id, replayed = run.replayed, skipped = run.skipped, "Replay finished");
        }
        Ok(())
    }
}

/// Whatever died at this moment or later is not the run's business. Moments are kept in whole milliseconds: a run that goes
/// on after a restart must mean the same entries.
fn deadline(run: &ReplayRun) -> Time {
    Time::from_millis(run.created_at.as_millis() + 1)
}

/// Finds out what became of up to `count` entries that were being sent, and sends those that were not; how many there were.
async fn finish(env: &Env, run: &mut ReplayRun, count: usize) -> Result<usize, StoreError> {
    let places: Vec<DeadLetterCursor> = run.sending.iter().take(count).copied().collect();
    for place in &places {
        let dead = env.store.dead_letter(place.1).await?;
        // One that came back died after the run was asked for.
        let came_back = dead.as_ref().is_some_and(|dead| dead.moved_to_dlq_at >= deadline(run));
        match dead.map(|dead| dead.status) {
            Some(DeadLetterStatus::Replaying | DeadLetterStatus::Replayed) => note(run, *place, true),
            Some(_) if came_back => note(run, *place, true),
            Some(DeadLetterStatus::Pending) => send(env, run, *place).await?,
            Some(DeadLetterStatus::Discarded) | None => note(run, *place, false),
        }
    }
    Ok(places.len())
}

/// Replays one entry; `run` says what came of it.
async fn send(env: &Env, run: &mut ReplayRun, place: DeadLetterCursor) -> Result<(), StoreError> {
    let replayed = env.store.replay(place.1).await;
    if let Err(error) = &replayed {
        tracing::warn!(dlqId = %place.1, replayId = run.id, errorReason = %error, "Dead letter not replayed");
    }
    match replayed {
        // Its lane is gone: trying again would not bring it back.
        Err(ChangeError::Store(error)) if !matches!(error, StoreError::UnknownLane { .. }) => Err(error),
        replayed => {
            note(run, place, replayed.is_ok());
            Ok(())
        }
    }
}

/// Counts an entry, and goes on behind it.
fn note(run: &mut ReplayRun, place: DeadLetterCursor, is_replayed: bool) {
    run.replayed += u64::from(is_replayed);
    run.skipped += u64::from(!is_replayed);
    run.sending.retain(|sending| *sending != place);
    run.cursor = Some(place);
}

/// How many may go at `now` if all up to `last` were paid for, and up to when that pays.
fn allowance(rate_per_sec: u32, last: Time, now: Time) -> (usize, Time) {
    let period = Duration::from_secs(1) / rate_per_sec.max(1);
    let last = last.max(now - CATCH_UP_MAX - period);
    let micros = now.since(last).as_micros() as u64;
    let count = micros * u64::from(rate_per_sec) / 1_000_000;
    let paid = Duration::from_micros(count * 1_000_000 / u64::from(rate_per_sec.max(1)));
    (count as usize, last + paid)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use entrega_core::dead_letter::DeadLetter;
    use entrega_core::id::JobId;
    use entrega_core::job::{Job, Priority};
    use entrega_core::name::{LaneName, TenantName};
    use entrega_core::payload::Payload;
    use entrega_core::policy::LanePolicy;
    use entrega_ledger::{Group, HeapLedger, Key, Ledger, LedgerDouble, LedgerError, Unit};
    use proptest::prelude::*;

    use super::*;
    use crate::chance::Chance;
    use entrega_call::Clock;

    use crate::store::local::tables::{DEAD, REGISTRY, TABLES};
    use crate::store::local::{LocalOptions, LocalStore, dead_letter_rows};

    const START: Time = Time::from_millis(1_000_000);

    fn id(number: u8) -> JobId {
        JobId::from_parts(START, number.into())
    }

    fn lane(name: &str) -> LaneName {
        LaneName::new(name).unwrap()
    }

    /// The dead letter of this number, which is also the second in which it died.
    fn dead_letter(number: u8, lane_name: &str) -> DeadLetter {
        let (tenant, at) = (TenantName::new("acme").unwrap(), START + Duration::from_secs(number.into()));
        let job = Job {
            id: id(number),
            lane: lane(lane_name),
            tenant: tenant.clone(),
            priority: Priority::Normal,
            payload: Payload::opaque(&b""[..]),
            destination: None,
            earlier: Default::default(),
            labels: BTreeMap::new(),
            idempotency_key: None,
            accepted_at: START,
            due_at: START,
            expires_at: None,
        };
        DeadLetter {
            outbox_id: None,
            job_id: job.id,
            company_id: tenant,
            lane: job.lane.clone(),
            original_data: job,
            failed_attempts: 1,
            last_failure_reason: "it failed".into(),
            last_failure_code: None,
            last_failure_timestamp: at,
            enqueued_at: START,
            moved_to_dlq_at: at,
            ttl: 604_800_000,
            status: DeadLetterStatus::Pending,
            attempts: Vec::new(),
            generation: 0,
            discard_reason: None,
        }
    }

    /// On this ledger one dead letter can be read once, and then no more until it is mended.
    fn failing(heap: HeapLedger, once: JobId, is_mended: Arc<AtomicBool>) -> LedgerDouble {
        let was_read = AtomicBool::new(false);
        LedgerDouble::over(Arc::new(heap)).before_read(move |table, keys| {
            let is_the_one = table == DEAD && keys.contains(&Key::Id(*once.as_bytes()));
            if is_the_one && was_read.swap(true, Ordering::SeqCst) && !is_mended.load(Ordering::SeqCst) {
                return Err(LedgerError::Broken { doing: "reading", reason: "a bad sector".into() });
            }
            Ok(())
        })
    }

    async fn env(ledger: impl Ledger, clock: &Clock) -> Env {
        let lanes: BTreeMap<_, _> = ["http", "mail"].map(|name| (lane(name), Arc::new(LanePolicy::http()))).into();
        let options = LocalOptions::new(lanes.clone());
        let store = LocalStore::open(Arc::new(ledger), clock.clone(), options).await.unwrap();
        Env { chance: Arc::new(Chance::from_seed(7)), ..Env::new(Arc::new(store), clock.clone(), lanes) }
    }

    fn heap(entries: &[DeadLetter]) -> HeapLedger {
        let mut unit = Unit::default();
        for dead in entries {
            unit.ops.extend(dead_letter_rows(dead).ops);
            unit.put(REGISTRY, Key::Text(format!("lane/{}", dead.lane)), &b"true"[..]);
        }
        let heap = HeapLedger::new(&TABLES);
        heap.apply(&[Group { fences: Vec::new(), units: vec![unit] }]).unwrap();
        heap
    }

    async fn start(env: &Env, name: &str, filter: DeadLetterFilter) {
        let run = ReplayRun {
            id: name.into(),
            filter,
            rate_per_sec: 10,
            created_at: env.clock.now(),
            status: ReplayStatus::Running,
            total: 3,
            replayed: 0,
            skipped: 0,
            cursor: None,
            sending: Vec::new(),
        };
        env.store.put_replay(run).await.unwrap();
    }

    async fn progress(env: &Env, name: &str) -> (ReplayStatus, u64, u64) {
        let run = env.store.replay_run(name).await.unwrap().unwrap();
        (run.status, run.replayed, run.skipped)
    }

    fn of_lane(name: &str) -> DeadLetterFilter {
        DeadLetterFilter { lane: Some(lane(name)), ..Default::default() }
    }

    /// The first run that failed ended the turn: those after it stood still, and what it had sent was forgotten.
    #[tokio::test]
    async fn a_run_that_cannot_go_on_keeps_its_progress_and_holds_up_no_other() {
        let is_mended = Arc::new(AtomicBool::new(false));
        let entries = [dead_letter(1, "http"), dead_letter(2, "http"), dead_letter(3, "http"), dead_letter(4, "mail")];
        let ledger = failing(heap(&entries), id(2), is_mended.clone());
        let clock = Clock::manual(START + Duration::from_secs(60));
        let env = env(ledger, &clock).await;
        start(&env, "other", of_lane("mail")).await;
        clock.advance(Duration::from_secs(1));
        start(&env, "failing", of_lane("http")).await;
        let mut replayer = Replayer::default();
        for _ in 0..2 {
            replayer.turn(&env).await.unwrap();
            clock.advance(CATCH_UP_MAX);
        }
        assert_eq!(progress(&env, "failing").await, (ReplayStatus::Running, 1, 0));
        assert_eq!(progress(&env, "other").await, (ReplayStatus::Finished, 1, 0));

        is_mended.store(true, Ordering::SeqCst);
        replayer.turn(&env).await.unwrap();
        assert_eq!(progress(&env, "failing").await, (ReplayStatus::Finished, 3, 0));
    }

    /// What a killed process had sent was not counted, because the run was written down after its entries: of 500 it said
    /// that it had replayed 361.
    #[tokio::test]
    async fn a_run_that_goes_on_after_a_crash_counts_each_entry_once() {
        let entries: Vec<_> = (1..=5).map(|number| dead_letter(number, "http")).collect();
        let clock = Clock::manual(START + Duration::from_secs(60));
        let env = env(heap(&entries), &clock).await;
        start(&env, "all", of_lane("http")).await;
        // The process before sent two of four, of which it discarded none, and was killed before it wrote that down.
        let sending = entries[..4].iter().map(|dead| (dead.moved_to_dlq_at, dead.job_id)).collect();
        let run = env.store.replay_run("all").await.unwrap().unwrap();
        env.store.put_replay(ReplayRun { sending, ..run }).await.unwrap();
        for number in [1, 2] {
            env.store.replay(id(number)).await.unwrap();
        }
        env.store.discard(id(3), "nobody wants it").await.unwrap();
        let mut replayer = Replayer::default();
        for _ in 0..2 {
            replayer.turn(&env).await.unwrap();
            clock.advance(CATCH_UP_MAX);
        }
        assert_eq!(progress(&env, "all").await, (ReplayStatus::Finished, 4, 1));
    }

    /// A lane that was taken out of the configuration leaves its dead letters; a run met the first of them for ever.
    #[tokio::test]
    async fn an_entry_whose_lane_is_gone_is_skipped() {
        let clock = Clock::manual(START + Duration::from_secs(60));
        let env = env(heap(&[dead_letter(1, "gone"), dead_letter(2, "http")]), &clock).await;
        start(&env, "all", DeadLetterFilter::default()).await;
        let mut replayer = Replayer::default();
        for _ in 0..2 {
            replayer.turn(&env).await.unwrap();
            clock.advance(CATCH_UP_MAX);
        }
        assert_eq!(progress(&env, "all").await, (ReplayStatus::Finished, 1, 1));
    }

    proptest! {
        /// A slow run lost what was nearly due whenever a tick came a little late: 18 were sent where 20 were due.
        #[test]
        fn a_pace_is_kept_whatever_the_ticks(rate in 1u32..1000, ticks in prop::collection::vec(1u64..=1000, 1..200)) {
            let start = Time::from_millis(1_000_000);
            let (mut now, mut last, mut sent) = (start, start, 0);
            for ms in ticks {
                now = now + Duration::from_millis(ms);
                let (count, paid) = allowance(rate, last, now);
                last = paid;
                sent += count;
                let due = now.since(start).as_secs_f64() * f64::from(rate);
                prop_assert!(sent as f64 <= due + 1.0, "{sent} sent, {due} due");
                prop_assert!(sent as f64 >= due - 1.0, "{sent} sent, {due} due");
            }
        }
    }

    #[test]
    fn a_slow_pace_waits_for_its_first() {
        let start = Time::from_millis(1_000_000);
        assert_eq!(allowance(2, start, start + Duration::from_millis(499)).0, 0);
        assert_eq!(allowance(2, start, start + Duration::from_millis(500)), (1, start + Duration::from_millis(500)));
        assert_eq!(allowance(10, start, start + Duration::from_secs(3600)).0, 11, "it does not catch up an hour");
        assert_eq!(allowance(1, start, start + Duration::from_secs(3600)).0, 2, "nor does a slow one");
    }
}
