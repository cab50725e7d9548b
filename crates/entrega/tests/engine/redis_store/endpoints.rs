//! Endpoints: what one node sets, the others use.

use std::sync::Arc;

use entrega::seal::Seal;
use entrega::store::{Endpoint, EndpointOrigin};
use entrega_core::throttle::Rate;

use super::hearing::are_listening;
use super::world::{World, bounded, eventually, takes_over};
use crate::store::fixture::{Fixture, SECOND, START, lane, tenant};
use entrega_testkit::redis::{self, RedisServer};

fn endpoint(url: &str) -> Endpoint {
    let secrets = vec![Seal::from_key([7; 32]).seal("whsec_abc", "here").unwrap()];
    Endpoint { secrets, ..Endpoint::new(tenant("acme"), "default", url, EndpointOrigin::Api, START) }
}

/// Three calls a minute.
const SLOW: Rate = Rate { max_requests: 3, per_ms: 60_000 };

async fn claim(node: &Fixture) -> usize {
    node.claim("webhook", 10).await.jobs.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoints_throttle_set_anywhere_holds_at_the_owner_and_at_the_next_one() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_hand(&server);
        let [owner, next, desk] = world.nodes().await;
        are_listening(&server, &world, 3).await;
        let slow = |throttle| Endpoint { throttle, ..endpoint("https://a.example.com/") };
        let kept = desk.store.put_endpoint(slow(Some(SLOW))).await.unwrap();
        let knows = async || owner.store.endpoint(&tenant("acme"), "default").map(drop).ok_or_else(String::new);
        eventually(2 * SECOND, "the owner knows", knows).await;
        desk.submit_all((0..9).map(|_| desk.hook("acme", "default")).collect()).await;
        let are_claimed = async || {
            claim(&owner).await;
            let running = running(&owner).await;
            if running == 3 { Ok(()) } else { Err(format!("{running} run")) }
        };
        eventually(2 * SECOND, "the owner claims three", are_claimed).await;
        assert_eq!(claim(&owner).await, 0);
        assert_eq!(claim(&next).await + claim(&desk).await, 0, "only an owner claims");
        owner.store.release().await.unwrap();
        drop((owner, desk));
        takes_over(&next, "webhook", 2 * SECOND).await;
        assert_eq!(claim(&next).await, 0, "a new owner knows what was started before");

        let late = world.node().await;
        let wake = next.store.wake(&lane("webhook")).unwrap();
        // What was said before is heard before.
        while tokio::time::timeout(SECOND / 2, wake.notified()).await.is_ok() {}
        late.store.put_endpoint(Endpoint { version: kept.version, ..slow(None) }).await.unwrap();
        tokio::time::timeout(2 * SECOND, wake.notified()).await.expect("whoever sleeps is called");
        let are_claimed = async || {
            claim(&next).await;
            let running = running(&next).await;
            if running == 4 { Ok(()) } else { Err(format!("{running} run")) }
        };
        eventually(SECOND, "all of the endpoint's slots are used", are_claimed).await;
    })
    .await;
}

async fn running(node: &Fixture) -> u32 {
    let lanes = node.store.lanes().await.unwrap();
    lanes.iter().find(|view| view.name == lane("webhook")).unwrap().sizes.running()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_is_new_keeps_the_throttles_that_endpoints_have() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_hand(&server);
        let mut without = world.clone();
        without.setup.lanes.remove(&lane("webhook"));
        let before = without.node().await;
        before
            .store
            .put_endpoint(Endpoint { throttle: Some(SLOW), ..endpoint("https://a.example.com/") })
            .await
            .unwrap();
        drop(before);
        let node = world.node().await;
        node.submit_all((0..4).map(|_| node.hook("acme", "default")).collect()).await;
        assert_eq!(claim(&node).await, 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_set_on_one_node_is_known_to_the_others_and_to_one_that_comes_later() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [node, other] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        for url in [Some("https://a.example.com/"), Some("https://b.example.com/"), None] {
            match url {
                Some(url) => {
                    let kept = node.store.endpoint(&tenant("acme"), "default");
                    let version = kept.map_or(0, |kept| kept.version);
                    node.store.put_endpoint(Endpoint { version, ..endpoint(url) }).await.unwrap();
                }
                None => assert!(node.store.remove_endpoint(&tenant("acme"), "default").await.unwrap()),
            }
            let wanted = url.map(endpoint).map(|endpoint| endpoint.url);
            let knows = async || {
                let found = other.store.endpoint(&tenant("acme"), "default").map(|kept| kept.url.clone());
                if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
            };
            eventually(2 * SECOND, "the other node knows", knows).await;
        }
        node.store.put_endpoint(endpoint("https://c.example.com/")).await.unwrap();
        let kept = node.store.endpoint(&tenant("acme"), "default").unwrap();
        assert_eq!(world.node().await.store.endpoints(), [Arc::clone(&kept)], "read when it starts");
    })
    .await;
}
