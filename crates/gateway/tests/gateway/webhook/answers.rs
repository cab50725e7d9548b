//! What an endpoint answered, for whoever looks after it.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, kinds};
use entrega_testkit::log::Log;
use entrega_testkit::receiver::{Receiver, THANKS, endpoint, open};

const PATH: &str = "/v1/tenants/ours/endpoints/hooks";
/// No mail is sent here.
const NO_MAIL: &str = "smtp://127.0.0.1:9";

/// Asks for a test and gives its job once nothing more happens to it by itself.
async fn tested(gateway: &Gateway) -> Value {
    let asked = gateway.post(&format!("{PATH}/test"), ADMIN, Value::Null).await.expect(202);
    gateway.get(&format!("/v1/jobs/{}?wait=20s", asked["jobId"].as_str().unwrap())).await
}

fn answers(row: &Value) -> Vec<&Value> {
    row["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["answer"]).collect()
}

#[tokio::test]
async fn the_first_part_of_every_answer_is_shown_and_none_is_logged() {
    let log = Log::default();
    let _heard = log.hear();
    for kind in kinds() {
        let receiver = Receiver::start().await;
        let long = format!("sk_live_4242 {}", "x".repeat(10_000));
        receiver.says(&[(500, "sk_live_4242\n\u{1b}[2J"), (401, &long), (503, "")]);
        let config = open(NO_MAIL, &endpoint("ours", "hooks", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let job = tested(&gateway).await;
        assert_eq!(job["state"], "done", "{job}");
        let row = gateway.get(&format!("{PATH}/deliveries")).await["items"][0].clone();
        assert_eq!((&row["jobId"], &row["answer"]), (&job["jobId"], &json!(THANKS)), "{kind:?}");
        for shown in [&job, &row] {
            let expected = [&json!("sk_live_4242␊␛[2J"), &json!(long[..512]), &Value::Null, &json!(THANKS)];
            assert_eq!(answers(shown), expected, "{kind:?}: {shown}");
        }
        gateway.stop().await;
    }
    let text = log.text();
    assert!(text.contains("Job failed, scheduling retry") && !text.contains("sk_live"), "{text}");
}

#[tokio::test]
async fn a_dead_letter_keeps_what_was_answered() {
    for kind in kinds() {
        let receiver = Receiver::start().await;
        let said: Vec<_> = (1..=6).map(|number| format!("no {number}")).collect();
        receiver.says(&said.iter().map(|said| (404, said.as_str())).collect::<Vec<_>>());
        let config = open(NO_MAIL, &endpoint("ours", "hooks", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let job = tested(&gateway).await;
        assert_eq!(job["state"], "dlq", "{job}");
        let dead = gateway.get(&format!("/v1/dlq/{}", job["jobId"].as_str().unwrap())).await;
        let row = gateway.get(&format!("{PATH}/deliveries")).await["items"][0].clone();
        for shown in [&job, &dead, &row] {
            assert_eq!(answers(shown), said.iter().collect::<Vec<_>>(), "{kind:?}");
        }
        assert_eq!(row["answer"], "no 6", "{row}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn what_a_gone_endpoint_said_last_is_kept() {
    for kind in kinds() {
        let receiver = Receiver::start().await;
        receiver.says(&[(410, "we moved to hooks.example.com")]);
        let config = open(NO_MAIL, &endpoint("ours", "hooks", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let job = tested(&gateway).await;
        assert_eq!((&job["state"], &job["attempts"][0]["code"]), (&json!("blocked"), &json!("held")), "{job}");
        assert!(job["reason"].as_str().unwrap().contains("HTTP 410 Gone"), "{job}");
        assert_eq!(answers(&job), [&json!("we moved to hooks.example.com")], "{kind:?}");
        gateway.stop().await;
    }
}
