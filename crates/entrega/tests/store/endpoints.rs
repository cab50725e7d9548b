//! Where the webhooks of each tenant go.

use std::sync::Arc;

use entrega::seal::{Seal, Sealed};
use entrega::store::{Endpoint, EndpointOrigin, EndpointState, PutEndpointError};

use super::fixture::{Fixture, HOUR, SECOND, START, soon, tenant};
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

#[tokio::test]
async fn endpoints_are_there_after_a_restart() {
    let home = Home::new();
    let f = home.open();
    let kept = f.store.put_endpoint(endpoint("acme", "default")).await.unwrap();
    f.store.put_endpoint(endpoint("acme", "gone")).await.unwrap();
    f.store.remove_endpoint(&tenant("acme"), "gone").await.unwrap();
    let f = home.reopen(f);
    assert_eq!(f.store.endpoints(), [kept]);
}
