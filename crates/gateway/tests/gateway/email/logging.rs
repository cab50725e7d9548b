//! What the log says of a mail, and what it must not.

use serde_json::{Value, json};

use crate::world::{Gateway, Kind, mail_to};
use entrega_testkit::log::Log;
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn addresses_are_masked_bodies_are_absent_and_the_promised_fields_are_there() {
    if smtp_server::is_left_out() {
        return;
    }
    let log = Log::default();
    let _heard = log.hear();
    let server = SmtpServer::with_rules(json!([
        { "at": "rcpt", "times": 1, "reply": "450 4.2.0 <johanna@warehouse.example.com>: greylisted" },
        { "at": "rcpt", "reply": "550 5.1.1 <johanna@warehouse.example.com>: no such user" },
    ]));
    let gateway = Gateway::start(Kind::Memory, &server.url()).await;
    let mut mail = mail_to(&["Johanna <johanna@warehouse.example.com>"]);
    mail["text"] = json!("the secret words of the body");
    mail["externalId"] = json!("signup-johanna@warehouse.example.com");
    mail["subject"] = json!("the secret words of the subject");
    let id = gateway.send(mail).await;
    let mail = gateway.mail_in(&id, "FAILED").await;
    assert!(
        mail["failureReason"].as_str().unwrap().contains("johanna@warehouse.example.com"),
        "the owner sees it: {mail}"
    );
    gateway.stop().await;

    let text = log.text();
    for secret in ["johanna", "warehouse", "secret words"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |message: &str| {
        let found = lines.iter().find(|line| line["fields"]["message"] == message);
        found.unwrap_or_else(|| panic!("'{message}' is not in {text}"))["fields"].clone()
    };
    let retry = line("Job failed, scheduling retry");
    assert_eq!((&retry["lane"], &retry["jobId"]), (&json!("email:send"), &json!(id)), "{retry}");
    assert_eq!((&retry["errorCode"], &retry["isRetryable"]), (&json!("BOUNCE_TEMPORARY"), &json!(true)), "{retry}");
    assert!(retry["errorReason"].as_str().unwrap().contains("j***@w***le.com"), "{retry}");
    for field in ["companyId", "attempt", "maxAttempts", "latencyMs", "nextRetryDelay"] {
        assert!(!retry[field].is_null(), "{field} in {retry}");
    }
    let dead = line("Job moved to the dead letters");
    assert_eq!((&dead["dlqId"], &dead["errorCode"]), (&json!(id), &json!("INVALID_RECIPIENT")), "{dead}");
}
