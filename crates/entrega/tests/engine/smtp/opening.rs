//! Servers that are not there, or do not want to begin.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use entrega::mail::smtp::{SmtpConfig, SmtpTransport};
use entrega_core::mail::MailRefusal;
use serde_json::json;

use super::world::{refused, send, send_within, taken, transport, unreached};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ANN: &[&str] = &["ann@example.org"];
const SHORT: Duration = Duration::from_secs(1);

fn to(url: &str) -> SmtpTransport {
    SmtpTransport::new("main", SmtpConfig::from_url(url).unwrap()).unwrap()
}

#[tokio::test]
async fn a_server_that_is_not_there_is_not_reached() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let refusal = unreached(send(&to(&format!("smtp://127.0.0.1:{port}")), ANN).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "connect"), "{refusal:?}");
    assert!(refusal.message.contains("refused") && !refusal.message.contains("127.0.0.1"), "{refusal:?}");
}

#[tokio::test]
async fn a_name_that_nobody_has_is_not_reached() {
    let refusal = unreached(send(&to("smtp://nobody.invalid"), ANN).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "resolve"), "{refusal:?}");
    assert!(refusal.message.contains("nobody.invalid"), "{refusal:?}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_reached() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let refusal = unreached(send_within(&to(&format!("smtp://127.0.0.1:{port}")), ANN, SHORT).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "timeout"), "{refusal:?}");
}

#[tokio::test]
async fn an_attempt_that_comes_too_late_still_answers() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let transport = to(&format!("smtp://127.0.0.1:{port}"));
    let refusal = unreached(send_within(&transport, ANN, Duration::from_millis(5)).await);
    assert_eq!(refusal.code, "timeout");
}

/// It has nothing against the mail, of which nobody has spoken yet.
fn turned_away(reply: &str) -> MailRefusal {
    MailRefusal::fault("turned_away", format!("the server turned us away: {reply}"))
}

#[tokio::test]
async fn a_server_that_turns_us_away_is_not_reached_and_its_words_are_kept() {
    if smtp_server::is_left_out() {
        return;
    }
    for (at, reply, refusal) in [
        ("greeting", "421 4.3.2 Busy", refused(421, Some("4.3.2"), "Busy")),
        ("greeting", "554 No SMTP service here", turned_away("554 No SMTP service here")),
        ("ehlo", "550 5.7.1 Go away", turned_away("550 5.7.1 Go away")),
    ] {
        let server = SmtpServer::with_rules(json!([{ "at": at, "times": 2, "reply": reply }]));
        let transport = transport(&server);
        for _ in 0..2 {
            assert_eq!(unreached(send(&transport, ANN).await), refusal, "{at}");
        }
        assert_eq!(send(&transport, ANN).await, taken(1), "then it is ready: {at}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_or_speaks_something_else_is_not_reached() {
    if smtp_server::is_left_out() {
        return;
    }
    for rule in [
        json!({ "at": "greeting", "do": "cut" }),
        json!({ "at": "greeting", "reply": "SSH-2.0-OpenSSH_9.6" }),
        json!({ "at": "ehlo", "do": "close" }),
    ] {
        let server = SmtpServer::with_rules(json!([rule]));
        let refusal = unreached(send(&transport(&server), ANN).await);
        assert_eq!((refusal.status, refusal.code.as_str()), (None, "connect"), "{rule}: {refusal:?}");
    }
}

#[tokio::test]
async fn we_say_who_we_are() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    send(&transport(&server), ANN).await;
    send(&super::world::transport_by(&server, |config| config.hello = Some("mail.example.com".into())), ANN).await;
    let hellos: Vec<_> = server.commands().into_iter().filter(|command| command.starts_with("EHLO")).collect();
    assert_eq!(hellos, ["EHLO [127.0.0.1]", "EHLO mail.example.com"]);
}
