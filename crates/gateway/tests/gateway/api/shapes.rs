//! The shapes of bodies: an object is an object, and a wrong value is a wrong value.

use serde_json::{Value, json};

use super::world::{ADMIN, World};

/// A struct was also read from an array, by the order of its fields: `{"filter": []}` was a filter that everything fits,
/// and started a replay of all dead letters.
#[tokio::test]
async fn an_array_is_not_taken_for_an_object() {
    let world = World::new().await;
    world.dead_letter("ours").await;
    let file = json!(["a.txt", null, "YQ==", null]);
    let mail = json!({"from": "a@e.com", "to": "b@e.com", "subject": "c", "text": "d", "attachments": [file]});
    for (path, body, field) in [
        ("/v1/dlq/replay", json!({"filter": []}), "filter"),
        ("/v1/dlq/replay", json!({"filter": [null, null]}), "filter"),
        ("/v1/dlq/replay", json!([]), "body"),
        ("/v1/jobs", json!({"request": ["GET", "https://example.com", {}, null, null]}), "request"),
        ("/v1/keys", json!(["ours", ["admin"]]), "body"),
        ("/v1/email/send", mail, "attachments[0]"),
    ] {
        let problem = world.post(path, ADMIN, body.clone()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{path} {body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("expected an object"), "{problem}");
    }
    let inner = world.post("/v1/jobs", ADMIN, json!([["http", {"url": "https://example.com"}]])).await.expect(207);
    assert_eq!(inner[0]["problem"]["status"], 422, "{inner}");
    assert_eq!(world.get("/v1/replays", ADMIN).await.expect(200)["items"], json!([]));
    assert_eq!(world.get("/v1/jobs?state=queued", ADMIN).await.expect(200)["items"], json!([]));
}

/// The parser calls that bad syntax, and so did the answer: "the body is not JSON", which it was.
#[tokio::test]
async fn a_number_where_a_word_belongs_is_a_wrong_field_and_not_bad_json() {
    let world = World::new().await;
    for value in [json!(5), json!(-3.6e112), json!(true), json!([]), json!(["high"])] {
        let body = json!({"priority": value, "request": {"url": "https://example.com"}});
        let problem = world.post("/v1/jobs", ADMIN, body).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], "priority", "{value}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("expected one of the words"), "{problem}");
    }
    let problem = world.post("/v1/keys", ADMIN, json!({"tenant": "ours", "scopes": [1]})).await.problem(422);
    assert_eq!(problem["errors"][0]["field"], "scopes[0]", "{problem}");
    assert_eq!(world.get("/v1/jobs", ADMIN).await.expect(200)["items"], Value::Array(Vec::new()));
}
