//! Jobs after they were taken: looked at, waited for, listed, cancelled, unblocked, explained.

use std::time::Duration;

use entrega_gateway::api::ServerLimits;
use serde_json::{Value, json};

use super::world::{ADMIN, World};

#[tokio::test]
async fn a_long_poll_answers_when_the_job_ends() {
    let world = World::new().await;
    let id = world.job("ours", "http").await;
    let path = format!("/v1/jobs/{id}?wait=60s");
    let end_it = async {
        // Calls that came later are answered, so the first one is waiting by now.
        for _ in 0..3 {
            world.get("/health/live", "").await.expect(200);
        }
        world.answer("http", 200).await;
    };
    let both = async { tokio::join!(world.get(&path, ADMIN), end_it) };
    let (waited, ()) =
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("long before the minute is over");
    let view = waited.expect(200);
    assert_eq!((&view["state"], &view["result"]["status"]), (&json!("done"), &json!(200)));
    assert_eq!(view["result"]["body"], "{\"ok\":true}");
}

/// Thousands of long polls with one key took every connection there was, and health with them.
#[tokio::test]
async fn a_tenant_with_too_many_long_polls_is_refused_and_others_notice_nothing() {
    let world = World::with(ServerLimits { waiting_calls_max: 2, ..ServerLimits::default() }, true).await;
    let ours = world.key("ours", &["read"]).await;
    let theirs = world.key("theirs", &["read"]).await;
    let (our_job, their_job) = (world.job("ours", "http").await, world.job("theirs", "http").await);
    let path = format!("/v1/jobs/{our_job}?wait=60s");
    let others = async {
        while !world.get("/metrics", "").await.text.contains("\napi_waiting_calls 2\n") {}
        let refused = world.get(&path, &ours).await;
        assert!(refused.headers.contains_key("retry-after"));
        let problem = refused.problem(429);
        assert_eq!((&problem["quota"], &problem["type"]), (&json!("calls"), &json!("urn:entrega:problem:quota")));
        world.get(&format!("/v1/jobs/{our_job}"), &ours).await.expect(200);
        world.get(&format!("/v1/jobs/{their_job}?wait=20ms"), &theirs).await.expect(200);
        world.answer("http", 200).await;
    };
    let all = async { tokio::join!(world.get(&path, &ours), world.get(&path, &ours), others) };
    let (one, other, ()) = tokio::time::timeout(Duration::from_secs(20), all).await.expect("long before the minute");
    assert_eq!((one.expect(200)["state"].clone(), other.expect(200)["state"].clone()), (json!("done"), json!("done")));
    assert!(world.get("/metrics", "").await.text.contains("\napi_waiting_calls 0\n"), "and made room");
}

#[tokio::test]
async fn a_long_poll_shows_the_job_as_it_is_when_time_is_up() {
    let world = World::new().await;
    let id = world.job("ours", "http").await;
    assert_eq!(world.get(&format!("/v1/jobs/{id}?wait=20ms"), ADMIN).await.expect(200)["state"], "queued");
    for (wait, field) in [("wait=61s", "wait"), ("wait=soon", "wait"), ("wait=1s&wait=2s", "wait"), ("hold=1s", "hold")]
    {
        let problem = world.get(&format!("/v1/jobs/{id}?{wait}"), ADMIN).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{wait}");
    }
}

#[tokio::test]
async fn a_listing_is_walked_page_by_page() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.job("ours", "http").await);
    }
    world.job("ours", "stuck").await;
    world.job("theirs", "http").await;
    ids.reverse();
    let (mut seen, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = world.get(&format!("/v1/jobs?lane=http&tenant=ours&limit=2{cursor}"), ADMIN).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|job| job["jobId"].as_str().unwrap().to_owned()));
        pages += 1;
        match &page["nextCursor"] {
            Value::String(next) => cursor = format!("&cursor={next}"),
            next => break assert!(next.is_null(), "{page}"),
        }
    }
    assert_eq!(seen, ids, "newest first, each once");
    assert!(pages >= 3, "{pages} pages");
    assert_eq!(world.get("/v1/jobs?state=done", ADMIN).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_bad_query_is_refused_by_parameter() {
    let world = World::new().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=many", "limit"),
        ("cursor=!", "cursor"),
        ("cursor=AAAA", "cursor"),
        ("state=asleep", "state"),
        ("lane=No%20Lane", "lane"),
        ("tenant=a%20b", "tenant"),
        ("colour=red", "colour"),
    ] {
        let problem = world.get(&format!("/v1/jobs?{query}"), ADMIN).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{query}: {problem}");
    }
    for (path, field) in [
        ("/v1/dlq?olderThanSeconds=-1", "olderThanSeconds"),
        ("/v1/dlq?status=gone", "status"),
        ("/v1/dlq/stats?by=moon", "by"),
        ("/v1/dlq/export?format=xls", "format"),
        ("/v1/keys?limit=0", "limit"),
        ("/v1/tenants?colour=red", "colour"),
    ] {
        let problem = world.get(path, ADMIN).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{path}: {problem}");
    }
}

#[tokio::test]
async fn a_job_is_cancelled_once() {
    let world = World::new().await;
    let id = world.job("ours", "http").await;
    let path = format!("/v1/jobs/{id}");
    let view = world.call("DELETE", &path, ADMIN, Value::Null).await.expect(200);
    assert_eq!((&view["state"], &view["reason"]), (&json!("cancelled"), &json!("cancelled with key admin")));
    let problem = world.call("DELETE", &path, ADMIN, Value::Null).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("cancelled"), "{problem}");
}

#[tokio::test]
async fn a_blocked_job_is_unblocked_by_an_operator() {
    let world = World::new().await;
    let id = world.job("ours", "stuck").await;
    world.answer("stuck", 503).await;
    let why = world.get(&format!("/v1/jobs/{id}/explain"), ADMIN).await.expect(200);
    assert_eq!((&why["state"], &why["holds"], &why["attempt"]), (&json!("blocked"), &json!([]), &json!(1)));
    assert!(why["note"].as_str().unwrap().contains("unblock"), "{why}");
    let view = world.post(&format!("/v1/jobs/{id}/unblock"), ADMIN, Value::Null).await.expect(202);
    assert_eq!(view["state"], "queued");
    world.post(&format!("/v1/jobs/{id}/unblock"), ADMIN, Value::Null).await.problem(409);
}

#[tokio::test]
async fn an_explanation_names_the_gate() {
    let world = World::new().await;
    let id = world.job("ours", "http").await;
    let path = format!("/v1/jobs/{id}/explain");
    assert_eq!(world.get(&path, ADMIN).await.expect(200)["holds"], json!([{"gate": "turn", "until": null}]));
    world.post("/v1/lanes/http/pause", ADMIN, Value::Null).await.expect(200);
    let why = world.get(&path, ADMIN).await.expect(200);
    assert_eq!((&why["state"], &why["holds"][0]["gate"]), (&json!("idle"), &json!("paused")));
    world.post("/v1/lanes/http/resume", ADMIN, Value::Null).await.expect(200);
    world.answer("http", 503).await;
    let why = world.get(&path, ADMIN).await.expect(200);
    assert_eq!((&why["state"], &why["attempt"]), (&json!("retry_wait"), &json!(1)));
    assert_eq!((&why["holds"][0]["gate"], &why["holds"][0]["until"]), (&json!("delay"), &why["dueAt"]));
    world.call("DELETE", &format!("/v1/jobs/{id}"), ADMIN, Value::Null).await.expect(200);
    let why = world.get(&path, ADMIN).await.expect(200);
    assert_eq!((&why["state"], &why["dueAt"], &why["holds"]), (&json!("cancelled"), &Value::Null, &json!([])));
}
