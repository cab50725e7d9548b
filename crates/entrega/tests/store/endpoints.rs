//! Where the webhooks of each tenant go.

use std::sync::Arc;

use entrega::seal::{Seal, Sealed};
use entrega::store::{Endpoint, EndpointOrigin, EndpointState};

use super::fixture::{Fixture, HOUR, START, tenant};
use super::restart::Home;

fn sealed(secret: &str) -> Sealed {
    Seal::from_key([7; 32]).seal(secret, "here").unwrap()
}

fn endpoint(whose: &str, name: &str) -> Endpoint {
    Endpoint {
        tenant: tenant(whose),
        name: name.into(),
        url: format!("https://{whose}.example.com/{name}"),
        secrets: vec![sealed("whsec_new"), sealed("whsec_old")],
        event_types: vec!["email.sent".into()],
        state: EndpointState::Disabled,
        reason: Some("410 Gone".into()),
        failing_since: Some(START),
        origin: EndpointOrigin::Config,
        created_at: START,
        updated_at: START + HOUR,
    }
}

fn names(endpoints: &[Arc<Endpoint>]) -> Vec<String> {
    endpoints.iter().map(|endpoint| format!("{}/{}", endpoint.tenant, endpoint.name)).collect()
}

pub(crate) async fn an_endpoint_is_kept_whole_until_it_is_removed(f: &Fixture) {
    let kept = endpoint("acme", "default");
    f.store.put_endpoint(kept.clone()).await.unwrap();
    assert_eq!(f.store.endpoint(&tenant("acme"), "default").as_deref(), Some(&kept));
    let changed = Endpoint { url: "https://elsewhere.example.com/".into(), secrets: vec![sealed("one")], ..kept };
    f.store.put_endpoint(changed.clone()).await.unwrap();
    assert_eq!(f.store.endpoints_of(&tenant("acme")), [Arc::new(changed)], "it is kept under its name");
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

#[tokio::test]
async fn endpoints_are_there_after_a_restart() {
    let home = Home::new();
    let f = home.open();
    let (kept, gone) = (endpoint("acme", "default"), endpoint("acme", "gone"));
    f.store.put_endpoint(kept.clone()).await.unwrap();
    f.store.put_endpoint(gone).await.unwrap();
    f.store.remove_endpoint(&tenant("acme"), "gone").await.unwrap();
    let f = home.reopen(f);
    assert_eq!(f.store.endpoints(), [Arc::new(kept)]);
}
