//! Several recipients, of whom not all get it at once.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, kinds, mail_to, results};
use entrega_testkit::smtp_server::{self, SmtpServer};

/// How often each got a mail.
fn deliveries(server: &SmtpServer) -> Vec<String> {
    let mut all: Vec<String> = server.received().into_iter().flat_map(|mail| mail.recipients).collect();
    all.sort();
    all
}

#[tokio::test]
async fn one_is_refused_for_now_and_the_other_gets_no_second_mail() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server =
            SmtpServer::with_rules(json!([{ "at": "rcpt", "has": "busy@", "times": 2, "reply": "450 4.2.1 busy" }]));
        let gateway = Gateway::start(kind, &server.url()).await;
        let id = gateway.send(mail_to(&["ann@example.com", "busy@example.com"])).await;
        let mail = gateway.mail_in(&id, "SENT").await;
        assert_eq!(results(&mail), [("ann@example.com", "accepted"), ("busy@example.com", "accepted")], "{mail}");
        let first = &mail["attempts"][0];
        assert_eq!(first["recipients"][1]["result"], "deferred", "{mail}");
        assert_eq!(first["recipients"][1]["reply"], "450 4.2.1 busy", "{mail}");
        assert_eq!(mail["attempts"].as_array().unwrap().len(), 3, "{mail}");
        assert_eq!(deliveries(&server), ["ann@example.com", "busy@example.com"]);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn one_is_lost_another_late_and_a_replay_goes_to_the_lost_one_only() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::with_rules(json!([
            { "at": "rcpt", "has": "gone@", "reply": "550 5.1.1 no such user" },
            { "at": "rcpt", "has": "busy@", "times": 1, "reply": "450 4.2.1 busy" },
        ]));
        let gateway = Gateway::start(kind, &server.url()).await;
        let id = gateway.send(mail_to(&["gone@example.com", "busy@example.com", "ann@example.com"])).await;
        let mail = gateway.mail_in(&id, "FAILED").await;
        assert_eq!(
            results(&mail),
            [("gone@example.com", "refused"), ("busy@example.com", "accepted"), ("ann@example.com", "accepted")]
        );
        assert_eq!(mail["failureCode"], "INVALID_RECIPIENT", "{mail}");
        assert_eq!(mail["attempts"].as_array().unwrap().len(), 2, "{mail}");
        let asked = server.commands().iter().filter(|command| command.contains("gone@")).count();
        assert_eq!(asked, 1, "who is refused for good is not asked for again");
        let dead = gateway.get(&format!("/v1/dlq/{id}")).await;
        let accepted = &dead["originalData"]["earlier"]["accepted"];
        assert_eq!(*accepted, json!(["busy@example.com", "ann@example.com"]), "{dead}");

        server.set(json!({}));
        gateway.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
        let mail = gateway.mail_in(&id, "SENT").await;
        assert!(results(&mail).iter().all(|(_, result)| *result == "accepted"), "{mail}");
        assert_eq!(deliveries(&server), ["ann@example.com", "busy@example.com", "gone@example.com"]);
        gateway.stop().await;
    }
}
