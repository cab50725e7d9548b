//! A mail that goes well.

use mail_parser::{MessageParser, MimeHeaders as _};
use serde_json::json;

use crate::world::{ADMIN, Gateway, Kind, codes, kinds, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn what_was_posted_arrives_intact() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::start(kind, &server.url()).await;
        let text = "Olá, Ærøskøbing! 🎉\r\n.a dot at the start\r\n..two\r\n.\r\nthe end";
        let id = gateway
            .send(json!({
                "from": "Loja São João <loja@example.com>", "to": ["Ann Müller <ann@example.com>", "bob@example.com"],
                "cc": "carl@example.com", "bcc": "hidden@example.com", "replyTo": "answers@example.com",
                "subject": "Fatura nº 17 – não responda ✓", "text": text, "html": "<p>Olá <b>Ann</b></p>",
                "attachments": [{ "filename": "nota fiscal.pdf", "contentType": "application/pdf", "content": "JVBERi0A/w==" }],
                "headers": { "X-Campaign": "spring" }, "externalId": "invoice-17", "priority": "high", "ttl": "2h",
            }))
            .await;
        assert!(id.starts_with("out_"), "{id}");
        let mail = gateway.mail_in(&id, "SENT").await;
        assert_eq!(codes(&mail), ["ok"], "{mail}");
        assert_eq!((&mail["externalId"], &mail["companyId"]), (&json!("invoice-17"), &json!("default")), "{mail}");
        assert!(mail["sentAt"].is_string() && mail["failureCode"].is_null(), "{mail}");

        let received = server.received();
        assert_eq!(received.len(), 1, "one message for all");
        assert_eq!(received[0].from, "loja@example.com");
        let everybody = ["ann@example.com", "bob@example.com", "carl@example.com", "hidden@example.com"];
        assert_eq!(received[0].recipients, everybody);
        let parsed = MessageParser::default().parse(&received[0].data).unwrap();
        assert_eq!(parsed.subject(), Some("Fatura nº 17 – não responda ✓"));
        assert_eq!(parsed.from().unwrap().first().unwrap().name(), Some("Loja São João"));
        assert_eq!(parsed.to().unwrap().first().unwrap().name(), Some("Ann Müller"));
        assert_eq!(parsed.body_text(0).unwrap().trim_end(), text);
        assert_eq!(parsed.body_html(0).unwrap().trim_end(), "<p>Olá <b>Ann</b></p>");
        let file = parsed.attachment(0).unwrap();
        assert_eq!((file.attachment_name(), file.contents()), (Some("nota fiscal.pdf"), &b"%PDF-\x00\xff"[..]));
        assert_eq!(parsed.header_raw("X-Campaign").map(str::trim), Some("spring"));
        assert_eq!(mail["messageId"].as_str().map(|id| id.trim_matches(['<', '>'])), parsed.message_id());
        assert!(parsed.bcc().is_none() && !String::from_utf8_lossy(&received[0].data).contains("hidden@"));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_mail_is_found_by_external_id_and_status() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server =
            SmtpServer::with_rules(json!([{ "at": "rcpt", "has": "gone@", "reply": "550 5.1.1 no such user" }]));
        let gateway = Gateway::start(kind, &server.url()).await;
        let mut good = mail_to(&["ann@example.com"]);
        good["externalId"] = json!("order/17 ä");
        let (good, bad) = (gateway.send(good).await, gateway.send(mail_to(&["gone@example.com"])).await);
        gateway.mail_in(&good, "SENT").await;
        gateway.mail_in(&bad, "FAILED").await;
        for (query, expected) in [
            ("externalId=order%2F17%20%C3%A4", vec![&good]),
            ("externalId=order%2F17%20%C3%A4&status=FAILED", vec![]),
            ("externalId=unknown", vec![]),
            ("status=SENT", vec![&good]),
            ("status=FAILED", vec![&bad]),
            ("status=QUEUED", vec![]),
            ("limit=10", vec![&bad, &good]),
        ] {
            let page = gateway.get(&format!("/v1/emails?{query}")).await;
            let ids: Vec<String> = page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|mail| mail["outboxId"].as_str().unwrap().into())
                .collect();
            assert_eq!(ids, expected.into_iter().cloned().collect::<Vec<_>>(), "{query}");
        }
        let stranger = gateway.key("stranger").await;
        let seen = gateway.call("GET", &format!("/v1/emails/{good}"), &stranger, &[], String::new()).await;
        assert_eq!(seen.status, 404, "another tenant's mail");
        let seen =
            gateway.call("GET", "/v1/emails?externalId=order%2F17%20%C3%A4", &stranger, &[], String::new()).await;
        assert_eq!(seen.expect(200)["items"], json!([]));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn without_a_transport_a_mail_is_refused_with_what_to_do() {
    let gateway = Gateway::with(Kind::Memory, "").await;
    let answer = gateway.post("/v1/email/send", ADMIN, mail_to(&["ann@example.com"])).await.expect(503);
    assert!(answer["detail"].as_str().unwrap().contains("SMTP_URL"), "{answer}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_mail_with_ten_megabytes_of_files_goes_through() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::start(json!({}));
    let gateway = Gateway::start(Kind::Memory, &server.url()).await;
    let content = "A".repeat(10 * 1024 * 1024 / 3 * 4);
    let mut mail = mail_to(&["ann@example.com"]);
    mail["attachments"] = json!([{ "filename": "zeros.bin", "content": content }]);
    let id = gateway.send(mail.clone()).await;
    gateway.mail_in(&id, "SENT").await;
    let received = server.received();
    let parsed = MessageParser::default().parse(&received[0].data).unwrap();
    assert_eq!(parsed.attachment(0).unwrap().contents().len(), 10 * 1024 * 1024 / 3 * 3);

    mail["attachments"] = json!([{ "filename": "zeros.bin", "content": "A".repeat(11 * 1024 * 1024 / 3 * 4) }]);
    let answer = gateway.post("/v1/email/send", ADMIN, mail).await;
    assert!([413, 422].contains(&answer.status.as_u16()), "{}", answer.json);
    gateway.stop().await;
}
