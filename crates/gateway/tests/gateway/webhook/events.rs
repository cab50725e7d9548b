//! Which events are told, and how.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, Kind, kinds, mail_to};
use entrega_testkit::receiver::{Receiver, SECRET, endpoint, open};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn a_mail_that_is_retried_twice_and_sent_tells_three_numbered_signed_events() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let server =
            SmtpServer::with_rules(json!([{ "at": "rcpt", "times": 2, "reply": "450 4.2.1 <ann@example.com> busy" }]));
        let receiver = Receiver::start().await;
        let config = open(&server.url(), &endpoint("default", "default", &receiver.url("/hooks"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let mut mail = mail_to(&["ann@example.com"]);
        mail["externalId"] = json!("invoice-17");
        let id = gateway.send(mail).await;
        gateway.mail_in(&id, "SENT").await;
        let got = receiver.wait_for(3).await;
        let mut events: Vec<Value> = got.iter().map(entrega_testkit::receiver::Got::json).collect();
        events.sort_by_key(|event| event["sequenceNumber"].as_u64());
        let told: Vec<_> = events
            .iter()
            .map(|event| (event["sequenceNumber"].as_u64().unwrap(), event["eventType"].as_str().unwrap()))
            .collect();
        assert_eq!(told, [(1, "email.retry_scheduled"), (2, "email.retry_scheduled"), (3, "email.sent")], "{kind:?}");
        let ids: BTreeSet<&str> = events.iter().map(|event| event["eventId"].as_str().unwrap()).collect();
        assert!(ids.len() == 3 && ids.iter().all(|id| id.starts_with("evt_")), "{ids:?}");
        for event in &events {
            let data = &event["data"];
            assert_eq!((&data["outboxId"], &data["externalId"]), (&json!(id), &json!("invoice-17")), "{event}");
            assert_eq!(
                (&data["companyId"], &data["recipient"]),
                (&json!("default"), &json!("a***@e***le.com")),
                "{event}"
            );
            assert!(!event.to_string().contains("ann@"), "{event}");
        }
        let retry = &events[0]["data"];
        assert_eq!(
            (&retry["status"], &retry["retryAttempt"], &retry["attempts"]),
            (&json!("RETRY_SCHEDULED"), &json!(2), &json!(1))
        );
        assert!(
            retry["nextRetryAt"].is_string() && retry["lastError"].as_str().unwrap().contains("450 4.2.1"),
            "{retry}"
        );
        let sent = &events[2]["data"];
        assert_eq!((&sent["status"], &sent["attempts"]), (&json!("SENT"), &json!(3)), "{sent}");
        assert!(
            sent["messageId"].is_string() && sent["sentAt"].is_string() && sent["processingTimeMs"].is_u64(),
            "{sent}"
        );
        for call in &got {
            call.check_signature(SECRET);
            assert_eq!(
                (call.header("content-type"), call.header("user-agent")),
                ("application/json", "EmailGateway/1.0")
            );
            assert_eq!((call.header("x-event-id"), call.header("x-retry-count")), (call.header("webhook-id"), "0"));
        }
        let listed = gateway.get(&format!("/v1/events?outboxId={id}")).await;
        assert_eq!(listed["items"], json!(events), "as they were told");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_mail_and_its_events_are_of_the_trace_that_the_caller_was_in() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "rcpt", "times": 1, "reply": "450 4.2.1 busy" }]));
    let receiver = Receiver::start().await;
    let config = open(&server.url(), &endpoint("default", "default", &receiver.url("/hooks"), ""));
    let gateway = Gateway::with(Kind::Memory, &config).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [("content-type", "application/json"), ("traceparent", trace)];
    let mail = mail_to(&["ann@example.com"]).to_string();
    gateway.call("POST", "/v1/email/send", ADMIN, &headers, mail).await.expect(201);
    for got in receiver.wait_for(2).await {
        let said = got.header("traceparent");
        assert!(said.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && said != trace, "{said}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_failed_delivery_is_repeated_with_the_same_bytes_and_fresh_moments() {
    if smtp_server::is_left_out() {
        return;
    }
    let (server, receiver) = (SmtpServer::obliging(), Receiver::start().await);
    receiver.answers(&[500, 302, 404]);
    let config = open(&server.url(), &endpoint("default", "default", &receiver.url("/"), ""));
    let gateway = Gateway::with(Kind::Memory, &config).await;
    gateway.send(mail_to(&["ann@example.com"])).await;
    let got = receiver.wait_for(4).await;
    assert!(got.iter().all(|call| call.body == got[0].body), "byte for byte");
    let counts: Vec<_> = got.iter().map(|call| call.header("x-retry-count")).collect();
    assert_eq!(counts, ["0", "1", "2", "3"]);
    let moments: BTreeSet<_> = got.iter().map(|call| call.header("x-sent-at")).collect();
    assert_eq!(moments.len(), 4, "{moments:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn each_endpoint_hears_what_it_listens_to_and_nobody_elses_events() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::with_rules(json!([{ "at": "rcpt", "has": "gone@", "reply": "550 5.1.1 no such user" }]));
    let receiver = Receiver::start().await;
    let endpoints = [
        endpoint("ours", "all", &receiver.url("/all"), ""),
        endpoint("ours", "failures", &receiver.url("/failures"), "event_types = [\"email.failed\"]"),
        endpoint("theirs", "default", &receiver.url("/theirs"), ""),
    ];
    let gateway = Gateway::with(Kind::Memory, &open(&server.url(), &endpoints.concat())).await;
    let key = gateway.key("ours").await;
    for to in ["ann@example.com", "gone@example.com"] {
        gateway.send_as(&key, mail_to(&[to])).await;
    }
    let got = receiver.wait_for(3).await;
    let mut heard: Vec<_> =
        got.iter().map(|call| (call.path.clone(), call.json()["eventType"].as_str().unwrap().to_owned())).collect();
    heard.sort();
    let expected = [("/all", "email.failed"), ("/all", "email.sent"), ("/failures", "email.failed")];
    assert_eq!(heard, expected.map(|(path, kind)| (path.to_owned(), kind.to_owned())));
    let failed = got.iter().find(|call| call.path == "/failures").unwrap().json();
    assert_eq!(
        (&failed["data"]["failureCode"], &failed["data"]["status"]),
        (&json!("INVALID_RECIPIENT"), &json!("FAILED"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_test_reaches_the_endpoint_and_is_seen_among_its_deliveries() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let (server, receiver) = (SmtpServer::obliging(), Receiver::start().await);
        let config = open(&server.url(), &endpoint("ours", "hooks", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let path = "/v1/tenants/ours/endpoints/hooks";
        let asked = gateway.post(&format!("{path}/test"), ADMIN, Value::Null).await.expect(202);
        let got = receiver.wait_for(1).await.remove(0);
        assert_eq!((&got.json()["eventType"], &got.json()["eventId"]), (&json!("webhook.test"), &asked["eventId"]));
        got.check_signature(SECRET);
        let id = asked["jobId"].as_str().unwrap();
        gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await;
        let row = gateway.get(&format!("{path}/deliveries")).await["items"][0].clone();
        assert_eq!(
            (&row["jobId"], &row["responseCode"], &row["answer"]),
            (&json!(id), &json!(200), &json!("thank you")),
            "{row}"
        );
        let stranger = gateway.key("stranger").await;
        for (method, path) in [("POST", format!("{path}/test")), ("GET", format!("{path}/deliveries"))] {
            assert_eq!(gateway.call(method, &path, &stranger, &[], String::new()).await.status, 404, "{path}");
        }
        gateway.stop().await;
    }
}

/// A replay that was cancelled on its way had reached one of two: the next one spares them, and goes on counting.
#[tokio::test]
async fn a_replay_after_a_cancelled_one_doubles_no_mail_and_no_number() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let refuse = |who: &str, reply: &str| json!({ "at": "rcpt", "has": who, "reply": reply });
        let (server, receiver) =
            (SmtpServer::with_rules(json!([refuse("@", "550 5.7.1 no")])), Receiver::start().await);
        let config = open(&server.url(), &endpoint("default", "default", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let id = gateway.send(mail_to(&["ann@example.com", "bob@example.com"])).await;
        gateway.mail_in(&id, "FAILED").await;

        server.set_rules(json!([refuse("bob@", "450 4.2.1 later")]));
        gateway.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
        gateway.mail_in(&id, "RETRY_SCHEDULED").await;
        gateway.call("DELETE", &format!("/v1/jobs/{id}"), ADMIN, &[], String::new()).await.expect(200);
        gateway.mail_in(&id, "FAILED").await;

        server.set_rules(json!([]));
        gateway.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
        gateway.mail_in(&id, "SENT").await;
        let mut got: Vec<String> = server.received().into_iter().flat_map(|mail| mail.recipients).collect();
        got.sort();
        assert_eq!(got, ["ann@example.com", "bob@example.com"], "{kind:?}");

        let calls = receiver.wait_for(3).await;
        let told: BTreeSet<_> = calls.iter().map(|call| call.json()["sequenceNumber"].as_u64().unwrap()).collect();
        assert_eq!(told, BTreeSet::from([1, 2, 3]), "{kind:?}");
        gateway.stop().await;
    }
}
