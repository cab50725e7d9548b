//! What operators set up: keys, weights, replay runs; and what a store says of itself.

use entrega::store::{ApiKey, DeadLetterFilter, KeyScope, ReplayRun, ReplayStatus, TenantSettings};

use super::fixture::{Fixture, SECOND, START, lane, tenant};

pub(crate) fn key(id: &str, secret: u8) -> ApiKey {
    ApiKey {
        id: id.into(),
        hash: [secret; 32],
        tenant: tenant("acme"),
        scopes: vec![KeyScope::Send, KeyScope::Read],
        created_at: START,
    }
}

pub(crate) fn replay_run(id: &str) -> ReplayRun {
    ReplayRun {
        id: id.into(),
        filter: DeadLetterFilter { lane: Some(lane("http")), code: Some("timeout".into()), ..Default::default() },
        rate_per_sec: 10,
        created_at: START,
        status: ReplayStatus::Running,
        total: 3,
        replayed: 1,
        skipped: 1,
        cursor: None,
    }
}

pub(crate) async fn a_key_is_found_by_its_hash_until_it_is_removed(f: &Fixture) {
    f.store.put_key(key("one", 1)).await.unwrap();
    f.store.put_key(key("two", 2)).await.unwrap();
    assert_eq!(f.store.key_by_hash(&[1; 32]).as_deref(), Some(&key("one", 1)));
    assert_eq!(f.store.keys().await.unwrap(), [key("one", 1), key("two", 2)]);
    assert!(f.store.key_by_hash(&[3; 32]).is_none());
    assert!(f.store.remove_key("one").await.unwrap());
    assert!(f.store.key_by_hash(&[1; 32]).is_none());
    assert!(!f.store.remove_key("one").await.unwrap(), "it is gone");
    assert_eq!(f.store.keys().await.unwrap(), [key("two", 2)]);
}

/// A key replaced under its id is a key withdrawn: the old secret must not open the door until the next restart.
pub(crate) async fn a_key_put_again_answers_to_its_new_hash_only(f: &Fixture) {
    f.store.put_key(key("admin", 1)).await.unwrap();
    f.store.put_key(key("admin", 2)).await.unwrap();
    assert!(f.store.key_by_hash(&[2; 32]).is_some());
    assert!(f.store.key_by_hash(&[1; 32]).is_none());
    assert!(f.store.remove_key("admin").await.unwrap());
    assert!(f.store.key_by_hash(&[2; 32]).is_none());
}

pub(crate) async fn a_weight_is_shown_for_every_lane(f: &Fixture) {
    f.store.put_tenant(TenantSettings { weight: 4, ..TenantSettings::new(tenant("acme")) }).await.unwrap();
    let rows = f.store.tenants().await.unwrap();
    assert_eq!(rows.len(), f.setup.lanes.len());
    assert!(rows.iter().all(|row| row.figures.weight == 4));
    f.store.put_tenant(TenantSettings { weight: 1, ..TenantSettings::new(tenant("acme")) }).await.unwrap();
    assert!(f.store.tenants().await.unwrap().iter().all(|row| row.figures.weight == 1));
}

pub(crate) async fn tenants_have_figures(f: &Fixture) {
    for name in ["a", "b"] {
        f.submit_all((0..4).map(|_| f.job("http", name)).collect()).await;
    }
    f.claim("http", 3).await;
    let rows = f.store.tenants().await.unwrap();
    let figures = |name: &str| {
        let row = rows.iter().find(|row| row.lane == lane("http") && row.figures.tenant == tenant(name));
        row.unwrap().figures.clone()
    };
    let served = figures("a");
    assert_eq!((served.total_processed, served.consecutive_batch_count, served.running), (3, 3, 3));
    assert_eq!((served.last_processed_at, served.current_priority), (Some(f.now()), 5));
    let waiting = figures("b");
    assert_eq!((waiting.total_processed, waiting.last_processed_at), (0, None));
    assert_eq!((waiting.rounds_without_processing, waiting.current_priority), (1, 4));
}

pub(crate) async fn replay_runs_are_kept_newest_first(f: &Fixture) {
    f.store.put_replay(replay_run("older")).await.unwrap();
    f.store.put_replay(ReplayRun { created_at: START + SECOND, ..replay_run("newer") }).await.unwrap();
    let runs = f.store.replay_runs().await.unwrap();
    assert_eq!(runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), ["newer", "older"]);
    let cursor = Some((START, f.job("http", "acme").id));
    let finished = ReplayRun { status: ReplayStatus::Finished, replayed: 2, cursor, ..replay_run("older") };
    f.store.put_replay(finished).await.unwrap();
    let run = f.store.replay_run("older").await.unwrap().unwrap();
    assert_eq!((run.status, run.total, run.replayed, run.skipped), (ReplayStatus::Finished, 3, 2, 1));
    assert_eq!(run.cursor, cursor);
    assert_eq!(f.store.replay_runs().await.unwrap().len(), 2, "it is kept under its id");
    assert!(f.store.replay_run("unheard of").await.unwrap().is_none());
}

pub(crate) async fn a_store_says_how_it_is(f: &Fixture) {
    let health = f.store.health();
    assert!(!health.kind.is_empty() && !health.durability.is_empty());
    assert_eq!((health.failure, health.refuses, health.unreadable), (None, None, 0));
}
