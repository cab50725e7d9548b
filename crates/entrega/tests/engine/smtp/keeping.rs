//! Connections that are used again, and those that must not be.

use std::time::Duration;

use entrega_call::Clock;
use serde_json::json;

use super::world::{send, taken, transport, transport_by};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ANN: &[&str] = &["ann@example.org"];

#[tokio::test]
async fn a_connection_carries_a_hundred_mails_and_no_more() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let transport = transport(&server);
    for mails in 1..=201_usize {
        assert_eq!(send(&transport, ANN).await, taken(1));
        if [1, 100, 101, 200, 201].contains(&mails) {
            assert_eq!(server.connections(), mails.div_ceil(100), "after {mails} mails");
        }
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_replaced_within_the_same_attempt() {
    if smtp_server::is_left_out() {
        return;
    }
    let close = json!({ "at": "end", "times": 1, "do": "close" });
    for (before, after) in [
        (json!([close]), json!([])),
        (json!([]), json!([{ "at": "mail", "times": 1, "reply": "421 4.4.2 You were idle too long" }])),
        (json!([]), json!([{ "at": "mail", "times": 1, "do": "cut" }])),
    ] {
        for offers in [json!([]), json!(["PIPELINING"])] {
            let server = SmtpServer::start(json!({ "rules": before, "offers": offers }));
            let transport = transport(&server);
            assert_eq!(send(&transport, ANN).await, taken(1));
            server.set(json!({ "rules": after, "offers": offers }));
            assert_eq!(send(&transport, ANN).await, taken(1), "{before} {after}");
            assert_eq!((server.connections(), server.received().len()), (2, 2), "{before} {after}");
        }
    }
}

/// Some servers end an idle connection with a 451. It was taken for the answer to the next mail's sender.
#[tokio::test]
async fn words_of_farewell_are_not_taken_for_an_answer() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "end", "times": 1, "do": "leave", "reply": "451 4.7.0 Idle" }]));
    let transport = transport(&server);
    assert_eq!(send(&transport, ANN).await, taken(1));
    while !server.commands().contains(&"LEFT".to_owned()) {
        // reason: the server leaves by its own clock; it is watched, not told
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // reason: its words are on their way to this process; nothing says when they are here
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(send(&transport, ANN).await, taken(1));
    assert_eq!((server.connections(), server.received().len()), (2, 2));
}

#[tokio::test]
async fn a_kept_connection_that_leads_nowhere_is_replaced_within_the_same_attempt() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let transport = transport(&server);
    assert_eq!(send(&transport, ANN).await, taken(1));
    server.set_rules(json!([{ "at": "mail", "times": 1, "do": "hang" }]));
    assert_eq!(send(&transport, ANN).await, taken(1));
    assert_eq!((server.connections(), server.received().len()), (2, 2));
}

#[tokio::test]
async fn a_connection_that_waited_too_long_is_not_used() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let clock = Clock::manual(Clock::system().now());
    let transport = transport(&server).with_clock(clock.clone());
    for (wait, connections) in [(0, 1), (59, 1), (60, 1), (61, 2), (1, 2)] {
        clock.advance(Duration::from_secs(wait));
        assert_eq!(send(&transport, ANN).await, taken(1));
        assert_eq!(server.connections(), connections, "after {wait} s");
    }
}

#[tokio::test]
async fn no_more_connections_are_kept_than_wanted() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::obliging();
    let transport = transport_by(&server, |config| config.idle_max = 2);
    for connections in [4, 6] {
        let sent =
            tokio::join!(send(&transport, ANN), send(&transport, ANN), send(&transport, ANN), send(&transport, ANN));
        assert_eq!(sent, (taken(1), taken(1), taken(1), taken(1)));
        assert_eq!(server.connections(), connections);
    }
    let none = transport_by(&server, |config| config.idle_max = 0);
    send(&none, ANN).await;
    send(&none, ANN).await;
    assert_eq!(server.connections(), 8);
}
