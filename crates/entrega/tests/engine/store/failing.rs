//! A disk that fails at the first write, at the second, and so on, through a whole script of changes.
//! Invariant: what was acknowledged is there after a restart; from the failure on nothing is acknowledged any more.

use entrega::store::{ChangeError, StoreError, Submitted};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;

use super::fixture::{Fixture, SECOND, failure, lane};
use super::ledger::TestLedger;

/// What a caller was told of a job: it is there, or it is in this state.
type Told = Vec<(JobId, Option<JobState>)>;

/// Everything that writes, one thing after the other, until something is not acknowledged. What was.
async fn script(f: &Fixture) -> (Told, Result<(), StoreError>) {
    let mut told = Told::new();
    let ended = write_all(f, &mut told).await;
    (told, ended)
}

async fn write_all(f: &Fixture, told: &mut Told) -> Result<(), StoreError> {
    let lane = lane("http");
    for _ in 0..2 {
        let jobs: Vec<_> = (0..4).map(|_| f.job("http", "acme")).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answers = f.store.submit(jobs).await?;
        assert!(answers.iter().all(|answer| *answer == Submitted::Accepted { pushed_out: None }), "{answers:?}");
        told.extend(ids.iter().map(|id| (*id, None)));
        change(f.store.cancel(ids[3], "asked for").await.map(drop))?;
        tell(told, ids[3], JobState::Cancelled);
        let claimed = f.store.claim(&lane, 3).await?.jobs;
        let ways = [
            (Transition::Done, JobState::Done),
            (Transition::DeadLetter { failure: failure("http_404") }, JobState::Dlq),
            (Transition::Retry { at: f.now() + SECOND, failure: failure("http_503") }, JobState::RetryWait),
        ];
        for (claimed, (transition, state)) in claimed.into_iter().zip(ways) {
            let id = claimed.job.id;
            f.store.settle(&lane, vec![f.settlement(claimed, transition)]).await?;
            f.store.flush().await?;
            tell(told, id, state);
        }
        let dead = told.iter().rev().find(|(_, state)| *state == Some(JobState::Dlq)).expect("one died").0;
        // It may be pending or on its way again from here on.
        told.retain(|(id, _)| *id != dead);
        told.push((dead, None));
        change(f.store.replay(dead).await)?;
        f.store.set_paused(&lane, true).await?;
        f.store.set_paused(&lane, false).await?;
    }
    Ok(())
}

fn tell(told: &mut Told, id: JobId, state: JobState) {
    told.iter_mut().filter(|(known, _)| *known == id).for_each(|told| told.1 = Some(state));
}

fn change(result: Result<(), ChangeError>) -> Result<(), StoreError> {
    match result {
        Err(ChangeError::Store(error)) => Err(error),
        other => other.map_err(|error| panic!("{error}")),
    }
}

async fn assert_told(f: &Fixture, told: &Told, what: &str) {
    for (id, state) in told {
        let view = f.store.job(*id).await.unwrap();
        let view = view.unwrap_or_else(|| panic!("{what}: {id} was acknowledged and is gone"));
        assert!(state.is_none_or(|state| view.state == state), "{what}: {id} was {state:?} and is {}", view.state);
    }
}

/// Whether a write that failed is there afterwards is open: both are tried.
#[tokio::test]
async fn whichever_write_fails_nothing_acknowledged_is_lost_and_nothing_more_is_acknowledged() {
    let (_, whole) = TestLedger::world().await;
    let (told, ended) = script(&whole).await;
    ended.unwrap();
    assert_eq!(told.len(), 8);
    for is_kept in [false, true] {
        let mut writes = 0;
        loop {
            let (disk, f) = TestLedger::world().await;
            disk.fail_after(writes, is_kept);
            let (told, ended) = script(&f).await;
            let what = format!("write {writes} failed and was {}", if is_kept { "kept" } else { "lost" });
            let Err(error) = ended else { break };
            assert!(matches!(error, StoreError::Stopped { .. }), "{what}: {error}");
            assert!(f.store.submit(vec![f.job("http", "acme")]).await.is_err(), "{what}: more was acknowledged");
            let setup = f.setup.clone();
            let after = Fixture::over(disk.copy().open(&setup).await, setup);
            assert_told(&after, &told, &what).await;
            after.add("http", "acme").await;
            writes += 1;
        }
        assert!(writes >= 16, "only {writes} writes were tried");
    }
}
