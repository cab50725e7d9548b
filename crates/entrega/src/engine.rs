//! The engine: everything a program needs to run lanes, put together.
//! Invariant: it owns nothing global; two engines can run in one process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use entrega_call::{AddressFilter, Client, ClientError};
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;

use crate::chance::Chance;
use crate::channel::Channel;
use crate::channel::http::HttpChannel;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, StoreKind};
use crate::metrics::Metrics;
use crate::store::local::{Disk, DiskError, HeapDisk, LocalStore, LsmDisk};
use crate::store::redis::{RedisOpenError, RedisStore};
use crate::store::{Store, StoreError};

/// Lanes, their store and their channels.
pub struct Engine {
    /// Where jobs are safe.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Clock,
    /// Chance and ids.
    pub chance: Chance,
    /// What is counted.
    pub metrics: Metrics,
    /// Which destinations may be called.
    pub filter: AddressFilter,
    /// How jobs leave, by the name in the lane's policy.
    pub channels: HashMap<String, Arc<dyn Channel>>,
    /// The lanes there are.
    pub lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
}

/// Why an engine could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data cannot be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Redis cannot be used.
    #[error(transparent)]
    Redis(#[from] RedisOpenError),
    /// The configuration names something that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up")]
    Client(#[from] ClientError),
}

impl Engine {
    /// Opens the store and sets up the channels. Nothing is delivered before `run`.
    pub async fn open(config: &Config) -> Result<Engine, OpenError> {
        let clock = Clock::system();
        let local = |disk: Box<dyn Disk>| LocalStore::open(disk, clock.clone(), config.local_store());
        let store: Arc<dyn Store> = match &config.store.kind {
            StoreKind::Embedded => Arc::new(local(Box::new(LsmDisk::open(&config.store.data)?))?),
            StoreKind::Memory => Arc::new(local(Box::<HeapDisk>::default())?),
            StoreKind::Redis(url) => Arc::new(RedisStore::open(config.redis_store(url), clock.clone()).await?),
        };
        let client = Client::new(config.client()?)?;
        let http: Arc<dyn Channel> = Arc::new(HttpChannel::new(client, clock.clone()));
        Ok(Engine {
            store,
            chance: Chance::from_system(),
            metrics: Metrics::new(config.lanes.keys()),
            filter: config.filter(),
            channels: HashMap::from([("http".to_owned(), http)]),
            lanes: config.lanes.clone(),
            clock,
        })
    }

    /// A lane's policy.
    pub fn policy(&self, lane: &LaneName) -> Result<Arc<LanePolicy>, StoreError> {
        self.lanes.get(lane).cloned().ok_or_else(|| StoreError::UnknownLane {
            lane: lane.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}
