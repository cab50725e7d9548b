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

/// An array in which one job was bad is mended and sent again under its key: that is refused before any of it is taken, for
/// whoever is told to use a new key sends all of it again.
#[tokio::test]
async fn another_array_under_the_same_key_makes_nothing() {
    let world = World::new().await;
    let bad = json!({"request": {"url": "ftp://example.com"}});
    post(&world, ADMIN, "many", &json!([job(1), bad])).await.expect(207);
    let problem = post(&world, ADMIN, "many", &json!([job(1), job(2)])).await.problem(422);
    assert_eq!(problem["type"], "urn:entrega:problem:key-reused");
    post(&world, ADMIN, "one", &job(1)).await.expect(201);
    post(&world, ADMIN, "one", &json!([job(2), job(3)])).await.problem(422);
    assert_eq!(jobs(&world).await, 2);
}

/// What a job carries to its destination, as it was taken.
async fn sent_headers(world: &World, headers: &[(&str, &str)], body: &Value) -> Value {
    let request = world.request("POST", "/v1/jobs", ADMIN).header("content-type", "application/json");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let id = world.send(request, body.to_string()).await.expect(201)["jobId"].as_str().unwrap().to_owned();
    world.answer("http", 404).await;
    world.get(&format!("/v1/dlq/{id}"), ADMIN).await.expect(200)["originalData"]["payload"]["http"]["headers"].clone()
}

#[tokio::test]
async fn a_job_names_the_user_that_its_caller_acts_for() {
    let world = World::new().await;
    let user = |name: &str| json!(["x-growqr-user", name]);
    let of_header = sent_headers(&world, &[("x-growqr-user", "user_1")], &job(1)).await;
    assert!(of_header.as_array().unwrap().contains(&user("user_1")), "{of_header}");
    let key = "workflow:user_2:run_4:resume:v1";
    let of_key = sent_headers(&world, &[("idempotency-key", key)], &job(1)).await;
    assert!(of_key.as_array().unwrap().contains(&user("user_2")), "{of_key}");
    let own = json!({"request": {"url": "https://example.com/", "headers": {"X-GrowQR-User": "user_3"}}});
    let of_job = sent_headers(&world, &[("x-growqr-user", "user_1")], &own).await;
    assert_eq!(of_job, json!([["X-GrowQR-User", "user_3"]]));
    let request = world.request("POST", "/v1/jobs", ADMIN).header("content-type", "application/json");
    let problem = world.send(request.header("x-growqr-user", "ü"), job(1).to_string()).await.problem(422);
    assert_eq!(problem["errors"][0]["field"], "x-growqr-user");
}

/// Replays, tests and unblocking are answered again as well, although no job carries their key.
#[tokio::test]
async fn work_without_a_job_of_its_own_happens_once_too() {
    let world = World::new().await;
    let dead = world.dead_letter("ours").await;
    world
        .call("PUT", "/v1/tenants/ours/endpoints/main", ADMIN, json!({"url": "https://example.com/"}))
        .await
        .expect(201);
    let endpoint = "/v1/tenants/ours/endpoints/main/test";
    let replay_one = format!("/v1/dlq/{dead}/replay");
    for (path, body) in [(replay_one.as_str(), ""), (endpoint, ""), ("/v1/dlq/replay", "{}")] {
        let call = async |key: &str, body: &str| {
            let request = world.request("POST", path, ADMIN).header("content-type", "application/json");
            world.send(request.header("idempotency-key", key), body.to_owned()).await
        };
        let first = call(path, body).await;
        let again = call(path, body).await;
        assert_eq!(first.expect(202), again.expect(202), "{path}");
        assert_eq!(again.headers["idempotent-replayed"], "true", "{path}");
        assert!(!first.headers.contains_key("idempotent-replayed"));
        if path == "/v1/dlq/replay" {
            call(path, r#"{"ratePerSec": 5}"#).await.problem(422);
        }
    }
    let runs = world.get("/v1/replays", ADMIN).await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    // The key of one call is none for another.
    let other = world.request("POST", &replay_one, ADMIN).header("idempotency-key", "/v1/dlq/replay");
    assert_eq!(world.send(other, "").await.problem(422)["type"], "urn:entrega:problem:key-reused");
    // What failed is forgotten: the same key may try again.
    let later = || world.request("POST", &replay_one, ADMIN).header("idempotency-key", "later");
    world.send(later(), "").await.problem(409);
    world.answer("http", 404).await;
    world.send(later(), "").await.expect(202);
}

/// A key that had made a job was taken for a replay as well, and the other way round: two things happened under one key.
#[tokio::test]
async fn one_key_means_one_request_of_whichever_kind() {
    let world = World::new().await;
    let replay = async |key: &str| {
        let request = world.request("POST", "/v1/dlq/replay", ADMIN).header("content-type", "application/json");
        world.send(request.header("idempotency-key", key), "{}").await
    };
    post(&world, ADMIN, "job-first", &job(1)).await.expect(201);
    replay("job-first").await.problem(422);
    replay("replay-first").await.expect(202);
    post(&world, ADMIN, "replay-first", &job(1)).await.problem(422);
    post(&world, ADMIN, "replay-first", &json!([job(1), job(2)])).await.problem(422);
    post(&world, ADMIN, "array-first", &json!([job(1), job(2)])).await.expect(201);
    post(&world, ADMIN, "array-first", &job(1)).await.problem(422);
    replay("array-first").await.problem(422);
    assert_eq!(jobs(&world).await, 3);
    // Each gives its first answer again.
    assert_eq!(post(&world, ADMIN, "job-first", &job(1)).await.headers["idempotent-replayed"], "true");
    assert_eq!(replay("replay-first").await.headers["idempotent-replayed"], "true");
}
