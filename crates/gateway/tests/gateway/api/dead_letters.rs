//! Dead letters: looked at, counted, exported, replayed, discarded.

use std::time::Duration;

use entrega::http::HttpRequest;
use entrega_core::name::LaneName;
use serde_json::{Value, json};

use super::world::{ADMIN, World};

#[tokio::test]
async fn entries_are_listed_filtered_and_shown() {
    let world = World::new().await;
    let first = world.dead_letter("ours").await;
    let second = world.dead_letter("theirs").await;
    let ids = async |query: &str| -> Vec<String> {
        let page = world.get(&format!("/v1/dlq{query}"), ADMIN).await.expect(200);
        page["items"].as_array().unwrap().iter().map(|dead| dead["jobId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, [second.as_str(), first.as_str()], "newest first");
    assert_eq!(ids("?limit=1").await, [second.as_str()]);
    assert_eq!(ids("?tenant=ours").await, [first.as_str()]);
    assert_eq!(ids("?code=http_404&status=pending&lane=http").await.len(), 2);
    assert_eq!(ids("?code=timeout").await.len(), 0);
    assert_eq!(ids("?text=no%20such%20text").await.len(), 0);
    assert_eq!(ids("?olderThanSeconds=2").await, [first.as_str()]);
    let page = world.get("/v1/dlq?limit=1", ADMIN).await.expect(200);
    let cursor = page["nextCursor"].as_str().unwrap();
    assert_eq!(ids(&format!("?limit=1&cursor={cursor}")).await, [first.as_str()]);

    let dead = world.get(&format!("/v1/dlq/{first}"), ADMIN).await.expect(200);
    assert_eq!((&dead["lastFailureCode"], &dead["companyId"]), (&json!("http_404"), &json!("ours")));
    assert_eq!(dead["originalData"]["payload"]["http"]["url"], "https://example.com/orders");
}

#[tokio::test]
async fn entries_are_counted() {
    let world = World::new().await;
    for tenant in ["ours", "ours", "theirs"] {
        world.dead_letter(tenant).await;
    }
    for (by, items) in [
        ("code", json!([{"lane": "http", "key": "http_404", "count": 3}])),
        ("lane", json!([{"lane": "http", "key": "http", "count": 3}])),
        ("hour", json!([{"lane": "http", "key": "2023-11-14T22:00:00.000Z", "count": 3}])),
        ("tenant", json!([{"lane": "http", "key": "ours", "count": 2}, {"lane": "http", "key": "theirs", "count": 1}])),
    ] {
        let stats = world.get(&format!("/v1/dlq/stats?by={by}"), ADMIN).await.expect(200);
        assert_eq!(stats, json!({"by": by, "total": 3, "items": items}));
    }
}

#[tokio::test]
async fn an_export_holds_every_entry_however_many_pages_it_takes() {
    let world = World::new().await;
    let job = json!({"tenant": "ours", "request": {"url": "https://example.com/a,b"}});
    world.post("/v1/jobs", ADMIN, Value::Array(vec![job; 300])).await.expect(201);
    for _ in 0..300usize.div_ceil(48) {
        world.answer("http", 404).await;
    }
    let lines = world.get("/v1/dlq/export", ADMIN).await;
    let ids: std::collections::BTreeSet<String> = lines
        .text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["jobId"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((ids.len(), lines.text.lines().count()), (300, 300));

    let csv = world.get("/v1/dlq/export?format=csv", ADMIN).await;
    assert_eq!(csv.headers["content-type"], "text/csv; charset=utf-8");
    let mut rows = csv.text.split("\r\n");
    let head = "jobId,companyId,lane,status,failedAttempts,lastFailureCode,lastFailureReason,enqueuedAt,movedToDLQAt,\
                destination";
    assert_eq!(rows.next(), Some(head));
    let row = rows.next().unwrap();
    assert!(row.contains(",ours,http,pending,1,http_404,"), "{row}");
    assert!(row.ends_with(",\"POST https://example.com/a,b\""), "{row}");
    assert_eq!(rows.count(), 300, "the other rows, and the end of the last line");
    let none = world.get("/v1/dlq/export?format=csv&code=timeout", ADMIN).await;
    assert_eq!(none.text, format!("{head}\r\n"));
}

/// Whoever may look may not thereby act as the one who sent: keys of destinations were shown to every reader.
#[tokio::test]
async fn secrets_are_not_shown_but_replayed() {
    let world = World::new().await;
    let headers = json!({
        "Authorization": "Bearer hidden-1", "cookie": "hidden-2", "X-Api-Key": "hidden-3",
        "x-auth-token": "hidden-4", "client-secret": "hidden-5", "x-shown": "shown",
    });
    let job = json!({"tenant": "ours", "request": {"url": "https://example.com/", "headers": headers}});
    let made = world.post("/v1/jobs", ADMIN, json!([job, job])).await.expect(201);
    let ids = [0, 1].map(|at| made[at]["jobId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned());
    let id = &ids[0];
    world.answer("http", 404).await;
    let reader = world.key("ours", &["read"]).await;
    for (what, text) in [
        ("list", world.get("/v1/dlq", &reader).await.text),
        ("entry", world.get(&format!("/v1/dlq/{id}"), &reader).await.text),
        ("jsonl", world.get("/v1/dlq/export", &reader).await.text),
        ("job", world.get(&format!("/v1/jobs/{id}"), &reader).await.text),
        ("discard", world.post(&format!("/v1/dlq/{}/discard", ids[1]), ADMIN, json!({"reason": "known"})).await.text),
    ] {
        assert!(ids.iter().any(|id| text.contains(id)) && !text.contains("hidden"), "{what}: {text}");
    }
    let dead = world.get(&format!("/v1/dlq/{id}"), &reader).await.expect(200);
    let shown = dead["originalData"]["payload"]["http"]["headers"].as_array().unwrap();
    assert!(shown.contains(&json!(["x-shown", "shown"])), "{shown:?}");
    assert_eq!(shown.iter().filter(|header| header[1] == "***").count(), 5, "{shown:?}");

    world.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
    let claimed = world.engine.store().claim(&LaneName::new("http").unwrap(), 1).await.unwrap().jobs.remove(0);
    let request: HttpRequest = claimed.job.payload.read().unwrap();
    assert_eq!(request.headers.iter().filter(|(_, value)| value.contains("hidden")).count(), 5);
}

#[tokio::test]
async fn an_entry_is_replayed_under_its_old_id() {
    let world = World::new().await;
    let id = world.dead_letter("ours").await;
    let answer = world.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.expect(202);
    assert_eq!(answer, json!({"jobId": id, "status": "replaying"}));
    assert_eq!(world.get(&format!("/v1/jobs/{id}"), ADMIN).await.expect(200)["state"], "replaying");
    world.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.problem(409);
    world.answer("http", 200).await;
    assert_eq!(world.get(&format!("/v1/dlq/{id}"), ADMIN).await.expect(200)["status"], "replayed");
    assert_eq!(world.get(&format!("/v1/jobs/{id}"), ADMIN).await.expect(200)["state"], "done");
}

#[tokio::test]
async fn a_discard_needs_a_reason_and_keeps_it() {
    let world = World::new().await;
    let id = world.dead_letter("ours").await;
    let path = format!("/v1/dlq/{id}/discard");
    for (body, field) in [
        (json!({"reason": ""}), "reason"),
        (json!({"reason": " \n "}), "reason"),
        (json!({"reason": "x".repeat(1001)}), "reason"),
        (json!({}), "reason"),
        (json!({"reason": "known", "who": "me"}), "who"),
    ] {
        let problem = world.post(&path, ADMIN, body.clone()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{body}");
    }
    let dead = world.post(&path, ADMIN, json!({"reason": "known"})).await.expect(200);
    assert_eq!((&dead["status"], &dead["discardReason"]), (&json!("discarded"), &json!("known")));
    world.post(&path, ADMIN, json!({"reason": "again"})).await.problem(409);
    world.post(&format!("/v1/dlq/{id}/replay"), ADMIN, Value::Null).await.problem(409);
}

#[tokio::test]
async fn a_replay_of_many_is_written_down_with_what_it_covers() {
    let world = World::new().await;
    for tenant in ["ours", "ours", "theirs"] {
        world.dead_letter(tenant).await;
    }
    let discarded = world.dead_letter("ours").await;
    world.post(&format!("/v1/dlq/{discarded}/discard"), ADMIN, json!({"reason": "known"})).await.expect(200);
    let body = json!({"filter": {"tenant": "ours", "code": "http_404", "status": "discarded"}, "ratePerSec": 50});
    let run = world.post("/v1/dlq/replay", ADMIN, body).await.expect(202);
    assert_eq!((&run["total"], &run["status"], &run["ratePerSec"]), (&json!(2), &json!("running"), &json!(50)));
    assert_eq!(run["filter"]["status"], "pending", "only those can be replayed");
    let id = run["replayId"].as_str().unwrap();
    assert!(id.starts_with("replay_"), "{id}");
    assert_eq!(world.get(&format!("/v1/replays/{id}"), ADMIN).await.expect(200), run);

    world.clock.advance(Duration::from_secs(1));
    let all = world.post("/v1/dlq/replay", ADMIN, json!({})).await.expect(202);
    assert_eq!((&all["total"], &all["ratePerSec"]), (&json!(3), &json!(10)));
    let runs = world.get("/v1/replays", ADMIN).await.expect(200);
    let listed: Vec<&Value> = runs["items"].as_array().unwrap().iter().map(|run| &run["replayId"]).collect();
    assert_eq!(listed, [&all["replayId"], &run["replayId"]], "newest first");

    for (body, field) in [
        (json!({"ratePerSec": 0}), "ratePerSec"),
        (json!({"ratePerSec": 1001}), "ratePerSec"),
        (json!({"filter": {"colour": "red"}}), "filter.colour"),
        (json!({"filter": {"olderThanSeconds": -1}}), "filter.olderThanSeconds"),
        (json!({"rate": 1}), "rate"),
    ] {
        let problem = world.post("/v1/dlq/replay", ADMIN, body.clone()).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
}

/// A replay kept whatever its filter held, for good, and everybody's listing copied it: 300 calls cost 350 MB.
#[tokio::test]
async fn replays_are_few_and_small_and_listed_page_by_page() {
    let world = World::new().await;
    let (ours, theirs) = (world.key("ours", &["send", "read"]).await, world.key("theirs", &["send", "read"]).await);
    for (field, chars) in [("text", 257), ("code", 129)] {
        let long = json!({"filter": {field: "x".repeat(chars)}});
        let problem = world.post("/v1/dlq/replay", &ours, long).await.problem(422);
        assert_eq!(problem["errors"][0]["field"], format!("filter.{field}"), "{problem}");
    }
    let mut made = Vec::new();
    for _ in 0..5 {
        let run = world.post("/v1/dlq/replay", &ours, json!({"filter": {"text": "x".repeat(256)}})).await.expect(202);
        made.insert(0, run["replayId"].as_str().unwrap().to_owned());
    }
    let problem = world.post("/v1/dlq/replay", &ours, json!({})).await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("5 replays are under way"), "{problem}");
    world.post("/v1/dlq/replay", &theirs, json!({})).await.expect(202);

    let (mut seen, mut query) = (Vec::new(), "?limit=2".to_owned());
    loop {
        let page = world.get(&format!("/v1/replays{query}"), &ours).await.expect(200);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|run| run["replayId"].as_str().unwrap().to_owned()));
        match page["nextCursor"].as_str() {
            Some(cursor) => query = format!("?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, made, "newest first, and none of another tenant's");
}
