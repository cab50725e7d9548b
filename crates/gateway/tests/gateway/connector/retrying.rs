//! What is tried again, how often, and what the caller gets in the end.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::api::{Api, config, send, send_with};
use crate::world::{ADMIN, Gateway, Kind, kinds};

fn gaps(api: &Api) -> Vec<Duration> {
    api.calls().windows(2).map(|pair| pair[1].at.since(pair[0].at)).collect()
}

#[tokio::test]
async fn a_request_goes_below_the_base_url_with_all_its_names() {
    for kind in kinds() {
        let api = Api::start().await;
        let gateway = Gateway::with(kind, &config(&api, "auth = { bearer = \"s3cret\" }")).await;
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let body = json!({ "httpMethod": "POST", "relativeURL": "/records?a=1", "headers": { "x-own": "yes" },
            "requestBody": { "b": [1, 2] }, "requestParams": { "limit": 5, "q": "a b" } });
        let answer = send_with(&gateway, &[("traceparent", trace)], &body).await.expect(200);
        assert_eq!((&answer["httpStatusCode"], &answer["response"]), (&json!(200), &json!({ "call": 1 })), "{answer}");
        assert_eq!(answer["attempts"], 1);
        let call = &api.calls()[0];
        assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", "/v1/records?a=1&limit=5&q=a%20b"));
        assert_eq!(&call.body[..], br#"{"b":[1,2]}"#);
        assert_eq!(
            (&call.headers["content-type"], &call.headers["x-own"]),
            (&"application/json".parse().unwrap(), &"yes".parse().unwrap())
        );
        assert_eq!(call.headers["authorization"], "Bearer s3cret");
        assert_eq!(call.headers["traceparent"], trace, "the caller's trace goes on");
        assert_eq!(call.headers["x-request-id"].to_str().unwrap(), answer["requestId"].as_str().unwrap());
        assert!(call.headers.contains_key("idempotency-key"));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn retry_after_is_waited_for_and_400_is_returned_at_once() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    api.says(&[(429, Some("2")), (200, None)]);
    let answer = send(&gateway, json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!((&answer["httpStatusCode"], &answer["attempts"]), (&json!(200), &json!(2)));
    assert!(gaps(&api)[0] >= Duration::from_secs(2), "{:?}", gaps(&api));
    api.says(&[(400, None)]);
    let answer = send(&gateway, json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!((&answer["httpStatusCode"], &answer["attempts"]), (&json!(400), &json!(1)));
    gateway.stop().await;
}

#[tokio::test]
async fn the_fourth_503_is_returned_and_the_waits_are_in_their_bounds() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "breaker = \"none\"")).await;
    api.says_always(503);
    let answer = send(&gateway, json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!(answer["httpStatusCode"], 503);
    assert_eq!((&answer["attempts"], &answer["response"]), (&json!(4), &json!({ "call": 4 })));
    // 1, 2 and 4 seconds, a quarter either way; a busy machine may take a little longer.
    for (gap, (least, most)) in gaps(&api).iter().zip([(750, 1250), (1500, 2500), (3000, 5000)]) {
        assert!(*gap >= Duration::from_millis(least) && *gap < Duration::from_millis(most + 400), "{:?}", gaps(&api));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_refused_connection_is_an_error_that_names_it() {
    let api = Api::start().await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let text = config(&api, "").replace(&api.address.to_string(), &address.to_string());
    let gateway = Gateway::with(Kind::Memory, &text).await;
    let answer = send(&gateway, json!({ "relativeURL": "x" })).await.expect(502);
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("4 attempts") && detail.contains("refused"), "{detail}");
    gateway.stop().await;
}

#[tokio::test]
async fn as_a_job_it_is_tried_twelve_times_in_all() {
    // Most of it is waiting.
    join_all(kinds().into_iter().map(try_twelve_times)).await;
}

async fn try_twelve_times(kind: Kind) {
    let api = Api::start().await;
    api.says_always(503);
    let lane = "breaker = \"none\"\n[lanes.\"connector:erp\"]\nchannel = \"connector\"\n\
                retry = { attempts = 3, base = \"10ms\", max = \"20ms\" }";
    let gateway = Gateway::with(kind, &config(&api, lane)).await;
    let taken = send_with(&gateway, &[("prefer", "respond-async")], &json!({ "relativeURL": "x" })).await;
    assert_eq!(taken.headers["preference-applied"], "respond-async");
    let id = taken.expect(202)["jobId"].as_str().unwrap().to_owned();
    let job = gateway.get(&format!("/v1/jobs/{id}?wait=60s")).await;
    assert_eq!((&job["state"], &job["lane"]), (&json!("dlq"), &json!("connector:erp")), "{kind:?} {job}");
    assert_eq!(job["attempts"].as_array().unwrap().len(), 3);
    let calls = api.calls();
    assert_eq!(calls.len(), 12, "{kind:?}");
    assert!(calls.iter().all(|call| call.headers["idempotency-key"] == id.as_str()), "{kind:?}");
    api.says_always(200);
    gateway.post(&format!("/v1/dlq/{id}/replay"), ADMIN, json!({})).await.expect(202);
    api.wait_for(13).await;
    let job = gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await;
    assert_eq!((&job["state"], &job["result"]["status"]), (&json!("done"), &json!(200)), "{kind:?}");
    gateway.stop().await;
}

/// A job whose API was known to be down used up its attempts without a single call, and was a dead letter in seconds.
#[tokio::test]
async fn a_job_waits_for_an_api_that_is_down_and_uses_up_no_attempt() {
    for kind in kinds() {
        let api = Api::start().await;
        api.says_always(503);
        let lane = "breaker = { failures = 1, open = \"3s\" }\n[lanes.\"connector:erp\"]\nchannel = \"connector\"\n\
                    retry = { attempts = 1, base = \"300ms\", max = \"500ms\" }";
        let gateway = Gateway::with(kind, &config(&api, lane)).await;
        send_with(&gateway, &[("prefer", "wait=1")], &json!({ "relativeURL": "x" })).await.expect(200);
        assert_eq!(api.calls().len(), 1, "{kind:?} the breaker is open now");
        api.says_always(200);
        let taken = send_with(&gateway, &[("prefer", "respond-async")], &json!({ "relativeURL": "x" })).await;
        let id = taken.expect(202)["jobId"].as_str().unwrap().to_owned();
        let job = gateway.get(&format!("/v1/jobs/{id}?wait=20s")).await;
        assert_eq!(job["state"], "done", "{kind:?} {job}");
        let codes: Vec<_> = job["attempts"].as_array().unwrap().iter().map(|tried| tried["code"].clone()).collect();
        assert_eq!(codes, ["breaker_aberto", "ok"], "{kind:?} one line, however often it looked");
        assert!(job["attempts"][1]["number"].as_u64() > Some(2), "{kind:?} it looked again and again: {job}");
        assert_eq!(api.calls().len(), 2, "{kind:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_ends_it_and_a_job_goes_on() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "breaker = \"none\"")).await;
    api.says_always(503);
    let body = json!({ "relativeURL": "x" });
    let waiting = send(&gateway, body.clone());
    let gone = tokio::time::timeout(Duration::from_millis(500), waiting).await;
    assert!(gone.is_err(), "it is still waiting for its second attempt");
    assert_eq!(api.calls().len(), 1);
    // reason: an attempt that would still come must have its time.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(api.calls().len(), 1, "nobody waits for an answer any more");
    let limited = send_with(&gateway, &[("prefer", "wait=1")], &body).await;
    assert_eq!(limited.expect(200)["httpStatusCode"], 503, "the last answer, when there is no time for another");
    let before = api.calls().len();
    api.says_always(200);
    send_with(&gateway, &[("prefer", "respond-async")], &body).await.expect(202);
    api.wait_for(before + 1).await;
    gateway.stop().await;
}
