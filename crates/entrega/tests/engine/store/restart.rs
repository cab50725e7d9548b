//! The embedded store over restarts: whatever was acknowledged is there again.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::local::tables::{JOBS, TABLES};
use entrega::store::local::{LocalOptions, LocalStore, newest_moment};
use entrega::store::{CountBy, Idempotency, NewEntry, PutKeyError, StoreError, Swept, TenantSettings};
use entrega_call::Clock;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::decide::Transition;
use entrega_core::job::{Job, JobState, Priority};
use entrega_ledger::{Group, Key, Ledger as _, LedgerError, LsmLedger, Room, Unit};

use super::fixture::{Fixture, HOUR, RETENTION, SECOND, Setup, failure, lane, tenant};
use super::mail::{bounce, notice};
use super::registry::{all_keys, key, replay_run};
use super::worlds::{open_embedded, options};

/// A directory and what its store is made with.
pub(crate) struct Home {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) setup: Setup,
}

impl Home {
    pub(crate) fn new() -> Home {
        Home { dir: tempfile::tempdir().unwrap(), setup: Setup::new() }
    }

    pub(crate) async fn open(&self) -> Fixture {
        Fixture::over(open_embedded(self.dir.path(), &self.setup).await, self.setup.clone())
    }

    /// Closes the store and opens it again.
    pub(crate) async fn reopen(&self, f: Fixture) -> Fixture {
        drop(f);
        self.open().await
    }

    /// Changes what a closed store left.
    pub(crate) async fn change(&self, change: Unit) {
        let ledger = LsmLedger::open(self.dir.path(), &TABLES).unwrap();
        ledger.write(&[Group { fences: Vec::new(), units: vec![change] }], Room::New).await.unwrap();
    }

    async fn open_with(&self, options: LocalOptions) -> Fixture {
        let ledger = Arc::new(LsmLedger::open(self.dir.path(), &TABLES).unwrap());
        let store = LocalStore::open(ledger, self.setup.clock.clone(), options).await.unwrap();
        Fixture::over(Arc::new(store), self.setup.clone())
    }
}

#[tokio::test]
async fn jobs_that_had_not_ended_wait_again() {
    let home = Home::new();
    let f = home.open().await;
    let retried = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    f.retry(f.claim_one("http").await, 10 * SECOND).await;
    let running = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    assert_eq!(f.claim_one("http").await.attempt, 2);
    let due_at = f.now() + 10 * SECOND;
    let delayed = f.accept(Job { due_at, expires_at: Some(due_at + HOUR), ..f.job("http", "acme") }).await;
    let blocked = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    let replaying = f.add_dead("single", "acme", "http_404").await;
    f.store.replay(replaying).await.unwrap();
    let mut expected = Vec::new();
    for id in [retried, delayed, blocked, replaying] {
        expected.push(serde_json::to_value(f.view(id).await).unwrap());
    }

    let f = home.reopen(f).await;
    let mut found = Vec::new();
    for id in [retried, delayed, blocked, replaying] {
        found.push(serde_json::to_value(f.view(id).await).unwrap());
    }
    assert_eq!(found, expected);
    assert_eq!(f.state(running).await, JobState::RetryWait);
    let again = f.claim_one("http").await;
    assert_eq!((again.job.id, again.attempt, again.history.len()), (running, 2, 1), "the same number again");
    assert_eq!(f.claim_one("single").await.generation, 1);
    assert!(f.claim_ids("http").await.is_empty());
    f.advance(10 * SECOND);
    let due = f.claim("http", 10).await.jobs;
    let mut due: Vec<_> = due.iter().map(|claimed| (claimed.job.id, claimed.attempt, claimed.history.len())).collect();
    due.sort();
    assert_eq!(due, [(retried, 3, 2), (delayed, 1, 0)]);
    f.store.unblock(blocked).await.unwrap();
    assert_eq!(f.claim_ids("http").await, [blocked]);
}

#[tokio::test]
async fn ended_jobs_and_dead_letters_are_kept() {
    let home = Home::new();
    let f = home.open().await;
    let done = f.add("http", "acme").await;
    f.done(f.claim_one("http").await).await;
    let cancelled = f.add("http", "acme").await;
    f.store.cancel(cancelled, "not wanted").await.unwrap();
    let dead = f.add_dead("http", "acme", "http_404").await;
    let discarded = f.add_dead("http", "acme", "timeout").await;
    f.store.discard(discarded, "not wanted").await.unwrap();
    let entry = f.entry(dead).await;
    let counts = f.store.dead_letter_counts(CountBy::Code, None).await.unwrap();

    let f = home.reopen(f).await;
    assert_eq!(f.state(done).await, JobState::Done);
    let view = f.view(cancelled).await;
    assert_eq!((view.state, view.reason.as_deref()), (JobState::Cancelled, Some("not wanted")));
    assert_eq!(f.entry(dead).await, entry);
    assert_eq!(f.entry(discarded).await.discard_reason.as_deref(), Some("not wanted"));
    assert_eq!(f.store.dead_letter_counts(CountBy::Code, None).await.unwrap(), counts);
    assert!(f.claim_ids("http").await.is_empty(), "what has ended does not run again");
    f.store.replay(dead).await.unwrap();
    assert_eq!(f.claim_ids("http").await, [dead]);
}

#[tokio::test]
async fn what_operators_set_up_is_kept() {
    let home = Home::new();
    let f = home.open().await;
    f.store.put_key(key("one", 1)).await.unwrap();
    f.store.put_key(key("two", 2)).await.unwrap();
    f.store.remove_key("two").await.unwrap();
    f.store.put_tenant(TenantSettings { weight: 4, ..TenantSettings::new(tenant("acme")) }).await.unwrap();
    f.store.put_replay(replay_run("run")).await.unwrap();
    f.store.set_paused(&lane("http"), true).await.unwrap();
    f.store.set_paused(&lane("single"), true).await.unwrap();
    f.store.set_paused(&lane("single"), false).await.unwrap();

    let f = home.reopen(f).await;
    assert_eq!(all_keys(&f).await, [key("one", 1)]);
    assert_eq!(f.store.key_by_hash(&[1; 32]).as_deref(), Some(&key("one", 1)));
    assert!(f.store.key_by_hash(&[2; 32]).is_none());
    assert!(f.store.tenants().await.unwrap().iter().all(|row| row.figures.weight == 4));
    let run = f.store.replay_run("run").await.unwrap().unwrap();
    assert_eq!(serde_json::to_value(run).unwrap(), serde_json::to_value(replay_run("run")).unwrap());
    let lanes = f.store.lanes().await.unwrap();
    let paused: Vec<_> = lanes.iter().filter(|view| view.paused).map(|view| view.name.as_str()).collect();
    assert_eq!(paused, ["http"]);
    f.add("http", "acme").await;
    assert!(f.claim_ids("http").await.is_empty());
}

#[tokio::test]
async fn a_job_pushed_out_in_the_batch_that_brought_it_stays_dropped() {
    let home = Home::new();
    let f = home.open().await;
    let priorities = [Priority::Low, Priority::Low, Priority::Low, Priority::High];
    let jobs: Vec<_> = priorities.iter().map(|&priority| f.urgent_job("urgent", priority)).collect();
    let dropped = jobs[2].id;
    f.submit_all(jobs).await;
    let f = home.reopen(f).await;
    assert_eq!(f.state(dropped).await, JobState::Dropped);
    assert_eq!(f.claim_ids("urgent").await.len(), 3);
}

/// A replay starts with a new time to live, but its first retry wrote the old one down: after a restart it was expired.
#[tokio::test]
async fn a_replay_keeps_its_new_time_to_live() {
    let home = Home::new();
    let f = home.open().await;
    let id = f.accept(Job { expires_at: Some(f.now() + HOUR), ..f.job("http", "acme") }).await;
    f.dead(f.claim_one("http").await, "http_404").await;
    f.advance(2 * HOUR);
    f.store.replay(id).await.unwrap();
    let f = home.reopen(f).await;
    f.retry(f.claim_one("http").await, SECOND).await;
    let f = home.reopen(f).await;
    f.advance(SECOND);
    let batch = f.claim("http", 1).await;
    assert!(batch.expired.is_empty());
    assert_eq!(batch.jobs.len(), 1);
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let home = Home::new();
    let f = home.open().await;
    let refused = LsmLedger::open(home.dir.path(), &TABLES).err().expect("one process owns the directory");
    assert!(matches!(&refused, LedgerError::InUse { path } if path.contains(&*home.dir.path().to_string_lossy())));
    f.add("http", "acme").await;
    assert_eq!(home.reopen(f).await.claim_ids("http").await.len(), 1, "once it is closed, the next may have it");
}

#[tokio::test]
async fn jobs_of_a_lane_that_is_gone_wait_for_it() {
    let home = Home::new();
    let f = home.open().await;
    let id = f.add("single", "acme").await;
    drop(f);
    let mut options = options(&home.setup);
    options.lanes.remove(&lane("single"));
    let f = home.open_with(options).await;
    assert_eq!(f.state(id).await, JobState::Idle);
    let f = home.reopen(f).await;
    assert_eq!(f.claim_ids("single").await, [id]);
}

/// A program that restarts in a loop must not send a throttle's worth each time.
#[tokio::test]
async fn a_restart_does_not_refill_a_throttle() {
    let home = Home::new();
    let f = home.open().await;
    f.submit_all((0..3).map(|_| f.job("throttled", "acme")).collect()).await;
    assert_eq!(f.claim("throttled", 10).await.jobs.len(), 2);
    let f = home.reopen(f).await;
    let early = f.claim("throttled", 10).await;
    assert_eq!((early.jobs.len(), early.wake_at), (0, Some(f.now() + 60 * SECOND)));
    f.advance(60 * SECOND);
    assert_eq!(f.claim("throttled", 10).await.jobs.len(), 2);
}

/// An orderly stop remembers the last starts: what is left of the throttle can be used at once, and no more.
#[tokio::test]
async fn an_orderly_restart_goes_on_within_the_throttle() {
    let home = Home::new();
    let f = home.open().await;
    f.submit_all((0..4).map(|_| f.job("throttled", "acme")).collect()).await;
    f.done(f.claim_one("throttled").await).await;
    f.advance(SECOND);
    f.store.release().await.unwrap();
    f.advance(SECOND);
    let f = home.reopen(f).await;
    let claims = f.claim("throttled", 10).await;
    assert_eq!((claims.jobs.len(), claims.wake_at), (1, Some(f.now() + 59 * SECOND)), "one of two is left");
    for claimed in claims.jobs {
        f.done(claimed).await;
    }
    f.store.release().await.unwrap();
    f.advance(SECOND);
    let f = home.reopen(f).await;
    let claims = f.claim("throttled", 10).await;
    assert_eq!((claims.jobs.len(), claims.wake_at), (0, Some(f.now() + 59 * SECOND)), "none is left");
    f.advance(59 * SECOND);
    assert_eq!(f.claim("throttled", 10).await.jobs.len(), 1, "the first start was a period ago, stops not counted");
}

/// What an orderly stop wrote down is true for the next run only: a crash of that one leaves nothing to go by.
#[tokio::test]
async fn a_crash_after_an_orderly_restart_does_not_refill_a_throttle() {
    let home = Home::new();
    let f = home.open().await;
    f.submit_all((0..5).map(|_| f.job("throttled", "acme")).collect()).await;
    f.store.release().await.unwrap();
    let f = home.reopen(f).await;
    assert_eq!(f.claim("throttled", 10).await.jobs.len(), 2, "nothing was used");
    let f = home.reopen(f).await;
    let claims = f.claim("throttled", 10).await;
    assert_eq!((claims.jobs.len(), claims.wake_at), (0, Some(f.now() + 60 * SECOND)));
}

#[tokio::test]
async fn a_crash_does_not_bring_a_tick_forward() {
    let home = Home::new();
    let f = home.open().await;
    f.submit_all((0..3).map(|_| f.job("paced", "acme")).collect()).await;
    let tick = f.now() + SECOND;
    f.done(f.claim_one("paced").await).await;
    f.advance(SECOND / 4);
    f.store.release().await.unwrap();
    let f = home.reopen(f).await;
    assert_eq!(f.claim("paced", 1).await.wake_at, Some(tick), "after an orderly stop, a tick after the last start");
    let f = home.reopen(f).await;
    let claims = f.claim("paced", 1).await;
    assert_eq!((claims.jobs.len(), claims.wake_at), (0, Some(f.now() + SECOND)), "after any other, a tick from now");
}

/// A program may run its engine again after it stopped it: then what was written down is out of date.
#[tokio::test]
async fn a_crash_after_a_store_went_on_does_not_refill_a_throttle() {
    let home = Home::new();
    let f = home.open().await;
    f.submit_all((0..5).map(|_| f.job("throttled", "acme")).collect()).await;
    f.store.release().await.unwrap();
    assert_eq!(f.claim("throttled", 10).await.jobs.len(), 2);
    let f = home.reopen(f).await;
    let claims = f.claim("throttled", 10).await;
    assert_eq!((claims.jobs.len(), claims.wake_at), (0, Some(f.now() + 60 * SECOND)));
}

#[tokio::test]
async fn keys_and_what_is_known_of_mails_are_kept() {
    let home = Home::new();
    let f = home.open().await;
    let job = f.job("http", "acme");
    let id = job.id;
    let once = Idempotency { key: "order-17".into(), request: [1; 32], lasts: HOUR };
    f.store.take(vec![NewEntry { job, idempotency: vec![once], answer: None }]).await.unwrap();
    let (suppressed, told) = (bounce(&f, "acme", "x@example.com"), notice(&f, "feedback-1", "x@example.com"));
    f.store.suppress(suppressed.clone()).await.unwrap();
    f.store.note_feedback(id.of_mail(), told.clone()).await.unwrap();
    let f = home.reopen(f).await;
    assert_eq!(f.store.job_by_key(&tenant("acme"), "order-17").await.unwrap(), Some(id));
    assert_eq!(f.store.suppressed(&tenant("acme"), &["x@example.com"]).await.unwrap(), [Some(suppressed)]);
    assert_eq!(f.store.feedback(&[id.of_mail()]).await.unwrap(), [[told]]);
}

#[tokio::test]
async fn a_dead_letter_that_leaves_is_written_down_whole() {
    let home = Home::new();
    let exports = home.dir.path().join("exports");
    let f = home.open_with(LocalOptions { export_dir: Some(exports.clone()), ..options(&home.setup) }).await;
    let first = f.add_dead("small", "acme", "http_404").await;
    let kept = f.add_dead("http", "acme", "http_404").await;
    let whole = f.entry(first).await;
    f.advance(HOUR);
    f.store.sweep().await.unwrap();
    let second = f.add_dead("small", "acme", "timeout").await;
    f.advance(HOUR);
    f.store.sweep().await.unwrap();
    let text = std::fs::read_to_string(exports.join("dlq-2026-01-31.jsonl")).unwrap();
    let entries: Vec<DeadLetter> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries[0], whole);
    assert_eq!(entries.iter().map(|entry| entry.job_id).collect::<Vec<_>>(), [first, second]);
    let f = home.reopen(f).await;
    assert!(f.store.dead_letter(first).await.unwrap().is_none());
    assert_eq!(f.entry(kept).await.status, DeadLetterStatus::Pending);
}

#[tokio::test]
async fn a_full_disk_refuses_new_work_and_delivers_on() {
    let home = Home::new();
    let f = home.open().await;
    let id = f.add("http", "acme").await;
    drop(f);
    let f = home.open_with(LocalOptions { free_bytes_min: u64::MAX, ..options(&home.setup) }).await;
    f.store.sweep().await.unwrap();
    let refused = f.store.submit(vec![f.job("http", "acme")]).await.unwrap_err();
    assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
    assert!(f.store.health().refuses.is_some());
    let refused = f.store.put_key(key("late", 7)).await.unwrap_err();
    assert!(
        matches!(refused, PutKeyError::Store(StoreError::DiskFull { .. })),
        "an operator's new record waits, too: {refused}"
    );
    f.store.set_paused(&lane("small"), true).await.expect("what runs can be stopped");
    f.done(f.claim_one("http").await).await;
    assert_eq!(f.state(id).await, JobState::Done);
}

/// A sweep took 2 000 ended jobs a second where 40 000 were delivered: the disk filled with what nobody needed any more.
#[tokio::test]
async fn a_sweep_takes_a_bounded_number_and_says_when_more_is_due() {
    const JOBS_MAX: usize = 5_000;
    let home = Home::new();
    let f = home.open().await;
    let waiting = f.add("small", "acme").await;
    f.submit_all((0..JOBS_MAX + 200).map(|_| f.job("http", "acme")).collect()).await;
    let claimed = f.claim("http", usize::MAX).await.jobs;
    for claimed in claimed {
        f.store.settle(&lane("http"), vec![f.settlement(claimed, Transition::Done)]).await.unwrap();
    }
    f.store.flush().await.unwrap();
    f.advance(2 * RETENTION);
    let mut swept = Vec::new();
    for _ in 0..4 {
        let Swept { jobs, has_more, .. } = f.store.sweep().await.unwrap();
        swept.push((jobs, has_more));
    }
    assert_eq!(swept, [(JOBS_MAX, true), (200, false), (0, false), (0, false)]);
    assert_eq!(f.state(waiting).await, JobState::Queued, "what waits stays, however old");
    f.done(f.claim_one("small").await).await;
    f.advance(2 * RETENTION);
    assert_eq!(f.store.sweep().await.unwrap().jobs, 1, "and goes when it has ended");
}

/// One group may write a key several times: a job that comes and is pushed out, a retry that is cancelled.
#[tokio::test]
async fn the_last_write_to_a_key_in_a_group_counts() {
    let home = Home::new();
    let key = |name: &str| Key::Text(name.into());
    let mut change = Unit::default();
    change.put(JOBS, key("removed"), &b"1"[..]);
    change.remove(JOBS, key("removed"));
    change.remove(JOBS, key("put"));
    change.put(JOBS, key("put"), &b"1"[..]);
    change.put(JOBS, key("put"), &b"2"[..]);
    home.change(change).await;
    let ledger = LsmLedger::open(home.dir.path(), &TABLES).unwrap();
    let found = ledger.read(JOBS, &[key("removed"), key("put")]).await.unwrap();
    assert_eq!(found, [None, Some("2".into())]);
}

#[tokio::test]
async fn a_delay_counts_on_while_the_store_is_closed() {
    let home = Home::new();
    let f = home.open().await;
    let id = f.accept(Job { due_at: f.now() + HOUR, ..f.job("http", "acme") }).await;
    drop(f);
    home.setup.clock.advance(HOUR - Duration::from_micros(1));
    let f = home.open().await;
    assert!(f.claim_ids("http").await.is_empty());
    f.advance(Duration::from_micros(1));
    assert_eq!(f.claim_ids("http").await, [id]);
}

/// A clock that was set back an hour between two processes made every retry stand still for that hour, without a word.
#[tokio::test]
async fn what_was_due_is_due_after_the_clock_was_set_back() {
    let mut home = Home::new();
    let f = home.open().await;
    f.submit_all(vec![f.job("http", "acme")]).await;
    // Its youngest job is two hours old when the process ends; the sweep says what time it was.
    f.advance(HOUR * 2);
    let at = f.now() + SECOND;
    let transition = Transition::Retry { at, failure: failure("http_503") };
    f.settle(f.claim_one("http").await, transition).await;
    f.store.sweep().await.unwrap();
    let written = f.now();
    drop(f);

    home.setup.clock = Clock::manual(written - HOUR);
    {
        let ledger = LsmLedger::open(home.dir.path(), &TABLES).unwrap();
        let newest = newest_moment(&ledger).await.unwrap().unwrap();
        assert_eq!(newest, written);
        assert_eq!(home.setup.clock.go_on_from(newest), HOUR);
    }
    let f = home.open().await;
    f.advance(SECOND);
    assert_eq!(f.claim("http", 1).await.jobs.len(), 1);
}

#[tokio::test]
async fn an_idle_store_is_not_stamped_again_and_again() {
    let home = Home::new();
    let f = home.open().await;
    f.advance(HOUR);
    f.store.sweep().await.unwrap();
    drop(f);
    let ledger = LsmLedger::open(home.dir.path(), &TABLES).unwrap();
    assert_eq!(newest_moment(&ledger).await.unwrap(), None);
}
