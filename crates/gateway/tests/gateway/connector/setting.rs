//! Connectors set through the API, and what is refused.

use serde_json::{Value, json};

use super::api::{Api, config, send};
use crate::world::{ADMIN, Gateway, Kind, kinds};

async fn put(gateway: &Gateway, id: &str, body: Value) -> crate::world::Answer {
    gateway.call("PUT", &format!("/v1/connectors/{id}"), ADMIN, &[super::api::JSON], body.to_string()).await
}

#[tokio::test]
async fn a_connector_is_set_used_changed_and_removed_and_never_shows_its_secret() {
    for kind in kinds() {
        let api = Api::start().await;
        let gateway = Gateway::with(kind, &config(&api, "")).await;
        let base = format!("http://{}/other", api.address);
        let body = json!({ "baseUrl": base, "auth": { "basic": { "user": "joe", "password": "s3cret" } },
            "throttleMaxRequests": 50, "throttlePerSeconds": 1, "tenant": "acme" });
        let made = put(&gateway, "crm", body).await;
        assert_eq!(made.status.as_u16(), 201, "{}", made.json);
        assert_eq!((&made.json["auth"], &made.json["origin"]), (&json!("basic"), &json!("api")));
        let ours = gateway.key("acme").await;
        let theirs = gateway.key("other").await;
        let body = json!({ "relativeURL": "x" });
        let path = "/v1/connectors/crm/requests";
        gateway.post(path, &theirs, body.clone()).await.expect(404);
        gateway.post(path, &ours, body.clone()).await.expect(200);
        assert_eq!(api.calls()[0].headers["authorization"], "Basic am9lOnMzY3JldA==", "{kind:?}");
        // What is left out of `auth` stays.
        let changed = put(&gateway, "crm", json!({ "baseUrl": base, "timeoutMs": 500 })).await.expect(200);
        assert_eq!(
            (&changed["auth"], &changed["timeoutMs"], &changed["tenant"]),
            (&json!("basic"), &json!(500), &json!(null))
        );
        gateway.post(path, &theirs, body.clone()).await.expect(200);
        let listed = gateway.call("GET", "/v1/connectors", ADMIN, &[], String::new()).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 2, "{listed}");
        assert!(!listed.to_string().contains("s3cret"));
        let job =
            gateway.call("POST", path, &ours, &[super::api::JSON, ("prefer", "respond-async")], body.to_string()).await;
        let id = job.expect(202)["jobId"].as_str().unwrap().to_owned();
        let job = gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await;
        assert_eq!((&job["state"], &job["lane"]), (&json!("done"), &json!("connector")), "{kind:?} {job}");
        gateway.call("DELETE", "/v1/connectors/crm", ADMIN, &[], String::new()).await.expect(204);
        gateway.post(path, &ours, body).await.expect(404);
        gateway.stop().await;
    }
}

/// What an API's own answers mean holds for the job around the call too, in the lane that many connectors share.
#[tokio::test]
async fn rules_of_its_own_decide_about_the_job_as_well() {
    for kind in kinds() {
        let api = Api::start().await;
        let gateway = Gateway::with(kind, &config(&api, "")).await;
        let rules = json!([{ "status": ["404"], "verdict": "success" }, { "status": ["503"], "verdict": "permanent" }]);
        let body = json!({ "baseUrl": format!("http://{}/other", api.address), "classify": rules });
        assert_eq!(put(&gateway, "crm", body).await.status.as_u16(), 201);
        for (status, state) in [(404, "done"), (503, "dlq")] {
            api.says(&[(status, None)]);
            let before = api.calls().len();
            let headers = [super::api::JSON, ("prefer", "respond-async"), ("x-growqr-user", "user_7")];
            let body = json!({ "relativeURL": "x" }).to_string();
            let taken = gateway.call("POST", "/v1/connectors/crm/requests", ADMIN, &headers, body).await;
            let id = taken.expect(202)["jobId"].as_str().unwrap().to_owned();
            let job = gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await;
            assert_eq!((&job["state"], &job["lane"]), (&json!(state), &json!("connector")), "{kind:?} {job}");
            assert_eq!(api.calls().len(), before + 1, "{kind:?}: one call");
            assert_eq!(api.calls()[before].headers["x-growqr-user"], "user_7");
        }
        gateway.stop().await;
    }
}

/// A job that was handed in while everybody could use a connector left with the credentials of the only one who may now.
#[tokio::test]
async fn a_job_of_a_tenant_who_may_no_longer_use_a_connector_does_not_leave() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    let base = format!("http://{}/other", api.address);
    put(&gateway, "crm", json!({ "baseUrl": base })).await;
    api.says(&[(404, None)]);
    let ours = gateway.key("acme").await;
    let body = json!({ "relativeURL": "x", "headers": { "x-api-key": "s3cret" } }).to_string();
    let headers = [super::api::JSON, ("prefer", "respond-async")];
    let taken = gateway.call("POST", "/v1/connectors/crm/requests", &ours, &headers, body).await;
    let id = taken.expect(202)["jobId"].as_str().unwrap().to_owned();
    assert_eq!(gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await["state"], "dlq");
    let dead = gateway.get(&format!("/v1/dlq/{id}")).await;
    assert!(!dead.to_string().contains("s3cret") && dead.to_string().contains("***"), "{dead}");
    let body = json!({ "baseUrl": base, "tenant": "other", "auth": { "bearer": "theirs" } });
    put(&gateway, "crm", body).await.expect(200);
    gateway.call("POST", &format!("/v1/dlq/{id}/replay"), &ours, &[], String::new()).await.expect(202);
    let job = gateway.get(&format!("/v1/jobs/{id}?wait=10s")).await;
    assert_eq!(job["state"], "dlq", "{job}");
    let last = job["attempts"].as_array().unwrap().last().unwrap();
    assert!(last["reason"].as_str().unwrap().contains("no connector 'crm'"), "{job}");
    assert_eq!(api.calls().len(), 1, "nothing left under another's name");
    gateway.stop().await;
}

#[tokio::test]
async fn nothing_leads_out_of_the_base_url() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    for relative in
        ["../secret", "a/../../x", "//evil.example.com/x", "http://evil.example.com/", "\\\\evil", "%2e%2e/x", "a\r\nb"]
    {
        let answer = send(&gateway, json!({ "relativeURL": relative })).await.expect(422);
        assert_eq!(answer["errors"][0]["field"], "relativeURL", "{relative}: {answer}");
    }
    for (body, field) in [
        (json!({ "relativeURL": "x", "httpMethod": "CONNECT" }), "httpMethod"),
        (json!({ "relativeURL": "x", "headers": { "host": "evil" } }), "headers"),
        (json!({ "relativeURL": "x", "requestParams": { "a": {} } }), "requestParams.a"),
        (json!({ "relativeURL": "x", "requestParams": { "a": "b".repeat(2048) } }), "relativeURL"),
        (json!({ "relativeURL": "x", "nothing": 1 }), "nothing"),
    ] {
        let answer = send(&gateway, body).await.expect(422);
        assert!(answer["errors"][0]["field"].as_str().unwrap().starts_with(field), "{answer}");
    }
    assert!(api.calls().is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_connector_is_named() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    for (id, body, field) in [
        ("A", json!({ "baseUrl": "https://a.example.com" }), "id"),
        ("crm", json!({ "baseUrl": "crm.example.com" }), "baseUrl"),
        ("crm", json!({ "baseUrl": "https://a.example.com/?x=1" }), "baseUrl"),
        ("crm", json!({ "baseUrl": "https://10.0.0.1/" }), "baseUrl"),
        ("crm", json!({ "baseUrl": "https://a.example.com", "auth": { "bearer": "a\nb" } }), "auth"),
        ("crm", json!({ "baseUrl": "https://a.example.com", "throttleMaxRequests": 0 }), "throttleMaxRequests"),
        ("crm", json!({ "baseUrl": "https://a.example.com", "timeoutMs": 0 }), "timeoutMs"),
    ] {
        let answer = put(&gateway, id, body).await.expect(422);
        assert_eq!(answer["errors"][0]["field"], field, "{answer}");
        assert!(!answer.to_string().contains("a\\nb"), "{answer}");
    }
    put(&gateway, "erp", json!({ "baseUrl": "https://a.example.com" })).await.expect(409);
    gateway.call("DELETE", "/v1/connectors/erp", ADMIN, &[], String::new()).await.expect(409);
    gateway.stop().await;
}

/// Whoever could change the base URL, and not see the credentials, had them sent to a server of their own.
#[tokio::test]
async fn a_base_url_on_another_server_needs_its_credentials_again() {
    let (api, thief) = (Api::start().await, Api::start().await);
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    let base = |api: &Api, path: &str| format!("http://{}/{path}", api.address);
    let body = json!({ "baseUrl": base(&api, "v1"), "auth": { "bearer": "s3cret" } });
    put(&gateway, "crm", body).await.expect(201);
    let refused = put(&gateway, "crm", json!({ "baseUrl": base(&thief, "v1") })).await.expect(422);
    assert_eq!(refused["errors"][0]["field"], "auth", "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains(&base(&api, "v1")), "{refused}");
    gateway.post("/v1/connectors/crm/requests", ADMIN, json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!((api.calls().len(), thief.calls().len()), (1, 0));

    put(&gateway, "crm", json!({ "baseUrl": base(&api, "v2") })).await.expect(200);
    let body = json!({ "baseUrl": base(&thief, "v1"), "auth": { "bearer": "for-them" } });
    put(&gateway, "crm", body).await.expect(200);
    gateway.post("/v1/connectors/crm/requests", ADMIN, json!({ "relativeURL": "x" })).await.expect(200);
    assert_eq!(thief.calls()[0].headers["authorization"], "Bearer for-them");
    gateway.stop().await;
}

#[tokio::test]
async fn what_would_send_credentials_back_is_refused_and_a_tenant_is_one() {
    let api = Api::start().await;
    let gateway = Gateway::with(Kind::Memory, &config(&api, "")).await;
    let base = format!("http://{}/v1", api.address);
    put(&gateway, "crm", json!({ "baseUrl": base, "auth": { "bearer": "s3cret" } })).await.expect(201);
    for method in ["TRACE", "trace", "TRACK", "CONNECT"] {
        let body = json!({ "relativeURL": "x", "httpMethod": method });
        let refused = gateway.post("/v1/connectors/crm/requests", ADMIN, body).await.expect(422);
        assert_eq!(refused["errors"][0]["field"], "httpMethod", "{refused}");
    }
    assert_eq!(api.calls().len(), 0);
    for tenant in ["acme/hooks", "no such name", "public"] {
        let refused = put(&gateway, "erp", json!({ "baseUrl": base, "tenant": tenant })).await.expect(422);
        assert_eq!(refused["errors"][0]["field"], "tenant", "{refused}");
    }
    gateway.stop().await;
}
