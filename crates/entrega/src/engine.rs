//! The engine: everything a program needs to run lanes, put together.
//! Invariant: it owns nothing global; two engines can run in one process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{AddressFilter, Client, ClientConfig, ClientError};
use entrega_core::email::Mailbox;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_ledger::redis::{RedisLedger, RedisOpenError};
use entrega_ledger::{HeapLedger, Ledger, LedgerError, LsmLedger};

use crate::chance::{Chance, secret_bytes};
use crate::channel::Channel;
use crate::channel::connector::ConnectorChannel;
use crate::channel::email::EmailChannel;
#[cfg(feature = "ses")]
use crate::channel::email::ses::SesTransport;
use crate::channel::email::smtp::{SmtpConfig, SmtpTransport};
use crate::channel::email::transport::Transport;
use crate::channel::event::EventChannel;
use crate::channel::http::HttpChannel;
use crate::channel::proxy::ProxyChannel;
use crate::channel::webhook::WebhookChannel;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, StoreKind, TransportConfig, TransportKind};
use crate::connector::{CONNECTOR_CHANNEL, Connectors, Outside};
use crate::endpoint::{ConfiguredError, put_configured};
use crate::events::EVENTS_LANE;
use crate::metrics::Metrics;
use crate::proxy::{PROXY_CHANNEL, Routes};
use crate::seal::{Seal, SealError};
use crate::sns::{Sns, SnsConfigError};
use crate::store::local::{LocalStore, ReadError, tables};
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
    pub metrics: Arc<Metrics>,
    /// Which destinations may be called.
    pub filter: AddressFilter,
    /// How jobs leave, by the name in the lane's policy.
    pub channels: HashMap<String, Arc<dyn Channel>>,
    /// The lanes there are.
    pub lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
    /// Seals the secrets of endpoints.
    pub seal: Arc<Seal>,
    /// What mails need beside a lane and a channel.
    pub mail: Mail,
    /// The proxy routes, by lane.
    pub routes: Arc<Routes>,
    /// The third-party APIs there are.
    pub connectors: Arc<Connectors>,
    /// How long ended jobs are kept.
    pub retention: Duration,
}

/// Who mails are from, whether they can leave, and how reports of them come in.
#[derive(Default)]
pub struct Mail {
    /// Who a mail is from that does not say.
    pub from: Option<Mailbox>,
    /// Whether there is a transport.
    pub has_transport: bool,
    /// Reads what Amazon reports; `None` where no topic is listened to.
    pub sns: Option<Sns>,
}

/// How much of a third-party API's answer is kept: what it answers is what was wanted.
const CONNECTOR_ANSWER_BYTES_MAX: usize = 1 << 20;

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
    #[error(transparent)]
    Redis(#[from] RedisOpenError),
    /// The configuration names something that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
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
    #[error(transparent)]
    Sns(#[from] SnsConfigError),
    /// A way out for mails cannot be set up.
    #[error("the transport '{name}' cannot be set up")]
    Transport {
        /// Which.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The ways out for mails, in order.
pub(crate) fn transports(config: &Config, clock: &Clock) -> Result<Vec<Box<dyn Transport>>, OpenError> {
    let extra_ca_pem = config.client()?.extra_ca_pem;
    let set_up = |transport: &TransportConfig| -> Result<Box<dyn Transport>, OpenError> {
        let name = &transport.name;
        match &transport.kind {
            TransportKind::Smtp(smtp) => {
                let smtp = SmtpConfig { extra_ca_pem: extra_ca_pem.clone(), ..smtp.clone() };
                let failed = |source| OpenError::Transport { name: name.clone(), source: Box::new(source) };
                Ok(Box::new(SmtpTransport::new(name, smtp).map_err(failed)?))
            }
            #[cfg(feature = "ses")]
            TransportKind::Ses(ses) => {
                let client = Client::new(ClientConfig { extra_ca_pem: extra_ca_pem.clone(), ..ses.client_config() })?;
                Ok(Box::new(SesTransport::new(name, ses.clone(), client, clock.clone())))
            }
        }
    };
    config.mail.transports.iter().map(set_up).collect()
}

impl Engine {
    /// An engine over a store, for programs that put their own together: no channels, routes, connectors or mail yet, and
    /// only https to public addresses may be called.
    ///
    /// # Panics
    /// Never: a client without extra certificates can always be set up.
    pub fn over(store: Arc<dyn Store>, clock: Clock, lanes: BTreeMap<LaneName, Arc<LanePolicy>>) -> Engine {
        let metrics = Arc::new(Metrics::new(lanes.keys()));
        let seal = Arc::new(Seal::from_key(secret_bytes()));
        let client = Client::new(ClientConfig::default()).expect("a client without extra certificates");
        let filter = AddressFilter::default();
        let outside = Outside::new(client, filter.clone());
        let connectors = Connectors::new(Vec::new(), store.clone(), seal.clone(), outside, metrics.clone());
        Engine {
            store,
            clock,
            chance: Chance::from_system(),
            metrics,
            filter,
            channels: HashMap::new(),
            lanes,
            seal,
            mail: Mail::default(),
            routes: Arc::default(),
            connectors: Arc::new(connectors),
            retention: Duration::from_hours(24),
        }
    }

    /// Opens the store and sets up the channels. Nothing is delivered before `run`.
    pub async fn open(config: &Config) -> Result<Engine, OpenError> {
        let clock = Clock::system();
        let local = |ledger: Arc<dyn Ledger>| LocalStore::open(ledger, clock.clone(), config.local_store());
        let store: Arc<dyn Store> = match &config.store.kind {
            StoreKind::Embedded => {
                Arc::new(local(Arc::new(LsmLedger::open(&config.store.data, &tables::TABLES)?)).await?)
            }
            StoreKind::Memory => Arc::new(local(Arc::new(HeapLedger::new(&tables::TABLES))).await?),
            StoreKind::Redis(url) => {
                let ledger = Arc::new(Box::pin(RedisLedger::open(config.redis_ledger(url))).await?);
                Arc::new(LocalStore::open(ledger, clock.clone(), config.shared_store()).await?)
            }
        };
        let seal = Arc::new(config.seal()?);
        let is_shared = matches!(config.store.kind, StoreKind::Redis(_));
        put_configured(&*store, &seal, clock.now(), &config.endpoints, is_shared).await?;
        let client = Client::new(config.client()?)?;
        let http: Arc<dyn Channel> = Arc::new(HttpChannel::new(client.clone(), clock.clone()));
        let transports = transports(config, &clock)?;
        let listens = !config.mail.topics.is_empty();
        let mail = Mail {
            from: config.mail.from.clone(),
            has_transport: !transports.is_empty(),
            sns: listens.then(|| Sns::new(config.sns(), client.clone(), clock.clone())).transpose()?,
        };
        let email = EmailChannel::new(transports, store.clone(), clock.clone(), config.mail.domain.clone());
        let event = EventChannel::new(store.clone(), clock.clone());
        let agent = config.webhook_agent.clone();
        let routes = Arc::new(config.routes.clone());
        let proxy = ProxyChannel::new(client.clone(), store.clone(), clock.clone(), routes.clone());
        let metrics = Arc::new(Metrics::new(config.lanes.keys()));
        let answers = ClientConfig { answer_bytes_max: CONNECTOR_ANSWER_BYTES_MAX, ..config.client()? };
        let connectors = Arc::new(Connectors::new(
            config.connectors.clone(),
            store.clone(),
            seal.clone(),
            Outside::new(Client::new(answers)?, config.filter()),
            metrics.clone(),
        ));
        let connector = ConnectorChannel::new(connectors.clone(), clock.clone());
        let webhook = WebhookChannel::new(client, store.clone(), seal.clone(), clock.clone(), agent);
        let channels: [(&str, Arc<dyn Channel>); 6] = [
            ("http", http),
            ("email", Arc::new(email)),
            ("event", Arc::new(event)),
            ("webhook", Arc::new(webhook)),
            (PROXY_CHANNEL, Arc::new(proxy)),
            (CONNECTOR_CHANNEL, Arc::new(connector)),
        ];
        Ok(Engine {
            store,
            seal,
            mail,
            routes,
            connectors,
            retention: config.store.retention,
            chance: Chance::from_system(),
            metrics,
            filter: config.filter(),
            channels: channels.map(|(name, channel)| (name.to_owned(), channel)).into(),
            lanes: config.lanes.clone(),
            clock,
        })
    }

    /// Whether somebody is to be told of what becomes of a tenant's mails. An event that nobody listens to would cost as
    /// much as the mail.
    pub(crate) fn tells_events(&self, tenant: &TenantName) -> bool {
        self.lanes.contains_key(EVENTS_LANE) && !self.store.endpoints_of(tenant).is_empty()
    }

    /// A lane's policy.
    pub fn policy(&self, lane: &LaneName) -> Result<Arc<LanePolicy>, StoreError> {
        self.lanes.get(lane).cloned().ok_or_else(|| StoreError::UnknownLane {
            lane: lane.to_string(),
            known: self.lanes.keys().map(LaneName::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}
