//! Who may call what: every operation of the OpenAPI document with every kind of wrong caller.
//! Invariant: what is expected follows from the document. An operation that this file has no value for (a parameter of
//! its path, a body) fails the tests instead of being left out.

use serde_json::{Value, json};

use super::world::{ADMIN, World};

/// An operation of the document.
pub struct Operation {
    pub method: String,
    pub path: String,
    /// The scope that it needs, if it needs one.
    pub scope: Option<String>,
    pub takes_body: bool,
    pub described: Value,
}

/// Every operation of the document.
pub fn operations() -> Vec<Operation> {
    let document = serde_json::to_value(entrega_gateway::api::openapi()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, described) in item.as_object().unwrap() {
            operations.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                scope: scope(described),
                takes_body: described.get("requestBody").is_some(),
                described: described.clone(),
            });
        }
    }
    assert!(operations.len() > 40, "{} operations", operations.len());
    operations
}

/// One scope, or none: the checks below know nothing of several.
fn scope(described: &Value) -> Option<String> {
    let requirements = described["security"].as_array().into_iter().flatten();
    let mut scopes = requirements.filter_map(|one| one["key"].as_array()).flatten();
    let scope = scopes.next().map(|scope| scope.as_str().unwrap().to_owned());
    assert!(scopes.next().is_none(), "several scopes: {described}");
    scope
}

impl Operation {
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The names of its parameters in this place that it cannot do without, or all of them.
    fn parameters(&self, place: &str, is_required: bool) -> Vec<&str> {
        let all = self.described["parameters"].as_array().into_iter().flatten();
        all.filter(|one| one["in"] == place && (!is_required || one["required"] == true))
            .map(|one| one["name"].as_str().unwrap())
            .collect()
    }

    /// A body that it takes.
    fn body(&self) -> Value {
        if !self.takes_body {
            return Value::Null;
        }
        match self.name().as_str() {
            "POST /v1/jobs" => json!({"request": {"url": "https://example.com"}}),
            "POST /v1/email/send" => {
                json!({"from": "shop@example.com", "to": "ann@example.com", "subject": "Hello", "text": "Hello!"})
            }
            "POST /v1/suppressions" => json!({"address": "eve@example.com", "reason": "asked for it"}),
            "POST /v1/ses/notifications" => json!({}),
            "POST /v1/dlq/{id}/discard" => json!({"reason": "known"}),
            "POST /v1/dlq/replay" => json!({}),
            "PUT /v1/tenants/{tenant}" => json!({"weight": 2}),
            "PUT /v1/tenants/{tenant}/endpoints/{name}" => {
                json!({"url": "https://example.com/hooks", "secret": "a-secret-of-their-own"})
            }
            "POST /v1/tenants/{tenant}/endpoints/{name}/discard" => json!({"reason": "they left"}),
            "PUT /v1/connectors/{id}" => json!({"baseUrl": "https://api.example.com"}),
            // It leads out of the base URL, so that nobody is called.
            "POST /v1/connectors/{id}/requests" => json!({"relativeURL": "../x"}),
            "POST /v1/proxy/{route}" => json!({"cpf": "529.982.247-25"}),
            "POST /v1/keys" => json!({"tenant": "t", "scopes": ["read"]}),
            name => panic!("say what a good body of {name} is"),
        }
    }

    /// What it answers a caller who may call it.
    fn answers(&self) -> std::ops::RangeInclusive<u16> {
        match self.name().as_str() {
            // The job that is there to be unblocked is not blocked: 409 says that the call got that far.
            "POST /v1/jobs/{id}/unblock" => 409..=409,
            // Nobody listens to SNS here, and what is not signed is not believed.
            "POST /v1/ses/notifications" => 403..=403,
            "POST /v1/connectors/{id}/requests" => 422..=422,
            // Its parameters are the route's own, so that the document cannot say which it needs.
            "GET /proxy/{route}" => 400..=400,
            _ => 200..=299,
        }
    }
}

/// A path or a query with every parameter filled in.
fn filled(operation: &Operation, things: &Things) -> String {
    let mut path = operation.path.clone();
    for name in operation.parameters("path", true) {
        path = path.replace(&format!("{{{name}}}"), &things.named(&operation.path, name));
    }
    assert!(!path.contains('{'), "{path} has a parameter that the document does not describe");
    let query = operation.parameters("query", true);
    let query: Vec<_> = query.iter().map(|name| format!("{name}={}", things.named(&operation.path, name))).collect();
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// Ids of things that exist, all of one tenant.
struct Things {
    tenant: String,
    address: String,
    job: String,
    dead: String,
    replay: String,
    key: String,
    mail: String,
    connector: String,
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
        let body = json!({"tenant": tenant, "address": SUPPRESSED, "reason": "asked for it"});
        world.post("/v1/suppressions", ADMIN, body).await.expect(201);
        let endpoint = format!("/v1/tenants/{tenant}/endpoints/{ENDPOINT}");
        world.call("PUT", &endpoint, ADMIN, json!({"url": "https://example.com/hooks"})).await.expect(201);
        let (replay, key) = (text(&replay["replayId"]), text(&key["id"]));
        let connector = format!("erp-{tenant}");
        let body = json!({"baseUrl": "https://api.example.com", "tenant": tenant});
        world.call("PUT", &format!("/v1/connectors/{connector}"), ADMIN, body).await.expect(201);
        Things { tenant: tenant.into(), address: SUPPRESSED.into(), job, dead, replay, key, mail, connector }
    }

    /// What stands for a parameter of this path.
    fn named(&self, path: &str, parameter: &str) -> String {
        let text = match (path.split('/').nth(2).unwrap_or_default(), parameter) {
            ("jobs", "id") => &self.job,
            ("dlq", "id") => &self.dead,
            ("replays", "id") => &self.replay,
            ("emails", "id") | ("events", "outboxId") => &self.mail,
            ("keys", "id") => &self.key,
            ("tenants", "tenant") => &self.tenant,
            ("tenants", "name") => ENDPOINT,
            ("suppressions", "address") => &self.address,
            ("connectors", "id") => &self.connector,
            ("lanes", "lane") => "http",
            (_, "route") => "score",
            _ => panic!("say what {{{parameter}}} of {path} is"),
        };
        text.to_owned()
    }

    /// All of them as the operator sees them.
    async fn seen(&self, world: &World) -> Vec<String> {
        let mut seen = Vec::new();
        for path in [
            format!("/v1/jobs/{}", self.job),
            format!("/v1/dlq/{}", self.dead),
            format!("/v1/emails/{}", self.mail),
            format!("/v1/replays/{}", self.replay),
            format!("/v1/tenants/{}/endpoints/{ENDPOINT}", self.tenant),
            format!("/v1/suppressions?tenant={}", self.tenant),
        ] {
            let answer = world.get(&path, ADMIN).await;
            answer.expect(200);
            seen.push(answer.text);
        }
        seen
    }
}

#[tokio::test]
async fn every_operation_refuses_a_caller_without_a_key_or_with_a_wrong_one() {
    let world = World::new().await;
    let things = Things::of(&world, "ours").await;
    let guarded = operations().into_iter().filter(|operation| operation.scope.is_some());
    for operation in guarded {
        let (method, path) = (&operation.method, filled(&operation, &things));
        for key in ["", "ek_unknown", "ek_the-admin-ke", "ek_the-admin-key2"] {
            // The same path with a query still needs the key.
            let path = if key.is_empty() { format!("{path}?limit=1") } else { path.clone() };
            let answer = world.call(method, &path, key, operation.body()).await;
            answer.problem(401);
            let challenge = answer.headers["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer"), "{method} {path}: {challenge}");
        }
        let basic = world.request(method, &path, "").header("authorization", "Basic YTpi");
        world.send(basic, "").await.problem(401);
    }
}

/// Only what strangers must reach is open; who opens more has to say so here.
#[test]
fn no_other_operation_is_open() {
    let open = operations().into_iter().filter(|operation| operation.scope.is_none());
    let open: Vec<String> = open.map(|operation| operation.name()).collect();
    assert_eq!(open, ["GET /health/live", "GET /health/ready", "GET /openapi.json", "POST /v1/ses/notifications"]);
}

#[tokio::test]
async fn every_operation_refuses_a_key_without_its_scope_and_names_it() {
    let world = World::new().await;
    let things = Things::of(&world, "ours").await;
    let keys = [
        (vec!["send"], world.key("ours", &["send"]).await),
        (vec!["read"], world.key("ours", &["read"]).await),
        (vec!["send", "read"], world.key("ours", &["send", "read"]).await),
    ];
    for operation in operations() {
        let Some(scope) = operation.scope.as_deref() else { continue };
        let path = filled(&operation, &things);
        for (_, key) in keys.iter().filter(|(scopes, _)| !scopes.contains(&scope)) {
            let problem = world.call(&operation.method, &path, key, operation.body()).await.problem(403);
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("'{scope}'")), "{}: {detail}", operation.name());
        }
    }
}

#[tokio::test]
async fn every_operation_answers_a_key_with_its_scope() {
    for operation in operations() {
        let world = World::new().await;
        let things = Things::of(&world, "ours").await;
        let key = world.key("ours", &[operation.scope.as_deref().unwrap_or("read")]).await;
        let path = filled(&operation, &things);
        let answer = world.call(&operation.method, &path, &key, operation.body()).await;
        assert!(operation.answers().contains(&answer.status.as_u16()), "{} {answer:?}", operation.name());
    }
}

#[tokio::test]
async fn what_belongs_to_another_tenant_answers_like_what_does_not_exist() {
    let world = World::new().await;
    let ours = Things::of(&world, "ours").await;
    let before = ours.seen(&world).await;
    let id = |kind: &str| format!("{kind}_01J9Z3K5V84NQW6R7T2Y0X1ABC");
    let nothing = Things {
        tenant: "nobody".into(),
        address: "nobody@example.com".into(),
        job: id("job"),
        dead: id("job"),
        replay: id("replay"),
        key: id("key"),
        mail: id("out").replace("V84N", "V8N4"),
        connector: "nobody".into(),
    };
    let garbage = Things {
        tenant: "%00".into(),
        address: "@".into(),
        job: "x".into(),
        dead: "%ff".into(),
        replay: "y".into(),
        key: "z".into(),
        mail: "m".into(),
        connector: "%00".into(),
    };
    let theirs = world.key("theirs", &["send", "read"]).await;
    let theirs = theirs.as_str();
    let mut checked = 0;
    for operation in operations().iter().filter(|operation| operation.scope.as_deref() != Some("admin")) {
        // Routes to upstreams are everybody's.
        if operation.parameters("path", true).iter().all(|name| *name == "route") {
            continue;
        }
        let call = async |things: &Things| {
            let answer = world.call(&operation.method, &filled(operation, things), theirs, operation.body()).await;
            answer.problem(404);
            answer.text
        };
        assert_eq!(call(&ours).await, call(&nothing).await, "{}", operation.name());
        call(&garbage).await;
        checked += 1;
    }
    assert!(checked >= 17, "only {checked} operations have an id");
    assert_eq!(ours.seen(&world).await, before, "and nothing of ours has changed");
}

#[tokio::test]
async fn nobody_but_an_admin_names_another_tenant() {
    let world = World::new().await;
    Things::of(&world, "ours").await;
    let theirs = Things::of(&world, "theirs").await;
    let key = world.key("theirs", &["send", "read"]).await;
    let document = serde_json::to_value(entrega_gateway::api::openapi()).unwrap();
    let mut checked = 0;
    for operation in operations().iter().filter(|operation| operation.scope.as_deref() != Some("admin")) {
        let path = filled(operation, &theirs);
        if operation.parameters("query", false).contains(&"tenant") {
            let path = format!("{path}{}tenant=ours", if path.contains('?') { '&' } else { '?' });
            world.call(&operation.method, &path, &key, operation.body()).await.problem(403);
            checked += 1;
        }
        if operation.takes_body && names_a_tenant(&document, &operation.described["requestBody"]) {
            let mut body = operation.body();
            body["tenant"] = json!("ours");
            world.call(&operation.method, &path, &key, body).await.problem(403);
            checked += 1;
        }
    }
    assert!(checked >= 8, "only {checked} operations name a tenant");
}

/// Whether a body of this kind has a field `tenant`.
fn names_a_tenant(document: &Value, described: &Value) -> bool {
    match described {
        Value::Object(fields) if fields.contains_key("$ref") => {
            let target = fields["$ref"].as_str().unwrap().trim_start_matches('#');
            names_a_tenant(document, &document["components"]["schemas"][target.rsplit('/').next().unwrap()])
        }
        Value::Object(fields) if fields.contains_key("properties") => fields["properties"].get("tenant").is_some(),
        Value::Object(fields) => fields.values().any(|field| names_a_tenant(document, field)),
        Value::Array(items) => items.iter().any(|item| names_a_tenant(document, item)),
        _ => false,
    }
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
    let world = World::with(entrega_gateway::api::ServerLimits::default(), true).await;
    let answer = world.get("/metrics", "").await;
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4");
    assert!(answer.text.contains("lane_jobs{lane=\"http\",state=\"queued\"} 0"), "{}", answer.text);
}

/// Any tenant could send as anybody.
#[tokio::test]
async fn a_tenant_that_is_bound_to_senders_sends_as_nobody_else() {
    let world = World::new().await;
    let (bound, free) = (world.key("bound", &["send"]).await, world.key("free", &["send"]).await);
    let set = async |senders: Value| world.call("PUT", "/v1/tenants/bound", ADMIN, senders).await;
    let send = async |key: &str, from: &str| {
        let mail = json!({"from": from, "to": "ann@example.com", "subject": "Hello", "text": "Hello!"});
        world.post("/v1/email/send", key, mail).await
    };
    send(&bound, "boss@bank.example").await.expect(201);
    let row = set(json!({"weight": 1, "senders": ["Example.com", "news@example.org"]})).await.expect(200);
    assert_eq!(row["senders"], json!(["example.com", "news@example.org"]));
    for (from, status) in [
        ("shop@example.com", 201),
        ("Shop <SHOP@EXAMPLE.COM>", 201),
        ("news@example.org", 201),
        ("boss@example.org", 403),
        ("shop@mail.example.com", 403),
        ("boss@bank.example", 403),
    ] {
        assert_eq!(send(&bound, from).await.status.as_u16(), status, "{from}");
    }
    let problem = send(&bound, "boss@bank.example").await.problem(403);
    assert!(problem["detail"].as_str().unwrap().contains("example.com, news@example.org"), "{problem}");
    send(&free, "boss@bank.example").await.expect(201);
    // A weight alone leaves them as they are; an empty list lifts the binding.
    set(json!({"weight": 2})).await.expect(200);
    send(&bound, "boss@bank.example").await.expect(403);
    let problem = set(json!({"weight": 2, "senders": ["not a domain"]})).await.problem(422);
    assert_eq!(problem["errors"][0]["field"], "senders[0]", "{problem}");
    set(json!({"weight": 2, "senders": []})).await.expect(200);
    send(&bound, "boss@bank.example").await.expect(201);
}

/// Behind a proxy on the same machine everybody seemed to be on it, and read every tenant's figures.
#[tokio::test]
async fn metrics_that_are_open_here_are_closed_to_what_was_passed_on() {
    let world = World::with(entrega_gateway::api::ServerLimits::default(), true).await;
    world.get("/metrics", "").await.expect_success();
    let scraper = world.key("ours", &["metrics"]).await;
    for header in ["x-forwarded-for", "forwarded", "x-real-ip", "via"] {
        let passed_on = |key: &str| world.request("GET", "/metrics", key).header(header, "192.0.2.1");
        world.send(passed_on(""), "").await.problem(401);
        world.send(passed_on(&world.key("ours", &["send", "read"]).await), "").await.problem(403);
        world.send(passed_on(&scraper), "").await.expect_success();
    }
    world.get("/v1/jobs", &scraper).await.problem(403);
    world.get("/v1/lanes", &scraper).await.problem(403);
}
