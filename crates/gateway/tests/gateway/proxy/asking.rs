//! Who may ask what, and who gets the answer.

use entrega_core::id::JobId;
use entrega_core::time::Time;
use serde_json::json;

use super::upstream::{Mood, Upstream, config, cpf};
use crate::world::{ADMIN, Gateway, Kind, kinds};

const QUICK: &str = "cadence = { initial = \"5ms\" }";

#[tokio::test]
async fn anybody_may_ask_and_read_the_answer_with_nothing_but_its_id() {
    for kind in kinds() {
        let upstream = Upstream::start().await;
        let gateway = Gateway::with(kind, &config(&upstream, "", QUICK)).await;
        let asked = gateway.call("GET", "/proxy/score?cpf=529.982.247-25", "", &[], String::new()).await;
        let location = asked.headers["location"].to_str().unwrap().to_owned();
        let id = asked.expect(202)["jobId"].as_str().unwrap().to_owned();
        assert_eq!(location, format!("/v1/jobs/{id}"));
        let answer = gateway.call("GET", &format!("{location}?wait=10s"), "", &[], String::new()).await.expect(200);
        assert_eq!(answer["state"], "done", "{answer}");
        assert_eq!(answer["result"]["body"], r#"{"call":1,"score":700}"#);
        assert_eq!(answer["result"]["cache"], json!(null));
        assert_eq!((&answer["attempts"], &answer["destination"]), (&json!([]), &json!("cpf=*********25")));
        assert_eq!(upstream.calls()[0].cpf, "52998224725", "punctuation is taken off");

        // Work that was handed in with a key stays behind one.
        let theirs = gateway.post("/v1/proxy/score", ADMIN, json!({ "cpf": cpf(1) })).await.expect(202);
        let path = format!("/v1/jobs/{}", theirs["jobId"].as_str().unwrap());
        gateway.call("GET", &path, "", &[], String::new()).await.expect(401);
        gateway.call("GET", &path, &gateway.key("acme").await, &[], String::new()).await.expect(404);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn what_failed_is_said_to_strangers_without_what_lies_behind() {
    let upstream = Upstream::start().await;
    upstream.is(Mood::Says(503));
    let gateway = Gateway::with(Kind::Memory, &config(&upstream, "", QUICK)).await;
    let asked = gateway.call("GET", "/proxy/score?cpf=52998224725", "", &[], String::new()).await.expect(202);
    let path = format!("/v1/jobs/{}?wait=10s", asked["jobId"].as_str().unwrap());
    let stranger = gateway.call("GET", &path, "", &[], String::new()).await.expect(200);
    assert_eq!((&stranger["state"], &stranger["reason"]), (&json!("dropped"), &json!("http_503")));
    let operator = gateway.get(&path).await;
    assert_eq!(operator["attempts"].as_array().unwrap().len(), 1, "{operator}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_closed_route_needs_a_key() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&upstream, "public = false", QUICK)).await;
    let path = "/proxy/score?cpf=52998224725";
    gateway.call("GET", path, "", &[], String::new()).await.expect(401);
    let key = gateway.key("acme").await;
    let asked = gateway.call("GET", path, &key, &[], String::new()).await.expect(202);
    let path = format!("/v1/jobs/{}?wait=10s", asked["jobId"].as_str().unwrap());
    let job = gateway.call("GET", &path, &key, &[], String::new()).await.expect(200);
    assert_eq!((&job["companyId"], &job["state"]), (&json!("acme"), &json!("done")));
    gateway.call("GET", &path, "", &[], String::new()).await.expect(401);
    gateway.stop().await;
}

#[tokio::test]
async fn a_bad_question_is_a_400_that_names_the_parameter() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&upstream, "", QUICK)).await;
    let long = "5".repeat(10_000);
    for (query, problem) in [
        ("cpf=52998224724", "check digits"),
        ("cpf=11111111111", "check digits"),
        ("cpf=529982247", "it has 9"),
        ("cpf=", "it has 0"),
        ("", "missing"),
        ("cpf=52998224725&cpf=52998224725", "twice"),
        ("cpf=52998224725&cpf=", "it has 0"),
        ("cpf=52998224725&priority=high", "'score' takes cpf"),
        (&format!("cpf={long}"), "it has 10000"),
        ("cpf=%FF%FE", "other characters"),
    ] {
        let answer = gateway.call("GET", &format!("/proxy/score?{query}"), "", &[], String::new()).await;
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        let answer = answer.expect(400);
        assert!(answer["detail"].as_str().unwrap().contains(problem), "{query}: {answer}");
        assert!(!answer.to_string().contains("52998224724"), "a number is somebody's own: {answer}");
    }
    for (body, field) in [
        (json!({ "cpf": 52998224725_u64 }), "cpf"),
        (json!({ "cpf": cpf(1), "priority": "high", "type": "update" }), "type"),
        (json!({ "cpf": cpf(1), "other": "x" }), "other"),
        (json!({}), "cpf"),
    ] {
        let answer = gateway.post("/v1/proxy/score", ADMIN, body).await.expect(400);
        assert_eq!(answer["errors"][0]["field"], field, "{answer}");
    }
    gateway.call("GET", "/proxy/other?x=1", "", &[], String::new()).await.expect(404);
    assert!(upstream.calls().is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_route_of_ones_own_needs_no_code() {
    let upstream = Upstream::start().await;
    let own = format!(
        "[outbound]\nallow_http = true\nallow_networks = [\"127.0.0.0/8\"]\n[proxy.rates]\n\
         upstream_url = \"http://{}/rates/{{pair}}\"\nparams = {{ pair = {{ pattern = \"[A-Z]{{3}}-[A-Z]{{3}}\" }}, \
         days = {{ type = \"integer\", required = false }} }}\n\
         cache = {{ key = \"cache:rates:{{pair}}:{{days}}\", ttl = \"0s\", stale = \"0s\" }}\n",
        upstream.address
    );
    let gateway = Gateway::with(Kind::Memory, &own).await;
    gateway.call("GET", "/proxy/rates?pair=EURBRL", "", &[], String::new()).await.expect(400);
    let asked = gateway.call("GET", "/proxy/rates?pair=EUR-BRL&days=07", "", &[], String::new()).await.expect(202);
    let job = gateway.get(&format!("/v1/jobs/{}?wait=10s", asked["jobId"].as_str().unwrap())).await;
    assert_eq!((&job["state"], &job["lane"]), (&json!("done"), &json!("proxy:rates")));
    // The shipped route is there as well, and says what it lacks.
    let answer = gateway.call("GET", "/proxy/score?cpf=52998224725", "", &[], String::new()).await.expect(503);
    assert!(answer["detail"].as_str().unwrap().contains("UPSTREAM_URL"), "{answer}");
    gateway.stop().await;
}

#[tokio::test]
async fn the_same_key_asks_once() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&upstream, "cache = { ttl = \"0s\" }", QUICK)).await;
    let headers = [("content-type", "application/json"), ("idempotency-key", "look-17")];
    let body = json!({ "cpf": cpf(1), "type": "update" }).to_string();
    let first = gateway.call("POST", "/v1/proxy/score", ADMIN, &headers, body.clone()).await.expect(202);
    let again = gateway.call("POST", "/v1/proxy/score", ADMIN, &headers, body).await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(again.expect(202)["jobId"], first["jobId"]);
    let job = gateway.get(&format!("/v1/jobs/{}?wait=10s", first["jobId"].as_str().unwrap())).await;
    assert_eq!(job["priority"], "high", "an update is urgent");
    let other = json!({ "cpf": cpf(2) }).to_string();
    gateway.call("POST", "/v1/proxy/score", ADMIN, &headers, other).await.expect(422);
    assert_eq!(upstream.calls().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_not_kept_any_more_is_gone_and_not_unknown() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&upstream, "", QUICK)).await;
    let old = JobId::from_parts(Time::from_millis(1_700_000_000_000), 17);
    let answer = gateway.call("GET", &format!("/v1/jobs/{old}"), ADMIN, &[], String::new()).await.expect(410);
    assert!(answer["detail"].as_str().unwrap().contains("kept for"), "{answer}");
    let made = gateway.post("/v1/jobs", ADMIN, json!({ "request": { "url": upstream.url() } })).await.expect(201);
    let young: JobId = made["jobId"].as_str().unwrap().parse().unwrap();
    let never = JobId::from_parts(young.made_at(), 17);
    gateway.call("GET", &format!("/v1/jobs/{never}"), ADMIN, &[], String::new()).await.expect(404);
    gateway.stop().await;
}

/// `?q=../../admin` reached the upstream's other paths with the operator's headers.
#[tokio::test]
async fn no_parameter_leads_to_another_path_of_the_upstream() {
    let upstream = Upstream::start().await;
    let text = config(&upstream, "", QUICK)
        + &format!(
            "[proxy.find]\nupstream_url = \"{}/items/{{q}}/details\"\nheaders = {{ authorization = \"Bearer s3cret\" }}\n\
             params = {{ q = {{ type = \"text\" }} }}\ncache = {{ key = \"cache:find:{{q}}\", ttl = \"0s\", stale = \"0s\" }}\n\
             [lanes.\"proxy:find\"]\nchannel = \"proxy\"\ncadence = {{ initial = \"5ms\" }}\n",
            upstream.url()
        );
    let gateway = Gateway::with(Kind::Memory, &text).await;
    for q in ["..", "..%2F..%2Fadmin", "%252e%252e%252fadmin", "a%2Fb", "a%5Cb", "."] {
        let refused = gateway.call("GET", &format!("/proxy/find?q={q}"), "", &[], String::new()).await.expect(400);
        assert_eq!(refused["errors"][0]["field"], "q", "{q}: {refused}");
        assert!(!refused.to_string().contains("admin"), "{refused}");
    }
    gateway.call("GET", "/proxy/find?q=a.b%20c", "", &[], String::new()).await.expect(202);
    upstream.wait_for(1).await;
    gateway.stop().await;
}
