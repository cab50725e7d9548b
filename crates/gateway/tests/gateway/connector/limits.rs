//! The limits of an API, over all callers and all nodes.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::api::{Api, config, send};
use crate::world::{Gateway, Kind, kinds};
use entrega_call::Clock;
use entrega_testkit::redis::{self, RedisServer};

const MAX: usize = 10;
const PER: Duration = Duration::from_secs(1);
/// How much later than another a call may arrive that left at the same moment, on a machine that is busy.
const DELAY_MAX: Duration = Duration::from_millis(100);
/// A busy machine delays a whole round at times, so that the next one seems to come too soon. What is wrong is wrong each
/// time.
const TRIES: usize = 3;

#[tokio::test]
async fn no_second_holds_more_calls_than_allowed_over_three_nodes() {
    if redis::is_left_out() {
        return;
    }
    let mut tightest = Duration::ZERO;
    for _ in 0..TRIES {
        tightest = tightest.max(call_over_three_nodes().await);
        if tightest + DELAY_MAX >= PER {
            return;
        }
    }
    panic!("{} calls within {tightest:?}, at best", MAX + 1);
}

/// The shortest time in which one call more came than may start in a period.
async fn call_over_three_nodes() -> Duration {
    let (redis, api) = (RedisServer::start(&[]), Api::start().await);
    let text = config(&api, "throttle_max_requests = 10\nthrottle_per_seconds = 1");
    let nodes = join_all((0..3).map(async |_| Gateway::on(&redis.url(), &text).await)).await;
    let sends = (0..100).map(|number| send(&nodes[number % 3], json!({ "relativeURL": format!("n/{number}") })));
    let start = Clock::system().now();
    for answer in join_all(sends).await {
        assert_eq!(answer.expect(200)["httpStatusCode"], 200);
    }
    let calls = api.calls();
    // However late calls come, none comes before all that went ahead of it had their periods.
    for (number, call) in calls.iter().enumerate() {
        let periods = u32::try_from(number / MAX).unwrap();
        assert!(call.at >= start + PER * periods, "call {number} came {:?} after the start", call.at.since(start));
    }
    let took = calls[99].at.since(calls[0].at);
    assert!(took < Duration::from_secs(11), "nine seconds would be possible: {took:?}");
    let metrics = nodes[0].text("/metrics").await;
    assert!(metrics.contains("throttle_wait_seconds_count{lane=\"connector:erp\"}"), "{metrics}");
    assert!(metrics.contains("connector_attempts_total{connector=\"erp\",outcome=\"success\"}"));
    for node in nodes {
        node.stop().await;
    }
    calls.windows(MAX + 1).map(|window| window[MAX].at.since(window[0].at)).min().unwrap()
}

/// Calls went in the order of asking: three hundred of one tenant made another's wait until it gave up.
#[tokio::test]
async fn tenants_take_turns_before_a_throttle() {
    let api = Api::start().await;
    let text = config(&api, "throttle_max_requests = 1\nthrottle_per_seconds = 1");
    let gateway = Gateway::with(Kind::Memory, &text).await;
    let (many, few) = (gateway.key("many").await, gateway.key("few").await);
    let path = "/v1/connectors/erp/requests";
    let crowd = join_all((0..20).map(|_| gateway.post(path, &many, json!({ "relativeURL": "many" }))));
    let one = async {
        while !gateway.text("/metrics").await.contains("\napi_waiting_calls 20\n") {}
        let before = api.calls().len();
        gateway.post(path, &few, json!({ "relativeURL": "few" })).await.expect(200);
        let between = api.calls()[before..].iter().filter(|call| call.path.ends_with("many")).count();
        assert!(between <= 3, "{between} calls of the other tenant went first");
    };
    tokio::select! {
        _ = crowd => panic!("twenty seconds before the first is answered"),
        () = one => {}
    }
    gateway.stop().await;
}

#[tokio::test]
async fn whoever_waits_too_long_does_what_the_connector_says() {
    for kind in kinds() {
        let api = Api::start().await;
        let base = "throttle_max_requests = 1\nthrottle_per_seconds = 600\nthrottle_wait = \"200ms\"\n";
        for (word, status) in [("fail", 503), ("requeue", 202), ("proceed", 200)] {
            let text = config(&api, &format!("{base}on_throttle_timeout = \"{word}\""));
            let gateway = Gateway::with(kind, &text).await;
            // A store in memory counts as used up at its start; Redis knows that nobody called.
            if kind == Kind::Redis {
                send(&gateway, json!({ "relativeURL": "first" })).await.expect(200);
            }
            let before = api.calls().len();
            let answer = send(&gateway, json!({ "relativeURL": "second" })).await;
            assert_eq!(answer.status.as_u16(), status, "{kind:?} {word}: {}", answer.json);
            assert_eq!(api.calls().len() - before, usize::from(word == "proceed"), "{kind:?} {word}");
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn what_is_down_is_not_called_and_what_one_node_learns_the_other_knows() {
    if redis::is_left_out() {
        return;
    }
    let (redis, api) = (RedisServer::start(&[]), Api::start().await);
    let text = config(&api, "breaker = { failures = 4, open = \"60s\" }");
    let nodes = join_all((0..2).map(async |_| Gateway::on(&redis.url(), &text).await)).await;
    api.says_always(503);
    let answer = send(&nodes[0], json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!((&answer["httpStatusCode"], &answer["attempts"]), (&json!(503), &json!(4)));
    for node in &nodes {
        let answer = send(node, json!({ "relativeURL": "x" })).await;
        assert!(answer.headers.contains_key("retry-after"));
        let detail = answer.expect(503)["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("breaker"), "{detail}");
    }
    assert_eq!(api.calls().len(), 4);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn an_adaptive_throttle_shows_what_it_has_learned() {
    let api = Api::start().await;
    let more = "throttle_max_requests = 100\nthrottle_per_seconds = 1\nadaptive = true";
    let gateway = Gateway::with(Kind::Memory, &config(&api, more)).await;
    send(&gateway, json!({ "relativeURL": "x" })).await.expect(200);
    let estimate = async || gateway.get("/v1/connectors/erp").await["estimate"].as_f64().unwrap();
    let before = estimate().await;
    api.says(&[(429, None), (200, None)]);
    send(&gateway, json!({ "relativeURL": "x" })).await.expect(200);
    let after = estimate().await;
    assert!(before <= 100.0 && after < before, "{before} → {after}");
    gateway.stop().await;
}
