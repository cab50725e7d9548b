//! Which servers are refused at the start, and how that is said; what keeps stores on one server apart.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use entrega_core::job::JobState;

use super::world::{World, bounded};
use crate::store::fixture::lane;
use entrega_testkit::redis::{self, RedisServer};

const PASSWORD: &str = "s3cret-of-the-test";
/// A server that says nothing must not be waited for much longer than a connection may take.
const SILENCE_MAX: Duration = Duration::from_secs(10);

fn url_with(login: &str, server: &RedisServer, rest: &str) -> String {
    format!("redis://{login}@127.0.0.1:{}{rest}", server.port())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_would_lose_jobs_is_refused_unless_that_is_meant() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        for (args, hint) in [
            (["--appendonly", "no"], "appendonly yes"),
            (["--maxmemory-policy", "allkeys-lru"], "maxmemory-policy noeviction"),
        ] {
            let server = RedisServer::start(&args);
            let mut world = World::by_hand(&server);
            let refusal = world.refusal().await;
            assert!(refusal.contains(hint) && refusal.contains("--allow-unsafe-redis"), "{refusal}");
            assert_eq!(server.command(&["DBSIZE"]), "0", "nothing was written");
            world.server.allow_unsafe = true;
            let node = world.node().await;
            let id = node.add("http", "acme").await;
            assert_eq!(node.state(id).await, JobState::Queued);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_named_without_its_password() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let mut world = World::by_hand(&server);
        world.server.url = url_with(&format!("joe:{PASSWORD}"), &server, "/3");
        server.kill();
        let refusal = world.refusal().await;
        println!("nobody listens: {refusal}");
        assert!(refusal.contains(&format!("redis://127.0.0.1:{}/3", server.port())), "{refusal}");
        assert!(refusal.contains("is it running"), "{refusal}");
        assert!(!refusal.contains(PASSWORD), "{refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    if redis::is_left_out() {
        return;
    }
    // The system takes the connection; nobody ever reads from it.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut world = World::by_hand(redis::shared());
    world.server.url = format!("redis://{}", silent.local_addr().unwrap());
    let refusal = tokio::time::timeout(SILENCE_MAX, world.refusal()).await.expect("it is given up");
    println!("nobody answers: {refusal}");
    assert!(refusal.contains("127.0.0.1") && refusal.contains("cannot be used"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_said_to_be_wrong_and_the_right_one_opens() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let mut world = World::by_hand(&server);
        assert_eq!(server.command(&["ACL", "SETUSER", "joe", "on", "~*", "&*", "+@all", ">joes-own"]), "OK");
        assert_eq!(server.command(&["CONFIG", "SET", "requirepass", PASSWORD]), "OK");
        for login in [":not-it", "joe:not-it", "nobody:not-it"] {
            world.server.url = url_with(login, &server, "");
            let refusal = world.refusal().await;
            println!("{login}: {refusal}");
            assert!(refusal.to_lowercase().contains("password"), "{refusal}");
            assert!(refusal.contains(&format!("127.0.0.1:{}", server.port())), "{refusal}");
            assert!(!refusal.contains("not-it"), "what was tried is not shown: {refusal}");
        }
        for login in [&format!(":{PASSWORD}"), "joe:joes-own"] {
            world.server.url = url_with(login, &server, "");
            let node = world.node().await;
            let id = node.add("http", "acme").await;
            node.done(node.claim_one("http").await).await;
            assert_eq!(node.state(id).await, JobState::Done);
            node.store.release().await.unwrap();
        }
    })
    .await;
}

/// It said "Protocol error: unauthenticated bulk length": the first thing sent was a script, too long for a stranger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_password_is_said_to_be_missing() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        assert_eq!(server.command(&["CONFIG", "SET", "requirepass", PASSWORD]), "OK");
        let refusal = World::by_hand(&server).refusal().await;
        println!("no password: {refusal}");
        assert!(refusal.contains("Authentication required") || refusal.contains("password"), "{refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_with_other_prefixes_or_databases_do_not_meet() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let here = World::by_hand(&server);
        let mut elsewhere = here.clone();
        elsewhere.server.url = format!("{}/3", server.url());
        let mut beside = here.clone();
        beside.server.prefix = format!("{}0", here.server.prefix);
        let [first, second, third] = [here.node().await, elsewhere.node().await, beside.node().await];
        let id = first.add("http", "acme").await;
        first.store.set_paused(&lane("single"), true).await.unwrap();
        for other in [&second, &third] {
            assert!(other.store.job(id).await.unwrap().is_none());
            assert!(other.claim_ids("http").await.is_empty());
            assert!(!other.store.lanes().await.unwrap().iter().any(|view| view.paused));
        }
        second.add("http", "acme").await;
        assert!(server.command(&["INFO", "keyspace"]).contains("db3:"), "it is in the database that was named");
        assert_eq!(first.claim_ids("http").await, [id]);
        assert_eq!(here.node().await.view(id).await.job_id, id, "the same prefix and database do meet");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_later_version_wrote_is_not_touched() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let world = World::by_hand(&server);
        drop(world.node().await);
        let registry = world.key("table:registry");
        let ours = server.command(&["HGET", &registry, "format"]);
        assert_eq!(server.command(&["HSET", &registry, "format", "99"]), "0");
        let before = server.command(&["HGETALL", &registry]);
        let refusal = world.refusal().await;
        assert!(refusal.contains("format 99") && refusal.contains("the program that wrote it"), "{refusal}");
        assert_eq!(server.command(&["HGETALL", &registry]), before);
        assert_eq!(server.command(&["HSET", &registry, "format", &ours]), "0");
        world.node().await.add("http", "acme").await;
    })
    .await;
}
