//! Jobs that another node took in, as the owner of their lane finds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use entrega::store::local::tables::{LIVE, TABLES};
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega::store::{JobStore as _, Submitted};
use entrega_core::job::{JobState, Priority};
use entrega_ledger::{HeapLedger, Key, LedgerDouble, LedgerError};

use super::fixture::{FEW, Fixture, Setup};
use super::worlds::options;

/// A node over a ledger that others share. While it is held up, nobody knows what becomes of its writes.
async fn node(heap: &Arc<HeapLedger>, setup: &Setup, is_held_up: &Arc<AtomicBool>) -> Arc<LocalStore> {
    let is_held_up = is_held_up.clone();
    let ledger = LedgerDouble::over(heap.clone()).before_write(move |_| match is_held_up.load(Ordering::Relaxed) {
        true => Err(LedgerError::Unclear { doing: "writing", reason: "held up".into() }),
        false => Ok(()),
    });
    let cluster = Some(ClusterOptions { lease: Duration::from_hours(365 * 24), name: "node".into() });
    let options = LocalOptions { cluster, ..options(setup) };
    Arc::new(LocalStore::open(Arc::new(ledger), setup.clock.clone(), options).await.unwrap())
}

/// A job that was submitted at the owner had to leave for one that came by another node, in the same write. Its end was
/// written before its beginning: the caller was told that it was taken, nobody attempted it, and it was found again when
/// the lane had its next owner.
#[tokio::test(start_paused = true)]
async fn a_new_job_that_has_to_leave_at_once_has_ended() {
    let (setup, heap) = (Setup::new(), Arc::new(HeapLedger::new(&TABLES)));
    let (held_up, never) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let owner = node(&heap, &setup, &held_up).await;
    let other = node(&heap, &setup, &never).await;
    let f = Fixture::over(owner.clone(), setup.clone());
    for _ in 1..FEW {
        f.accept(f.urgent_job("urgent", Priority::Low)).await;
    }
    held_up.store(true, Ordering::Relaxed);
    // Whatever comes while this is not written is written together.
    let first = tokio::spawn({
        let owner = owner.clone();
        async move { owner.flush().await }
    });
    // reason: the time of this runtime stands still, and passes at once when all wait.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let new = f.urgent_job("urgent", Priority::Low);
    let id = new.id;
    let submitting = tokio::spawn({
        let owner = owner.clone();
        async move { owner.submit(vec![new]).await }
    });
    // reason: the same.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let urgent = f.urgent_job("urgent", Priority::High);
    assert_eq!(other.submit(vec![urgent]).await.unwrap(), [Submitted::Accepted { pushed_out: None }]);
    // reason: the same; the owner finds it in its inbox meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    held_up.store(false, Ordering::Relaxed);
    first.await.unwrap().unwrap();
    assert_eq!(submitting.await.unwrap().unwrap(), [Submitted::Accepted { pushed_out: None }]);
    f.store.flush().await.unwrap();
    assert_eq!(f.state(id).await, JobState::Dropped);
    let batch = f.claim("urgent", 10).await;
    assert_eq!(batch.pushed_out.iter().map(|left| left.id).collect::<Vec<_>>(), [id], "somebody is told");
    assert!(f.claim("urgent", 10).await.pushed_out.is_empty(), "once");
    let index = Key::Scoped("urgent".into(), *id.as_bytes());
    assert_eq!(heap.get(LIVE, &index), None, "no owner finds it again");
}
