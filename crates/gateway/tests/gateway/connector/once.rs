//! Requests that must happen once.

use std::time::Duration;

use entrega_call::Clock;
use futures_util::future::join_all;
use serde_json::json;

use super::api::{Api, config, send_with};
use crate::world::{Gateway, Kind, kinds};
use entrega_testkit::redis::{self, RedisServer};

#[tokio::test]
async fn of_200_equal_requests_with_one_key_one_is_made() {
    for kind in kinds() {
        let api = Api::start().await;
        api.takes(Duration::from_millis(300));
        let gateway = Gateway::with(kind, &config(&api, "")).await;
        let key = [("idempotency-key", "order-17")];
        let body = json!({ "httpMethod": "POST", "relativeURL": "orders", "requestBody": { "n": 1 } });
        let answers = join_all((0..200).map(|_| send_with(&gateway, &key, &body))).await;
        assert_eq!(api.calls().len(), 1, "{kind:?}");
        let (made, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
        assert!(!made.is_empty(), "{kind:?}");
        let first = made[0].json.clone();
        assert!(made.iter().all(|answer| answer.json == first), "{kind:?}: equal answers");
        for answer in others {
            assert!(answer.headers.contains_key("retry-after"), "{kind:?}");
            answer.expect(409);
        }
        let again = send_with(&gateway, &key, &body).await;
        assert_eq!(again.headers["idempotent-replayed"], "true", "{kind:?}");
        assert_eq!(again.expect(200), first, "{kind:?}");
        let other = json!({ "httpMethod": "POST", "relativeURL": "orders", "requestBody": { "n": 2 } });
        send_with(&gateway, &key, &other).await.expect(422);
        assert_eq!(api.calls().len(), 1, "{kind:?}");
        assert_eq!(api.calls()[0].headers["idempotency-key"], "order-17");
        // Another tenant's key is another key.
        let theirs = gateway.key("acme").await;
        let headers = [super::api::JSON, key[0]];
        let answer = gateway.call("POST", "/v1/connectors/erp/requests", &theirs, &headers, body.to_string()).await;
        assert!(!answer.headers.contains_key("idempotent-replayed"), "{kind:?}");
        answer.expect(200);
        gateway.stop().await;
    }
}

/// Whoever had its answer waited for a Redis that did not answer, once for what was learned and once for the key.
#[tokio::test]
async fn a_redis_that_hangs_keeps_no_answer_from_its_caller_and_has_it_in_the_end() {
    if redis::is_left_out() {
        return;
    }
    let (redis, api, clock) = (RedisServer::start(&[]), Api::start().await, Clock::system());
    api.takes(Duration::from_millis(300));
    let gateway = Gateway::on(&redis.url(), &config(&api, "")).await;
    let (key, body) = ([("idempotency-key", "order-17")], json!({ "relativeURL": "x" }));
    let start = clock.now();
    let pausing = async {
        api.wait_for(1).await;
        redis.command(&["CLIENT", "PAUSE", "4000", "ALL"]);
    };
    let (answer, ()) = tokio::join!(send_with(&gateway, &key, &body), pausing);
    let took = clock.now().since(start);
    answer.expect(200);
    assert!(took < Duration::from_millis(3500), "{took:?}");
    // reason: Redis answers again by then.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let again = send_with(&gateway, &key, &body).await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(api.calls().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn without_an_answer_the_same_key_may_try_again() {
    for kind in kinds() {
        let api = Api::start().await;
        let text = config(&api, "timeout = \"100ms\"\nbreaker = \"none\"");
        let gateway = Gateway::with(kind, &text).await;
        api.takes(Duration::from_secs(5));
        let headers = [("idempotency-key", "k"), ("prefer", "wait=1")];
        let body = json!({ "relativeURL": "x" });
        let failed = send_with(&gateway, &headers, &body).await;
        assert!(failed.status.is_server_error(), "{kind:?}: {}", failed.json);
        api.takes(Duration::ZERO);
        let answer = send_with(&gateway, &headers, &body).await;
        assert!(!answer.headers.contains_key("idempotent-replayed"), "{kind:?}");
        assert_eq!(answer.expect(200)["httpStatusCode"], 200, "{kind:?}");
        gateway.stop().await;
    }
}

/// A key was remembered in one place for whoever waits and in another for jobs, and the API was called by both.
#[tokio::test]
async fn a_key_holds_however_the_request_is_made() {
    for kind in kinds() {
        let api = Api::start().await;
        let gateway = Gateway::with(kind, &config(&api, "")).await;
        let body = json!({ "relativeURL": "x" });
        let waited = [("idempotency-key", "waited")];
        let first = send_with(&gateway, &waited, &body).await.expect(200);
        let again = send_with(&gateway, &[waited[0], ("prefer", "respond-async")], &body).await;
        assert_eq!(again.headers["idempotent-replayed"], "true", "{kind:?}");
        assert_eq!(again.expect(200), first, "{kind:?}");
        assert_eq!(api.calls().len(), 1, "{kind:?}");
        gateway.stop().await;
        let throttle = "throttle_max_requests = 1\nthrottle_per_seconds = 600\nthrottle_wait = \"200ms\"\n\
                        on_throttle_timeout = \"requeue\"";
        let gateway = Gateway::with(kind, &config(&api, throttle)).await;
        // A store in memory counts as used up at its start; Redis knows that nobody called.
        if kind == Kind::Redis {
            send_with(&gateway, &[], &body).await.expect(200);
        }
        let before = api.calls().len();
        // It becomes a job, and stays that one.
        let queued = send_with(&gateway, &[("idempotency-key", "queued")], &body).await;
        let location = queued.headers["location"].clone();
        let queued = queued.expect(202);
        let again = send_with(&gateway, &[("idempotency-key", "queued")], &body).await;
        assert_eq!(
            (&again.headers["location"], &again.headers["idempotent-replayed"]),
            (&location, &"true".parse().unwrap())
        );
        assert_eq!(again.expect(202), queued, "{kind:?}");
        assert_eq!(api.calls().len(), before, "{kind:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_the_key_free() {
    for kind in kinds() {
        let api = Api::start().await;
        let gateway = Gateway::with(kind, &config(&api, "breaker = \"none\"")).await;
        api.says_always(503);
        let (key, body) = ([("idempotency-key", "left")], json!({ "relativeURL": "x" }));
        let gone = tokio::time::timeout(Duration::from_millis(500), send_with(&gateway, &key, &body)).await;
        assert!(gone.is_err(), "it waits for its second attempt");
        api.says_always(200);
        let freed = async {
            while send_with(&gateway, &key, &body).await.status.as_u16() == 409 {
                // reason: the server sees when a caller is gone, and nothing tells that it has
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), freed).await.unwrap_or_else(|_| panic!("{kind:?}: still taken"));
        assert_eq!(api.calls().len(), 2, "{kind:?}");
        gateway.stop().await;
    }
}
