//! Lanes that move to another node while something is written there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use entrega::store::Submitted;
use entrega::store::local::tables::{JOBS, TABLES};
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega_ledger::{Group, HeapLedger, Ledger as _, LedgerDouble, LedgerError, Op, Owning, Shard};
use futures_util::FutureExt as _;

use super::fixture::{Fixture, Setup};
use super::worlds::options;

const ANOTHER: u64 = 99 << u32::BITS;

fn is_submission(groups: &[Group]) -> bool {
    groups.iter().flat_map(|group| &group.units).flat_map(|unit| &unit.ops).any(|op| matches!(op, Op::Put(JOBS, ..)))
}

/// Another node owns a lane from now on.
fn take_away(heap: &HeapLedger, lane: &str) {
    let shard = Shard::new(&format!("lane/{lane}"));
    let own = |seen| heap.own(&shard, ANOTHER, seen).now_or_never().unwrap().unwrap();
    let Owning::Held { token, beat } = own(None) else { panic!("nobody owned it") };
    assert!(matches!(own(Some((token, beat))), Owning::Owned { .. }));
}

/// The write of a submission was applied and its answer lost; before it was repeated the lane had moved. The repeat was
/// refused, the job was handed to the new owner, who had it already, and its caller was told that its id is taken.
#[tokio::test]
async fn a_job_that_was_written_before_its_lane_moved_is_accepted() {
    let (heap, setup) = (Arc::new(HeapLedger::new(&TABLES)), Setup::new());
    let (written, is_first) = (heap.clone(), AtomicBool::new(true));
    let ledger = LedgerDouble::over(heap.clone()).before_write(move |groups| {
        if is_submission(groups) && is_first.swap(false, Ordering::SeqCst) {
            written.apply(groups)?;
            take_away(&written, "http");
            return Err(LedgerError::Unclear { doing: "writing", reason: "the answer was lost".into() });
        }
        Ok(())
    });
    let cluster = Some(ClusterOptions { lease: Duration::from_hours(1), name: "node".into() });
    let options = LocalOptions { cluster, ..options(&setup) };
    let store = LocalStore::open(Arc::new(ledger), setup.clock.clone(), options).await.unwrap();
    let f = Fixture::over(Arc::new(store), setup);
    let job = f.job("http", "acme");
    let taken = f.store.submit(vec![job.clone()]).await.unwrap();
    assert_eq!(taken, [Submitted::Accepted { pushed_out: None }]);
    let left = heap.inbox(&Shard::new("lane/http"), 10, usize::MAX).await.unwrap();
    assert!(left.is_empty(), "whoever owns the lane finds it in the index");
    assert_eq!(f.store.job(job.id).await.unwrap().map(|view| view.job_id), Some(job.id));
}
