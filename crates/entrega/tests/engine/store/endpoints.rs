//! Where the webhooks of each tenant go.

use std::sync::Arc;

use entrega::seal::{Seal, Sealed};
use entrega::store::{Endpoint, EndpointOrigin, EndpointState, PutEndpointError};

use entrega_core::id::JobId;
use entrega_core::lane::{GateKind, Hold};
use entrega_core::throttle::Rate;

use super::fixture::{Fixture, HOUR, SECOND, START, lane, soon, tenant};
use super::restart::Home;

fn sealed(secret: &str) -> Sealed {
    Seal::from_key([7; 32]).seal(secret, "here").unwrap()
}

pub(crate) fn endpoint(whose: &str, name: &str) -> Endpoint {
    Endpoint {
        tenant: tenant(whose),
        name: name.into(),
        url: format!("https://{whose}.example.com/{name}"),
        secrets: vec![sealed("whsec_new"), sealed("whsec_old")],
        event_types: vec!["email.sent".into()],
        throttle: Some(Rate { max_requests: 10, per_ms: 1_000 }),
        state: EndpointState::Disabled,
        reason: Some("410 Gone".into()),
        failing_since: Some(START),
        origin: EndpointOrigin::Config,
        created_at: START,
        updated_at: START + HOUR,
        version: 0,
    }
}

fn names(endpoints: &[Arc<Endpoint>]) -> Vec<String> {
    endpoints.iter().map(|endpoint| format!("{}/{}", endpoint.tenant, endpoint.name)).collect()
}

pub(crate) async fn an_endpoint_is_kept_whole_until_it_is_removed(f: &Fixture) {
    let given = endpoint("acme", "default");
    let kept = f.store.put_endpoint(given.clone()).await.unwrap();
    assert_eq!(f.store.endpoint(&tenant("acme"), "default"), Some(Arc::clone(&kept)));
    assert_eq!(Endpoint { version: 0, ..Endpoint::clone(&kept) }, given);
    let url = "https://elsewhere.example.com/".to_owned();
    let given = Endpoint { url, secrets: vec![sealed("one")], ..Endpoint::clone(&kept) };
    let changed = f.store.put_endpoint(given.clone()).await.unwrap();
    assert!(changed.version > kept.version, "{changed:?}");
    assert_eq!(Endpoint { version: given.version, ..Endpoint::clone(&changed) }, given);
    assert_eq!(f.store.endpoints_of(&tenant("acme")), [changed], "it is kept under its name");
    assert!(f.store.remove_endpoint(&tenant("acme"), "default").await.unwrap());
    assert!(!f.store.remove_endpoint(&tenant("acme"), "default").await.unwrap(), "it is gone");
    assert!(f.store.endpoint(&tenant("acme"), "default").is_none() && f.store.endpoints().is_empty());
}

pub(crate) async fn endpoints_are_a_tenants_own_and_listed_by_name(f: &Fixture) {
    for (whose, name) in [("b", "default"), ("a", "two"), ("a.b", "x"), ("a", "one")] {
        f.store.put_endpoint(endpoint(whose, name)).await.unwrap();
    }
    assert_eq!(names(&f.store.endpoints_of(&tenant("a"))), ["a/one", "a/two"]);
    assert!(f.store.endpoints_of(&tenant("nobody")).is_empty());
    assert!(f.store.endpoint(&tenant("b"), "one").is_none());
    assert_eq!(names(&f.store.endpoints()), ["a/one", "a/two", "a.b/x", "b/default"]);
    assert!(!f.store.remove_endpoint(&tenant("b"), "one").await.unwrap());
    assert!(f.store.remove_endpoint(&tenant("a"), "one").await.unwrap());
    assert_eq!(names(&f.store.endpoints()), ["a/two", "a.b/x", "b/default"]);
}

pub(crate) async fn of_many_who_remove_an_endpoint_one_did(f: &Fixture) {
    f.store.put_endpoint(endpoint("acme", "default")).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = Arc::clone(&f.store);
        tasks.spawn(async move { store.remove_endpoint(&tenant("acme"), "default").await.unwrap() });
    }
    assert_eq!(tasks.join_all().await.into_iter().filter(|did| *did).count(), 1);
}

/// A delivery that noted `failingSince` in the endpoint it had read once undid a rotation of the same moment.
pub(crate) async fn a_change_of_what_has_changed_since_is_refused(f: &Fixture) {
    let put = async |endpoint: &Endpoint, url: &str| {
        f.store.put_endpoint(Endpoint { url: url.into(), ..endpoint.clone() }).await
    };
    let refused = async |endpoint: &Endpoint| {
        let refused = put(endpoint, "https://late.example.com/").await.unwrap_err();
        assert!(matches!(refused, PutEndpointError::Changed), "{refused}");
    };
    let first = f.store.put_endpoint(endpoint("acme", "default")).await.unwrap();
    refused(&endpoint("acme", "default")).await;
    let second = put(&first, "https://second.example.com/").await.unwrap();
    refused(&first).await;
    assert_eq!(f.store.endpoint(&tenant("acme"), "default"), Some(Arc::clone(&second)));
    f.store.remove_endpoint(&tenant("acme"), "default").await.unwrap();
    refused(&second).await;
    assert!(f.store.endpoints().is_empty(), "what was removed does not come back");
    f.advance(SECOND);
    let anew = f.store.put_endpoint(endpoint("acme", "default")).await.unwrap();
    refused(&first).await;
    refused(&second).await;
    assert_eq!(f.store.endpoints(), [anew], "one of the same name is another one");
}

pub(crate) async fn of_changes_by_many_at_once_none_is_lost(f: &Fixture) {
    const WRITERS: usize = 8;
    const CHANGES: usize = 6;
    let bare = Endpoint { event_types: Vec::new(), ..endpoint("acme", "default") };
    f.store.put_endpoint(bare).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&f.store);
        tasks.spawn(async move {
            for number in 0..CHANGES {
                loop {
                    let mut changed = Endpoint::clone(&store.endpoint(&tenant("acme"), "default").unwrap());
                    changed.event_types.push(format!("{writer}-{number}"));
                    match store.put_endpoint(changed).await {
                        Ok(_) => break,
                        Err(PutEndpointError::Changed) => {}
                        Err(PutEndpointError::Store(error)) => panic!("{error}"),
                    }
                }
            }
        });
    }
    soon(tasks.join_all()).await;
    let mut made = f.store.endpoint(&tenant("acme"), "default").unwrap().event_types.clone();
    made.sort();
    let all: Vec<_> = (0..WRITERS).flat_map(|w| (0..CHANGES).map(move |n| format!("{w}-{n}"))).collect();
    assert_eq!(made, all);
}

/// Whoever set an endpoint and was answered must find it, without waiting for news of it.
pub(crate) async fn what_was_put_is_there_at_once_whoever_else_writes(f: &Fixture) {
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let store = Arc::clone(&f.store);
        tasks.spawn(async move {
            for number in 0..25 {
                let name = format!("{writer}-{number}");
                store.put_endpoint(endpoint("acme", &name)).await.unwrap();
                assert!(store.endpoint(&tenant("acme"), &name).is_some(), "{name}");
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(f.store.endpoints_of(&tenant("acme")).len(), 100);
}

/// Two calls a minute.
const SLOW: Rate = Rate { max_requests: 2, per_ms: 60_000 };

fn throttled(name: &str, throttle: Option<Rate>) -> Endpoint {
    Endpoint { throttle, ..endpoint("acme", name) }
}

async fn hooks(f: &Fixture, name: &str, count: usize) -> Vec<JobId> {
    let jobs: Vec<_> = (0..count).map(|_| f.hook("acme", name)).collect();
    let ids = jobs.iter().map(|job| job.id).collect();
    f.submit_all(jobs).await;
    ids
}

pub(crate) async fn a_throttled_endpoint_waits_for_its_next_start_and_holds_up_nobody(f: &Fixture) {
    f.store.put_endpoint(throttled("slow", Some(SLOW))).await.unwrap();
    f.store.put_endpoint(throttled("quick", None)).await.unwrap();
    let (slow, quick) = (hooks(f, "slow", 3).await, hooks(f, "quick", 3).await);
    let start = f.now();
    let batch = f.claim("webhook", 10).await;
    let ids: Vec<_> = batch.jobs.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(ids, [slow[0], slow[1], quick[0], quick[1], quick[2]]);
    assert_eq!(batch.wake_at, Some(start + 60 * SECOND));
    let why = f.store.explain(slow[2]).await.unwrap().unwrap();
    assert_eq!(why.holds, [Hold { gate: GateKind::Throttle, until: Some(start + 60 * SECOND) }]);
    for claimed in batch.jobs {
        f.done(claimed).await;
    }
    f.advance(59 * SECOND);
    assert!(f.claim_ids("webhook").await.is_empty());
    f.advance(SECOND);
    assert_eq!(f.claim_ids("webhook").await, [slow[2]]);
}

pub(crate) async fn a_throttle_changes_with_its_endpoint(f: &Fixture) {
    let set = async |throttle| {
        let version = f.store.endpoint(&tenant("acme"), "slow").map_or(0, |kept| kept.version);
        f.store.put_endpoint(Endpoint { version, ..throttled("slow", Some(throttle)) }).await.unwrap()
    };
    set(SLOW).await;
    let ids = hooks(f, "slow", 6).await;
    let wake = f.store.wake(&lane("webhook")).unwrap();
    assert_eq!(f.claim_ids("webhook").await, ids[..2]);
    soon(wake.notified()).await;
    set(Rate { max_requests: 3, ..SLOW }).await;
    soon(wake.notified()).await;
    assert_eq!(f.claim_ids("webhook").await, ids[2..3], "one more, and the two there were count");
    f.advance(SECOND);
    set(Rate { max_requests: 3, per_ms: 1_000 }).await;
    assert_eq!(f.claim_ids("webhook").await, ids[3..4], "as many as it has slots");
}

pub(crate) async fn a_throttle_goes_with_its_endpoint(f: &Fixture) {
    f.store.put_endpoint(throttled("slow", Some(SLOW))).await.unwrap();
    let ids = hooks(f, "slow", 6).await;
    let batch = f.claim("webhook", 10).await;
    assert_eq!(batch.jobs.len(), 2);
    assert!(f.store.remove_endpoint(&tenant("acme"), "slow").await.unwrap());
    assert_eq!(f.claim_ids("webhook").await, ids[2..4], "as many as it has slots");
    f.store.put_endpoint(throttled("slow", Some(SLOW))).await.unwrap();
    for claimed in batch.jobs {
        f.done(claimed).await;
    }
    assert_eq!(f.claim_ids("webhook").await, ids[4..], "a new throttle knows of no starts");
}

#[tokio::test]
async fn a_restart_does_not_refill_an_endpoints_throttle() {
    let home = Home::new();
    let f = home.open().await;
    f.store.put_endpoint(throttled("slow", Some(SLOW))).await.unwrap();
    let ids = hooks(&f, "slow", 4).await;
    f.done(f.claim_one("webhook").await).await;
    f.advance(SECOND);
    f.store.release().await.unwrap();
    f.advance(SECOND);
    let f = home.reopen(f).await;
    let batch = f.claim("webhook", 10).await;
    assert_eq!((batch.jobs.len(), batch.wake_at), (1, Some(f.now() + 59 * SECOND)), "one of two was left");
    let f = home.reopen(f).await;
    let batch = f.claim("webhook", 10).await;
    assert_eq!((batch.jobs.len(), batch.wake_at), (0, Some(f.now() + 60 * SECOND)), "nobody knows after a crash");
    f.advance(60 * SECOND);
    assert_eq!(f.claim_ids("webhook").await, ids[1..3]);
}

#[tokio::test]
async fn endpoints_are_there_after_a_restart() {
    let home = Home::new();
    let f = home.open().await;
    let kept = f.store.put_endpoint(endpoint("acme", "default")).await.unwrap();
    f.store.put_endpoint(endpoint("acme", "gone")).await.unwrap();
    f.store.remove_endpoint(&tenant("acme"), "gone").await.unwrap();
    let f = home.reopen(f).await;
    assert_eq!(f.store.endpoints(), [kept]);
}
