//! What operators use: lanes, tenants, keys, health.

use serde_json::{Value, json};

use super::world::{ADMIN, World};

#[tokio::test]
async fn a_lane_shows_its_sizes_its_gates_and_its_policy() {
    let world = World::new().await;
    world.job("ours", "http").await;
    world.dead_letter("ours").await;
    world.job("ours", "http").await;
    let lanes = world.get("/v1/lanes", ADMIN).await.expect(200);
    let lane = |name: &str| lanes["items"].as_array().unwrap().iter().find(|lane| lane["lane"] == name).unwrap();
    let http = lane("http");
    let sizes = json!({"idle": 0, "queued": 1, "running": 0, "retry_wait": 0, "replaying": 0});
    assert_eq!(http["sizes"], sizes);
    assert_eq!(http["byPriority"]["normal"], sizes);
    assert_eq!(http["byPriority"]["high"]["queued"], 0);
    assert_eq!(http["deadLetters"], 2);
    let policy = json!({
        "attempts": 5, "timeoutMs": 10_000, "ttlMs": 86_400_000, "concurrency": 64, "tenantConcurrency": 48,
        "destinations": "many", "slowMax": 2048, "priorityScope": "tenant",
        "throttle": null, "breaker": null, "cadence": null, "onExhausted": "dlq", "onFull": "refuse",
    });
    assert_eq!((&http["policy"], &http["capacity"], &http["channel"]), (&policy, &json!(100_000), &json!("http")));
    assert_eq!((&http["hold"], &http["breaker"], &http["cadence"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(lane("paced")["cadence"], json!({"intervalMs": 1000, "penalties": 0}));
    let closed = json!({"state": "closed", "opened": 0, "halfOpened": 0, "closed": 0});
    assert_eq!(lane("email:send")["breaker"], closed);
}

#[tokio::test]
async fn a_lane_is_paused_and_resumed() {
    let world = World::new().await;
    world.job("ours", "http").await;
    let lane = world.post("/v1/lanes/http/pause", ADMIN, Value::Null).await.expect(200);
    assert_eq!((&lane["paused"], &lane["sizes"]["idle"]), (&json!(true), &json!(1)));
    assert_eq!(lane["hold"], json!({"gate": "paused", "until": null}));
    let lane = world.post("/v1/lanes/http/resume", ADMIN, Value::Null).await.expect(200);
    assert_eq!((&lane["paused"], &lane["sizes"]["queued"]), (&json!(false), &json!(1)));
    for name in ["nowhere", "No%20Lane"] {
        world.post(&format!("/v1/lanes/{name}/pause"), ADMIN, Value::Null).await.problem(404);
    }
}

#[tokio::test]
async fn a_tenants_figures_follow_its_jobs_and_its_weight_can_be_set() {
    let world = World::new().await;
    world.dead_letter("ours").await;
    let settings = world.call("PUT", "/v1/tenants/ours", ADMIN, json!({"weight": 7})).await.expect(200);
    let default = json!({
        "places": null, "deadLetters": null, "waitingCalls": null, "storedBytes": null, "requestsPerSecond": null,
    });
    assert_eq!(settings, json!({"companyId": "ours", "weight": 7, "quotas": default}));
    let page = world.get("/v1/tenants", ADMIN).await.expect(200);
    let row = page["items"].as_array().unwrap().iter().find(|row| row["lane"] == "http").unwrap();
    let expected = json!({
        "companyId": "ours", "lane": "http", "weight": 7, "running": 0, "totalProcessed": 1,
        "lastProcessedAt": "2023-11-14T22:13:20.000Z", "roundsWithoutProcessing": 0, "currentPriority": 5,
        "consecutiveBatchCount": 1,
    });
    assert_eq!(row, &expected);
    for (path, body, field) in [
        ("/v1/tenants/ours", json!({"weight": 0}), "weight"),
        ("/v1/tenants/ours", json!({"weight": 101}), "weight"),
        ("/v1/tenants/ours", json!({"weight": 1, "height": 2}), "height"),
        ("/v1/tenants/a%20b", json!({"weight": 1}), "tenant"),
        ("/v1/tenants/ours", json!({"quotas": {"requestsPerSecond": 0}}), "quotas.requestsPerSecond"),
        ("/v1/tenants/ours", json!({"quotas": {"places": -1}}), "quotas.places"),
        ("/v1/tenants/ours", json!({"quotas": {"palaces": 1}}), "quotas.palaces"),
    ] {
        let problem = world.call("PUT", path, ADMIN, body.clone()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{path} {body}");
    }
}

/// A hundred requests of one tenant took all places of a lane, and everybody else was refused.
#[tokio::test]
async fn whoever_is_over_a_quota_is_told_which_and_others_notice_nothing() {
    let world = World::new().await;
    let (ours, other) = (world.key("ours", &["send", "read"]).await, world.key("other", &["send", "read"]).await);
    let set = async |quotas: Value| {
        world.call("PUT", "/v1/tenants/ours", ADMIN, json!({ "quotas": quotas })).await.expect(200)["quotas"].clone()
    };
    let job = || json!({"request": {"method": "POST", "url": "https://example.com/"}, "delayMs": 31_536_000_000_u64});
    set(json!({"places": 1})).await;
    let weight = world.call("PUT", "/v1/tenants/ours", ADMIN, json!({"weight": 3})).await.expect(200);
    assert_eq!((&weight["weight"], &weight["quotas"]["places"]), (&json!(3), &json!(1)), "what is left out stays");
    world.post("/v1/jobs", &ours, job()).await.expect(201);
    let answer = world.post("/v1/jobs", &ours, job()).await;
    let problem = answer.problem(429);
    assert_eq!((&problem["type"], &problem["quota"]), (&json!("urn:entrega:problem:quota"), &json!("places")));
    assert_eq!(answer.headers["retry-after"], "1");
    world.post("/v1/jobs", &other, job()).await.expect(201);

    assert_eq!(set(json!({"places": null, "requestsPerSecond": 2})).await["places"], Value::Null);
    world.post("/v1/jobs", &ours, job()).await.expect(201);
    world.get("/v1/jobs", &ours).await.expect(200);
    let problem = world.get("/v1/jobs", &ours).await.problem(429);
    assert_eq!(problem["quota"], "requests_per_second");
    world.get("/v1/jobs", &other).await.expect(200);
    set(json!({"requestsPerSecond": null, "storedBytes": 1})).await;
    let problem = world.post("/v1/jobs", &ours, job()).await.problem(429);
    assert_eq!(problem["quota"], "stored_bytes");
}

#[tokio::test]
async fn tenants_are_walked_page_by_page() {
    let world = World::new().await;
    for tenant in ["c", "a", "b"] {
        world.job(tenant, "http").await;
    }
    let first = world.get("/v1/tenants?limit=2", ADMIN).await.expect(200);
    let cursor = first["nextCursor"].as_str().unwrap();
    let second = world.get(&format!("/v1/tenants?limit=2&cursor={cursor}"), ADMIN).await.expect(200);
    let names = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|row| row["companyId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names(&first), names(&second)), (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]));
    assert_eq!(second["nextCursor"], Value::Null);
}

#[tokio::test]
async fn a_key_lives_from_its_making_to_its_removal() {
    let world = World::new().await;
    let body = json!({"tenant": "ours", "scopes": ["read", "send", "read"]});
    let made = world.post("/v1/keys", ADMIN, body).await.expect(201);
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert!(id.starts_with("key_") && key.starts_with("ek_") && key.len() == 46, "{made}");
    let row = json!({"id": id, "tenant": "ours", "scopes": ["send", "read"], "createdAt": "2023-11-14T22:13:20.000Z"});
    let listed = world.get("/v1/keys", ADMIN).await;
    assert_eq!(listed.expect(200)["items"], json!([row]));
    assert!(!listed.text.contains(key) && !listed.text.contains("hash"), "{}", listed.text);

    world.get("/v1/jobs", key).await.expect(200);
    let answer = world.call("DELETE", &format!("/v1/keys/{id}"), ADMIN, Value::Null).await;
    answer.expect(204);
    world.get("/v1/jobs", key).await.problem(401);
    world.call("DELETE", &format!("/v1/keys/{id}"), ADMIN, Value::Null).await.problem(404);
    for (body, field) in [
        (json!({"tenant": "ours", "scopes": []}), "scopes"),
        (json!({"tenant": "ours", "scopes": ["fly"]}), "scopes[0]"),
        (json!({"tenant": "a b", "scopes": ["read"]}), "tenant"),
        (json!({"scopes": ["read"]}), "tenant"),
    ] {
        let problem = world.post("/v1/keys", ADMIN, body.clone()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
}

#[tokio::test]
async fn health_says_how_the_store_is() {
    let world = World::new().await;
    assert_eq!(world.get("/health/live", "").await.expect(200), json!({"status": "live"}));
    let ready = world.get("/health/ready", "").await.expect(200);
    let store = json!({
        "kind": "memory", "durability": "none: everything is lost with the process", "failure": null,
        "refuses": null, "unreadableRecords": 0,
    });
    assert_eq!(ready, json!({"status": "ready", "store": store}));
}
