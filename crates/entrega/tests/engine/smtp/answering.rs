//! What each recipient is told.

use serde_json::json;

use super::world::{answered, refused, send, send_as, taken, transport};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ANN: &str = "ann@example.org";
const BOB: &str = "bob@example.org";
const EVE: &str = "eve@example.org";

#[tokio::test]
async fn each_recipient_has_a_result_of_its_own() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([
        { "at": "rcpt", "has": BOB, "reply": "550 5.1.1 No such user" },
        { "at": "rcpt", "has": EVE, "reply": "450-4.2.1 The mailbox\r\n450 4.2.1 is busy" },
    ]));
    for offers in [json!([]), json!(["PIPELINING"])] {
        server.set(json!({ "offers": offers, "rules": server.rules() }));
        let sent = send(&transport(&server), &[BOB, ANN, EVE]).await;
        let bob = refused(550, Some("5.1.1"), "No such user");
        let eve = refused(450, Some("4.2.1"), "The mailbox is busy");
        assert_eq!(sent, answered(vec![Some(bob), None, Some(eve)]), "with {offers}");
    }
    let recipients: Vec<_> = server.received().into_iter().map(|mail| mail.recipients).collect();
    assert_eq!(recipients, [[ANN], [ANN]]);
}

#[tokio::test]
async fn where_nobody_is_taken_the_mail_is_not_sent_and_the_connection_is_kept() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "rcpt", "has": BOB, "reply": "550 5.1.1 No such user" }]));
    let transport = transport(&server);
    let no = Some(refused(550, Some("5.1.1"), "No such user"));
    assert_eq!(send(&transport, &[BOB]).await, answered(vec![no]));
    assert!(server.commands().contains(&"RSET".to_owned()), "{:?}", server.commands());
    assert_eq!(send(&transport, &[ANN]).await, taken(1));
    assert!(server.commands().iter().filter(|command| *command == "DATA").count() == 1, "{:?}", server.commands());
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_refused_sender_counts_for_everybody() {
    if smtp_server::is_left_out() {
        return;
    }
    let rules = json!([{ "at": "mail", "reply": "553 5.7.1 Not your address" }]);
    for offers in [json!([]), json!(["PIPELINING"])] {
        let server = SmtpServer::start(json!({ "rules": rules, "offers": offers }));
        let transport = transport(&server);
        let no = Some(refused(553, Some("5.7.1"), "Not your address"));
        assert_eq!(send(&transport, &[ANN, BOB]).await, answered(vec![no.clone(), no]), "with {offers}");
        server.set(json!({ "offers": offers }));
        assert_eq!(send(&transport, &[ANN, BOB]).await, taken(2), "the next mail is another matter");
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn the_answer_after_the_end_decides_for_those_who_were_taken() {
    if smtp_server::is_left_out() {
        return;
    }
    let bob = json!({ "at": "rcpt", "has": BOB, "reply": "550 No" });
    for (at, reply, no) in [
        ("end", "554 5.6.0 Spam", refused(554, Some("5.6.0"), "Spam")),
        ("end", "451 later", refused(451, None, "later")),
        ("data", "451 4.3.0 no room", refused(451, Some("4.3.0"), "no room")),
    ] {
        let server = SmtpServer::with_rules(json!([bob, { "at": at, "reply": reply }]));
        let transport = transport(&server);
        let sent = send(&transport, &[ANN, BOB]).await;
        assert_eq!(sent, answered(vec![Some(no), Some(refused(550, None, "No"))]), "{at} {reply}");
        server.set_rules(json!([]));
        assert_eq!(send(&transport, &[ANN, BOB]).await, taken(2));
        assert_eq!(server.connections(), 1, "a refusal says nothing against the connection: {at} {reply}");
    }
}

#[tokio::test]
async fn a_server_that_has_to_leave_says_so_to_everybody_who_is_left() {
    if smtp_server::is_left_out() {
        return;
    }
    let bye = Some(refused(421, Some("4.3.2"), "Shutting down"));
    for (rule, others) in [
        (json!({ "at": "mail", "reply": "421 4.3.2 Shutting down" }), bye.clone()),
        (json!({ "at": "rcpt", "has": EVE, "reply": "421 4.3.2 Shutting down" }), Some(refused(550, None, "No"))),
        (json!({ "at": "data", "reply": "421 4.3.2 Shutting down" }), Some(refused(550, None, "No"))),
        (json!({ "at": "end", "reply": "421 4.3.2 Shutting down" }), Some(refused(550, None, "No"))),
    ] {
        let server = SmtpServer::with_rules(json!([rule, { "at": "rcpt", "has": BOB, "reply": "550 No" }]));
        let transport = transport(&server);
        let sent = send(&transport, &[ANN, BOB, EVE]).await;
        assert_eq!(sent, answered(vec![bye.clone(), others, bye.clone()]), "{rule}");
        server.set_rules(json!([]));
        assert_eq!(send(&transport, &[ANN]).await, taken(1));
        assert_eq!(server.connections(), 2, "that connection is not used again: {rule}");
    }
}

#[tokio::test]
async fn a_reply_in_another_encoding_keeps_its_code() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "rcpt", "reply": "550 5.1.1 Usu\u{e1}rio desconhecido" }]));
    let no = refused(550, Some("5.1.1"), "Usu\u{fffd}rio desconhecido");
    assert_eq!(send(&transport(&server), &[ANN]).await, answered(vec![Some(no)]));
}

#[tokio::test]
async fn an_address_cannot_add_a_command() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let transport = transport(&server);
    for bad in ["x@y>\r\nRSET", "x@y> SIZE=1", "x\0@y", "", &"x".repeat(400)] {
        let sent = send(&transport, &[ANN, bad]).await;
        let entrega::mail::transport::Sent::Answered { refusals, .. } = sent else { panic!("{sent:?}") };
        assert_eq!(refusals[0], None, "{bad:?}");
        let refusal = refusals[1].as_ref().unwrap();
        assert_eq!((refusal.status, refusal.enhanced.as_deref()), (Some(553), Some("5.1.3")), "{bad:?}");

        let patience = std::time::Duration::from_secs(20);
        let sent = send_as(&transport, bad, &[ANN], super::world::MESSAGE, patience).await;
        let entrega::mail::transport::Sent::Answered { refusals, .. } = sent else { panic!("{sent:?}") };
        let refusal = refusals[0].as_ref().unwrap();
        assert_eq!((refusal.status, refusal.enhanced.as_deref()), (Some(553), Some("5.1.7")), "{bad:?}");
    }
    assert!(!server.commands().iter().any(|command| command.starts_with("RSET")), "{:?}", server.commands());
}
