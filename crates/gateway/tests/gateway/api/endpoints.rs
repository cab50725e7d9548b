//! Endpoints through the API: set, looked at, rotated, removed; by whom; and what is refused.

use std::sync::Arc;
use std::time::Duration;

use entrega::store::{Endpoint, EndpointOrigin, EndpointState, PutEndpointError};
use entrega::webhook::change_endpoint;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde_json::{Value, json};

use super::world::{ADMIN, World};

const PATH: &str = "/v1/tenants/ours/endpoints/default";
const URL: &str = "https://ours.example.com/hooks";
const SECRET: &str = "a-secret-of-their-own";

fn body() -> Value {
    json!({ "url": URL })
}

/// A body with some fields set otherwise.
fn with(fields: Value) -> Value {
    let mut body = body();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

async fn put(world: &World, body: Value) -> Value {
    let answer = world.call("PUT", PATH, ADMIN, body).await;
    answer.expect_success();
    answer.json()
}

fn kept(world: &World) -> Arc<Endpoint> {
    world.engine.store().endpoint(&TenantName::new("ours").unwrap(), "default").expect("it is there")
}

/// The secrets in the store, the newest first.
fn secrets(world: &World) -> Vec<String> {
    let secrets = world.engine.webhooks().secrets(&kept(world)).unwrap();
    secrets.iter().map(|secret| secret.reveal().to_owned()).collect()
}

/// As the dispatcher or the configuration would have it.
async fn stands(world: &World, change: impl FnOnce(&mut Endpoint)) {
    let mut endpoint = (*kept(world)).clone();
    change(&mut endpoint);
    world.engine.store().put_endpoint(endpoint).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_is_set_shown_listed_and_removed() {
    let world = World::new().await;
    let rate = json!({"maxRequests": 10, "perMs": 1000});
    let wanted = with(json!({"eventTypes": ["email.sent"], "paused": true, "throttle": rate}));
    let mut made = world.call("PUT", PATH, ADMIN, wanted).await.expect(201);
    let secret = made.as_object_mut().unwrap().remove("secret").unwrap();
    let chars = secret.as_str().unwrap().strip_prefix("whsec_").unwrap();
    assert!(chars.len() == 32 && chars.chars().all(|c| c.is_ascii_alphanumeric()), "{secret}");
    assert_eq!(secrets(&world), [secret.as_str().unwrap()]);
    let expected = json!({
        "companyId": "ours", "name": "default", "url": URL, "state": "paused", "reason": null, "failingSince": null,
        "eventTypes": ["email.sent"], "throttle": rate, "origin": "api", "secrets": 1,
        "createdAt": "2023-11-14T22:13:20.000Z", "updatedAt": "2023-11-14T22:13:20.000Z",
    });
    assert_eq!(made, expected);
    assert_eq!(world.get(PATH, ADMIN).await.expect(200), expected);
    let page = world.get("/v1/tenants/ours/endpoints", ADMIN).await.expect(200);
    assert_eq!(page, json!({"items": [expected], "nextCursor": null}));

    world.clock.advance(Duration::from_secs(60));
    let changed = world.call("PUT", PATH, ADMIN, body()).await.expect(200);
    assert_eq!((&changed["state"], &changed["eventTypes"]), (&json!("enabled"), &json!([])), "the whole is set");
    assert_eq!(changed["throttle"], Value::Null);
    assert_eq!(changed["createdAt"], "2023-11-14T22:13:20.000Z");
    assert_eq!(changed["updatedAt"], "2023-11-14T22:14:20.000Z");

    world.call("DELETE", PATH, ADMIN, Value::Null).await.expect(204);
    for method in ["GET", "DELETE"] {
        world.call(method, PATH, ADMIN, Value::Null).await.problem(404);
    }
    assert_eq!(world.get("/v1/tenants/ours/endpoints", ADMIN).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_secret_is_shown_once_and_stays_unless_another_is_given() {
    let world = World::new().await;
    let made = put(&world, body()).await["secret"].as_str().unwrap().to_owned();
    for (body, expected) in [
        (body(), made.as_str()),
        (with(json!({"secret": made})), &made),
        (with(json!({"secret": SECRET})), SECRET),
        (body(), SECRET),
    ] {
        let answer = put(&world, body).await;
        assert!(answer.get("secret").is_none(), "{answer}");
        assert_eq!(secrets(&world), [expected]);
    }
    for path in [PATH, "/v1/tenants/ours/endpoints"] {
        let shown = world.get(path, ADMIN).await.text;
        assert!(!shown.contains(SECRET) && !shown.contains("v1."), "{shown}");
    }
    let stored = serde_json::to_string(&*kept(&world)).unwrap();
    assert!(!stored.contains(SECRET), "{stored}");
}

#[tokio::test]
async fn a_rotation_keeps_the_last_secret_beside_the_new_one_until_it_is_forgotten() {
    let world = World::new().await;
    put(&world, with(json!({"secret": SECRET}))).await;
    let rotate = async || {
        let answer = world.post(&format!("{PATH}/rotate"), ADMIN, Value::Null).await.expect(200);
        assert_eq!(answer["secrets"], 2, "{answer}");
        answer["secret"].as_str().unwrap().to_owned()
    };
    let second = rotate().await;
    assert_eq!(secrets(&world), [second.as_str(), SECRET]);
    put(&world, with(json!({"secret": second}))).await;
    assert_eq!(secrets(&world).len(), 2, "the newest was given again: nothing changes");
    let third = rotate().await;
    assert_eq!(secrets(&world), [third.as_str(), &second]);
    for _ in 0..2 {
        let row = world.post(&format!("{PATH}/forget-old-secret"), ADMIN, Value::Null).await.expect(200);
        assert_eq!((&row["secrets"], row.get("secret")), (&json!(1), None));
        assert_eq!(secrets(&world), [third.as_str()]);
    }
}

#[tokio::test]
async fn of_changes_at_once_none_is_lost() {
    let world = Arc::new(World::new().await);
    put(&world, body()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            let answer = world.post(&format!("{PATH}/rotate"), ADMIN, Value::Null).await.expect(200);
            answer["secret"].as_str().unwrap().to_owned()
        });
    }
    let made = tasks.join_all().await;
    let kept = secrets(&world);
    assert!(kept.len() == 2 && kept.iter().all(|secret| made.contains(secret)), "the last two of {made:?}: {kept:?}");
}

/// A delivery that noted a failure in the endpoint as it had read it once put the old secrets back.
#[tokio::test]
async fn deliveries_that_learn_at_the_same_time_undo_no_rotation() {
    let world = World::new().await;
    let mut newest = put(&world, body()).await["secret"].as_str().unwrap().to_owned();
    let learn = async |round: u64| {
        for number in 0..20 {
            let note = |kept: Option<&Endpoint>| {
                let failing_since = Some(Time::from_millis(100 * round + number));
                Ok::<_, PutEndpointError>(kept.map(|kept| Endpoint { failing_since, ..kept.clone() }))
            };
            let (store, tenant) = (world.engine.store(), TenantName::new("ours").unwrap());
            change_endpoint(store, &tenant, "default", note).await.unwrap();
        }
    };
    for round in 0..20 {
        let path = format!("{PATH}/rotate");
        let rotate = world.post(&path, ADMIN, Value::Null);
        let (answer, ()) = futures_util::future::join(rotate, learn(round)).await;
        let made = answer.expect(200)["secret"].as_str().unwrap().to_owned();
        assert_eq!(secrets(&world), [made.as_str(), &newest]);
        assert_eq!(kept(&world).failing_since, Some(Time::from_millis(100 * round + 19)));
        newest = made;
    }
}

#[tokio::test]
async fn an_endpoint_is_enabled_paused_and_disabled() {
    let world = World::new().await;
    put(&world, body()).await;
    let failing_since = Some(Time::from_millis(1_600_000_000_000));
    let fail = async |state, reason: Option<&str>| {
        stands(&world, |endpoint| {
            (endpoint.state, endpoint.failing_since) = (state, failing_since);
            endpoint.reason = reason.map(Into::into);
        })
        .await;
    };
    let failing = json!("2020-09-13T12:26:40.000Z");
    for (before, fields, state, reason, since) in [
        (EndpointState::Enabled, json!({}), "enabled", json!(null), &failing),
        (EndpointState::Enabled, json!({"url": "https://new.example.com"}), "enabled", json!(null), &Value::Null),
        (EndpointState::Enabled, json!({"paused": true}), "paused", json!(null), &failing),
        (EndpointState::Enabled, json!({"enabled": false}), "disabled", json!("disabled through the API"), &failing),
        (EndpointState::Disabled, json!({"enabled": false}), "disabled", json!("410 Gone"), &failing),
        (EndpointState::Disabled, json!({"enabled": true}), "enabled", json!(null), &Value::Null),
        (EndpointState::Paused, json!({"paused": false}), "enabled", json!(null), &Value::Null),
    ] {
        put(&world, body()).await;
        fail(before, (before == EndpointState::Disabled).then_some("410 Gone")).await;
        let row = put(&world, with(fields.clone())).await;
        let found = (&row["state"], &row["reason"], &row["failingSince"]);
        assert_eq!(found, (&json!(state), &reason, since), "{before:?} {fields}");
    }
}

#[tokio::test]
async fn a_wrong_field_is_named_with_what_would_be_right() {
    let world = World::new().await;
    let many = vec!["email.sent"; 21];
    for (fields, field, hint) in [
        (json!({"url": "http://ours.example.com"}), "url", "allow_http"),
        (json!({"url": "https://127.0.0.1/"}), "url", "127.0.0.1"),
        (json!({"url": "https://a:b@example.com/"}), "url", "user info"),
        (json!({"url": "hooks"}), "url", "must be"),
        (json!({"url": "a b"}), "url", "absolute URL"),
        (json!({"secret": "short"}), "secret", "16 to 128"),
        (json!({"secret": "with spaces in the middle"}), "secret", "16 to 128"),
        (json!({"eventTypes": ["email.sent", "No"]}), "eventTypes[1]", "such as email.sent"),
        (json!({"eventTypes": many}), "eventTypes", "at most 20"),
        (json!({"enabled": false, "paused": true}), "paused", "leave one out"),
        (json!({"throttle": {"maxRequests": 0, "perMs": 1000}}), "throttle", "1 to 10000 calls"),
        (json!({"throttle": {"maxRequests": 10, "perMs": 86_400_001}}), "throttle", "1 to 86400000 ms"),
        (json!({"throttle": {"maxRequests": 10}}), "throttle.perMs", "missing"),
        (json!({"throttle": {"maxRequests": 10, "perMs": 1, "scope": "lane"}}), "throttle.scope", "unknown"),
        (json!({"events": []}), "events", "unknown"),
    ] {
        let problem = world.call("PUT", PATH, ADMIN, with(fields.clone())).await.problem(422);
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field, "{fields}: {problem}");
        assert!(error["detail"].as_str().unwrap().contains(hint), "{fields}: {problem}");
    }
    for (path, field) in [("ours/endpoints/No", "name"), ("ours/endpoints/a.b", "name"), ("a:b/endpoints/x", "tenant")]
    {
        let problem = world.call("PUT", &format!("/v1/tenants/{path}"), ADMIN, body()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
        world.get(&format!("/v1/tenants/{path}"), ADMIN).await.problem(404);
    }
    assert!(world.engine.store().endpoints().is_empty());
}

#[tokio::test]
async fn a_key_reaches_its_own_tenants_endpoints_and_no_others() {
    let world = World::new().await;
    put(&world, body()).await;
    let ours = world.key("ours", &["send", "read"]).await;
    let theirs = world.key("theirs", &["send", "read"]).await;
    for (method, path, body) in [
        ("GET", "", Value::Null),
        ("PUT", "", body()),
        ("POST", "/rotate", Value::Null),
        ("POST", "/forget-old-secret", Value::Null),
        ("DELETE", "", Value::Null),
    ] {
        let path = format!("{PATH}{path}");
        let before = kept(&world);
        let refused = world.call(method, &path, &theirs, body.clone()).await;
        refused.problem(404);
        let nothing = world.call(method, &path.replace("ours", "nobody"), &theirs, body.clone()).await;
        assert_eq!(refused.text, nothing.text, "like what does not exist");
        assert_eq!(kept(&world), before, "{method} {path}");
        world.call(method, &path, &ours, body).await.expect_success();
    }
    world.get("/v1/tenants/ours/endpoints", &theirs).await.problem(404);
    assert_eq!(world.get("/v1/tenants/theirs/endpoints", &theirs).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_tenant_has_at_most_100_endpoints() {
    let world = World::new().await;
    for number in 0..100 {
        world.call("PUT", &format!("/v1/tenants/ours/endpoints/e{number}"), ADMIN, body()).await.expect(201);
    }
    let problem = world.call("PUT", PATH, ADMIN, body()).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("100 endpoints; remove one"), "{problem}");
    world.call("PUT", "/v1/tenants/ours/endpoints/e7", ADMIN, body()).await.expect(200);
    world.call("PUT", "/v1/tenants/theirs/endpoints/default", ADMIN, body()).await.expect(201);
    let page = world.get("/v1/tenants/ours/endpoints?limit=60", ADMIN).await.expect(200);
    let cursor = page["nextCursor"].as_str().unwrap();
    let rest = world.get(&format!("/v1/tenants/ours/endpoints?limit=60&cursor={cursor}"), ADMIN).await.expect(200);
    assert_eq!(rest["items"].as_array().unwrap().len(), 40);
}

#[tokio::test]
async fn an_endpoint_from_the_configuration_can_be_paused_and_enabled_and_nothing_else() {
    let world = World::new().await;
    let rate = json!({"maxRequests": 10, "perMs": 1000});
    put(&world, with(json!({"secret": SECRET, "eventTypes": ["email.sent"], "throttle": rate}))).await;
    stands(&world, |endpoint| endpoint.origin = EndpointOrigin::Config).await;
    let before = kept(&world);
    for (method, path, body) in [
        ("PUT", "", json!({"url": "https://new.example.com"})),
        ("PUT", "", with(json!({"secret": SECRET}))),
        ("PUT", "", with(json!({"eventTypes": []}))),
        ("PUT", "", with(json!({"throttle": {"maxRequests": 11, "perMs": 1000}}))),
        ("POST", "/rotate", Value::Null),
        ("POST", "/forget-old-secret", Value::Null),
        ("DELETE", "", Value::Null),
    ] {
        let problem = world.call(method, &format!("{PATH}{path}"), ADMIN, body).await.problem(409);
        assert!(problem["detail"].as_str().unwrap().contains("from the configuration"), "{problem}");
        assert_eq!(kept(&world), before, "{method} {path}");
    }
    for (fields, state) in [
        (json!({"paused": true}), "paused"),
        (json!({"enabled": false}), "disabled"),
        (json!({"eventTypes": ["email.sent"], "throttle": rate}), "enabled"),
    ] {
        let row = put(&world, with(fields)).await;
        assert_eq!(row["throttle"], rate, "left out or the same, it stays");
        assert_eq!((&row["state"], &row["origin"]), (&json!(state), &json!("config")));
        assert_eq!((&row["eventTypes"], secrets(&world)), (&json!(["email.sent"]), vec![SECRET.to_owned()]));
    }
}
