//! Who may call what: every route, with every kind of wrong caller.

use serde_json::{Value, json};

use super::world::{ADMIN, World};

/// A route, the scope it needs (`""`: none), and a body that it takes.
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub scope: &'static str,
    pub body: fn() -> Value,
}

const fn route(method: &'static str, path: &'static str, scope: &'static str) -> Route {
    Route { method, path, scope, body: || Value::Null }
}

const fn with(route: Route, body: fn() -> Value) -> Route {
    Route { body, ..route }
}

pub const ROUTES: [Route; 45] = [
    with(route("POST", "/v1/jobs", "send"), || json!({"request": {"url": "https://example.com"}})),
    route("GET", "/v1/jobs", "read"),
    route("GET", "/v1/jobs/{id}", "read"),
    route("GET", "/v1/jobs/{id}/explain", "read"),
    route("POST", "/v1/jobs/{id}/unblock", "admin"),
    route("DELETE", "/v1/jobs/{id}", "send"),
    with(
        route("POST", "/v1/email/send", "send"),
        || json!({"from": "shop@example.com", "to": "ann@example.com", "subject": "Hello", "text": "Hello!"}),
    ),
    route("GET", "/v1/emails", "read"),
    route("GET", "/v1/emails/{id}", "read"),
    route("GET", "/v1/suppressions", "read"),
    with(route("POST", "/v1/suppressions", "send"), || json!({"address": "eve@example.com", "reason": "asked for it"})),
    route("DELETE", "/v1/suppressions/{address}", "send"),
    route("POST", "/v1/ses/notifications", ""),
    route("GET", "/v1/lanes", "admin"),
    route("POST", "/v1/lanes/{lane}/pause", "admin"),
    route("POST", "/v1/lanes/{lane}/resume", "admin"),
    route("GET", "/v1/dlq", "read"),
    route("GET", "/v1/dlq/stats", "read"),
    route("GET", "/v1/dlq/export", "read"),
    route("GET", "/v1/dlq/{id}", "read"),
    route("POST", "/v1/dlq/{id}/replay", "send"),
    with(route("POST", "/v1/dlq/{id}/discard", "send"), || json!({"reason": "known"})),
    with(route("POST", "/v1/dlq/replay", "send"), || json!({})),
    route("GET", "/v1/replays", "read"),
    route("GET", "/v1/replays/{id}", "read"),
    route("GET", "/v1/tenants", "read"),
    with(route("PUT", "/v1/tenants/{tenant}", "admin"), || json!({"weight": 2})),
    with(
        route("PUT", "/v1/tenants/{tenant}/endpoints/{name}", "send"),
        || json!({"url": "https://example.com/hooks", "secret": "a-secret-of-their-own"}),
    ),
    route("GET", "/v1/tenants/{tenant}/endpoints", "read"),
    route("GET", "/v1/tenants/{tenant}/endpoints/{name}", "read"),
    route("DELETE", "/v1/tenants/{tenant}/endpoints/{name}", "send"),
    route("POST", "/v1/tenants/{tenant}/endpoints/{name}/test", "send"),
    route("GET", "/v1/tenants/{tenant}/endpoints/{name}/deliveries", "read"),
    with(route("POST", "/v1/tenants/{tenant}/endpoints/{name}/discard", "send"), || json!({"reason": "they left"})),
    route("GET", "/v1/events", "read"),
    route("POST", "/v1/tenants/{tenant}/endpoints/{name}/rotate", "send"),
    route("POST", "/v1/tenants/{tenant}/endpoints/{name}/forget-old-secret", "send"),
    with(route("POST", "/v1/keys", "admin"), || json!({"tenant": "t", "scopes": ["read"]})),
    route("GET", "/v1/keys", "admin"),
    route("DELETE", "/v1/keys/{id}", "admin"),
    route("GET", "/metrics", "admin"),
    route("GET", "/health/live", ""),
    route("GET", "/health/ready", ""),
    route("GET", "/openapi.json", ""),
    // Not a route of its own: the same path with a query still needs the key.
    route("GET", "/v1/jobs?limit=1", "read"),
];

/// Ids of things that exist, all of tenant `ours`.
struct Things {
    job: String,
    dead: String,
    replay: String,
    key: String,
    mail: String,
}

/// An address that their tenant does not write to.
const SUPPRESSED: &str = "gone@example.com";
/// The name of an endpoint that their tenant has.
const ENDPOINT: &str = "default";

impl Things {
    async fn of(world: &World, tenant: &str) -> Things {
        let dead = world.dead_letter(tenant).await;
        let replay = world.post("/v1/dlq/replay", ADMIN, json!({"filter": {"tenant": tenant}})).await.expect(202);
        let key = world.post("/v1/keys", ADMIN, json!({"tenant": tenant, "scopes": ["read"]})).await.expect(201);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let job = world.job(tenant, "http").await;
        let mail = world.mail(tenant).await;
        let wish = json!({"tenant": tenant, "address": SUPPRESSED, "reason": "asked for it"});
        world.post("/v1/suppressions", ADMIN, wish).await.expect(201);
        let endpoint = format!("/v1/tenants/{tenant}/endpoints/{ENDPOINT}");
        world.call("PUT", &endpoint, ADMIN, json!({"url": "https://example.com/hooks"})).await.expect(201);
        Things { job, dead, replay: text(&replay["replayId"]), key: text(&key["id"]), mail }
    }

    fn path(&self, route: &Route) -> String {
        let id = match route.path {
            path if path.starts_with("/v1/jobs") => &self.job,
            path if path.starts_with("/v1/dlq") => &self.dead,
            path if path.starts_with("/v1/replays") => &self.replay,
            path if path.starts_with("/v1/emails") => &self.mail,
            _ => &self.key,
        };
        route
            .path
            .replace("{id}", id)
            .replace("{lane}", "http")
            .replace("{tenant}", "ours")
            .replace("{name}", ENDPOINT)
            .replace("{address}", SUPPRESSED)
    }
}

#[tokio::test]
async fn every_route_refuses_a_caller_without_a_key_or_with_a_wrong_one() {
    let world = World::new().await;
    let things = Things::of(&world, "ours").await;
    for route in ROUTES.iter().filter(|route| !route.scope.is_empty()) {
        let path = things.path(route);
        for key in ["", "ek_unknown", "ek_the-admin-ke", "ek_the-admin-key2"] {
            let answer = world.call(route.method, &path, key, (route.body)()).await;
            answer.problem(401);
            let challenge = answer.headers["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer"), "{} {path}: {challenge}", route.method);
        }
        let basic = world.request(route.method, &path, "").header("authorization", "Basic YTpi");
        world.send(basic, "").await.problem(401);
    }
}

#[tokio::test]
async fn every_route_refuses_a_key_without_its_scope_and_names_it() {
    let world = World::new().await;
    let things = Things::of(&world, "ours").await;
    let all = ["send", "read", "admin"];
    for route in ROUTES.iter().filter(|route| !route.scope.is_empty()) {
        let others: Vec<&str> = all.into_iter().filter(|scope| *scope != route.scope && *scope != "admin").collect();
        let key = world.key("ours", &others).await;
        let problem = world.call(route.method, &things.path(route), &key, (route.body)()).await.problem(403);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("'{}'", route.scope)), "{} {}: {detail}", route.method, route.path);
    }
}

#[tokio::test]
async fn every_route_answers_a_key_with_its_scope() {
    for route in &ROUTES {
        let world = World::new().await;
        let things = Things::of(&world, "ours").await;
        let key = world.key("ours", &[if route.scope.is_empty() { "read" } else { route.scope }]).await;
        let answer = world.call(route.method, &things.path(route), &key, (route.body)()).await;
        // The job that is there to be unblocked is not blocked: 409 says that the call got that far.
        let expected = match route.path {
            path if path.ends_with("/unblock") => 409..=409,
            // Nobody listens to SNS here, and what is not signed is not believed.
            path if path.starts_with("/v1/ses") => 403..=403,
            // It wants to know of which mail.
            "/v1/events" => 422..=422,
            _ => 200..=299,
        };
        assert!(expected.contains(&answer.status.as_u16()), "{} {}: {answer:?}", route.method, route.path);
    }
}

#[tokio::test]
async fn what_belongs_to_another_tenant_answers_like_what_does_not_exist() {
    let world = World::new().await;
    let ours = Things::of(&world, "ours").await;
    let id = |kind: &str| format!("{kind}_01J9Z3K5V84NQW6R7T2Y0X1ABC");
    let nothing = Things {
        job: id("job"),
        dead: id("job"),
        replay: id("replay"),
        key: id("key"),
        mail: id("out").replace("V84N", "V8N4"),
    };
    let garbage = Things { job: "x".into(), dead: "%ff".into(), replay: "y".into(), key: "z".into(), mail: "m".into() };
    let theirs = world.key("theirs", &["send", "read"]).await;
    let with_id = ROUTES.iter().filter(|route| route.path.contains("{id}") && route.scope != "admin");
    for route in with_id {
        let mut answers = Vec::new();
        for things in [&ours, &nothing, &garbage] {
            let answer = world.call(route.method, &things.path(route), &theirs, (route.body)()).await;
            answer.problem(404);
            answers.push(answer.text);
        }
        assert_eq!(answers[0], answers[1], "{} {}", route.method, route.path);
    }
    assert_eq!(world.get(&format!("/v1/jobs/{}", ours.job), ADMIN).await.expect(200)["state"], "queued");
}

#[tokio::test]
async fn listings_show_only_the_callers_tenant() {
    let world = World::new().await;
    let ours = Things::of(&world, "ours").await;
    let key = world.key("theirs", &["send", "read"]).await;
    let theirs = Things::of(&world, "theirs").await;
    for (path, field, id) in [
        ("/v1/jobs?lane=http&state=queued", "jobId", &theirs.job),
        ("/v1/emails", "outboxId", &theirs.mail),
        ("/v1/dlq", "jobId", &theirs.dead),
        ("/v1/replays", "replayId", &theirs.replay),
    ] {
        let page = world.get(path, &key).await.expect(200);
        let ids: Vec<&Value> = page["items"].as_array().unwrap().iter().map(|item| &item[field]).collect();
        assert_eq!(ids, [id], "{path}");
    }
    let suppressions = world.get("/v1/suppressions", &key).await.expect(200);
    assert!(suppressions["items"].as_array().unwrap().iter().all(|row| row["companyId"] == "theirs"), "{suppressions}");
    let tenants = world.get("/v1/tenants", &key).await.expect(200);
    assert!(tenants["items"].as_array().unwrap().iter().all(|row| row["companyId"] == "theirs"), "{tenants}");
    assert_eq!(world.get("/v1/dlq/stats", &key).await.expect(200)["total"], 1);
    let export = world.get("/v1/dlq/export", &key).await;
    assert!(export.text.contains(&theirs.dead) && !export.text.contains(&ours.dead), "{}", export.text);

    for path in ["/v1/jobs?tenant=ours", "/v1/dlq?tenant=ours", "/v1/dlq/export?tenant=ours"] {
        world.get(path, &key).await.problem(403);
        world.get(&path.replace("ours", "theirs"), &key).await.expect_success();
        world.get(path, ADMIN).await.expect_success();
    }
    let filter = json!({"filter": {"tenant": "ours"}});
    world.post("/v1/dlq/replay", &key, filter).await.problem(403);
    let run = world.post("/v1/dlq/replay", &key, json!({})).await.expect(202);
    assert_eq!((&run["filter"]["tenant"], &run["total"]), (&json!("theirs"), &json!(1)));
}

#[tokio::test]
async fn only_an_admin_submits_for_another_tenant() {
    let world = World::new().await;
    let key = world.key("theirs", &["send", "read"]).await;
    let job = |tenant: &str| json!({"tenant": tenant, "request": {"url": "https://example.com"}});
    world.post("/v1/jobs", &key, job("ours")).await.problem(403);
    world.post("/v1/jobs", &key, job("theirs")).await.expect(201);
    let id = world.post("/v1/jobs", ADMIN, job("ours")).await.expect(201)["jobId"].as_str().unwrap().to_owned();
    assert_eq!(world.get(&format!("/v1/jobs/{id}"), ADMIN).await.expect(200)["companyId"], "ours");
}

#[tokio::test]
async fn metrics_can_be_opened() {
    let world = World::with(entrega::api::ServerLimits::default(), true).await;
    let answer = world.get("/metrics", "").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4");
    assert!(answer.text.contains("lane_jobs{lane=\"http\",state=\"queued\"} 0"), "{}", answer.text);
}
