//! Entrega itself, set up the way the rows need it.
//!
//! Owns: an engine, on the embedded store in a folder of its own or on a Redis server.
//! Invariant: what is measured is the engine that `entrega serve` runs; only the lane's capacity differs.
//! Never: turns off syncing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use entrega::http::HttpRequest;
use entrega::store::Store;
use entrega::store::local::tables::TABLES;
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega::submission::NewJob;
use entrega::{Engine, EngineParts};
use entrega_call::Clock;
use entrega_call::{AddressFilter, Client, ClientConfig};
use entrega_core::body::Body;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_ledger::LsmLedger;
use entrega_ledger::redis::{RedisLedger, RedisOptions};

/// Tenants that the work is spread over, as in real use.
pub const TENANTS: u64 = 10;
const CAPACITY: u32 = 2_000_000;
const RETENTION: Duration = Duration::from_secs(86_400);

/// The lane of all rows.
pub fn lane() -> LaneName {
    LaneName::new("http").expect("a lane name")
}

/// One of the tenants.
pub fn tenant(number: u64) -> TenantName {
    TenantName::new(&format!("tenant-{}", number % TENANTS)).expect("a tenant name")
}

/// An engine on the embedded store in `folder`, not yet running.
pub async fn embedded(folder: &Path) -> Result<Arc<Engine>> {
    let clock = Clock::system();
    let options = LocalOptions { retention: RETENTION, ..LocalOptions::new(lanes()) };
    let ledger = Arc::new(LsmLedger::open(folder, &TABLES)?);
    let store = LocalStore::open(ledger, clock.clone(), options).await?;
    engine(Arc::new(store), clock)
}

/// A node on the Redis server at `url`, under keys that all nodes of a run share, not yet running.
pub async fn on_redis(url: &str) -> Result<Arc<Engine>> {
    let clock = Clock::system();
    let server = RedisOptions { url: url.to_owned(), prefix: "entrega-bench".to_owned(), allow_unsafe: false };
    let ledger = Arc::new(RedisLedger::open(server).await?);
    let cluster = Some(ClusterOptions { lease: ClusterOptions::LEASE, name: "bench".to_owned() });
    let options = LocalOptions { retention: RETENTION, cluster, ..LocalOptions::new(lanes()) };
    let store = LocalStore::open(ledger, clock.clone(), options).await?;
    engine(Arc::new(store), clock)
}

fn lanes() -> BTreeMap<LaneName, Arc<LanePolicy>> {
    let policy = LanePolicy { capacity: CAPACITY, ..LanePolicy::http() };
    BTreeMap::from([(lane(), Arc::new(policy))])
}

fn engine(store: Arc<dyn Store>, clock: Clock) -> Result<Arc<Engine>> {
    let lanes = lanes();
    let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse()?] };
    let client = Client::new(ClientConfig { filter: filter.clone(), ..ClientConfig::default() })?;
    Ok(Arc::new(EngineParts { client, filter, ..EngineParts::over(store, clock, lanes) }.build()))
}

/// A job that POSTs `body` to `url`.
pub fn job(url: &str, body: Bytes) -> NewJob {
    let request = HttpRequest { method: "POST".into(), url: url.into(), headers: Vec::new(), body: Body(body) };
    NewJob::new(lane(), request)
}

/// Submits `count` jobs, many to a call.
pub async fn fill(engine: &Engine, url: &str, body: &Bytes, count: u64) -> Result<()> {
    const AT_ONCE: u64 = 1000;
    let mut left = count;
    while left > 0 {
        let now = left.min(AT_ONCE);
        let jobs = vec![job(url, body.clone()); now as usize];
        for taken in engine.submit(&tenant(left / AT_ONCE), jobs).await {
            taken?;
        }
        left -= now;
    }
    Ok(())
}
