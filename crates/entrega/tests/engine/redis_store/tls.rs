//! TLS: `rediss://` is encrypted and checked, or it is not used at all.

use super::world::{World, bounded};
use entrega_testkit::encrypted_redis::Encrypted;
use entrega_testkit::redis::{self};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        world.server.url = format!("rediss://joe:s3cret@127.0.0.1:{}", encrypted.port);
        let refusal = world.refusal().await;
        println!("not trusted: {refusal}");
        assert!(refusal.contains(&format!("rediss://127.0.0.1:{}", encrypted.port)), "{refusal}");
        assert!(refusal.contains("certificate"), "it says what is wrong: {refusal}");
        assert!(!refusal.contains("s3cret"), "{refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_ask_for_tls_that_is_not_checked() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        world.server.url = format!("rediss://127.0.0.1:{}/#insecure", encrypted.port);
        let refusal = world.refusal().await;
        println!("#insecure: {refusal}");
        assert_eq!(encrypted.server.command(&["DBSIZE"]), "0");
        assert!(refusal.contains("insecure"), "it says what is wrong: {refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_the_wrong_port_is_told_so_in_time() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        for (scheme, port) in [("redis", encrypted.port), ("rediss", encrypted.server.port())] {
            world.server.url = format!("{scheme}://127.0.0.1:{port}");
            let refusal = world.refusal().await;
            println!("{scheme}: {refusal}");
            assert!(refusal.contains(&port.to_string()), "{refusal}");
        }
    })
    .await;
}
