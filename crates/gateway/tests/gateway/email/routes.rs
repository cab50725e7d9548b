//! Several transports.

use serde_json::json;

use crate::world::{Gateway, Kind, QUICK, codes, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn when_the_first_cannot_be_reached_the_second_takes_the_mail_in_the_same_attempt() {
    if smtp_server::is_left_out() {
        return;
    }
    let gone = SmtpServer::obliging();
    let (first, second) = (gone.url(), SmtpServer::obliging());
    drop(gone);
    let gateway = Gateway::with(
        Kind::Memory,
        &format!(
            "[email]\ntransports = [\"first\", \"second\"]\n[transports.second]\nurl = \"{}\"\n\
             [transports.first]\nurl = \"{first}\"\n[lanes.\"email:send\"]\n{QUICK}",
            second.url()
        ),
    )
    .await;
    for number in 0..8 {
        let id = gateway.send(mail_to(&[&format!("r{number}@example.com")])).await;
        let mail = gateway.mail_in(&id, "SENT").await;
        assert_eq!(codes(&mail), ["ok"], "{mail}");
        assert_eq!(mail["attempts"][0]["transport"], "second", "{mail}");
    }
    assert_eq!(second.received().len(), 8);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_answers_is_not_passed_over_whatever_it_says() {
    if smtp_server::is_left_out() {
        return;
    }
    let first = SmtpServer::with_rules(json!([{ "at": "rcpt", "reply": "550 5.1.1 no such user" }]));
    let second = SmtpServer::obliging();
    let gateway = Gateway::with(
        Kind::Memory,
        &format!(
            "[transports.a]\nurl = \"{}\"\n[transports.b]\nurl = \"{}\"\n[lanes.\"email:send\"]\n{QUICK}",
            first.url(),
            second.url()
        ),
    )
    .await;
    let id = gateway.send(mail_to(&["ann@example.com"])).await;
    let mail = gateway.mail_in(&id, "FAILED").await;
    assert_eq!((mail["failureCode"].as_str(), codes(&mail).len()), (Some("INVALID_RECIPIENT"), 1), "{mail}");
    assert!(second.received().is_empty() && second.connections() == 0);
    gateway.stop().await;
}
