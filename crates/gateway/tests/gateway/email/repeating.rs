//! The same mail handed in again.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, kinds, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_hundred_at_once_with_one_key_are_one_mail() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::start(kind, &server.url()).await;
        let body = mail_to(&["ann@example.com"]).to_string();
        let headers = [JSON, ("idempotency-key", "invoice-17")];
        let calls = (0..100).map(|_| gateway.call("POST", "/v1/email/send", ADMIN, &headers, body.clone()));
        let answers = join_all(calls).await;
        let repeats = answers.iter().filter(|answer| answer.headers.contains_key("idempotent-replayed")).count();
        let ids: BTreeSet<String> = answers.into_iter().map(|answer| text(&answer.expect(201)["outboxId"])).collect();
        assert_eq!((ids.len(), repeats), (1, 99));
        let id = ids.first().unwrap();
        gateway.mail_in(id, "SENT").await;
        let other = mail_to(&["bob@example.com"]).to_string();
        assert_eq!(gateway.call("POST", "/v1/email/send", ADMIN, &headers, other).await.status, 422);
        assert_eq!(server.received().len(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn the_same_external_id_is_the_first_mail_whatever_else_it_says() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::start(kind, &server.url()).await;
        let named = |to: &str| {
            let mut mail = mail_to(&[to]);
            mail["externalId"] = json!("order-4");
            mail
        };
        let bodies = [named("ann@example.com"), named("bob@example.com")];
        let calls = (0..50).map(|index| gateway.post("/v1/email/send", ADMIN, bodies[index % 2].clone()));
        let answers = join_all(calls).await;
        let ids: BTreeSet<String> = answers.into_iter().map(|answer| text(&answer.expect(201)["outboxId"])).collect();
        assert_eq!(ids.len(), 1);
        // A new key does not make it another mail; another tenant's is another mail.
        let headers = [JSON, ("idempotency-key", "k-1")];
        let again = gateway.call("POST", "/v1/email/send", ADMIN, &headers, bodies[0].to_string()).await;
        assert_eq!(text(&again.expect(201)["outboxId"]), *ids.first().unwrap());
        let other = gateway.key("other").await;
        let theirs = gateway.send_as(&other, bodies[0].clone()).await;
        assert!(!ids.contains(&theirs));
        for id in ids.iter().chain([&theirs]) {
            gateway.mail_in(id, "SENT").await;
        }
        assert_eq!(server.received().len(), 2);
        gateway.stop().await;
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
