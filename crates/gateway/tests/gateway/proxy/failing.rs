//! An upstream that is down: the breaker, and what becomes of questions meanwhile.

use std::time::Duration;

use serde_json::json;

use super::upstream::{Mood, Upstream, ask, config, cpf, ended, metric};
use crate::world::{Gateway, kinds};

#[tokio::test]
async fn an_open_breaker_answers_from_the_cache_or_fails_at_once() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let cache = "cache = { ttl = \"50ms\", stale = \"1h\" }";
        let lane = "cadence = { initial = \"20ms\" }\nttl = \"1h\"\n\
                    breaker = { failures = 3, open = \"2s\", when_open = \"pass\" }";
        let gateway = Gateway::with(kind, &config(&upstream, cache, lane)).await;
        let known = ask(&gateway, &cpf(0), "normal").await;
        ended(&gateway, &known).await;
        upstream.is(Mood::Says(503));
        for number in 1..=3 {
            let id = ask(&gateway, &cpf(number), "normal").await;
            assert_eq!(ended(&gateway, &id).await["state"], "dlq");
        }
        let calls = upstream.calls().len();
        assert!((metric(&gateway, "proxy_circuit_state", &["score"]).await - 1.0).abs() < 0.1, "{kind:?}: open");
        // Nobody waits, and nobody is called.
        for number in 10..20 {
            let id = ask(&gateway, &cpf(number), "normal").await;
            let job = ended(&gateway, &id).await;
            assert_eq!(
                (&job["state"], &job["attempts"][0]["code"]),
                (&json!("dlq"), &json!("breaker_aberto")),
                "{job}"
            );
        }
        let id = ask(&gateway, &cpf(0), "normal").await;
        let job = ended(&gateway, &id).await;
        assert_eq!((&job["state"], &job["result"]["cache"]["motivo"]), (&json!("done"), &json!("breaker_aberto")));
        assert_eq!(upstream.calls().len(), calls, "{kind:?}");
        let fallbacks = metric(&gateway, "proxy_fallbacks_total", &["motivo=\"breaker_aberto\""]).await;
        assert!((fallbacks - 1.0).abs() < 0.1, "{kind:?}");
        // reason: the window in which nobody is called must be over.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        upstream.is(Mood::Well);
        let id = ask(&gateway, &cpf(30), "normal").await;
        assert_eq!(ended(&gateway, &id).await["state"], "done", "{kind:?}: the probe decides");
        for (name, count) in [
            ("proxy_circuit_open_total", 1.0),
            ("proxy_circuit_half_open_total", 1.0),
            ("proxy_circuit_close_total", 1.0),
        ] {
            let seen = metric(&gateway, name, &["score"]).await;
            assert!((seen - count).abs() < 0.1, "{kind:?} {name}: {seen}");
        }
        assert!(metric(&gateway, "proxy_circuit_state", &["score"]).await.abs() < 0.1, "{kind:?}: closed");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_dead_question_can_be_asked_again() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", "cadence = { initial = \"5ms\" }")).await;
        upstream.is(Mood::Says(500));
        let id = ask(&gateway, &cpf(1), "high").await;
        assert_eq!(ended(&gateway, &id).await["state"], "dlq");
        upstream.is(Mood::Well);
        gateway.post(&format!("/v1/dlq/{id}/replay"), crate::world::ADMIN, json!({})).await.expect(202);
        upstream.wait_for(2).await;
        let job = ended(&gateway, &id).await;
        assert_eq!((&job["state"], &job["generation"]), (&json!("done"), &json!(1)), "{kind:?}");
        gateway.stop().await;
    }
}

/// Anybody may ask: 2 000 questions at an open breaker made 1 904 dead letters, which pushed out those of others.
#[tokio::test]
async fn what_was_asked_without_a_key_leaves_no_dead_letter() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        upstream.is(Mood::Says(503));
        let gateway =
            Gateway::with(kind, &config(&upstream, "", "cadence = { initial = \"5ms\" }\nttl = \"1h\"")).await;
        let path = format!("/proxy/score?cpf={}", cpf(1));
        let asked = gateway.call("GET", &path, "", &[], String::new()).await.expect(202);
        let job = ended(&gateway, asked["jobId"].as_str().unwrap()).await;
        assert_eq!(job["state"], "dropped", "{kind:?}: {job}");
        assert!(job["reason"].as_str().unwrap().starts_with("HTTP 503"), "{kind:?}: {job}");
        assert_eq!(job["attempts"][0]["code"], "http_503", "{kind:?}: {job}");
        let known = ask(&gateway, &cpf(2), "normal").await;
        assert_eq!(ended(&gateway, &known).await["state"], "dlq", "{kind:?}: one asked with a key does");
        let dead = gateway.get("/v1/dlq?lane=proxy:score").await;
        assert_eq!(dead["items"].as_array().unwrap().len(), 1, "{kind:?}: {dead}");
        for (name, labels, count) in [
            ("proxy_jobs_total", "dropped", 1.0),
            ("proxy_jobs_total", "failed", 1.0),
            ("lane_jobs_dropped_total", "reason=\"failed\"", 1.0),
        ] {
            let seen = metric(&gateway, name, &[labels]).await;
            assert!((seen - count).abs() < 0.1, "{kind:?} {name} {labels}: {seen}");
        }
        gateway.stop().await;
    }
}
