//! `Idempotency-Key`: the same call twice makes one job and gets one answer.

use serde_json::{Value, json};

use super::world::{ADMIN, Answer, World};

fn job(number: u32) -> Value {
    json!({"request": {"url": "https://example.com/", "body": number}})
}

async fn post(world: &World, caller: &str, key: &str, body: &Value) -> Answer {
    let request = world.request("POST", "/v1/jobs", caller).header("content-type", "application/json");
    world.send(request.header("idempotency-key", key), body.to_string()).await
}

async fn jobs(world: &World) -> usize {
    world.get("/v1/jobs", ADMIN).await.expect(200)["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn the_same_call_gets_the_first_answer_again() {
    let world = World::new().await;
    for body in [job(1), json!([job(1), job(2)])] {
        let key = if body.is_array() { "many" } else { "one" };
        let first = post(&world, ADMIN, key, &body).await;
        let again = post(&world, ADMIN, key, &body).await;
        assert_eq!(first.expect(201), again.expect(201));
        assert_eq!(first.headers.get("location"), again.headers.get("location"));
        assert!(!first.headers.contains_key("idempotent-replayed"));
        assert_eq!(again.headers["idempotent-replayed"], "true");
    }
    assert_eq!(jobs(&world).await, 3);
}

#[tokio::test]
async fn another_body_under_the_same_key_is_refused() {
    let world = World::new().await;
    post(&world, ADMIN, "one", &job(1)).await.expect(201);
    post(&world, ADMIN, "many", &json!([job(1), job(2)])).await.expect(201);
    for (key, body) in [("one", job(2)), ("many", json!([job(1), job(3)]))] {
        let problem = post(&world, ADMIN, key, &body).await.problem(422);
        assert_eq!(problem["type"], "urn:entrega:problem:key-reused");
        assert!(problem["detail"].as_str().unwrap().contains("use a new key"), "{problem}");
    }
    assert_eq!(jobs(&world).await, 3);
}

#[tokio::test]
async fn a_key_belongs_to_a_tenant() {
    let world = World::new().await;
    let (ours, theirs) = (world.key("ours", &["send"]).await, world.key("theirs", &["send"]).await);
    let first = post(&world, &ours, "one", &job(1)).await.expect(201);
    assert_ne!(post(&world, &theirs, "one", &job(1)).await.expect(201), first);
    assert_eq!(post(&world, &ours, "one", &job(1)).await.expect(201), first);
}

#[tokio::test]
async fn a_bad_key_is_refused_and_nothing_is_made() {
    let world = World::new().await;
    for key in ["", "two words", "ü", &"x".repeat(256)] {
        let problem = post(&world, ADMIN, key, &job(1)).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], "Idempotency-Key");
    }
    assert_eq!(jobs(&world).await, 0);
}

/// A job that cannot be taken is refused the same way however often it is sent, and the good ones beside it are one each.
#[tokio::test]
async fn a_repeated_array_with_a_bad_job_is_answered_alike() {
    let world = World::new().await;
    let body = json!([job(1), {"request": {"url": "ftp://example.com"}}]);
    let first = post(&world, ADMIN, "many", &body).await.expect(207);
    assert_eq!(post(&world, ADMIN, "many", &body).await.expect(207), first);
    assert_eq!(jobs(&world).await, 1);
}
