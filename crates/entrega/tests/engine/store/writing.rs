//! A local store while its disk is slow or broken: what is promised only after a sync, and what nobody may see before.

use std::pin::pin;

use entrega::store::local::tables::{DEAD, HISTORY, LIVE, REGISTRY};
use entrega::store::{ChangeError, StoreError};
use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::decide::Transition;
use entrega_core::job::{JobState, Priority};
use futures_util::FutureExt as _;

use super::fixture::{Fixture, HOUR, SECOND, failure, lane, soon};
use super::ledger::TestLedger;
use super::registry::key;

/// Settles for a retry without waiting for the disk.
async fn retry_unsynced(f: &Fixture, lane_name: &str, after: std::time::Duration) {
    let at = f.now() + after;
    let settlement = f.settlement(f.claim_one(lane_name).await, Transition::Retry { at, failure: failure("http_503") });
    f.store.settle(&lane(lane_name), vec![settlement]).await.unwrap();
}

#[tokio::test]
async fn a_job_is_neither_acknowledged_nor_claimable_before_it_is_synced() {
    let (disk, f) = TestLedger::world().await;
    disk.hold();
    let job = f.job("http", "acme");
    let mut submitted = pin!(f.store.submit(vec![job.clone()]));
    assert!(submitted.as_mut().now_or_never().is_none());
    disk.wait_for_writer();
    assert!(f.claim_ids("http").await.is_empty());
    assert!(submitted.as_mut().now_or_never().is_none());
    disk.release();
    soon(submitted).await.unwrap();
    assert_eq!(f.claim_ids("http").await, [job.id]);
}

#[tokio::test]
async fn what_many_lanes_have_to_write_meanwhile_is_one_write() {
    let (disk, f) = TestLedger::world().await;
    disk.hold();
    let mut first = pin!(f.store.flush());
    assert!(first.as_mut().now_or_never().is_none());
    disk.wait_for_writer();
    let before = disk.writes();
    let lanes: Vec<_> = f.setup.lanes.keys().map(|lane| f.job(lane.as_str(), "acme")).collect();
    assert!(lanes.len() > 10);
    let mut submitted: Vec<_> = lanes.into_iter().map(|job| Box::pin(f.store.submit(vec![job]))).collect();
    assert!(submitted.iter_mut().all(|submitted| submitted.as_mut().now_or_never().is_none()));
    disk.release();
    for submitted in submitted {
        soon(submitted).await.unwrap();
    }
    assert_eq!(disk.writes() - before, 2, "the one that was held, and one for all lanes");
}

/// A retry that was due at once was claimed before its history was on disk: its attempts were forgotten, it was
/// numbered wrongly after a restart, and it got more attempts than its lane allows.
#[tokio::test]
async fn a_retry_that_is_due_at_once_knows_its_history() {
    let (disk, f) = TestLedger::world().await;
    f.add("http", "acme").await;
    disk.hold();
    retry_unsynced(&f, "http", std::time::Duration::ZERO).await;
    let mut jobs = f.claim("http", 1).await.jobs;
    disk.release();
    f.store.flush().await.unwrap();
    jobs.extend(f.claim("http", 1).await.jobs);
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].attempt, jobs[0].history.len()), (2, 1));
}

#[tokio::test]
async fn a_cancelled_retry_keeps_its_attempts_and_leaves_no_history_behind() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add("http", "acme").await;
    disk.hold();
    retry_unsynced(&f, "http", SECOND).await;
    let mut cancelled = pin!(f.store.cancel(id, "not wanted"));
    let at_once = cancelled.as_mut().now_or_never();
    disk.release();
    f.store.flush().await.unwrap();
    match at_once {
        Some(Err(ChangeError::WrongState { state: JobState::Running, .. })) => {
            f.store.cancel(id, "not wanted").await.unwrap();
        }
        Some(other) => panic!("{other:?}"),
        None => drop(soon(cancelled).await.unwrap()),
    }
    let view = f.view(id).await;
    assert_eq!((view.state, view.attempts.len()), (JobState::Cancelled, 1));
    assert!(disk.ids(HISTORY).is_empty(), "nothing of it stays among the living");
}

#[tokio::test]
async fn a_retry_pushed_out_in_the_batch_that_writes_it_keeps_its_attempts() {
    let (disk, f) = TestLedger::world().await;
    let low = f.accept(f.urgent_job("urgent", Priority::Low)).await;
    let claimed = f.claim_one("urgent").await;
    for _ in 0..2 {
        f.accept(f.urgent_job("urgent", Priority::High)).await;
    }
    disk.hold();
    let mut earlier = pin!(f.store.flush());
    assert!(earlier.as_mut().now_or_never().is_none());
    disk.wait_for_writer();
    let retry = Transition::Retry { at: f.now() + SECOND, failure: failure("http_503") };
    f.store.settle(&lane("urgent"), vec![f.settlement(claimed, retry)]).await.unwrap();
    let mut urgent = pin!(f.store.submit(vec![f.urgent_job("urgent", Priority::High)]));
    assert!(urgent.as_mut().now_or_never().is_none());
    disk.release();
    soon(earlier).await.unwrap();
    soon(urgent).await.unwrap();
    f.store.flush().await.unwrap();
    let view = f.view(low).await;
    assert!(matches!(view.state, JobState::Dropped | JobState::RetryWait), "{}", view.state);
    assert_eq!(view.attempts.len(), 1);
    assert_eq!(disk.ids(HISTORY), disk.ids(LIVE).into_iter().filter(|&id| id == low).collect::<Vec<_>>());
}

/// An entry that had just died again was overwritten by what was on disk before, and its newest attempts were gone.
#[tokio::test]
async fn an_entry_that_has_just_died_again_is_not_discarded_as_it_was_before() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    let dead = Transition::DeadLetter { failure: failure("timeout") };
    let settlement = f.settlement(f.claim_one("http").await, dead);
    disk.hold();
    f.store.settle(&lane("http"), vec![settlement]).await.unwrap();
    let mut discarded = pin!(f.store.discard(id, "not wanted"));
    let at_once = discarded.as_mut().now_or_never();
    disk.release();
    f.store.flush().await.unwrap();
    match at_once {
        Some(result) => assert!(result.is_err(), "nothing is discarded before it is written"),
        None => soon(discarded).await.unwrap(),
    }
    let entry = f.entry(id).await;
    assert_eq!((entry.failed_attempts, entry.attempts.len()), (2, 2));
    assert_eq!(entry.last_failure_code.as_deref(), Some("timeout"));
}

#[tokio::test]
async fn an_unblocked_job_leaves_no_history_behind() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add("http", "acme").await;
    f.block(f.claim_one("http").await).await;
    f.store.unblock(id).await.unwrap();
    f.done(f.claim_one("http").await).await;
    for table in [LIVE, HISTORY] {
        assert!(disk.ids(table).is_empty(), "{}", table.name);
    }
}

/// Calls, and goes away when the disk stops after so many writes, as an HTTP client does that hangs up.
async fn abandon<T>(disk: &TestLedger, f: &Fixture, writes: usize, call: impl Future<Output = T>) {
    disk.hold_after(writes);
    drop(tokio::time::timeout(SECOND / 10, call).await);
    disk.release();
    f.store.flush().await.unwrap();
}

/// What was written takes effect even if nobody waits for it: an entry that is `replaying` is on its way.
#[tokio::test]
async fn a_replay_whose_caller_went_away_runs_or_was_not_begun() {
    let (disk, f) = TestLedger::world().await;
    for writes in 0..3 {
        let id = f.add_dead("http", "acme", "http_404").await;
        abandon(&disk, &f, writes, f.store.replay(id)).await;
        let is_replaying = f.entry(id).await.status == DeadLetterStatus::Replaying;
        assert_eq!(f.claim_ids("http").await.contains(&id), is_replaying, "after {writes} writes");
    }
}

#[tokio::test]
async fn an_unblocked_job_whose_caller_went_away_runs_or_is_still_blocked() {
    let (disk, f) = TestLedger::world().await;
    for writes in 0..3 {
        let id = f.add("http", "acme").await;
        f.block(f.claim_one("http").await).await;
        abandon(&disk, &f, writes, f.store.unblock(id)).await;
        let is_blocked = f.state(id).await == JobState::Blocked;
        assert_eq!(f.claim_ids("http").await.contains(&id), !is_blocked, "after {writes} writes");
    }
}

#[tokio::test]
async fn a_key_whose_maker_went_away_works_or_is_not_kept() {
    let (disk, f) = TestLedger::world().await;
    for writes in 0..3 {
        let id = format!("key{writes}");
        abandon(&disk, &f, writes, f.store.put_key(key(&id, writes as u8))).await;
        let row = format!("key/{id}");
        let is_kept = disk.rows(REGISTRY).iter().any(|(key, _)| key == row.as_bytes());
        let is_known = f.store.key_by_hash(&[writes as u8; 32]).is_some();
        assert_eq!(is_known, is_kept, "memory and disk say the same after {writes} writes");
    }
}

#[tokio::test]
async fn a_key_whose_remover_went_away_is_gone_or_still_works() {
    let (disk, f) = TestLedger::world().await;
    for writes in 0..3 {
        let id = format!("key{writes}");
        f.store.put_key(key(&id, writes as u8)).await.unwrap();
        abandon(&disk, &f, writes, f.store.remove_key(&id)).await;
        let row = format!("key/{id}");
        let is_kept = disk.rows(REGISTRY).iter().any(|(key, _)| key == row.as_bytes());
        let is_known = f.store.key_by_hash(&[writes as u8; 32]).is_some();
        assert_eq!(is_known, is_kept, "memory and disk say the same after {writes} writes");
    }
}

/// It was forgotten first and written then: the write failed, and the key was back after the restart.
#[tokio::test]
async fn a_key_is_removed_when_that_is_durable_and_not_before() {
    let (disk, f) = TestLedger::world().await;
    f.store.put_key(key("one", 1)).await.unwrap();
    f.store.put_key(key("two", 2)).await.unwrap();
    disk.hold();
    let mut removed = pin!(f.store.remove_key("one"));
    assert!(removed.as_mut().now_or_never().is_none());
    disk.wait_for_writer();
    let is_known = f.store.key_by_hash(&[1; 32]).is_some();
    disk.release();
    assert!(is_known, "a restart would still know it");
    assert!(soon(removed).await.unwrap());
    assert!(f.store.key_by_hash(&[1; 32]).is_none());

    disk.break_down();
    f.store.remove_key("two").await.unwrap_err();
    assert!(f.store.key_by_hash(&[2; 32]).is_some(), "it is on disk, and whoever removed it was told that it failed");
}

#[tokio::test]
async fn a_failed_write_stops_the_store() {
    let (disk, f) = TestLedger::world().await;
    f.add("http", "acme").await;
    let claimed = f.claim_one("http").await;
    let mut failed = pin!(f.store.failed());
    assert!(failed.as_mut().now_or_never().is_none());
    disk.break_down();
    let refused = f.store.submit(vec![f.job("http", "acme")]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Stopped { .. }), "{refused}");
    assert!(soon(failed).await.contains("the cable was pulled"));
    assert!(f.store.health().failure.is_some());
    assert!(f.store.claim(&lane("http"), 1).await.is_err(), "nothing is delivered that cannot be settled");
    let settlement = f.settlement(claimed, Transition::Done);
    // It may be taken in the moment in which the writer goes; nobody is told that it is durable.
    drop(soon(f.store.settle(&lane("http"), vec![settlement])).await);
    assert!(soon(f.store.flush()).await.is_err());
}

#[tokio::test]
async fn whoever_waits_for_a_job_is_told_when_the_store_has_stopped() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add("http", "acme").await;
    let mut ended = pin!(f.store.ended(id));
    assert!(ended.as_mut().now_or_never().is_none());
    disk.break_down();
    f.store.flush().await.unwrap_err();
    soon(f.store.failed()).await;
    let told = tokio::time::timeout(2 * SECOND, ended).await.expect("it does not wait for ever");
    assert!(told.is_err(), "the job has not ended");
}

/// What a task gives while another one is stopped, or after that one went on if it has to wait for it.
async fn beside<T: Send + 'static>(disk: &TestLedger, task: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = tokio::spawn(task);
    let early = tokio::time::timeout(SECOND / 5, &mut task).await;
    disk.release();
    match early {
        Ok(result) => result.unwrap(),
        Err(_) => soon(task).await.unwrap(),
    }
}

/// The machine said "waits again" before the settlement was in the writer's queue. A cancel in between was written
/// first, the retry after it: the job was cancelled, and ran again after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_cancelled_while_it_is_settled_does_not_come_back() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add("http", "acme").await;
    let retry = Transition::Retry { at: f.now() + SECOND, failure: failure("http_503") };
    let retry = f.settlement(f.claim_one("http").await, retry);
    // One that comes back is read before it is buried again.
    let again = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(again).await.unwrap();
    let dead = Transition::DeadLetter { failure: failure("http_404") };
    let dead = f.settlement(f.claim_one("http").await, dead);
    disk.stop_reader(DEAD);
    let store = f.store.clone();
    let settled = tokio::spawn(async move { store.settle(&lane("http"), vec![retry, dead]).await });
    disk.wait_for_reader();
    let store = f.store.clone();
    let cancelled = beside(&disk, async move { store.cancel(id, "not wanted").await }).await;
    settled.await.unwrap().unwrap();
    f.store.flush().await.unwrap();
    if let Err(refused) = cancelled {
        assert!(matches!(refused, ChangeError::WrongState { state: JobState::Running, .. }), "{refused}");
        f.store.cancel(id, "not wanted").await.unwrap();
    }
    assert_eq!(f.state(id).await, JobState::Cancelled);
    assert!(disk.ids(LIVE).is_empty(), "nothing is left to run after a restart");
}

/// A sweep that had chosen an entry took it away although it had been replayed in the meantime.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_replayed_while_it_is_swept_is_not_taken_away() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add_dead("small", "acme", "http_404").await;
    f.advance(HOUR);
    disk.stop_reader(DEAD);
    let store = f.store.clone();
    let swept = tokio::spawn(async move { store.sweep().await });
    disk.wait_for_reader();
    let store = f.store.clone();
    let replayed = beside(&disk, async move { store.replay(id).await }).await;
    let swept = swept.await.unwrap().unwrap().dead_letters.len();
    f.store.flush().await.unwrap();
    assert_eq!(usize::from(replayed.is_ok()) + swept, 1, "it is replayed or it leaves");
    assert_eq!(f.store.dead_letter(id).await.unwrap().is_some(), replayed.is_ok());
    assert_eq!(f.claim_ids("small").await.len(), usize::from(replayed.is_ok()));
}

/// The index said that the entry waits, and the ledger still had it as it was before it was replayed: discarding it then put
/// the old one in the place of the new, and the attempts of the replay were gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_that_dies_again_while_it_is_discarded_keeps_its_attempts() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(id).await.unwrap();
    let dead = f.settlement(f.claim_one("http").await, Transition::DeadLetter { failure: failure("timeout") });
    disk.hold();
    let store = f.store.clone();
    let mut discarded = tokio::spawn(async move { store.discard(id, "not wanted").await });
    disk.wait_for_writer();
    let before = disk.writes();
    f.store.settle(&lane("http"), vec![dead]).await.unwrap();
    disk.let_one_through();
    while disk.writes() == before {
        tokio::task::yield_now().await;
    }
    // The discard knows that all before it is written, and looks at the entry.
    assert!(tokio::time::timeout(SECOND / 5, &mut discarded).await.is_err(), "nothing more is written yet");
    disk.release();
    soon(discarded).await.unwrap().unwrap();
    let entry = f.entry(id).await;
    assert_eq!((entry.status, entry.attempts.len()), (DeadLetterStatus::Discarded, 2));
}
