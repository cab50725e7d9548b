//! Mails that fail: for now, for good, and until somebody mends the server.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, Kind, codes, kinds, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn refused_twice_for_now_it_is_sent_on_the_third_attempt() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        for at in ["mail", "rcpt", "greeting"] {
            let server = SmtpServer::with_rules(json!([{ "at": at, "times": 2, "reply": "421 4.3.2 too busy" }]));
            let gateway = Gateway::start(kind, &server.url()).await;
            let id = gateway.send(mail_to(&["ann@example.com"])).await;
            let mail = gateway.mail_in(&id, "SENT").await;
            assert_eq!(codes(&mail), ["BOUNCE_TEMPORARY", "BOUNCE_TEMPORARY", "ok"], "{kind:?} {at} {mail}");
            assert_eq!(mail["attempts"][0]["reason"], "421 4.3.2 too busy", "{mail}");
            assert_eq!(server.received().len(), 1);
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn refused_for_good_it_is_a_dead_letter_at_once() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::start(kind, &server.url()).await;
        for (rule, code, reason) in [
            (json!({ "at": "rcpt", "reply": "550 5.1.1 no such user" }), "INVALID_RECIPIENT", "550 5.1.1 no such user"),
            (json!({ "at": "rcpt", "reply": "550 blocked" }), "BOUNCE_PERMANENT", "550 blocked"),
            (json!({ "at": "mail", "reply": "550 5.7.1 not you" }), "BOUNCE_PERMANENT", "550 5.7.1 not you"),
            (json!({ "at": "end", "reply": "554 5.6.0 bad content" }), "INVALID_CONTENT", "554 5.6.0 bad content"),
        ] {
            server.set_rules(json!([rule]));
            let id = gateway.send(mail_to(&["ann@example.com"])).await;
            let mail = gateway.mail_in(&id, "FAILED").await;
            assert_eq!(codes(&mail), [code], "one attempt: {mail}");
            assert_eq!(
                (mail["failureCode"].as_str(), mail["failureReason"].as_str()),
                (Some(code), Some(reason)),
                "{mail}"
            );
            let dead = gateway.get(&format!("/v1/dlq/{id}")).await;
            assert_eq!((&dead["outboxId"], &dead["jobId"]), (&json!(id), &json!(id)), "{dead}");
            assert_eq!((&dead["lane"], &dead["failedAttempts"]), (&json!("email:send"), &json!(1)), "{dead}");
            assert_eq!(
                (&dead["lastFailureCode"], &dead["lastFailureReason"]),
                (&json!(code), &json!(reason)),
                "{dead}"
            );
            assert_eq!(dead["originalData"]["payload"]["email"]["subject"], "Invoice 17", "{dead}");
        }
        assert!(server.received().is_empty());
        gateway.stop().await;
    }
}

#[tokio::test]
async fn five_times_refused_for_now_it_is_a_dead_letter_and_a_replay_sends_it_once_the_server_is_mended() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::with_rules(json!([{ "at": "rcpt", "reply": "451 4.3.0 try later" }]));
        let gateway = Gateway::start(kind, &server.url()).await;
        let id = gateway.send(mail_to(&["ann@example.com"])).await;
        let mail = gateway.mail_in(&id, "FAILED").await;
        assert_eq!(codes(&mail), ["BOUNCE_TEMPORARY"; 5], "{mail}");
        let dead = gateway.get(&format!("/v1/dlq/{id}")).await;
        assert_eq!(
            (&dead["failedAttempts"], &dead["lastFailureCode"]),
            (&json!(5), &json!("BOUNCE_TEMPORARY")),
            "{dead}"
        );
        assert!(dead["lastFailureReason"].as_str().unwrap().starts_with("451 4.3.0 try later"), "{dead}");
        assert_eq!(dead["ttl"], 604_800_000, "{dead}");

        server.set(json!({}));
        gateway.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
        gateway.mail_in(&id, "SENT").await;
        assert_eq!(server.received().len(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_turns_us_away_kills_no_mail() {
    if smtp_server::is_left_out() {
        return;
    }
    let server =
        SmtpServer::with_rules(json!([{ "at": "greeting", "times": 2, "reply": "554 5.7.1 your address is listed" }]));
    let gateway = Gateway::start(Kind::Memory, &server.url()).await;
    let id = gateway.send(mail_to(&["ann@example.com"])).await;
    let mail = gateway.mail_in(&id, "SENT").await;
    assert_eq!(codes(&mail), ["INTERNAL_ERROR", "INTERNAL_ERROR", "ok"], "{mail}");
    assert!(mail["attempts"][0]["reason"].as_str().unwrap().contains("554 5.7.1 your address is listed"), "{mail}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_connection_lost_after_the_final_dot_is_ambiguous_and_tried_again() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "end", "times": 1, "do": "cut" }]));
    let gateway = Gateway::start(Kind::Memory, &server.url()).await;
    let id = gateway.send(mail_to(&["ann@example.com"])).await;
    let mail = gateway.mail_in(&id, "SENT").await;
    let ambiguous: Vec<_> = mail["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["ambiguous"]).collect();
    assert_eq!(ambiguous, [&json!(true), &json!(false)], "{mail}");
    let ids: Vec<String> = server.received().iter().map(|mail| message_id(&mail.data)).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "the receiver can tell the repeat: {ids:?}");
    gateway.stop().await;
}

fn message_id(data: &[u8]) -> String {
    mail_parser::MessageParser::default().parse(data).unwrap().message_id().unwrap().to_owned()
}

#[tokio::test]
async fn while_no_server_answers_the_breaker_holds_the_mails_and_none_dies() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let url = server.url();
    let port = server.port();
    drop(server);
    let config = format!(
        "[transports.main]\nurl = \"{url}\"\n[lanes.\"email:send\"]\nconcurrency = 1\nthrottle = \"none\"\n\
         retry = {{ attempts = 5, base = \"10ms\", max = \"20ms\" }}\nbreaker = {{ failures = 3, open = \"300ms\" }}\n"
    );
    let gateway = Gateway::with(Kind::Memory, &config).await;
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(gateway.send(mail_to(&[&format!("r{number}@example.com")])).await);
    }
    gateway.mail_in(&ids[0], "RETRY_SCHEDULED").await;
    let server = SmtpServer::start_on(port, json!({}));
    for id in &ids {
        gateway.mail_in(id, "SENT").await;
    }
    assert_eq!(server.received().len(), 20);
    gateway.stop().await;
}
