//! What is refused before anything is stored or sent.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, Kind, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn control_characters_in_what_becomes_a_header_are_refused_and_nothing_is_sent() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let gateway = Gateway::start(Kind::Memory, &server.url()).await;
    let whole = |change: &dyn Fn(&mut Value)| {
        let mut mail = mail_to(&["ann@example.com"]);
        change(&mut mail);
        mail
    };
    for bad in ["\r", "\n", "\0", "\r\nBcc: eve@example.com"] {
        for (field, mail) in [
            ("to", whole(&|mail| mail["to"] = json!([format!("ann{bad}@example.com")]))),
            ("to", whole(&|mail| mail["to"] = json!([format!("Ann{bad} <ann@example.com>")]))),
            ("cc", whole(&|mail| mail["cc"] = json!(format!("carl@example.com{bad}")))),
            ("bcc", whole(&|mail| mail["bcc"] = json!(format!("carl@exa{bad}mple.com")))),
            ("from", whole(&|mail| mail["from"] = json!(format!("Shop{bad} <shop@example.com>")))),
            ("replyTo", whole(&|mail| mail["replyTo"] = json!(format!("a{bad}@example.com")))),
            ("subject", whole(&|mail| mail["subject"] = json!(format!("Invoice{bad}")))),
            ("headers", whole(&|mail| mail["headers"] = json!({ "X-A": format!("b{bad}") }))),
            ("headers", whole(&|mail| mail["headers"] = json!({ format!("X-A{bad}"): "b" }))),
            (
                "attachments",
                whole(&|mail| {
                    mail["attachments"] = json!([{ "filename": format!("a{bad}.pdf"), "content": "" }]);
                }),
            ),
        ] {
            let answer = gateway.post("/v1/email/send", ADMIN, mail.clone()).await;
            assert_eq!(answer.status, 422, "{mail} {}", answer.json);
            let named = answer.json["errors"][0]["field"].as_str().unwrap().to_owned();
            assert!(named.starts_with(field), "{named} for {mail}");
        }
    }
    assert_eq!(gateway.get("/v1/emails").await["items"], json!([]));
    assert!(server.commands().is_empty(), "{:?}", server.commands());
    gateway.stop().await;
}

#[tokio::test]
async fn a_suppressed_address_fails_at_once_and_the_others_get_it() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in crate::world::kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::start(kind, &server.url()).await;
        let (ours, theirs) = (gateway.key("ours").await, gateway.key("theirs").await);
        let body = json!({ "address": "Gone@Example.com", "reason": "asked us to stop" });
        gateway.post("/v1/suppressions", &ours, body).await.expect(201);

        let id = gateway.send_as(&ours, mail_to(&["gone@example.com", "ann@example.com"])).await;
        let mail = gateway.mail_in(&id, "FAILED").await;
        assert_eq!((&mail["failureCode"], crate::world::codes(&mail).len()), (&json!("BOUNCE_PERMANENT"), 1), "{mail}");
        assert!(mail["failureReason"].as_str().unwrap().contains("asked us to stop"), "{mail}");
        let received = server.received();
        assert_eq!((received.len(), &received[0].recipients), (1, &vec!["ann@example.com".to_owned()]));

        let id = gateway.send_as(&theirs, mail_to(&["gone@example.com"])).await;
        gateway.mail_in(&id, "SENT").await;
        let listed = gateway.call("GET", "/v1/suppressions", &theirs, &[], String::new()).await.expect(200);
        assert_eq!(listed["items"], json!([]), "another tenant's list");
        let listed = gateway.call("GET", "/v1/suppressions", &ours, &[], String::new()).await.expect(200);
        assert_eq!(listed["items"][0]["address"], "gone@example.com", "{listed}");

        let path = "/v1/suppressions/gone%40example.com";
        assert_eq!(gateway.call("DELETE", path, &theirs, &[], String::new()).await.status, 404);
        assert_eq!(gateway.call("DELETE", path, &ours, &[], String::new()).await.status, 204);
        let id = gateway.send_as(&ours, mail_to(&["gone@example.com"])).await;
        gateway.mail_in(&id, "SENT").await;
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_lane_for_mails_takes_no_calls() {
    let gateway = Gateway::with(Kind::Memory, "").await;
    let job = json!({ "lane": "email:send", "request": { "url": "https://example.com/" } });
    let answer = gateway.post("/v1/jobs", ADMIN, job).await.expect(422);
    assert!(answer["errors"][0]["detail"].as_str().unwrap().contains("POST /v1/email/send"), "{answer}");
    gateway.stop().await;
}
