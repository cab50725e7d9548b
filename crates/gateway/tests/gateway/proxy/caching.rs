//! Cached answers: fresh, shared and stale.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use entrega::store::{CachedAnswer, KeptAnswer};
use entrega_call::Clock;
use entrega_core::body::Body;
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use serde_json::json;

use super::upstream::{Mood, Upstream, ask, config, cpf, ended, metric};
use crate::world::{ADMIN, Gateway, kinds};

#[tokio::test]
async fn a_fresh_answer_is_given_again_without_a_call_or_a_place() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", "cadence = { initial = \"1m\" }\nttl = \"1h\"")).await;
        let first = ask(&gateway, &cpf(1), "normal").await;
        let first = ended(&gateway, &first).await;
        // The next tick is a minute away: these use none.
        for _ in 0..3 {
            let asked = gateway.post("/v1/proxy/score", ADMIN, json!({ "cpf": cpf(1) })).await.expect(202);
            let path = format!("/v1/jobs/{}", asked["jobId"].as_str().unwrap());
            let again = gateway.call("GET", &path, ADMIN, &[], String::new()).await;
            assert_eq!(again.headers["age"], "0");
            let again = again.expect(200);
            assert_eq!((&again["state"], &again["attempts"]), (&json!("done"), &json!([])), "{again}");
            assert_eq!(again["result"]["body"], first["result"]["body"]);
            assert_eq!(again["result"]["cache"], json!({ "ageSeconds": 0, "stale": false, "motivo": null }));
        }
        assert_eq!(upstream.calls().len(), 1, "{kind:?}");
        assert!((metric(&gateway, "proxy_jobs_total", &["processed"]).await - 4.0).abs() < 0.1);
        let listed = gateway.get("/v1/jobs?lane=proxy:score&state=done").await;
        assert_eq!(listed["items"].as_array().unwrap().len(), 4, "{kind:?}: they are jobs like others");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn equal_questions_at_the_same_moment_make_one_call() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", "cadence = { initial = \"5ms\" }")).await;
        upstream.is(Mood::Hangs);
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(ask(&gateway, &cpf(1), "normal").await);
        }
        upstream.wait_for(1).await;
        // reason: the others have their ticks by then, and wait for the call under way.
        tokio::time::sleep(Duration::from_millis(200)).await;
        upstream.is(Mood::Well);
        for id in &ids {
            let job = ended(&gateway, id).await;
            assert_eq!(job["result"]["body"], r#"{"call":1,"score":700}"#, "{kind:?}: {job}");
        }
        assert_eq!(upstream.calls().len(), 1, "{kind:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn an_old_answer_has_to_do_while_the_upstream_gives_none() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let cache = "cache = { ttl = \"100ms\", stale = \"3s\" }";
        let lane = "cadence = { initial = \"5ms\" }\ntimeout = \"300ms\"\nttl = \"1h\"\n\
                    breaker = { failures = 100, open = \"1m\" }";
        let gateway = Gateway::with(kind, &config(&upstream, cache, lane)).await;
        let first = ask(&gateway, &cpf(1), "normal").await;
        let first = ended(&gateway, &first).await;
        // reason: the answer must be past its time.
        tokio::time::sleep(Duration::from_millis(150)).await;
        for (mood, motivo) in [(Mood::Says(500), "erro_5xx"), (Mood::Hangs, "timeout"), (Mood::Says(429), "limite_429")]
        {
            upstream.is(mood);
            let id = ask(&gateway, &cpf(1), "normal").await;
            let job = ended(&gateway, &id).await;
            assert_eq!(job["state"], "done", "{kind:?} {motivo}: {job}");
            assert_eq!(job["result"]["body"], first["result"]["body"]);
            assert_eq!(job["result"]["cache"]["stale"], true);
            assert_eq!(job["result"]["cache"]["motivo"], motivo);
            let count = metric(&gateway, "proxy_fallbacks_total", &[&format!("motivo=\"{motivo}\"")]).await;
            assert!((count - 1.0).abs() < 0.1, "{kind:?} {motivo}: {count}");
        }
        assert!((metric(&gateway, "proxy_timeouts_total", &["score"]).await - 1.0).abs() < 0.1);
        assert!((metric(&gateway, "proxy_upstream_errors_total", &["code=\"500\""]).await - 1.0).abs() < 0.1);
        // A 404 is an answer; an old one would contradict it.
        upstream.is(Mood::Says(404));
        let id = ask(&gateway, &cpf(1), "normal").await;
        assert_eq!(ended(&gateway, &id).await["state"], "dlq", "{kind:?}");
        // reason: the answer must be past the time for which it is kept at all.
        tokio::time::sleep(Duration::from_secs(3)).await;
        upstream.is(Mood::Says(500));
        let id = ask(&gateway, &cpf(1), "normal").await;
        let job = ended(&gateway, &id).await;
        assert_eq!(job["state"], "dlq", "{kind:?}");
        assert!(job["reason"].as_str().unwrap().starts_with("HTTP 500"), "{job}");
        gateway.stop().await;
    }
}

/// A node that stood still with an answer in its hands kept it in the end, and it was given as if it were fresh.
#[tokio::test]
async fn what_another_node_keeps_too_late_is_not_given_as_fresh() {
    let lane = LaneName::new("proxy:score").unwrap();
    let clock = Clock::system();
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let mut shared = None;
        let text = config(&upstream, "", "cadence = { initial = \"5ms\" }\nttl = \"1h\"");
        let gateway = Gateway::changed(kind, &text, |engine, _| {
            let params = BTreeMap::from([("cpf".to_owned(), cpf(1))]);
            shared = Some((engine.env.store.clone(), engine.routes[&lane].cache_key(&params)));
        });
        let gateway = gateway.await;
        let (store, key) = shared.unwrap();
        for (age, state) in [(Duration::from_hours(1), "dlq"), (Duration::ZERO, "done")] {
            assert!(store.begin_call(&key, JobId::MIN, Duration::from_secs(60)).await.unwrap(), "another node calls");
            let id = ask(&gateway, &cpf(1), "normal").await;
            // reason: the question has its tick by then, and waits for that call.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let body = Body(Bytes::from_static(b"{}"));
            let kept =
                KeptAnswer { status: 200, content_type: None, body, truncated: false, cache: None, source: None };
            let answer = CachedAnswer { stored_at: clock.now() - age, job: JobId::MIN, answer: kept };
            store.cache(&key, answer, Duration::from_secs(60)).await.unwrap();
            store.end_call(&key, JobId::MIN).await.unwrap();
            let job = ended(&gateway, &id).await;
            assert_eq!(job["state"], state, "{kind:?} {age:?} {job}");
        }
        assert_eq!(upstream.calls().len(), 0, "{kind:?}");
        gateway.stop().await;
    }
}
