//! What waits for an endpoint, given up through the API.

use serde_json::{Value, json};

use super::world::{ADMIN, World};
use entrega_testkit::log::Log;

const PATH: &str = "/v1/tenants/ours/endpoints/default";

fn why() -> Value {
    json!({ "reason": "they left" })
}

/// So many jobs that wait for an endpoint, by id.
async fn waiting(world: &World, path: &str, count: usize) -> Vec<String> {
    let set = world.call("PUT", path, ADMIN, json!({"url": "https://ours.example.com", "paused": true})).await;
    set.expect_success();
    let mut ids = Vec::new();
    for _ in 0..count {
        let asked = world.post(&format!("{path}/test"), ADMIN, Value::Null).await.expect(202);
        ids.push(asked["jobId"].as_str().unwrap().to_owned());
        // An endpoint has few slots, so each is attempted by itself.
        world.hold("webhook").await;
    }
    ids
}

async fn job(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/jobs/{id}"), ADMIN).await.expect(200)
}

#[tokio::test]
async fn what_waits_for_an_endpoint_is_discarded_with_the_reason_counted_and_logged() {
    let log = Log::default();
    let _heard = log.hear();
    let world = World::new().await;
    let ids = waiting(&world, PATH, 3).await;
    let elsewhere = waiting(&world, "/v1/tenants/ours/endpoints/other", 1).await;
    let theirs = waiting(&world, "/v1/tenants/theirs/endpoints/default", 1).await;
    let answer = world.post(&format!("{PATH}/discard"), ADMIN, why()).await.expect(200);
    assert_eq!(answer, json!({"discarded": 3, "more": false, "nextCursor": null}));
    for id in &ids {
        let job = job(&world, id).await;
        assert_eq!((&job["state"], &job["reason"]), (&json!("cancelled"), &json!("they left")), "{job}");
        assert_eq!(job["attempts"][0]["code"], "held", "what was tried is still told");
    }
    for id in elsewhere.iter().chain(&theirs) {
        assert_eq!(job(&world, id).await["state"], "blocked");
    }
    let metrics = world.get("/metrics", ADMIN).await.text;
    assert!(metrics.contains("lane_jobs_dropped_total{lane=\"webhook\",reason=\"cancelled\"} 3"), "{metrics}");
    assert!(metrics.contains("lane_jobs{lane=\"webhook\",state=\"blocked\"} 2"), "{metrics}");
    let text = log.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for id in &ids {
        let is_said = |line: &Value| line["fields"]["message"] == "Job discarded" && line["fields"]["jobId"] == **id;
        let line = lines.iter().find(|line| is_said(line)).unwrap_or_else(|| panic!("{id} in {text}"));
        assert_eq!(line["fields"]["errorReason"], "they left", "{line}");
    }
    let audited = lines.iter().find(|line| line["fields"]["operation"] == "endpoint.discard").unwrap();
    let (target, subject) = (&audited["target"], &audited["fields"]["subject"]);
    assert_eq!((target, subject), (&json!("audit"), &json!("ours/default (3 jobs)")));
}

#[tokio::test]
async fn what_waits_for_an_endpoint_that_was_removed_is_discarded() {
    let world = World::new().await;
    let ids = waiting(&world, PATH, 1).await;
    world.call("DELETE", PATH, ADMIN, Value::Null).await.expect(204);
    let ours = world.key("ours", &["send"]).await;
    let answer = world.post(&format!("{PATH}/discard"), &ours, why()).await.expect(200);
    assert_eq!(answer["discarded"], 1, "{answer}");
    assert_eq!(job(&world, &ids[0]).await["state"], "cancelled");
    let again = world.post(&format!("{PATH}/discard"), &ours, why()).await.expect(200);
    assert_eq!(again, json!({"discarded": 0, "more": false, "nextCursor": null}), "nothing waits any more");
}

#[tokio::test]
async fn a_call_ends_a_bounded_number_and_the_next_goes_on() {
    let world = World::new().await;
    waiting(&world, PATH, 503).await;
    let first = world.post(&format!("{PATH}/discard"), ADMIN, why()).await.expect(200);
    assert_eq!((&first["discarded"], &first["more"]), (&json!(500), &json!(true)), "{first}");
    let next = json!({ "reason": "they left", "cursor": first["nextCursor"] });
    let second = world.post(&format!("{PATH}/discard"), ADMIN, next).await.expect(200);
    assert_eq!(second, json!({"discarded": 3, "more": false, "nextCursor": null}));
}

#[tokio::test]
async fn discarding_wants_a_reason_and_reaches_nobody_elses() {
    let world = World::new().await;
    let ids = waiting(&world, PATH, 1).await;
    let long = "x".repeat(1001);
    for (body, field) in [
        (json!({}), "reason"),
        (json!({"reason": "  "}), "reason"),
        (json!({"reason": long}), "reason"),
        (json!({"reason": "they left", "cursor": "no!"}), "cursor"),
        (json!({"reason": "they left", "all": true}), "all"),
    ] {
        let problem = world.post(&format!("{PATH}/discard"), ADMIN, body).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    let theirs = world.key("theirs", &["send", "read"]).await;
    let refused = world.post(&format!("{PATH}/discard"), &theirs, why()).await;
    refused.problem(404);
    let nobodys = world.post("/v1/tenants/nobody/endpoints/default/discard", &theirs, why()).await;
    assert_eq!(refused.text, nobodys.text, "like what does not exist");
    assert_eq!(job(&world, &ids[0]).await["state"], "blocked");
}

#[tokio::test]
async fn one_that_is_blocked_is_cancelled_like_one_that_waits() {
    let world = World::new().await;
    let id = waiting(&world, PATH, 1).await.remove(0);
    let note = world.get(&format!("/v1/jobs/{id}/explain"), ADMIN).await.expect(200)["note"].clone();
    assert!(note.as_str().unwrap().contains("waits for its endpoint"), "{note}");
    let cancelled = world.call("DELETE", &format!("/v1/jobs/{id}"), ADMIN, Value::Null).await.expect(200);
    assert_eq!(cancelled["state"], "cancelled");
    world.call("DELETE", &format!("/v1/jobs/{id}"), ADMIN, Value::Null).await.problem(409);
}
