//! Opening an engine: from a configuration to a store, clients and products.
//! Invariant: lanes, connectors and endpoints of an engine that opened were checked; whatever stands in the way is a typed error.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{Client, ClientConfig, ClientError, Clock};
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::BadPolicy;
#[cfg(feature = "redis")]
use entrega_ledger::redis::{RedisLedger, RedisOpenError, RedisOptions};
use entrega_ledger::{HeapLedger, Ledger, LedgerError, LsmLedger};
use http::HeaderValue;

use crate::chance::secret_bytes;
use crate::connector::{BadConnector, Connector, check_id};
use crate::engine::{Engine, EngineParts, PRODUCTS, WEBHOOK_AGENT};
use crate::env::Lanes;
#[cfg(feature = "ses")]
use crate::mail::sns::{Sns, SnsConfig, SnsConfigError};
use crate::mail::{MailConfig, TransportError};
use crate::proxy::Routes;
use crate::seal::{Seal, SealError};
use crate::secret::Secret;
use crate::store::Store;
use crate::store::local::{ClusterOptions, LocalOptions, LocalStore, ReadError, newest_moment, tables};
use crate::webhook::{BadEndpoint, ConfiguredError, EndpointConfig, put_configured};

/// How much of a third-party API's answer is kept: what it answers is what was wanted.
const CONNECTOR_ANSWER_BYTES_MAX: usize = 1 << 20;
const MIB: u64 = 1 << 20;
/// A clock that is behind by less is not worth a word.
const SET_BACK_MIN: Duration = Duration::from_secs(1);

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// On disk, in this process.
    Embedded,
    /// Gone when the process ends.
    Memory,
    /// In Redis, for several nodes; its address may carry a password.
    #[cfg(feature = "redis")]
    Redis(Secret),
}

/// As it is written in a configuration, without the password of an address.
impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreKind::Embedded => f.write_str("embedded"),
            StoreKind::Memory => f.write_str("memory"),
            #[cfg(feature = "redis")]
            StoreKind::Redis(url) => f.write_str(&entrega_ledger::redis::without_password(url.reveal())),
        }
    }
}

/// Where jobs are safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Which store.
    pub kind: StoreKind,
    /// Its directory, and that of the keys.
    pub data: PathBuf,
    /// How long ended jobs are kept.
    pub retention: Duration,
    /// New work is refused when less is free.
    pub free_space_min_mib: u64,
    /// Whether dead letters that leave are written down.
    pub export_dead_letters: bool,
    /// What every key in Redis begins with.
    pub redis_prefix: String,
    /// Whether a Redis is used that may lose or evict jobs.
    pub allow_unsafe_redis: bool,
    /// Files that the embedded store keeps open for reading.
    pub cached_files_max: usize,
}

impl StoreConfig {
    /// A store of this kind, with its files in `data`.
    pub fn new(kind: StoreKind, data: impl Into<PathBuf>) -> StoreConfig {
        StoreConfig {
            kind,
            data: data.into(),
            retention: Duration::from_hours(24),
            free_space_min_mib: 256,
            export_dead_letters: true,
            redis_prefix: "entrega".into(),
            allow_unsafe_redis: false,
            cached_files_max: 512,
        }
    }

    fn export_dir(&self) -> Option<PathBuf> {
        let exports = self.export_dead_letters && self.kind != StoreKind::Memory;
        exports.then(|| self.data.join("dead-letters"))
    }

    /// How the local store is set up.
    pub fn local(&self, lanes: &Lanes) -> LocalOptions {
        LocalOptions {
            retention: self.retention,
            free_bytes_min: self.free_space_min_mib.saturating_mul(MIB),
            export_dir: self.export_dir(),
            show: |payload| PRODUCTS.show(payload),
            ..LocalOptions::new(lanes.clone())
        }
    }

    /// What secrets are sealed with before they are stored. A store in memory leaves no file: its key goes with it.
    fn seal(&self, key: Option<&Secret>) -> Result<Seal, SealError> {
        match (key, &self.kind) {
            (None, StoreKind::Memory) => Ok(Seal::from_key(secret_bytes())),
            (key, _) => Seal::of(key.map(Secret::reveal), &self.data),
        }
    }

    /// Whether other nodes have the same store.
    pub fn is_shared(&self) -> bool {
        match &self.kind {
            StoreKind::Embedded | StoreKind::Memory => false,
            #[cfg(feature = "redis")]
            StoreKind::Redis(_) => true,
        }
    }
}

/// What an engine is opened with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where jobs are safe.
    pub store: StoreConfig,
    /// How nodes share a store that can be shared.
    pub cluster: ClusterOptions,
    /// Where calls may go, and how.
    pub client: ClientConfig,
    /// The lanes there are.
    pub lanes: Lanes,
    /// How mails leave.
    pub mail: MailConfig,
    /// What webhooks call themselves.
    pub webhook_agent: HeaderValue,
    /// Where the webhooks of each tenant go.
    pub endpoints: Vec<EndpointConfig>,
    /// The proxy routes, by lane.
    pub routes: Routes,
    /// Third-party APIs.
    pub connectors: Vec<Connector>,
    /// The key that secrets are sealed with; in a file beside the store if `None`.
    pub secret_key: Option<Secret>,
}

impl EngineConfig {
    /// These lanes over this store; no mail can leave, and there are no endpoints, routes or connectors yet.
    pub fn new(store: StoreConfig, lanes: Lanes) -> EngineConfig {
        EngineConfig {
            store,
            cluster: ClusterOptions { lease: ClusterOptions::LEASE, name: "node".into() },
            client: ClientConfig::default(),
            lanes,
            mail: MailConfig::default(),
            webhook_agent: WEBHOOK_AGENT,
            endpoints: Vec::new(),
            routes: Routes::new(),
            connectors: Vec::new(),
            secret_key: None,
        }
    }
}

/// Why an engine could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data cannot be opened.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// What is in it cannot be read.
    #[error(transparent)]
    Store(#[from] ReadError),
    /// Redis cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] RedisOpenError),
    /// A lane cannot be run.
    #[error("lane '{lane}': {source}")]
    Lane {
        /// The lane.
        lane: LaneName,
        /// What is wrong with it.
        source: BadPolicy,
    },
    /// A connector cannot be called so.
    #[error("connector '{id}': its name must be {source}")]
    Connector {
        /// As it was given.
        id: String,
        /// What would be right.
        source: BadConnector,
    },
    /// An endpoint could not be called.
    #[error("endpoint '{name}' of tenant '{tenant}': {field} must be {source}")]
    Endpoint {
        /// The tenant.
        tenant: TenantName,
        /// As it was given.
        name: String,
        /// Which field.
        field: &'static str,
        /// What would be right.
        source: BadEndpoint,
    },
    /// The key of stored secrets cannot be used.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The configured endpoints cannot be put into the store.
    #[error(transparent)]
    Endpoints(#[from] ConfiguredError),
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up")]
    Client(#[from] ClientError),
    /// The topics of SNS cannot be listened to.
    #[cfg(feature = "ses")]
    #[error(transparent)]
    Sns(#[from] SnsConfigError),
    /// A way out for mails cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl Engine {
    /// Opens the store and sets up the products. Nothing is delivered before [`Engine::run`].
    pub async fn open(config: EngineConfig) -> Result<Engine, OpenError> {
        Ok(EngineParts::open(config).await?.build())
    }
}

impl EngineParts {
    /// The same, for a program that changes some of them.
    pub async fn open(config: EngineConfig) -> Result<EngineParts, OpenError> {
        for (lane, policy) in &config.lanes {
            policy.check().map_err(|source| OpenError::Lane { lane: lane.clone(), source })?;
        }
        for connector in &config.connectors {
            let id = || connector.id.clone();
            check_id(&connector.id).map_err(|source| OpenError::Connector { id: id(), source })?;
        }
        for endpoint in &config.endpoints {
            let (tenant, name) = (&endpoint.tenant, &endpoint.name);
            let checked = endpoint.check(&config.client.filter, config.lanes.values());
            checked.map_err(|(field, source)| OpenError::Endpoint {
                tenant: tenant.clone(),
                name: name.clone(),
                field,
                source,
            })?;
        }
        let clock = Clock::system();
        let store = open_store(&config, &clock).await?;
        let seal = Arc::new(config.store.seal(config.secret_key.as_ref())?);
        put_configured(&*store, &seal, clock.now(), &config.endpoints, config.store.is_shared()).await?;
        let calls = ClientConfig { clock: clock.clone(), ..config.client.clone() };
        let client = Client::new(calls)?;
        Ok(EngineParts {
            filter: config.client.filter.clone(),
            connector_client: client.keeping(CONNECTOR_ANSWER_BYTES_MAX),
            seal,
            transports: config.mail.transports(&config.client, &clock)?,
            #[cfg(feature = "ses")]
            sns: sns(&config.mail, &client, &clock)?,
            client,
            mail_from: config.mail.from,
            mail_senders: config.mail.senders,
            mail_domain: config.mail.domain,
            webhook_agent: config.webhook_agent,
            routes: config.routes,
            connectors: config.connectors,
            retention: config.store.retention,
            ..EngineParts::over(store, clock, config.lanes)
        })
    }
}

/// A clock that was set back would hold up whatever is due by the one before it, for as long: time goes on from what was
/// written, and that is said.
async fn go_on_from(ledger: &dyn Ledger, clock: &Clock) -> Result<(), OpenError> {
    let Some(written) = newest_moment(ledger).await? else { return Ok(()) };
    let shown = clock.now();
    let behind = clock.go_on_from(written);
    if behind >= SET_BACK_MIN {
        tracing::warn!(clock = %shown, newestMoment = %written, behindSeconds = behind.as_secs(),
            "The clock was set back since the store was last written; due times go on from the newest moment in it. \
             Signatures follow the clock");
    }
    Ok(())
}

async fn open_store(config: &EngineConfig, clock: &Clock) -> Result<Arc<dyn Store>, OpenError> {
    let local = config.store.local(&config.lanes);
    let store = match &config.store.kind {
        StoreKind::Embedded => {
            let opened = LsmLedger::open_with(&config.store.data, &tables::TABLES, config.store.cached_files_max);
            let ledger = opened.inspect_err(name_jobs)?;
            go_on_from(&ledger, clock).await?;
            LocalStore::open(Arc::new(ledger), clock.clone(), local).await?
        }
        StoreKind::Memory => LocalStore::open(Arc::new(HeapLedger::new(&tables::TABLES)), clock.clone(), local).await?,
        #[cfg(feature = "redis")]
        StoreKind::Redis(url) => {
            let options = RedisOptions {
                url: url.reveal().to_owned(),
                prefix: config.store.redis_prefix.clone(),
                allow_unsafe: config.store.allow_unsafe_redis,
            };
            let ledger = Arc::new(Box::pin(RedisLedger::open(options)).await?);
            let shared = LocalOptions { free_bytes_min: 0, cluster: Some(config.cluster.clone()), ..local };
            LocalStore::open(ledger, clock.clone(), shared).await?
        }
    };
    Ok(Arc::new(store))
}

/// Says which jobs a damaged journal speaks of behind the damage.
fn name_jobs(error: &LedgerError) {
    let LedgerError::Journal { file, behind, .. } = error else { return };
    for ids in behind.ids.chunks(NAMED_TOGETHER) {
        let jobs: Vec<String> = ids.iter().map(|id| JobId::from_bytes(*id).to_string()).collect();
        tracing::error!(file, jobs = jobs.join(" "), "Jobs that the journal speaks of from its damage on");
    }
}

/// Ids in one line of the log.
const NAMED_TOGETHER: usize = 50;

#[cfg(feature = "ses")]
fn sns(mail: &MailConfig, client: &Client, clock: &Clock) -> Result<Option<Sns>, SnsConfigError> {
    let config = SnsConfig { topics: mail.topics.clone(), certificate_hosts: mail.certificate_hosts.clone() };
    let listens = !mail.topics.is_empty();
    listens.then(|| Sns::new(config, client.clone(), clock.clone())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_that_could_not_be_called_is_refused_with_its_field() {
        let endpoint = EndpointConfig {
            tenant: TenantName::new("acme").unwrap(),
            name: "default".into(),
            url: "https://example.com/hooks".into(),
            secret: Secret::new("whsec_abcdefghijklmnopqrstuvwxyz012345".to_owned()),
            event_types: Vec::new(),
            throttle: None,
            enabled: true,
        };
        let bad = [
            (EndpointConfig { name: "A".into(), ..endpoint.clone() }, "name must be"),
            (EndpointConfig { url: "http://127.0.0.1/".into(), ..endpoint.clone() }, "url must be"),
            (EndpointConfig { secret: Secret::new("short".to_owned()), ..endpoint.clone() }, "secret must be"),
            (EndpointConfig { event_types: vec!["!".into()], ..endpoint.clone() }, "eventTypes must be"),
        ];
        for (endpoint, words) in bad {
            let store = StoreConfig::new(StoreKind::Memory, "");
            let config = EngineConfig { endpoints: vec![endpoint], ..EngineConfig::new(store, Lanes::default()) };
            let error = EngineParts::open(config).await.err().expect("it is refused").to_string();
            assert!(error.starts_with("endpoint '") && error.contains(words), "{error}");
        }
    }
}
