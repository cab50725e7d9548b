//! What is read from a ledger that is far away: the records of jobs before they are claimed, and each of them once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use entrega::store::local::tables::{JOBS, TABLES};
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega_core::job::Job;
use entrega_ledger::{HeapLedger, LedgerDouble};

use super::fixture::{Fixture, Setup};
use super::worlds::options;

/// Reads of jobs' records: how many calls, and how many records.
#[derive(Default)]
struct Reads {
    calls: AtomicUsize,
    records: AtomicUsize,
}

/// A node that shares its ledger, as far as it knows.
async fn counted() -> (Fixture, Arc<Reads>) {
    let (setup, reads) = (Setup::new(), Arc::<Reads>::default());
    let counting = reads.clone();
    let ledger = LedgerDouble::over(Arc::new(HeapLedger::new(&TABLES))).before_read(move |table, keys| {
        if table == JOBS {
            counting.calls.fetch_add(1, Ordering::Relaxed);
            counting.records.fetch_add(keys.len(), Ordering::Relaxed);
        }
        Ok(())
    });
    let cluster = Some(ClusterOptions { lease: Duration::from_hours(365 * 24), name: "node".into() });
    let options = LocalOptions { cluster, ..options(&setup) };
    let store = LocalStore::open(Arc::new(ledger), setup.clock.clone(), options).await.unwrap();
    (Fixture::over(Arc::new(store), setup), reads)
}

/// Neighbours by id were read with every job. With tenants in turn most of them had to make room before they were claimed,
/// and were read again.
#[tokio::test]
async fn jobs_of_many_tenants_are_read_about_once_and_many_at_a_time() {
    let (f, reads) = counted().await;
    // What is not due yet is not kept at hand.
    let soon = Duration::from_secs(1);
    for number in 0..20 {
        let tenant = format!("tenant-{number}");
        let job = |_| f.job("http", &tenant);
        let later = |job: Job| Job { due_at: job.due_at + soon, ..job };
        f.submit_all((0..100).map(job).map(later).collect()).await;
    }
    f.advance(soon);
    for _ in 0..2_000 {
        let claimed = f.claim_one("http").await;
        f.done(claimed).await;
        // What is read in the background has its turn.
        tokio::task::yield_now().await;
    }
    let (calls, records) = (reads.calls.load(Ordering::Relaxed), reads.records.load(Ordering::Relaxed));
    assert!((2_000..2_100).contains(&records), "{records} records of 2000 jobs were read");
    assert!(calls < 100, "in {calls} calls");
}

/// A job that is attempted a moment after it came was read again from where it had just been written to.
#[tokio::test]
async fn what_was_just_taken_is_not_read() {
    let (f, reads) = counted().await;
    f.submit_all((0..100).map(|_| f.job("http", "acme")).collect()).await;
    for _ in 0..100 {
        let claimed = f.claim_one("http").await;
        f.done(claimed).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(reads.records.load(Ordering::Relaxed), 0);
}
