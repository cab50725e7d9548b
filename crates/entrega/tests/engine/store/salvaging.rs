//! Salvage: a new store from what can be read of a damaged one.

use std::path::Path;

use entrega::store::local::salvage_store;
use entrega::store::local::tables::{JOBS, LIVE, TABLES};
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_ledger::{LedgerError, LsmLedger};

use super::damage::{journal, submit_many, written, zero_a_sector};
use super::fixture::{Fixture, SECOND};
use super::restart::Home;
use super::worlds::open_embedded;

/// Opens what was saved.
async fn open_saved(to: &Path, home: &Home) -> Fixture {
    Fixture::over(open_embedded(to, &home.setup).await, home.setup.clone())
}

/// All of it is in tables, as if the engine had begun a new journal and removed this one.
fn empty_journal(home: &Home) {
    std::fs::write(journal(home.dir.path()), []).unwrap();
}

/// The index is made anew from the records, so nothing is lost with it.
#[tokio::test]
async fn a_damaged_index_costs_no_job() {
    let (home, to) = (Home::new(), tempfile::tempdir().unwrap());
    let f = home.open().await;
    let dead = f.add_dead("single", "acme", "http_404").await;
    let retried = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    let mut jobs: Vec<JobId> = submit_many(&f, 500).await;
    drop(f);
    zero_a_sector(home.dir.path(), LIVE);
    empty_journal(&home);

    let to = to.path().join("saved");
    let report = salvage_store(home.dir.path(), &to).await.unwrap();
    assert_eq!((report.waiting, report.dead, &*report.lost), (501, 1, &[][..]));
    assert!(report.reindexed > 0 && !report.is_whole());
    assert!(report.ledger.damaged.iter().any(|place| place.starts_with("table live")), "{:?}", report.ledger.damaged);
    let f = open_saved(&to, &home).await;
    f.advance(SECOND);
    let mut claimed = f.claim("http", usize::MAX).await.jobs;
    claimed.sort_by_key(|claimed| claimed.job.id);
    jobs.insert(0, retried);
    jobs.sort();
    assert_eq!(claimed.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), jobs);
    let again = claimed.iter().find(|claimed| claimed.job.id == retried).unwrap();
    assert_eq!((again.attempt, again.history.len()), (2, 1), "attempts count on");
    assert_eq!(f.state(dead).await, JobState::Dlq);
}

#[tokio::test]
async fn what_is_behind_the_damage_of_a_journal_is_saved() {
    let (home, to) = (Home::new(), tempfile::tempdir().unwrap());
    let f = home.open().await;
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(f.add("http", "acme").await);
    }
    drop(f);
    let path = journal(home.dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = written(&path) / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(LsmLedger::open(home.dir.path(), &TABLES).err(), Some(LedgerError::Journal { .. })));

    let to = to.path().join("saved");
    let report = salvage_store(home.dir.path(), &to).await.unwrap();
    assert_eq!(report.waiting, 29, "all but the one that was hit");
    assert_eq!(report.ledger.damaged.len(), 1, "{:?}", report.ledger.damaged);
    let f = open_saved(&to, &home).await;
    let claimed = f.claim_ids("http").await;
    let missing: Vec<JobId> = ids.into_iter().filter(|id| !claimed.contains(id)).collect();
    assert_eq!((missing.len(), missing), (1, report.lost), "the one that was hit is named");
}

#[tokio::test]
async fn jobs_that_cannot_be_read_are_named() {
    let (home, to) = (Home::new(), tempfile::tempdir().unwrap());
    let f = home.open().await;
    let ids = submit_many(&f, 300).await;
    drop(f);
    zero_a_sector(home.dir.path(), JOBS);
    empty_journal(&home);

    let to = to.path().join("saved");
    let report = salvage_store(home.dir.path(), &to).await.unwrap();
    assert!(!report.lost.is_empty() && report.lost.len() < 40, "{}", report.lost.len());
    assert_eq!(report.waiting as usize + report.lost.len(), ids.len());
    let f = open_saved(&to, &home).await;
    let claimed = f.claim_ids("http").await;
    assert!(ids.iter().all(|id| claimed.contains(id) != report.lost.contains(id)), "each is saved or named");
    assert_eq!(f.store.health().unreadable, 0, "the new store has no damage");
}

#[tokio::test]
async fn a_store_that_runs_or_a_directory_with_one_is_left_alone() {
    let (home, other) = (Home::new(), Home::new());
    let f = home.open().await;
    let error = salvage_store(home.dir.path(), &other.dir.path().join("new")).await.unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop(f);
    drop(other.open().await);
    let error = salvage_store(home.dir.path(), other.dir.path()).await.unwrap_err().to_string();
    assert!(error.contains("name a new directory"), "{error}");
}
