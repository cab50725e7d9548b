//! The engine in a program of its own: one job, stored, delivered, and looked at.

use std::sync::Arc;
use std::time::Duration;

use entrega::http::HttpRequest;
use entrega::submission::NewJob;
use entrega::{Engine, EngineConfig, StoreConfig, StoreKind};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lane = LaneName::new("http")?;
    let lanes = [(lane.clone(), Arc::new(LanePolicy::http()))].into();
    let store = StoreConfig::new(StoreKind::Embedded, "./my-data");
    let engine = Arc::new(Engine::open(EngineConfig::new(store, lanes)).await?);
    let running = engine.clone().start(Duration::from_secs(30));
    let request = HttpRequest::post("https://example.com/orders", r#"{"order":17}"#);
    let id = engine.submit_one(&TenantName::new("acme")?, NewJob::new(lane, request)).await?; // durable from here on
    engine.store().ended(id).await?;
    println!("{id}: {:?}", engine.store().job(id).await?.map(|job| job.state));
    Ok(running.stop().await?)
}
