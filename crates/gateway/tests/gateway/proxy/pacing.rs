//! The order of questions, the room for them, their time, and the pace of calls.

use std::time::Duration;

use serde_json::json;

use super::upstream::{Mood, Upstream, ask, assert_paced, config, cpf, ended, metric};
use crate::world::{ADMIN, Gateway, kinds};

async fn pause(gateway: &Gateway) {
    gateway.post("/v1/lanes/proxy:score/pause", ADMIN, json!({})).await.expect(200);
}

async fn resume(gateway: &Gateway) {
    gateway.post("/v1/lanes/proxy:score/resume", ADMIN, json!({})).await.expect(200);
}

#[tokio::test]
async fn the_urgent_are_served_first_and_each_kind_in_its_order() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", "cadence = { initial = \"20ms\" }")).await;
        pause(&gateway).await;
        for (from, priority) in [(0, "low"), (5, "normal"), (10, "high")] {
            for number in from..from + 5 {
                ask(&gateway, &cpf(number), priority).await;
            }
        }
        assert!((metric(&gateway, "proxy_queue_size", &["score"]).await - 15.0).abs() < 0.1);
        resume(&gateway).await;
        let seen: Vec<String> = upstream.wait_for(15).await.into_iter().map(|call| call.cpf).collect();
        let wanted: Vec<String> = (10..15).chain(5..10).chain(0..5).map(cpf).collect();
        assert_eq!(seen, wanted, "{kind:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_full_lane_gives_up_the_newest_of_the_least_urgent() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", "capacity = 10\nttl = \"1h\"")).await;
        pause(&gateway).await;
        let mut ids = Vec::new();
        for number in 0..10 {
            ids.push(ask(&gateway, &cpf(number), if number < 5 { "low" } else { "normal" }).await);
        }
        let path = format!("/v1/jobs/{}?wait=20s", ids[4]);
        let waiter = gateway.get(&path);
        let pushing = async {
            // The five low ones, newest first; then the newest normal.
            for (number, gone) in [(10, 4), (11, 3), (12, 2), (13, 1), (14, 0), (15, 9)] {
                ask(&gateway, &cpf(number), "high").await;
                let job = gateway.get(&format!("/v1/jobs/{}", ids[gone])).await;
                assert_eq!(job["state"], "dropped", "{kind:?} {number}: {job}");
                assert!(job["reason"].as_str().unwrap().starts_with("preempted"), "{job}");
            }
        };
        let (waited, ()) = tokio::join!(waiter, pushing);
        assert_eq!(waited["state"], "dropped", "whoever waits is told: {waited}");
        for priority in ["normal", "low"] {
            let body = json!({ "cpf": cpf(20), "priority": priority });
            let refused = gateway.post("/v1/proxy/score", ADMIN, body).await;
            assert!(refused.headers.contains_key("retry-after"));
            refused.expect(503);
        }
        assert!((metric(&gateway, "proxy_jobs_total", &["dropped"]).await - 8.0).abs() < 0.1);
        assert!((metric(&gateway, "proxy_queue_size", &["score"]).await - 10.0).abs() < 0.1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn what_waited_too_long_is_dropped_and_the_young_are_served() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let lane =
            "ttl = \"1s\"\ntimeout = \"5s\"\nconcurrency = 1\ncadence = { initial = \"10ms\", slow_after = \"1m\" }";
        let gateway = Gateway::with(kind, &config(&upstream, "", lane)).await;
        upstream.is(Mood::Hangs);
        let first = ask(&gateway, &cpf(0), "normal").await;
        upstream.wait_for(1).await;
        let old = ask(&gateway, &cpf(1), "normal").await;
        // reason: the test is about time that passes while the upstream stands still.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let young = ask(&gateway, &cpf(2), "normal").await;
        upstream.is(Mood::Well);
        assert_eq!(ended(&gateway, &first).await["state"], "done");
        let old = ended(&gateway, &old).await;
        assert_eq!(old["state"], "dropped", "{kind:?}: {old}");
        assert!(old["reason"].as_str().unwrap().starts_with("ttl_expired"), "{old}");
        assert_eq!(ended(&gateway, &young).await["state"], "done", "{kind:?}");
        assert!((metric(&gateway, "proxy_jobs_total", &["dropped"]).await - 1.0).abs() < 0.1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_429_slows_the_pace_and_success_brings_it_back() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let lane = "cadence = { initial = \"100ms\", min = \"50ms\", max = \"2s\", step = \"50ms\" }\nttl = \"1h\"";
        let gateway = Gateway::with(kind, &config(&upstream, "cache = { ttl = \"0s\", stale = \"0s\" }", lane)).await;
        let interval = async || {
            let lanes = gateway.get("/v1/lanes").await;
            let lane = lanes["items"].as_array().unwrap().iter().find(|lane| lane["lane"] == "proxy:score").cloned();
            lane.unwrap()["cadence"]["intervalMs"].as_u64().unwrap()
        };
        assert_eq!(interval().await, 100, "{kind:?}");
        upstream.is(Mood::Says(429));
        for number in 0..2 {
            let id = ask(&gateway, &cpf(number), "normal").await;
            assert_eq!(ended(&gateway, &id).await["state"], "dlq");
        }
        assert_eq!(interval().await, 400, "{kind:?}: doubled twice");
        assert!((metric(&gateway, "proxy_rate_limit_penalties_total", &["score"]).await - 2.0).abs() < 0.1);
        upstream.is(Mood::Well);
        let mut ids = Vec::new();
        for number in 2..12 {
            ids.push(ask(&gateway, &cpf(number), "normal").await);
        }
        for id in &ids {
            assert_eq!(ended(&gateway, id).await["state"], "done");
        }
        assert_eq!(interval().await, 50, "{kind:?}: ten times faster, down to the bound");
        assert_paced(&upstream.calls(), Duration::from_millis(50));
        gateway.stop().await;
    }
}
