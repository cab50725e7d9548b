//! The OpenAPI document: it lists what there is, and what it says of answers is true.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::access::{Operation, operations};
use super::world::{ADMIN, World};

fn document() -> Value {
    serde_json::to_value(entrega_gateway::api::openapi()).unwrap()
}

/// The router's own lines: axum does not tell which routes it has.
fn routed() -> BTreeSet<String> {
    let source = include_str!("../../../src/api/mod.rs");
    let routes = source.split(".route(").skip(1);
    let methods = |route: &str| {
        let words = route.split(|letter: char| !letter.is_alphanumeric()).map(str::to_owned).collect::<Vec<_>>();
        ["get", "post", "put", "delete", "patch"]
            .into_iter()
            .filter(move |method| words.iter().any(|word| word == method))
    };
    routes
        .flat_map(|route| {
            let (path, handlers) = route.trim().trim_start_matches('"').split_once('"').unwrap();
            let handlers = handlers.split(".method_not_allowed_fallback").next().unwrap();
            methods(handlers).map(move |method| format!("{} {path}", method.to_uppercase())).collect::<Vec<_>>()
        })
        .collect()
}

#[tokio::test]
async fn every_route_is_listed_with_its_problems_and_nothing_else_is() {
    let world = World::new().await;
    let document = world.get("/openapi.json", "").await.expect(200);
    assert_eq!(document, self::document());
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(operations().iter().map(Operation::name).collect::<BTreeSet<_>>(), routed());
    for operation in operations() {
        let (described, place) = (&operation.described, operation.name());
        assert!(described["summary"].is_string() && described["tags"][0].is_string(), "{place}");
        let mut problems = Vec::new();
        problems.extend(operation.scope.as_ref().into_iter().flat_map(|_| ["401", "403"]));
        problems.extend(operation.path.contains('{').then_some("404"));
        // What SNS sends is judged by its signature, and is not called JSON.
        if operation.takes_body && operation.scope.is_some() {
            problems.extend(["400", "408", "413", "415", "422"]);
        }
        for status in problems {
            assert_problem(&described["responses"][status], &place);
        }
    }
}

/// A parameter named a schema that was not there: a client made from the document could not be built.
#[test]
fn every_reference_in_the_document_leads_somewhere() {
    fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        found.extend(value["$ref"].as_str());
        match value {
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            Value::Object(fields) => fields.values().for_each(|field| walk(field, found)),
            _ => {}
        }
    }
    let document = document();
    let mut references = Vec::new();
    walk(&document, &mut references);
    assert!(references.len() > 100, "{references:?}");
    for reference in references {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

#[track_caller]
fn assert_problem(response: &Value, place: &str) {
    let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
    assert_eq!(schema, "#/components/schemas/Problem", "{place}: {response}");
}

#[tokio::test]
async fn every_error_is_a_problem() {
    let world = World::new().await;
    for path in ["/", "/v1", "/v1/nothing", "/v1/jobs/", "/V1/jobs", "/v1/jobs/x/y/z"] {
        world.get(path, ADMIN).await.problem(404);
    }
    for (method, path, allow) in [
        ("PATCH", "/v1/jobs", "POST"),
        ("POST", "/v1/jobs/x", "DELETE"),
        ("DELETE", "/v1/lanes", "GET"),
        ("GET", "/v1/tenants/ours", "PUT"),
        ("POST", "/health/live", "GET"),
    ] {
        let answer = world.call(method, path, ADMIN, Value::Null).await;
        answer.problem(405);
        assert!(answer.headers["allow"].to_str().unwrap().contains(allow), "{method} {path}: {answer:?}");
    }
}

/// Checks a value against a schema of the document: types, required and known keys, enums.
fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#')).ok_or(format!("no {reference}"))?;
        return check(document, target, value);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let failures: Vec<_> = choices.iter().map(|choice| check(document, choice, value)).collect();
        return if failures.iter().any(Result::is_ok) { Ok(()) } else { Err(format!("{value}: {failures:?}")) };
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let known = parts.iter().flat_map(|part| properties(document, part)).collect::<BTreeSet<_>>();
        let unknown: Vec<_> =
            value.as_object().into_iter().flatten().filter(|(key, _)| !known.contains(*key)).collect();
        return if unknown.is_empty() { Ok(()) } else { Err(format!("{unknown:?} not in {known:?}")) };
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(format!("{value} is not in {}", schema["enum"]));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !schema["type"].is_null() && !schema["type"].to_string().contains(kind) {
        return Err(format!("{value} is not a {}", schema["type"]));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().try_for_each(|value| check(document, items, value))?;
    }
    if let (Some(known), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for required in schema["required"].as_array().into_iter().flatten() {
            fields.get(required.as_str().unwrap()).ok_or(format!("{required} is missing in {value}"))?;
        }
        for (key, field) in fields {
            let schema = known.get(key).ok_or(format!("{key} is not in the schema"))?;
            check(document, schema, field).map_err(|error| format!("{key}: {error}"))?;
        }
    }
    Ok(())
}

fn properties(document: &Value, schema: &Value) -> Vec<String> {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

#[tokio::test]
async fn answers_have_the_shapes_that_the_document_gives_them() {
    let world = World::new().await;
    let document = document();
    let dead = world.dead_letter("ours").await;
    let retried = world.job("ours", "http").await;
    world.answer("http", 503).await;
    let done = world.job("ours", "http").await;
    world.answer("http", 200).await;
    let discarded = world.dead_letter("ours").await;
    let key = world.post("/v1/keys", ADMIN, json!({"tenant": "ours", "scopes": ["read"]})).await;
    let run = world.post("/v1/dlq/replay", ADMIN, json!({})).await;
    let discard = world.post(&format!("/v1/dlq/{discarded}/discard"), ADMIN, json!({"reason": "known"})).await;
    let replay = world.post(&format!("/v1/dlq/{dead}/replay"), ADMIN, Value::Null).await;
    let array = json!([{"request": {"url": "https://e.com"}}, {"request": {"url": "nope"}}]);
    let endpoint = "/v1/tenants/ours/endpoints/default";
    let hooks = || json!({"url": "https://example.com/hooks"});
    let answers = [
        ("POST", "/v1/keys", key),
        ("POST", "/v1/dlq/replay", run),
        ("POST", "/v1/dlq/{id}/discard", discard),
        ("POST", "/v1/dlq/{id}/replay", replay),
        ("POST", "/v1/jobs", world.post("/v1/jobs", ADMIN, array).await),
        ("POST", "/v1/jobs", world.post("/v1/jobs", ADMIN, json!({})).await),
        ("POST", "/v1/jobs", world.post("/v1/jobs", ADMIN, json!({"request": {"url": "https://e.com"}})).await),
        ("POST", "/v1/lanes/{lane}/pause", world.post("/v1/lanes/paced/pause", ADMIN, Value::Null).await),
        ("GET", "/v1/lanes", world.get("/v1/lanes", ADMIN).await),
        ("GET", "/v1/jobs", world.get("/v1/jobs", ADMIN).await),
        ("GET", "/v1/jobs/{id}", world.get(&format!("/v1/jobs/{retried}"), ADMIN).await),
        ("GET", "/v1/jobs/{id}", world.get(&format!("/v1/jobs/{done}"), ADMIN).await),
        ("GET", "/v1/jobs/{id}/explain", world.get(&format!("/v1/jobs/{retried}/explain"), ADMIN).await),
        ("GET", "/v1/jobs/{id}/explain", world.get(&format!("/v1/jobs/{done}/explain"), ADMIN).await),
        ("GET", "/v1/dlq", world.get("/v1/dlq", ADMIN).await),
        ("GET", "/v1/dlq/{id}", world.get(&format!("/v1/dlq/{dead}"), ADMIN).await),
        ("GET", "/v1/dlq/stats", world.get("/v1/dlq/stats", ADMIN).await),
        ("GET", "/v1/replays", world.get("/v1/replays", ADMIN).await),
        ("GET", "/v1/tenants", world.get("/v1/tenants", ADMIN).await),
        ("PUT", "/v1/tenants/{tenant}", world.call("PUT", "/v1/tenants/ours", ADMIN, json!({"weight": 2})).await),
        ("PUT", "/v1/tenants/{tenant}/endpoints/{name}", world.call("PUT", endpoint, ADMIN, hooks()).await),
        ("PUT", "/v1/tenants/{tenant}/endpoints/{name}", world.call("PUT", endpoint, ADMIN, hooks()).await),
        ("GET", "/v1/tenants/{tenant}/endpoints/{name}", world.get(endpoint, ADMIN).await),
        ("GET", "/v1/tenants/{tenant}/endpoints", world.get("/v1/tenants/ours/endpoints", ADMIN).await),
        (
            "POST",
            "/v1/tenants/{tenant}/endpoints/{name}/rotate",
            world.post(&format!("{endpoint}/rotate"), ADMIN, Value::Null).await,
        ),
        (
            "POST",
            "/v1/tenants/{tenant}/endpoints/{name}/discard",
            world.post(&format!("{endpoint}/discard"), ADMIN, json!({"reason": "they left"})).await,
        ),
        ("GET", "/v1/keys", world.get("/v1/keys", ADMIN).await),
        ("GET", "/health/live", world.get("/health/live", "").await),
        ("GET", "/health/ready", world.get("/health/ready", "").await),
        ("GET", "/v1/jobs/{id}", world.get("/v1/jobs/x", ADMIN).await),
    ];
    for (method, path, answer) in answers {
        let response = &document["paths"][path][method.to_lowercase()]["responses"][answer.status.as_str()];
        let content_type = answer.headers["content-type"].to_str().unwrap();
        let schema = &response["content"][content_type]["schema"];
        assert!(schema.is_object(), "{method} {path} {}: {content_type} is not described: {response}", answer.status);
        check(&document, schema, &answer.json()).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    }
}
