//! Connections that break or hang, at every point of a mail.

use std::time::Duration;

use entrega::mail::transport::Sent;
use entrega_core::mail::MailRefusal;
use serde_json::json;

use super::world::{FROM, MESSAGE, refused, send, send_as, taken, transport};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ANN: &str = "ann@example.org";
const BOB: &str = "bob@example.org";
/// More than the system takes off our hands while the server does not read.
fn big() -> String {
    format!("{}\r\n", "x".repeat(900)).repeat(30_000)
}

/// Long enough for a server on the same machine.
const SHORT: Duration = Duration::from_millis(1500);

fn parts(sent: Sent) -> (Vec<Option<MailRefusal>>, bool) {
    match sent {
        Sent::Answered { refusals, ambiguous, .. } => (refusals, ambiguous),
        unreached => panic!("the server was reached: {unreached:?}"),
    }
}

fn fault(refusal: &Option<MailRefusal>) -> (&str, &str) {
    let refusal = refusal.as_ref().expect("it was not taken");
    assert_eq!((refusal.status, refusal.enhanced.as_ref()), (None, None), "{refusal:?}");
    (&refusal.code, &refusal.message)
}

#[tokio::test]
async fn a_connection_lost_before_the_end_leaves_no_doubt() {
    if smtp_server::is_left_out() {
        return;
    }
    for (at, offers) in [
        ("mail", json!([])),
        ("rcpt", json!([])),
        ("data", json!([])),
        ("body", json!([])),
        ("mail", json!(["PIPELINING"])),
        ("rcpt", json!(["PIPELINING"])),
    ] {
        for end in ["cut", "close"] {
            let server = SmtpServer::start(json!({ "rules": [{ "at": at, "do": end }], "offers": offers }));
            let transport = transport(&server);
            let sent = send_as(&transport, FROM, &[ANN], &big(), 5 * SHORT).await;
            let (refusals, ambiguous) = parts(sent);
            let (code, message) = fault(&refusals[0]);
            assert_eq!((code, ambiguous), ("aborted", false), "{at} {end}: {message}");
            assert!(!message.contains("may have arrived"), "{message}");
            server.set(json!({}));
            assert_eq!(send(&transport, &[ANN]).await, taken(1));
            assert_eq!((server.connections(), server.received().len()), (2, 1), "{at} {end}");
        }
    }
}

#[tokio::test]
async fn a_connection_lost_after_the_end_is_ambiguous() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([
        { "at": "rcpt", "has": BOB, "reply": "550 5.1.1 No such user" },
        { "at": "end", "do": "cut" },
    ]));
    let (refusals, ambiguous) = parts(send(&transport(&server), &[ANN, BOB]).await);
    let (code, message) = fault(&refusals[0]);
    assert_eq!((code, ambiguous), ("aborted", true), "{message}");
    assert!(message.contains("may have arrived"), "{message}");
    assert_eq!(refusals[1], Some(refused(550, Some("5.1.1"), "No such user")), "that much is certain");
    assert_eq!(server.received().len(), 1, "and so it did");
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_before_the_deadline_with_what_is_known() {
    if smtp_server::is_left_out() {
        return;
    }
    for (at, expected) in [("mail", false), ("data", false), ("body", false), ("end", true)] {
        let server = SmtpServer::with_rules(json!([
            { "at": "rcpt", "has": BOB, "reply": "550 5.1.1 No such user" },
            { "at": at, "do": "hang" },
        ]));
        let transport = transport(&server);
        let message = if at == "body" { &big() } else { MESSAGE };
        let (refusals, ambiguous) = parts(send_as(&transport, FROM, &[BOB, ANN], message, SHORT).await);
        let (code, message) = fault(&refusals[1]);
        assert_eq!((code, ambiguous), ("timeout", expected), "{at}: {message}");
        assert_eq!(message.contains("may have arrived"), expected, "{at}: {message}");
        if at != "mail" {
            assert_eq!(refusals[0], Some(refused(550, Some("5.1.1"), "No such user")), "{at}");
        }
        server.set_rules(json!([]));
        assert_eq!(send(&transport, &[ANN]).await, taken(1));
        assert_eq!(server.connections(), 2, "a connection in doubt is not used again: {at}");
    }
}

#[tokio::test]
async fn a_server_that_has_had_enough_is_heard_while_the_mail_is_still_written() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "body", "reply": "552 5.3.4 Too big", "do": "close" }]));
    let sent = send_as(&transport(&server), FROM, &[ANN], &big(), 5 * SHORT).await;
    assert_eq!(parts(sent), (vec![Some(refused(552, Some("5.3.4"), "Too big"))], false));
}

#[tokio::test]
async fn what_is_said_in_the_wrong_place_ends_the_connection() {
    if smtp_server::is_left_out() {
        return;
    }
    let endless = format!("250-{}\r\n", "x".repeat(500)).repeat(100) + "250 done";
    for (at, reply, ambiguity) in [
        ("mail", "354 go on", false),
        ("data", "250 already done", false),
        ("rcpt", "HTTP/1.1 200 OK", false),
        ("end", "354 go on", true),
        ("end", "2OO taken", true),
        ("mail", endless.as_str(), false),
    ] {
        let server = SmtpServer::with_rules(json!([{ "at": at, "times": 1, "reply": reply }]));
        let transport = transport(&server);
        let (refusals, ambiguous) = parts(send(&transport, &[ANN]).await);
        let (code, message) = fault(&refusals[0]);
        assert_eq!((code, ambiguous), ("aborted", ambiguity), "{at}: {message}");
        assert!(message.len() < 600, "{at}: {message}");
        assert_eq!(send(&transport, &[ANN]).await, taken(1));
        assert_eq!(server.connections(), 2, "{at}");
    }
}
