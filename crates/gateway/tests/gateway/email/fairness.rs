//! Companies that share the way out.

use serde_json::json;

use crate::world::{ADMIN, Gateway, QUICK, kinds, mail_to};
use entrega_testkit::smtp_server::{self, SmtpServer};

#[tokio::test]
async fn a_company_with_many_mails_does_not_delay_anothers_ten() {
    if smtp_server::is_left_out() {
        return;
    }
    const MANY: usize = 500;
    for kind in kinds() {
        let server = SmtpServer::obliging();
        let gateway = Gateway::with(
            kind,
            &format!("[transports.main]\nurl = \"{}\"\n[lanes.\"email:send\"]\n{QUICK}", server.url()),
        )
        .await;
        let (big, small) = (gateway.key("big").await, gateway.key("small").await);
        gateway.post("/v1/lanes/email:send/pause", ADMIN, json!({})).await.expect(200);
        for number in 0..MANY {
            gateway.send_as(&big, mail_to(&[&format!("b{number}@example.com")])).await;
        }
        let mut ours = Vec::new();
        for number in 0..10 {
            ours.push(gateway.send_as(&small, mail_to(&[&format!("s{number}@example.com")])).await);
        }
        gateway.post("/v1/lanes/email:send/resume", ADMIN, json!({})).await.expect(200);
        for id in &ours {
            gateway.mail_in(id, "SENT").await;
        }
        let order: Vec<String> = server.received().iter().map(|mail| mail.recipients[0].clone()).collect();
        let last = order.iter().rposition(|address| address.starts_with('s')).unwrap();
        // Three of each in turn, and what was on its way already.
        assert!(last < 40, "the last of the ten was number {last}");
        let tenants = gateway.get("/v1/tenants").await;
        let row = tenants["items"].as_array().unwrap().iter().find(|row| row["companyId"] == "small").unwrap().clone();
        assert_eq!((&row["lane"], &row["totalProcessed"]), (&json!("email:send"), &json!(10)), "{row}");
        gateway.stop().await;
    }
}
