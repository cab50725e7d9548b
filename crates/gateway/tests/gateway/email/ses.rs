//! Mails through the API of SES, from the gateway's own door.

use serde_json::json;

use crate::world::{Gateway, Kind, codes, mail_to};
use entrega_testkit::moto::{self, Moto};
use entrega_testkit::responder::{Responder, answer, taken};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ONE_AT_A_TIME: &str = "[lanes.\"email:send\"]\nconcurrency = 1\nbreaker = \"none\"\n";

fn config(endpoint: &str, lane: &str) -> String {
    format!("[transports.ses]\nurl = \"ses://eu-west-1?endpoint={endpoint}\"\n{lane}")
}

#[tokio::test]
async fn a_mail_leaves_through_ses_and_is_known_by_the_name_it_has_there() {
    if moto::is_left_out() {
        return;
    }
    let moto = Moto::start();
    moto.verify("shop@example.com");
    let gateway = Gateway::with(Kind::Memory, &config(&moto.url(), ONE_AT_A_TIME)).await;
    let id = gateway.send(mail_to(&["ann@example.com", "bob@example.com"])).await;
    let mail = gateway.mail_in(&id, "SENT").await;
    let taken = moto.taken();
    assert_eq!((taken.len(), mail["messageId"].as_str()), (1, Some(taken[0].id.as_str())), "{mail}");
    assert!(taken[0].raw_data.starts_with(&format!("X-Entrega-Mail: {id} default")), "{}", taken[0].raw_data);

    let mut unverified = mail_to(&["ann@example.com"]);
    unverified["from"] = json!("stranger@example.org");
    let id = gateway.send(unverified).await;
    let mail = gateway.mail_in(&id, "FAILED").await;
    assert_eq!((codes(&mail).len(), &mail["failureCode"]), (1, &json!("INVALID_CONTENT")), "{mail}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_service_that_fails_is_passed_over_within_the_attempt_and_left_alone_after_five_failures() {
    if smtp_server::is_left_out() {
        return;
    }
    let down = answer("503 Service Unavailable", Some("ServiceUnavailable"), "{}");
    let (responder, server) = (Responder::start(vec![down; 20]).await, SmtpServer::obliging());
    // The lane has its breaker: it must not mistake one way out for all of them.
    let config = format!(
        "[email]\ntransports = [\"ses\", \"smtp\"]\n[transports.smtp]\nurl = \"{}\"\n{}",
        server.url(),
        config(&responder.url(), "[lanes.\"email:send\"]\nconcurrency = 1\n")
    );
    let gateway = Gateway::with(Kind::Memory, &config).await;
    for number in 0..12 {
        let id = gateway.send(mail_to(&[&format!("r{number}@example.com")])).await;
        let mail = gateway.mail_in(&id, "SENT").await;
        assert_eq!((codes(&mail), &mail["attempts"][0]["transport"]), (vec!["ok"], &json!("smtp")), "{mail}");
    }
    assert_eq!(responder.asked().len(), 5);
    gateway.stop().await;
}

#[tokio::test]
async fn a_throttle_of_ses_slows_the_whole_lane_down() {
    let throttled = answer(
        "429 Too Many Requests",
        Some("TooManyRequestsException"),
        r#"{"message":"Maximum sending rate exceeded."}"#,
    );
    let responder = Responder::start(vec![throttled, taken("m-1"), taken("m-2")]).await;
    let gateway = Gateway::with(Kind::Memory, &config(&responder.url(), ONE_AT_A_TIME)).await;
    gateway.post("/v1/lanes/email:send/pause", crate::world::ADMIN, json!({})).await.expect(200);
    let first = gateway.send(mail_to(&["ann@example.com"])).await;
    let second = gateway.send(mail_to(&["bob@example.com"])).await;
    gateway.post("/v1/lanes/email:send/resume", crate::world::ADMIN, json!({})).await.expect(200);
    let mail = gateway.mail_in(&first, "RETRY_SCHEDULED").await;
    assert_eq!(codes(&mail), ["SES_THROTTLE"], "{mail}");
    let why = gateway.get(&format!("/v1/jobs/{second}/explain")).await;
    assert!(why["holds"].to_string().contains("retry_after"), "the second was never tried, and is held: {why}");
    assert_eq!(responder.asked().len(), 1);
    gateway.mail_in(&first, "SENT").await;
    gateway.mail_in(&second, "SENT").await;
    gateway.stop().await;
}
