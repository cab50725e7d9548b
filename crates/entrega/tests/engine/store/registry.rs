//! What operators set up: keys, weights, replay runs; and what a store says of itself.

use entrega::store::{
    ApiKey, BeginReplayError, DeadLetterFilter, KEYS_MAX, KeyScope, Page, PutKeyError, REPLAYS_KEPT_FOR,
    REPLAYS_KEPT_MAX, REPLAYS_RUNNING_MAX, ReplayRun, ReplayStatus, TenantSettings,
};

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
        sending: Vec::new(),
    }
}

/// All keys of a store, however many pages they are.
pub(crate) async fn all_keys(f: &Fixture) -> Vec<ApiKey> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = f.store.keys(Page { after, limit: 1 }).await.unwrap();
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

pub(crate) async fn a_key_is_found_by_its_hash_until_it_is_removed(f: &Fixture) {
    f.store.put_key(key("one", 1)).await.unwrap();
    f.store.put_key(key("two", 2)).await.unwrap();
    assert_eq!(f.store.key_by_hash(&[1; 32]).as_deref(), Some(&key("one", 1)));
    assert_eq!(all_keys(f).await, [key("one", 1), key("two", 2)]);
    assert!(f.store.key_by_hash(&[3; 32]).is_none());
    assert!(f.store.remove_key("one").await.unwrap());
    assert!(f.store.key_by_hash(&[1; 32]).is_none());
    assert!(!f.store.remove_key("one").await.unwrap(), "it is gone");
    assert_eq!(all_keys(f).await, [key("two", 2)]);
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

async fn replay_ids(f: &Fixture, after: Option<&str>, limit: usize) -> Vec<String> {
    let page = Page { after: after.map(str::to_owned), limit };
    f.store.replay_runs(None, page).await.unwrap().items.into_iter().map(|run| run.id).collect()
}

pub(crate) async fn replay_runs_are_kept_newest_first(f: &Fixture) {
    f.store.begin_replay(replay_run("run_1")).await.unwrap();
    f.store.begin_replay(ReplayRun { created_at: START + SECOND, ..replay_run("run_2") }).await.unwrap();
    assert_eq!(replay_ids(f, None, 9).await, ["run_2", "run_1"]);
    assert_eq!(replay_ids(f, None, 1).await, ["run_2"]);
    assert_eq!(replay_ids(f, Some("run_2"), 9).await, ["run_1"]);
    let cursor = Some((START, f.job("http", "acme").id));
    let finished = ReplayRun { status: ReplayStatus::Finished, replayed: 2, cursor, ..replay_run("run_1") };
    f.store.put_replay(finished).await.unwrap();
    let run = f.store.replay_run("run_1").await.unwrap().unwrap();
    assert_eq!((run.status, run.total, run.replayed, run.skipped), (ReplayStatus::Finished, 3, 2, 1));
    assert_eq!(run.cursor, cursor);
    assert_eq!(replay_ids(f, None, 9).await.len(), 2, "it is kept under its id");
    assert!(f.store.replay_run("unheard of").await.unwrap().is_none());
}

/// Replays were kept for good: 300 calls with a key that may send cost 350 MB until somebody wiped the store.
pub(crate) async fn a_tenant_has_few_replays_and_those_that_ended_leave(f: &Fixture) {
    let of = |name: &str, number: usize, status| ReplayRun {
        filter: DeadLetterFilter { tenant: Some(tenant(name)), ..Default::default() },
        status,
        created_at: f.now(),
        ..replay_run(&format!("run_{number:03}"))
    };
    for number in 0..REPLAYS_RUNNING_MAX {
        f.store.begin_replay(of("acme", number, ReplayStatus::Running)).await.unwrap();
    }
    let refused = f.store.begin_replay(of("acme", 900, ReplayStatus::Running)).await;
    assert!(matches!(refused, Err(BeginReplayError::TooMany)), "{refused:?}");
    f.store.begin_replay(of("other", 901, ReplayStatus::Running)).await.unwrap();
    // As they end, more may begin; of those that ended the oldest leave.
    f.store.put_replay(of("acme", 0, ReplayStatus::Finished)).await.unwrap();
    for number in 100..100 + REPLAYS_KEPT_MAX {
        f.store.begin_replay(of("acme", number, ReplayStatus::Running)).await.unwrap();
        f.store.put_replay(of("acme", number, ReplayStatus::Finished)).await.unwrap();
    }
    let page = || Page { after: None, limit: 1_000 };
    let own = f.store.replay_runs(Some(&tenant("acme")), page()).await.unwrap().items;
    assert_eq!(own.len(), REPLAYS_KEPT_MAX);
    assert!(f.store.replay_run("run_000").await.unwrap().is_none(), "it ended first");
    assert!(f.store.replay_run("run_001").await.unwrap().is_some(), "it is under way");
    assert_eq!(f.store.replay_runs(Some(&tenant("other")), page()).await.unwrap().items.len(), 1);

    f.advance(REPLAYS_KEPT_FOR);
    f.store.sweep().await.unwrap();
    let left = f.store.replay_runs(None, page()).await.unwrap().items;
    assert_eq!(left.len(), REPLAYS_RUNNING_MAX, "those under way stay");
    assert!(left.iter().all(|run| run.status == ReplayStatus::Running));
}

pub(crate) async fn a_tenant_has_no_more_keys_than_it_may(f: &Fixture) {
    for number in 0..KEYS_MAX {
        let hash: Vec<u8> = number.to_be_bytes().repeat(4);
        let key = ApiKey { hash: hash.try_into().unwrap(), ..key(&format!("key_{number}"), 0) };
        f.store.put_key(key).await.unwrap();
    }
    let one_more = key("one_more", 1);
    assert!(matches!(f.store.put_key(one_more.clone()).await, Err(PutKeyError::TooMany)));
    f.store.put_key(ApiKey { tenant: tenant("other"), ..one_more.clone() }).await.unwrap();
    // One that is there may be replaced, and one that is removed makes room.
    f.store.put_key(key("key_7", 7)).await.unwrap();
    assert!(f.store.remove_key("key_8").await.unwrap());
    f.store.put_key(ApiKey { hash: [9; 32], ..key("key_9000", 9) }).await.unwrap();
}

pub(crate) async fn a_store_says_how_it_is(f: &Fixture) {
    let health = f.store.health();
    assert!(!health.kind.is_empty() && !health.durability.is_empty());
    assert_eq!((health.failure, health.refuses, health.unreadable), (None, None, 0));
}
