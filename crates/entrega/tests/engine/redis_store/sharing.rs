//! What is set, left or stopped at one node holds at the others.

use std::time::Duration;

use entrega::store::{ApiKey, ConnectorLimits, Endpoint, EndpointOrigin, KeyScope, StoredConnector, TenantSettings};
use entrega_core::job::JobState;

use super::hearing::are_listening;
use super::world::{World, bounded, claims, eventually};
use crate::store::fixture::{Fixture, START, lane, tenant};
use entrega_testkit::redis::{self, RedisServer};

const SOON: Duration = Duration::from_secs(2);
/// How long it may take where nobody was told: every node looks for itself now and then.
const WITHOUT_SIGNALS: Duration = Duration::from_secs(15);
const JOBS: usize = 50;

fn key(number: u8) -> ApiKey {
    ApiKey {
        id: format!("key-{number}"),
        hash: [number; 32],
        tenant: tenant("acme"),
        scopes: vec![KeyScope::Send],
        created_at: START,
    }
}

fn connector(id: &str) -> StoredConnector {
    StoredConnector {
        id: id.into(),
        base_url: "https://erp.example.com/".into(),
        auth: None,
        tenant: None,
        limits: ConnectorLimits::default(),
        rules: Vec::new(),
        created_at: START,
        updated_at: START,
    }
}

/// Sets one of everything at a node.
async fn set(node: &Fixture, number: u8) {
    let name = format!("name-{number}");
    node.store.put_key(key(number)).await.unwrap();
    let endpoint = Endpoint::new(tenant("acme"), &name, "https://a.example.com/", EndpointOrigin::Api, START);
    node.store.put_endpoint(endpoint).await.unwrap();
    node.store.put_connector(connector(&name)).await.unwrap();
    node.store
        .put_tenant(TenantSettings { weight: u32::from(number), ..TenantSettings::new(tenant("acme")) })
        .await
        .unwrap();
    node.store.set_paused(&lane("single"), number % 2 == 1).await.unwrap();
}

/// Waits until another node knows all of it.
async fn knows(node: &Fixture, number: u8, limit: Duration) {
    let name = format!("name-{number}");
    let knows = async || {
        let is_paused = async || {
            let lanes = node.store.lanes().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(lanes.iter().any(|view| view.name == lane("single") && view.paused))
        };
        let weights = node.store.tenants().await.map_err(|error| error.to_string())?;
        let weight = weights.iter().find(|row| row.lane == lane("http")).map(|row| row.figures.weight);
        let known = [
            node.store.key_by_hash(&[number; 32]).is_some(),
            node.store.endpoint(&tenant("acme"), &name).is_some(),
            node.store.connector(&name).is_some(),
            weight == Some(u32::from(number)),
            is_paused().await? == (number % 2 == 1),
        ];
        if known == [true; 5] { Ok(()) } else { Err(format!("key, endpoint, connector, weight, pause: {known:?}")) }
    };
    eventually(limit, "the other node knows", knows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_at_one_node_is_soon_known_at_the_other() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [owner, other] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        owner.add("http", "acme").await;
        set(&owner, 11).await;
        knows(&other, 11, SOON).await;
        set(&other, 12).await;
        knows(&owner, 12, SOON).await;
        assert!(owner.store.remove_key("key-11").await.unwrap());
        let is_gone = async || other.store.key_by_hash(&[11; 32]).map_or(Ok(()), |_| Err("it is known".to_owned()));
        eventually(SOON, "a key that was taken away opens nothing", is_gone).await;
    })
    .await;
}

/// Signals are not kept: whoever was not connected when one was sent has missed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_at_one_node_is_known_at_the_other_though_the_signals_were_lost() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_server(&server);
        let [owner, other] = world.nodes().await;
        are_listening(&server, &world, 2).await;
        owner.add("http", "acme").await;
        assert_eq!(server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]), "2");
        set(&other, 13).await;
        knows(&owner, 13, WITHOUT_SIGNALS).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_set_elsewhere_stops_the_owners_claims_and_what_is_left_meanwhile_waits() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [owner, desk] = World::by_server(redis::shared()).nodes().await;
        desk.store.set_paused(&lane("http"), true).await.unwrap();
        let is_paused = async || {
            let lanes = owner.store.lanes().await.map_err(|error| error.to_string())?;
            let is_so = lanes.iter().any(|view| view.name == lane("http") && view.paused);
            if is_so { Ok(()) } else { Err("it is not paused".to_owned()) }
        };
        eventually(SOON, "the owner knows", is_paused).await;
        let id = desk.add("http", "acme").await;
        let has_it = async || {
            let sizes = owner.store.lanes().await.unwrap().into_iter().find(|view| view.name == lane("http")).unwrap();
            if sizes.sizes.waiting() == 1 { Ok(()) } else { Err(format!("{:?}", sizes.sizes)) }
        };
        eventually(SOON, "the owner has the job", has_it).await;
        assert!(owner.claim_ids("http").await.is_empty());
        assert_eq!(desk.state(id).await, JobState::Idle);
        desk.store.set_paused(&lane("http"), false).await.unwrap();
        assert_eq!(claims(&owner, "http", SOON).await.job.id, id);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_left_at_another_node_are_run_by_the_owner_in_their_order_and_their_taker_hears_of_it() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [owner, intake] = World::by_server(redis::shared()).nodes().await;
        let jobs: Vec<_> = (0..JOBS).map(|_| intake.job("http", "acme")).collect();
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        intake.submit_all(jobs).await;
        assert!(intake.claim_ids("http").await.is_empty(), "only an owner claims");
        let ended: Vec<_> = ids
            .iter()
            .map(|id| {
                let (store, id) = (intake.store.clone(), *id);
                tokio::spawn(async move { store.ended(id).await })
            })
            .collect();
        let mut run = Vec::new();
        while run.len() < JOBS {
            let claimed = claims(&owner, "http", SOON).await;
            run.push(claimed.job.id);
            owner.done(claimed).await;
        }
        assert_eq!(run, ids);
        for ended in ended {
            tokio::time::timeout(SOON, ended).await.expect("it resolves soon").unwrap().unwrap();
        }
        assert_eq!(intake.state(ids[0]).await, JobState::Done);
    })
    .await;
}
