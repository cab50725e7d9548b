//! The gateway killed with -9 while mails are sent and told of: every event still arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::Server;
use entrega_testkit::receiver::{Receiver, SECRET, endpoint, open};
use entrega_testkit::smtp_server::{self, SmtpServer};

const KILLS: u64 = 8;
const MAILS: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_between_the_change_of_state_and_the_webhook_loses_no_event() {
    if smtp_server::is_left_out() {
        return;
    }
    // Every other mail is deferred once, so that there are events of each kind.
    let smtp =
        SmtpServer::with_rules(json!([{ "at": "rcpt", "has": "later", "times": 60, "reply": "450 4.2.1 later" }]));
    let receiver = Receiver::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = open(&smtp.url(), &endpoint("default", "default", &receiver.url("/"), ""));
    std::fs::write(folder.path().join("entrega.toml"), config).unwrap();
    let mut mails = BTreeSet::new();
    for kill in 0..KILLS {
        let server = Server::start(folder.path());
        for number in 0..MAILS {
            let to =
                if number % 2 == 0 { format!("r{number}@example.com") } else { format!("later{number}@example.com") };
            let mail = json!({ "from": "shop@example.com", "to": to, "subject": "Hello", "text": "Hello!" });
            let taken = server.ok("POST", "/v1/email/send", &mail).await;
            mails.insert(taken["outboxId"].as_str().unwrap().to_owned());
        }
        // reason: the kill is to come at another moment each time, from before the first mail left to after the last.
        tokio::time::sleep(Duration::from_millis(kill * 15)).await;
        server.kill();
    }
    let server = Server::start(folder.path());
    let mut told: BTreeMap<String, BTreeMap<u64, BTreeSet<String>>> = BTreeMap::new();
    for look in 0.. {
        told.clear();
        for call in receiver.got() {
            call.check_signature(SECRET);
            let event = call.json();
            let events = told.entry(event["data"]["outboxId"].as_str().unwrap().to_owned()).or_default();
            let kinds = events.entry(event["sequenceNumber"].as_u64().unwrap()).or_default();
            kinds.insert(event["eventType"].as_str().unwrap().to_owned());
        }
        let is_told =
            |id: &String| told.get(id).is_some_and(|events| events.values().any(|kinds| kinds.contains("email.sent")));
        if mails.iter().all(is_told) {
            break;
        }
        assert!(look < 600, "{} of {} mails were told of", mails.iter().filter(|id| is_told(id)).count(), mails.len());
        // reason: another process delivers; this one looks until it has.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for id in &mails {
        let numbers: Vec<u64> = told[id].keys().copied().collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{id} has no gap: {:?}", told[id]);
        let listed = server.ok("GET", &format!("/v1/events?outboxId={id}"), &Value::Null).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), numbers.len(), "{listed}");
    }
}
