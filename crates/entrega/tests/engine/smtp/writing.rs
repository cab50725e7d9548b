//! What arrives is what was sent.

use std::time::Duration;

use serde_json::json;

use super::world::{FROM, MESSAGE, answered, refused, send, send_as, send_text, taken, transport};
use entrega_testkit::smtp_server::{self, SmtpServer};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn dots_line_ends_and_empty_lines_arrive_intact() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let transport = transport(&server);
    let table = [
        (MESSAGE, MESSAGE),
        ("A: b\r\n\r\n.\r\n..\r\n.x\r\n\r\n.", "A: b\r\n\r\n.\r\n..\r\n.x\r\n\r\n.\r\n"),
        (".\r\n", ".\r\n"),
        ("A: b\r\n\r\nno end", "A: b\r\n\r\nno end\r\n"),
        ("A: b\r\n\r\nx\r\n\r\n\r\n", "A: b\r\n\r\nx\r\n\r\n\r\n"),
        ("A: b\r\n\r\nolá\r\n", "A: b\r\n\r\nolá\r\n"),
        // How one mail smuggles in another through servers that end lines differently.
        ("a\n.\nMAIL FROM:<x@y>\n\r.\r\nb", "a\r\n.\r\nMAIL FROM:<x@y>\r\n\r\n.\r\nb\r\n"),
    ];
    for (message, _) in table {
        assert_eq!(send_text(&transport, message).await, taken(1), "{message:?}");
    }
    let arrived: Vec<_> = server.received().into_iter().map(|mail| String::from_utf8(mail.data).unwrap()).collect();
    assert_eq!(arrived, table.map(|(_, arrived)| arrived));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_large_mail_arrives_intact_encrypted_or_not() {
    if smtp_server::is_left_out() {
        return;
    }
    let line =
        |number: u32| format!("{}{number} {}\r\n", if number.is_multiple_of(3) { "." } else { "" }, "x".repeat(60));
    let message: String = (0..60_000).map(line).collect();
    for script in [json!({}), json!({ "tls": "starttls" })] {
        let server = SmtpServer::start(script);
        let transport = super::world::transport_by(&server, |config| {
            config.extra_ca_pem = server.authority_pem();
        });
        assert_eq!(send_text(&transport, &message).await, taken(1));
        assert!(server.received()[0].data == message.as_bytes());
    }
}

#[tokio::test]
async fn size_and_body_are_announced_where_the_server_knows_them() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    send(&transport(&server), &["ann@example.org"]).await;
    assert_eq!(server.received()[0].options, ["BODY=8BITMIME".to_owned(), format!("SIZE={}", MESSAGE.len())]);
}

#[tokio::test]
async fn an_address_outside_ascii_needs_a_server_that_knows_it() {
    if smtp_server::is_left_out() {
        return;
    }
    let (ann, jose) = ("ann@example.org", "josé@example.org");
    let advice = "give an ASCII address or use a transport that offers it";
    let no = |whose: &str| {
        let message = format!("the {whose}'s address is not ASCII and the server does not offer SMTPUTF8; {advice}");
        Some(refused(553, Some("5.6.7"), &message))
    };
    let old = SmtpServer::obliging();
    let transport_to_old = transport(&old);
    assert_eq!(send(&transport_to_old, &[ann, jose]).await, answered(vec![None, no("recipient")]));
    assert_eq!(old.received()[0].recipients, [ann]);
    assert_eq!(send(&transport_to_old, &[jose]).await, answered(vec![no("recipient")]));
    let sent = send_as(&transport_to_old, jose, &[ann, ann], MESSAGE, PATIENCE).await;
    assert_eq!(sent, answered(vec![no("sender"), no("sender")]));
    assert_eq!((old.received().len(), old.connections()), (1, 1));

    let new = SmtpServer::start(json!({ "utf8": true }));
    let transport_to_new = transport(&new);
    assert_eq!(send(&transport_to_new, &[ann, jose]).await, taken(2));
    assert_eq!(send(&transport_to_new, &[ann]).await, taken(1));
    let head = "To: josé@example.org\r\n\r\nhi\r\n";
    assert_eq!(send_as(&transport_to_new, FROM, &[ann], head, PATIENCE).await, taken(1));
    let received = new.received();
    assert_eq!(received[0].recipients, [ann, jose]);
    let is_announced = |number: usize| received[number].options.contains(&"SMTPUTF8".to_owned());
    assert_eq!([is_announced(0), is_announced(1), is_announced(2)], [true, false, true]);
}

#[tokio::test]
async fn many_recipients_are_named_one_after_the_other_or_together() {
    if smtp_server::is_left_out() {
        return;
    }
    let all: Vec<String> = (0..120).map(|number| format!("r{number}@example.org")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for offers in [json!([]), json!(["PIPELINING"])] {
        let no = json!([{ "at": "rcpt", "has": "r77@", "reply": "550 No" }]);
        let server = SmtpServer::start(json!({ "offers": offers, "rules": no }));
        let mut expected = vec![None; 120];
        expected[77] = Some(refused(550, None, "No"));
        assert_eq!(send(&transport(&server), &all).await, answered(expected));
        let named: Vec<_> = all.iter().filter(|address| **address != "r77@example.org").copied().collect();
        assert_eq!(server.received()[0].recipients, named);
    }
}
