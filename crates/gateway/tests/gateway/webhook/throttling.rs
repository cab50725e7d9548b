//! Endpoints that are called so often and no more.

use std::time::Duration;

use serde_json::json;

use crate::world::{ADMIN, Gateway, kinds};
use entrega_testkit::receiver::{Receiver, endpoint, open};
use entrega_testkit::smtp_server::{self, SmtpServer};

const CALLS: usize = 16;
const MAX: usize = 5;
/// The throttle counts starts; one call may take this much longer on its way than another.
const ON_THE_WAY: Duration = Duration::from_millis(150);

#[tokio::test]
async fn with_five_a_second_no_second_holds_more_than_five_calls() {
    if smtp_server::is_left_out() {
        return;
    }
    for kind in kinds() {
        let (server, slow, quick) = (SmtpServer::obliging(), Receiver::start().await, Receiver::start().await);
        let throttle = "throttle = { max_requests = 5, per = \"1s\" }";
        let endpoints =
            endpoint("default", "slow", &slow.url("/"), throttle) + &endpoint("default", "quick", &quick.url("/"), "");
        let gateway = Gateway::with(kind, &open(&server.url(), &endpoints)).await;
        for name in ["slow", "quick"] {
            let path = format!("/v1/tenants/default/endpoints/{name}/test");
            for _ in 0..CALLS {
                let answer = gateway.post(&path, ADMIN, json!({})).await;
                assert!(answer.status.is_success(), "{}", answer.json);
            }
        }
        quick.wait_for(CALLS).await;
        assert!(slow.got().len() < CALLS, "{kind:?}: the other one waits for nobody");
        let mut arrived: Vec<_> = slow.wait_for(CALLS).await.iter().map(|got| got.at).collect();
        arrived.sort();
        let shortest = arrived.windows(MAX + 1).map(|calls| calls[MAX].since(calls[0])).min().unwrap();
        assert!(shortest + ON_THE_WAY >= Duration::from_secs(1), "{kind:?}: six calls within {shortest:?}");
        gateway.stop().await;
    }
}
