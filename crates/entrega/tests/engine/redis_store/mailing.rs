//! What is known of addresses and mails: seen by every node, and in a full server.

use entrega::store::{Feedback, Idempotency, NewEntry, Page, Suppression};
use entrega_core::mail::FailureCode;

use super::world::{World, bounded};
use crate::store::fixture::{Fixture, HOUR, tenant};
use entrega_testkit::redis::{self, RedisServer};

fn complaint(node: &Fixture, address: &str) -> Suppression {
    Suppression {
        tenant: tenant("acme"),
        address: address.into(),
        code: FailureCode::Complaint,
        reason: "abuse".into(),
        since: node.now(),
        outbox_id: None,
    }
}

fn notice(node: &Fixture, name: &str) -> Feedback {
    Feedback {
        recipient: "x@example.com".into(),
        code: FailureCode::Complaint,
        detail: "abuse".into(),
        at: node.now(),
        feedback_id: name.into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_learns_of_mails_the_others_know() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let [node, other] = World::by_server(redis::shared()).nodes().await;
        let id = node.job("http", "acme").id.of_mail();
        node.store.suppress(complaint(&node, "X@example.com")).await.unwrap();
        let found = other.store.suppressed(&tenant("acme"), &["x@example.com"]).await.unwrap().remove(0);
        assert_eq!(found.map(|kept| kept.reason), Some("abuse".into()));
        node.store.note_feedback(id, notice(&node, "feedback-1")).await.unwrap();
        other.store.note_feedback(id, notice(&other, "feedback-1")).await.unwrap();
        assert_eq!(other.store.feedback(&[id]).await.unwrap()[0].len(), 1);

        let job = node.job("http", "acme");
        let id = job.id;
        let once = Idempotency { key: "order-17".into(), request: [1; 32], lasts: HOUR };
        node.store.take(vec![NewEntry { job, idempotency: vec![once], answer: None }]).await.unwrap();
        assert_eq!(other.store.job_by_key(&tenant("acme"), "order-17").await.unwrap(), Some(id));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_knows_takes_and_lifts_suppressions() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let node = World::by_server(&server).node().await;
        let id = node.job("http", "acme").id.of_mail();
        node.store.suppress(complaint(&node, "x@example.com")).await.unwrap();
        node.store.note_feedback(id, notice(&node, "feedback-1")).await.unwrap();
        server.fill();
        // Whoever complains must not be written to again because memory is full.
        node.store.suppress(complaint(&node, "y@example.com")).await.unwrap();
        node.store.note_feedback(id, notice(&node, "feedback-2")).await.unwrap();
        assert!(node.store.suppressed(&tenant("acme"), &["x@example.com"]).await.unwrap()[0].is_some());
        assert_eq!(node.store.feedback(&[id]).await.unwrap()[0].len(), 2);
        let page = Page { after: None, limit: 10 };
        assert_eq!(node.store.suppressions(&tenant("acme"), page).await.unwrap().items.len(), 2);
        assert!(node.store.unsuppress(&tenant("acme"), "x@example.com").await.unwrap());
    })
    .await;
}
