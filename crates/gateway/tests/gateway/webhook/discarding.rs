//! What waits for an endpoint, given up: it is not called with it any more, whatever becomes of the endpoint.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, kinds};
use entrega_testkit::receiver::{Receiver, open};

const PATH: &str = "/v1/tenants/ours/endpoints/hooks";

async fn set(gateway: &Gateway, fields: Value) {
    let body = fields.to_string();
    let answer = gateway.call("PUT", PATH, ADMIN, &[("content-type", "application/json")], body).await;
    assert!(answer.status.is_success(), "{}", answer.json);
}

/// A test of the endpoint, once it waits for it.
async fn held(gateway: &Gateway) -> String {
    let asked = gateway.post(&format!("{PATH}/test"), ADMIN, Value::Null).await.expect(202);
    let id = asked["jobId"].as_str().unwrap().to_owned();
    let job = gateway.get(&format!("/v1/jobs/{id}?wait=20s")).await;
    assert_eq!(job["state"], "blocked", "{job}");
    id
}

#[tokio::test]
async fn what_was_discarded_never_arrives_and_what_comes_later_does() {
    for kind in kinds() {
        let receiver = Receiver::start().await;
        let gateway = Gateway::with(kind, &open("smtp://127.0.0.1:9", "")).await;
        set(&gateway, json!({"url": receiver.url("/"), "paused": true})).await;
        let (first, second) = (held(&gateway).await, held(&gateway).await);
        let answer = gateway.post(&format!("{PATH}/discard"), ADMIN, json!({"reason": "they left"})).await.expect(200);
        assert_eq!(answer["discarded"], 2, "{kind:?}: {answer}");
        let third = held(&gateway).await;
        set(&gateway, json!({"url": receiver.url("/")})).await;
        let job = gateway.get(&format!("/v1/jobs/{third}?wait=20s")).await;
        for _ in 0..1000 {
            if gateway.get(&format!("/v1/jobs/{third}")).await["state"] == "done" {
                break;
            }
            // reason: a job that is let go on is blocked for a moment longer; it is looked at until it is delivered.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(receiver.got().len(), 1, "{kind:?}: {job}");
        for id in [first, second] {
            let job = gateway.get(&format!("/v1/jobs/{id}")).await;
            assert_eq!((&job["state"], &job["reason"]), (&json!("cancelled"), &json!("they left")), "{kind:?}");
        }
        gateway.stop().await;
    }
}
