//! Endpoints that are paused, disabled or gone: what is for them waits.

use serde_json::{Value, json};

use crate::world::{ADMIN, Gateway, kinds, mail_to};
use entrega_testkit::receiver::{Receiver, endpoint, open};
use entrega_testkit::smtp_server::{self, SmtpServer};

const PATH: &str = "/v1/tenants/default/endpoints/default";

async fn endpoint_in(gateway: &Gateway, state: &str) -> Value {
    for _ in 0..1000 {
        let endpoint = gateway.get(PATH).await;
        if endpoint["state"] == state {
            return endpoint;
        }
        // reason: an endpoint has no signal; it is looked at until it is there.
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the endpoint does not become {state}: {}", gateway.get(PATH).await);
}

#[tokio::test]
async fn a_gone_endpoint_is_disabled_and_its_events_arrive_after_it_is_enabled_again() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let (server, receiver) = (SmtpServer::obliging(), Receiver::start().await);
        receiver.answers(&[410]);
        let config = open(&server.url(), &endpoint("default", "default", &receiver.url("/"), ""));
        let gateway = Gateway::with(kind, &config).await;
        let first = gateway.send(mail_to(&["ann@example.com"])).await;
        let disabled = endpoint_in(&gateway, "disabled").await;
        assert!(disabled["reason"].as_str().unwrap().contains("410"), "{disabled}");
        let second = gateway.send(mail_to(&["bob@example.com"])).await;
        gateway.mail_in(&second, "SENT").await;
        let blocked =
            async || gateway.get("/v1/jobs?lane=webhook&state=blocked").await["items"].as_array().unwrap().len();
        while blocked().await < 2 {
            // reason: both are on their way; this looks until they wait.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(receiver.got().len(), 1, "it is not called any more");

        let url = gateway.get(PATH).await["url"].clone();
        let enabled = gateway
            .call(
                "PUT",
                PATH,
                ADMIN,
                &[("content-type", "application/json")],
                json!({ "url": url, "enabled": true }).to_string(),
            )
            .await;
        assert!(enabled.status.is_success(), "{}", enabled.json);
        let got = receiver.wait_for(3).await;
        let mut heard: Vec<_> =
            got[1..].iter().map(|call| call.json()["data"]["outboxId"].as_str().unwrap().to_owned()).collect();
        heard.sort();
        let mut sent = [first, second];
        sent.sort();
        assert_eq!(heard, sent);
        gateway.stop().await;
    }
}
