//! What SES reports of a mail after it was sent, through SNS with real signatures.

use entrega_call::Clock;
use serde_json::{Value, json};

use crate::world::{Answer, Gateway, Kind, QUICK, codes, kinds, mail_to};
use entrega_testkit::amazon::{Amazon, OTHER_TOPIC, TOPIC, signed};
use entrega_testkit::smtp_server::{self, SmtpServer};

async fn gateway(kind: Kind, server: &SmtpServer, amazon: &Amazon) -> Gateway {
    let config = format!(
        "[transports.main]\nurl = \"{}\"\n[ses]\ntopics = [\"{TOPIC}\"]\ncertificate_hosts = [\"{}\"]\n\
         [outbound]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n[lanes.\"email:send\"]\n{QUICK}",
        server.url(),
        amazon.address
    );
    Gateway::with(kind, &config).await
}

/// Sends what SNS would.
async fn notify(gateway: &Gateway, mut message: Value) -> Answer {
    message["Timestamp"] = json!(Clock::system().now().to_string());
    let message = signed(message, "2");
    gateway.call("POST", "/v1/ses/notifications", "", &[("content-type", "text/plain")], message.to_string()).await
}

/// What SES says of a mail, as event publishing does or as feedback notifications do.
fn report(id: &str, tenant: &str, kind: &str, detail: Value) -> String {
    let headers = json!([{ "name": "X-Entrega-Mail", "value": format!("{id} {tenant}") }]);
    let mail = json!({ "messageId": "0100018f", "headers": headers });
    let mut report = json!({ "notificationType": kind, "mail": mail });
    report[kind.to_lowercase()] = detail;
    report.to_string()
}

#[tokio::test]
async fn a_bounce_fails_the_mail_and_suppresses_the_address_for_its_company_alone() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let (server, amazon) = (SmtpServer::obliging(), Amazon::start().await);
        let gateway = gateway(kind, &server, &amazon).await;
        let (ours, theirs) = (gateway.key("ours").await, gateway.key("theirs").await);
        let id = gateway.send_as(&ours, mail_to(&["ann@example.com"])).await;
        gateway.mail_in(&id, "SENT").await;

        let bounced = json!({ "bounceType": "Permanent", "bouncedRecipients":
            [{ "emailAddress": "Ann@example.com", "diagnosticCode": "smtp; 550 5.1.1 user unknown" }] });
        let message = amazon.notification(&report(&id, "ours", "Bounce", bounced));
        for _ in 0..2 {
            assert_eq!(notify(&gateway, message.clone()).await.expect(200)["result"], "kept");
        }
        let mail = gateway.mail_in(&id, "FAILED").await;
        assert_eq!(mail["failureCode"], "BOUNCE_PERMANENT", "{mail}");
        assert!(mail["failureReason"].as_str().unwrap().contains("550 5.1.1 user unknown"), "{mail}");
        assert_eq!(mail["feedback"].as_array().unwrap().len(), 1, "heard twice, kept once: {mail}");
        assert!(mail["sentAt"].is_string() && mail["failedAt"].is_string(), "{mail}");

        let again = gateway.send_as(&ours, mail_to(&["ann@example.com"])).await;
        let again = gateway.mail_in(&again, "FAILED").await;
        assert_eq!(codes(&again), ["BOUNCE_PERMANENT"], "{again}");
        let other = gateway.send_as(&theirs, mail_to(&["ann@example.com"])).await;
        gateway.mail_in(&other, "SENT").await;
        assert_eq!(server.received().len(), 2);
        let failed = gateway.get("/v1/emails?status=FAILED").await;
        assert_eq!(failed["items"].as_array().unwrap().len(), 2, "{failed}");
        let sent = gateway.get("/v1/emails?status=SENT").await;
        assert_eq!(sent["items"].as_array().unwrap().len(), 1, "{sent}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_complaint_suppresses_and_a_bounce_for_now_does_not() {
    if smtp_server::is_left_out() {
        return;
    }
    let (server, amazon) = (SmtpServer::obliging(), Amazon::start().await);
    let gateway = gateway(Kind::Memory, &server, &amazon).await;
    let key = gateway.key("ours").await;
    let (first, second) = (
        gateway.send_as(&key, mail_to(&["a@example.com"])).await,
        gateway.send_as(&key, mail_to(&["b@example.com"])).await,
    );
    gateway.mail_in(&first, "SENT").await;
    gateway.mail_in(&second, "SENT").await;
    let complaint = json!({ "complainedRecipients": [{ "emailAddress": "a@example.com" }] });
    notify(&gateway, amazon.notification(&report(&first, "ours", "Complaint", complaint))).await.expect(200);
    let bounce = json!({ "bounceType": "Transient", "bouncedRecipients": [{ "emailAddress": "b@example.com" }] });
    notify(&gateway, amazon.notification(&report(&second, "ours", "Bounce", bounce))).await.expect(200);
    assert_eq!(gateway.mail_in(&first, "FAILED").await["failureCode"], "COMPLAINT");
    assert_eq!(gateway.mail_in(&second, "FAILED").await["failureCode"], "BOUNCE_TEMPORARY");
    let listed = gateway.call("GET", "/v1/suppressions", &key, &[], String::new()).await.expect(200);
    let rows: Vec<_> = listed["items"].as_array().unwrap().iter().map(|row| (&row["address"], &row["code"])).collect();
    assert_eq!(rows, [(&json!("a@example.com"), &json!("COMPLAINT"))]);
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_signed_for_our_topic_changes_nothing() {
    if smtp_server::is_left_out() {
        return;
    }
    let (server, amazon) = (SmtpServer::obliging(), Amazon::start().await);
    let gateway = gateway(Kind::Memory, &server, &amazon).await;
    let id = gateway.send(mail_to(&["ann@example.com"])).await;
    gateway.mail_in(&id, "SENT").await;
    let bounced = json!({ "bounceType": "Permanent", "bouncedRecipients": [{ "emailAddress": "ann@example.com" }] });
    let message = amazon.notification(&report(&id, "default", "Bounce", bounced));

    let mut foreign = message.clone();
    foreign["TopicArn"] = json!(OTHER_TOPIC);
    assert_eq!(notify(&gateway, foreign).await.status, 403, "another topic");
    let mut fresh = message.clone();
    fresh["Timestamp"] = json!(Clock::system().now().to_string());
    let mut forged = signed(fresh, "2");
    forged["Message"] = json!(forged["Message"].as_str().unwrap().replace("Permanent", "Undetermined"));
    let answer = gateway.call("POST", "/v1/ses/notifications", "", &[], forged.to_string()).await;
    assert_eq!(answer.status, 403, "{}", answer.json);
    assert_eq!(gateway.call("POST", "/v1/ses/notifications", "", &[], "no".into()).await.status, 403);
    // Signed, but about somebody whom the mail never went to, or in another company's name.
    for (tenant, address) in [("default", "eve@example.com"), ("other", "ann@example.com")] {
        let bounced = json!({ "bounceType": "Permanent", "bouncedRecipients": [{ "emailAddress": address }] });
        let copied = amazon.notification(&report(&id, tenant, "Bounce", bounced));
        assert_eq!(notify(&gateway, copied).await.expect(200)["result"], "unmatched", "{tenant} {address}");
        assert_eq!(gateway.get(&format!("/v1/suppressions?tenant={tenant}")).await["items"], json!([]));
    }
    assert_eq!(gateway.mail_in(&id, "SENT").await["feedback"], Value::Null);

    let asked = notify(&gateway, amazon.handshake("SubscriptionConfirmation")).await;
    assert_eq!(asked.expect(200)["result"], "confirmed");
    assert!(amazon.hits().iter().any(|path| path.starts_with("/confirm")), "{:?}", amazon.hits());
    gateway.stop().await;
}
