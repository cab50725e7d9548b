//! Endpoints: what one node sets, the others use.

use std::sync::Arc;

use entrega::seal::Seal;
use entrega::store::{Endpoint, EndpointOrigin, EndpointState};

use super::hearing::are_listening;
use super::world::{World, bounded, eventually};
use crate::fixture::{SECOND, START, tenant};
use crate::redis::{self, RedisServer};

fn endpoint(url: &str) -> Endpoint {
    Endpoint {
        tenant: tenant("acme"),
        name: "default".into(),
        url: url.into(),
        secrets: vec![Seal::from_key([7; 32]).seal("whsec_abc", "here").unwrap()],
        event_types: Vec::new(),
        state: EndpointState::Enabled,
        reason: None,
        failing_since: None,
        origin: EndpointOrigin::Api,
        created_at: START,
        updated_at: START,
        version: 0,
    }
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
            // Well before the look around that every node takes every ten seconds.
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
