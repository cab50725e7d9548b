//! The least there is to it: one request, repeated while its destination is down.
//!
//! `cargo run -p entrega-call --example minimal -- https://example.com`

use entrega_call::{ApiClient, ApiConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base_url = std::env::args().nth(1).unwrap_or("https://example.com".into());
    let mut config = ApiConfig::new(base_url.parse()?);
    // Without these two lines: https to public addresses only.
    config.client.filter.allow_http = true;
    config.client.filter.allow_networks.push("127.0.0.0/8".parse()?);

    let api = ApiClient::new(config)?;
    let reply = api.get("/").user("user_123").send().await?;
    let (status, bytes) = (reply.answer.status, reply.answer.body.len());
    println!("{status}, {bytes} bytes, after {} attempts, as {}", reply.attempts, reply.request_id);
    Ok(())
}
