//! Submitting: what is taken, what is refused, and how the refusal says what was wrong.

use bytes::Bytes;
use entrega::http::HttpRequest;
use entrega_core::name::LaneName;
use serde_json::{Value, json};

use super::world::{ADMIN, Answer, World};

async fn submit(world: &World, body: impl Into<Bytes>) -> Answer {
    let request = world.request("POST", "/v1/jobs", ADMIN).header("content-type", "application/json");
    world.send(request, body).await
}

/// What would be sent for a `request`: headers and body.
async fn sent(request: &str) -> (Vec<(String, String)>, Bytes) {
    let world = World::new().await;
    submit(&world, format!(r#"{{"request": {request}}}"#)).await.expect(201);
    let mut claimed = world.engine.store().claim(&LaneName::new("http").unwrap(), 1).await.unwrap().jobs;
    match claimed.remove(0).job.payload.read::<HttpRequest>() {
        Ok(request) => (request.headers, request.body.0),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_is_taken_and_can_be_looked_at_where_the_answer_says() {
    let world = World::new().await;
    let body = json!({
        "lane": "stuck", "priority": "high", "ttlMs": 60_000, "delayMs": 5_000, "labels": {"runId": "r1"},
        "idempotencyKey": "k1", "tenant": "ours",
        "request": {"method": "PUT", "url": "https://example.com/a", "headers": {"x-a": "1"}, "body": "text"},
    });
    let answer = world.post("/v1/jobs", ADMIN, body).await;
    let id = answer.expect(201)["jobId"].as_str().unwrap().to_owned();
    assert_eq!(answer.headers["location"], format!("/v1/jobs/{id}"));
    let view = world.get(answer.headers["location"].to_str().unwrap(), ADMIN).await.expect(200);
    let expected = json!({
        "jobId": id, "lane": "stuck", "companyId": "ours", "priority": "high", "state": "idle",
        "destination": "PUT https://example.com/a", "labels": {"runId": "r1"}, "generation": 0, "attempts": [],
        "acceptedAt": "2023-11-14T22:13:20.000Z", "dueAt": "2023-11-14T22:13:25.000Z",
        "expiresAt": "2023-11-14T22:14:25.000Z",
    });
    assert_eq!(view, expected);
}

#[tokio::test]
async fn bodies_are_sent_as_they_were_given() {
    let json_type = |value: &str| ("content-type".to_owned(), value.to_owned());
    for (request, headers, body) in [
        (r#"{"url":"https://e.com"}"#, vec![], &b""[..]),
        (r#"{"url":"https://e.com","body":null}"#, vec![], b""),
        (r#"{"url":"https://e.com","body":"a\nb \u00e9"}"#, vec![], "a\nb é".as_bytes()),
        // Byte for byte: neither spaces nor the order of keys nor the form of a number change.
        (
            r#"{"url":"https://e.com","body":{ "b":1.0,  "a":[1e2] }}"#,
            vec![json_type("application/json")],
            br#"{ "b":1.0,  "a":[1e2] }"#,
        ),
        (r#"{"url":"https://e.com","body":17}"#, vec![json_type("application/json")], b"17"),
        (
            r#"{"url":"https://e.com","body":[1],"headers":{"Content-Type":"application/x"}}"#,
            vec![("Content-Type".to_owned(), "application/x".to_owned())],
            b"[1]",
        ),
        (r#"{"url":"https://e.com","bodyBase64":"/wA="}"#, vec![], &[0xff, 0x00]),
        (
            r#"{"url":"https://e.com","headers":{"x-b":"1","x-a":"2"}}"#,
            vec![("x-b".into(), "1".into()), ("x-a".into(), "2".into())],
            b"",
        ),
    ] {
        assert_eq!(sent(request).await, (headers, Bytes::copy_from_slice(body)), "{request}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_field() {
    let world = World::new().await;
    let url = r#""url":"https://example.com""#;
    for (body, status, field) in [
        (format!(r#"{{"lane":"nowhere","request":{{{url}}}}}"#), 422, "lane"),
        (format!(r#"{{"lane":"No Lane","request":{{{url}}}}}"#), 422, "lane"),
        (r#"{"request":{"url":"not a url"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":"/relative"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":"http://example.com"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":"https://127.0.0.1/"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":"https://[::ffff:10.0.0.1]/"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":"https://user:pw@example.com/"}}"#.into(), 422, "request.url"),
        (r#"{"request":{"url":5}}"#.into(), 422, "request.url"),
        (r#"{"request":{}}"#.into(), 422, "request.url"),
        (r#"{}"#.into(), 422, "request"),
        (r#"5"#.into(), 422, "body"),
        (format!(r#"{{"lane":"http","lane":"tiny","request":{{{url}}}}}"#), 422, "lane"),
        (format!(r#"{{"request":{{{url},{url}}}}}"#), 422, "request.url"),
        (format!(r#"{{"request":{{{url},"method":"TRACE"}}}}"#), 422, "request.method"),
        (format!(r#"{{"request":{{{url},"headers":{{"bad name":"1"}}}}}}"#), 422, "request.headers"),
        (format!(r#"{{"request":{{{url},"headers":{{"host":"1"}}}}}}"#), 422, "request.headers"),
        (format!(r#"{{"request":{{{url},"headers":{{"x-a":1}}}}}}"#), 422, "request.headers.x-a"),
        (format!(r#"{{"request":{{{url},"bodyBase64":"?"}}}}"#), 422, "request.bodyBase64"),
        (format!(r#"{{"request":{{{url},"body":"a","bodyBase64":"YQ=="}}}}"#), 422, "request.bodyBase64"),
        (format!(r#"{{"request":{{{url},"extra":1}}}}"#), 422, "request.extra"),
        (format!(r#"{{"extra":1,"request":{{{url}}}}}"#), 422, "extra"),
        (format!(r#"{{"ttlMs":-5,"request":{{{url}}}}}"#), 422, "ttlMs"),
        (format!(r#"{{"ttlMs":0,"request":{{{url}}}}}"#), 422, "ttlMs"),
        (format!(r#"{{"ttlMs":"10","request":{{{url}}}}}"#), 422, "ttlMs"),
        (format!(r#"{{"ttlMs":31536000001,"request":{{{url}}}}}"#), 422, "ttlMs"),
        (format!(r#"{{"delayMs":-1,"request":{{{url}}}}}"#), 422, "delayMs"),
        (format!(r#"{{"delayMs":31536000001,"request":{{{url}}}}}"#), 422, "delayMs"),
        (format!(r#"{{"priority":"urgent","request":{{{url}}}}}"#), 422, "priority"),
        (format!(r#"{{"labels":{{"a":1}},"request":{{{url}}}}}"#), 422, "labels.a"),
        (format!(r#"{{"tenant":"a b","request":{{{url}}}}}"#), 422, "tenant"),
        (format!(r#"{{"idempotencyKey":"a b","request":{{{url}}}}}"#), 422, "idempotencyKey"),
        ("[]".into(), 422, "body"),
        (format!("[{}]", ["1"; 1001].join(",")), 422, "body"),
    ] {
        let problem = submit(&world, body.clone()).await.problem(status);
        let shown: String = body.chars().take(120).collect();
        assert_eq!(problem["errors"][0]["field"], field, "{shown}: {problem}");
        assert!(problem["errors"][0]["detail"].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
    }
    let left = world.get("/v1/jobs", ADMIN).await.expect(200);
    assert_eq!(left["items"], json!([]), "nothing was kept");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_before_it_costs_anything() {
    let world = World::new().await;
    let deep = format!(r#"{{"request":{{"url":"https://e.com","body":{}{}}}}}"#, "[".repeat(63), "]".repeat(63));
    for (body, status, says) in [
        ("{\n  \"request\": nope}".to_owned(), 400, "line 2, column 15"),
        ("".to_owned(), 400, "line 1"),
        ("{\"request\":".to_owned(), 400, "EOF"),
        ("[{},".to_owned(), 400, "EOF"),
        (deep.clone(), 400, "64 levels"),
        ("[".repeat(500_000), 400, "64 levels"),
        (format!("\"{}\"", "x".repeat(1 << 20)), 413, "1048576 bytes"),
    ] {
        let problem = submit(&world, body).await.problem(status);
        assert!(problem["detail"].as_str().unwrap().contains(says), "{says}: {problem}");
    }
    let less_deep = deep.replacen('[', "", 1).replacen(']', "", 1);
    submit(&world, less_deep).await.expect(201);

    let body = r#"{"request":{"url":"https://example.com"}}"#;
    for content_type in ["", "text/plain", "application/x-www-form-urlencoded"] {
        let request = world.request("POST", "/v1/jobs", ADMIN);
        let request = if content_type.is_empty() { request } else { request.header("content-type", content_type) };
        world.send(request, body).await.problem(415);
    }
    let request = world.request("POST", "/v1/jobs", ADMIN).header("content-type", "application/json; charset=utf-8");
    world.send(request, body).await.expect(201);
}

#[tokio::test]
async fn an_array_is_taken_whole_and_answered_one_by_one() {
    let world = World::new().await;
    let job = |tenant: &str| json!({"tenant": tenant, "request": {"url": "https://example.com"}});
    let taken = world.post("/v1/jobs", ADMIN, json!([job("a"), job("b"), job("a")])).await.expect(201);
    let ids: Vec<String> = taken.as_array().unwrap().iter().map(|item| item["jobId"].to_string()).collect();
    assert_eq!(ids.len(), 3);
    for (index, tenant) in ["a", "b", "a"].into_iter().enumerate() {
        let view = world.get(&format!("/v1/jobs/{}", ids[index].trim_matches('"')), ADMIN).await.expect(200);
        assert_eq!(view["companyId"], tenant, "the answers are in order");
    }
}

#[tokio::test]
async fn a_bad_job_in_an_array_harms_no_other() {
    let world = World::new().await;
    let good = json!({"request": {"url": "https://example.com"}});
    let full = json!({"lane": "tiny", "request": {"url": "https://example.com"}});
    let array = json!([good, {"request": {"url": "nope"}}, {"extra": 1}, good, full, full, 7]);
    let answers = world.post("/v1/jobs", ADMIN, array).await.expect(207);
    let statuses: Vec<Value> =
        answers.as_array().unwrap().iter().map(|item| item["problem"]["status"].clone()).collect();
    let taken = Value::Null;
    assert_eq!(statuses, [taken.clone(), json!(422), json!(422), taken.clone(), taken, json!(503), json!(422)]);
    assert_eq!(answers[1]["problem"]["errors"][0]["field"], "request.url");
    assert_eq!(answers[2]["problem"]["errors"][0]["field"], "extra");
    let listed = world.get("/v1/jobs", ADMIN).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_full_lane_says_when_to_try_again() {
    let world = World::new().await;
    world.job("ours", "tiny").await;
    let answer = world.post("/v1/jobs", ADMIN, json!({"lane": "tiny", "request": {"url": "https://e.com"}})).await;
    let problem = answer.problem(503);
    assert_eq!(problem["type"], "urn:entrega:problem:lane-full");
    assert_eq!(answer.headers["retry-after"], "1");
}
