//! Configuration: from texts in several places to one value that can be run.
//! Invariant: a [`Config`] that exists was checked; every key that somebody wrote was read.
//! Never: reads the environment by itself; it is an argument, so that tests need no other world.
//!
//! # Layout
//! - `defaults.toml`: every key with its default, built in; also the reference
//! - `source`: the places; `layer`: merged into one table
//! - `section`: reading a table, refusing what is unknown or does not fit
//! - `lane`: the policies; `outbound`: where calls may go; `mail`: the ways out of mails; `endpoints`: where webhooks go; `proxy`: routes to upstreams;
//!   `connectors`: third-party APIs
//! - `print`: the way back to text; `value`: its words and numbers
//! - `error`: what can be wrong

mod connectors;
mod endpoints;
mod error;
mod lane;
mod layer;
mod mail;
mod outbound;
mod print;
mod proxy;
mod section;
mod source;
mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::name::LaneName;

#[cfg(feature = "redis")]
use entrega_ledger::redis;
use http::HeaderValue;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tracing_subscriber::EnvFilter;

pub use self::error::{ConfigError, Origin};
pub use self::outbound::OutboundConfig;
pub use self::source::{ConfigFile, ConfigSources, Options};

use self::layer::Layers;
use self::section::{Given, Section};
use entrega::connector::Connector;
use entrega::env::Lanes;
use entrega::mail::MailConfig;
use entrega::proxy::Routes;
use entrega::seal::{self, SECRET_KEY_VARIABLE, SealError};
use entrega::secret::Secret;
use entrega::store::local::ClusterOptions;
use entrega::webhook::EndpointConfig;
use entrega::{EngineConfig, StoreConfig, StoreKind};
use entrega_call::AddressFilter;

/// Every key with its default and what it is for.
pub const DEFAULTS: &str = include_str!("defaults.toml");
/// The file that is used when none is named.
pub const FILE_NAME: &str = "entrega.toml";
/// The variable with the operator's key.
pub const ADMIN_KEY_VARIABLE: &str = "ENTREGA_ADMIN_KEY";
/// Errors that are told at once.
const ERRORS_MAX: usize = 50;
const ADMIN_KEY_LENGTH_MIN: usize = 16;
const ADMIN_KEY_LENGTH_MAX: usize = 256;
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_mins(5);

/// `[server]`: how callers reach us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Whether that may be a public address without TLS.
    pub insecure_listen: bool,
    /// Callers at once.
    pub connections_max: usize,
    /// For a request's headers.
    pub header_timeout: Duration,
    /// For a request's body.
    pub body_timeout: Duration,
    /// Bodies and answers in memory at once.
    pub in_flight_mib_max: usize,
    /// The same for one tenant.
    pub in_flight_mib_per_tenant: usize,
}

/// `[cluster]`: how nodes share a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// How long an owner is waited for that shows no sign of life.
    pub lease: Duration,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    Auto,
    /// One object a line.
    Json,
    /// For people.
    Pretty,
}

/// `[log]`: what is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or levels by module; `tracing_subscriber::EnvFilter` takes it.
    pub level: String,
    /// How it looks.
    pub format: LogFormat,
}

/// `[shutdown]`: how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// How long attempts under way may take to end.
    pub grace: Duration,
}

/// Everything an operator can say.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How callers reach us.
    pub server: ServerConfig,
    /// Where jobs are safe.
    pub store: StoreConfig,
    /// How nodes share a store.
    pub cluster: ClusterConfig,
    /// Where calls may go.
    pub outbound: OutboundConfig,
    /// How mails leave.
    pub mail: MailConfig,
    /// What webhooks call themselves.
    pub webhook_agent: HeaderValue,
    /// What is written down.
    pub log: LogConfig,
    /// How it ends.
    pub shutdown: ShutdownConfig,
    /// The lanes there are.
    pub lanes: Lanes,
    /// Where the webhooks of each tenant go.
    pub endpoints: Vec<EndpointConfig>,
    /// The proxy routes, by lane.
    pub routes: Routes,
    /// Third-party APIs.
    pub connectors: Vec<Connector>,
    /// The operator's key, where the environment sets it.
    pub admin_key: Option<Secret>,
    /// The key that secrets are sealed with, where the environment sets it.
    pub secret_key: Option<Secret>,
}

/// What was left out because it is wrong, to see what else is: by path.
#[derive(Default)]
struct LeftOut(Vec<String>);

impl LeftOut {
    /// Whether something of a section was.
    fn touches(&self, section: &str) -> bool {
        self.0.iter().any(|path| path.split('.').next() == Some(section))
    }

    /// Whether an error only follows from that.
    fn explains(&self, error: &ConfigError) -> bool {
        match error {
            ConfigError::Missing { key, .. } => self.0.contains(key),
            ConfigError::HalfEndpoint { endpoint, .. } => self.0.iter().any(|path| path.starts_with(endpoint.as_str())),
            _ => false,
        }
    }
}

/// Lets everything through: what may be called is not known while that itself is wrong.
fn open_filter() -> AddressFilter {
    let networks = vec![
        IpNet::from(Ipv4Net::new_assert([0, 0, 0, 0].into(), 0)),
        Ipv6Net::new_assert(std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    ];
    AddressFilter { allow_http: true, allow_networks: networks }
}

impl Config {
    /// Puts the layers together, reads and checks them. All that is wrong is said at once, as far as it can be seen: what
    /// is wrong is left out, and the rest read again.
    pub fn load(sources: ConfigSources) -> Result<Config, ConfigError> {
        let mut layers = source::gather(&sources)?;
        let (mut errors, mut left_out) = (Vec::new(), LeftOut::default());
        while errors.len() < ERRORS_MAX {
            let error = match Config::read(&Layers::merged(&layers), &sources, &left_out) {
                Ok(config) if errors.is_empty() => return Ok(config),
                Ok(_) => break,
                Err(error) => error,
            };
            let path = error.leave_out();
            let goes_on = path.as_deref().is_some_and(|path| layer::leave_out(&mut layers, path));
            // What lacks a key only because its value was wrong was told of already.
            if !left_out.explains(&error) {
                errors.push(error);
            }
            match path.filter(|_| goes_on) {
                Some(path) => left_out.0.push(path),
                None => break,
            }
        }
        Err(match errors.len() {
            1 => errors.remove(0),
            _ => ConfigError::Several(errors),
        })
    }

    fn read(layers: &Layers, sources: &ConfigSources, left_out: &LeftOut) -> Result<Config, ConfigError> {
        let mut root = Section::root(layers);
        let mut config = Config {
            server: read_server(root.get_default("server")?.section()?)?,
            store: read_store(root.get_default("store")?.section()?)?,
            cluster: read_cluster(root.get_default("cluster")?.section()?)?,
            outbound: outbound::read(root.get_default("outbound")?.section()?)?,
            mail: mail::read(
                root.get_default("email")?.section()?,
                root.get_default("transports")?.section()?,
                root.get_default("ses")?.section()?,
                &sources.env,
            )?,
            webhook_agent: read_webhooks(root.get_default("webhooks")?.section()?)?,
            log: read_log(root.get_default("log")?.section()?)?,
            shutdown: read_shutdown(root.get_default("shutdown")?.section()?)?,
            lanes: read_lanes(root.get_default("lanes")?.section()?)?,
            endpoints: Vec::new(),
            routes: Routes::new(),
            connectors: Vec::new(),
            admin_key: read_admin_key(&sources.env)?,
            secret_key: read_secret_key(&sources.env)?,
        };
        if sources.options.dev {
            config.open_for_development();
        }
        // What may be called is known only now.
        let filter = if left_out.touches("outbound") { open_filter() } else { config.filter() };
        let rules = endpoints::EndpointRules { filter: filter.clone(), lanes: &config.lanes };
        (config.endpoints, config.mail.senders) = endpoints::read(root.get_default("tenants")?.section()?, &rules)?;
        config.routes = proxy::read(root.get_default("proxy")?.section()?, &filter)?;
        if !left_out.touches("lanes") && !left_out.touches("proxy") {
            proxy::match_lanes(&config.routes, &mut config.lanes)?;
        }
        config.connectors = connectors::read(root.get_default("connectors")?.section()?, &filter)?;
        if !left_out.touches("lanes") && !left_out.touches("connectors") {
            connectors::match_lanes(&config.connectors, &mut config.lanes)?;
        }
        root.finish()?;
        if !left_out.touches("server") {
            config.check_listen(layers.origin("server.listen"))?;
        }
        Ok(config)
    }

    /// Opens plain HTTP and this machine, beside what is open anyway.
    fn open_for_development(&mut self) {
        self.outbound.allow_http = true;
        for network in [
            IpNet::from(Ipv4Net::new_assert([127, 0, 0, 0].into(), 8)),
            Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128).into(),
        ] {
            if !self.outbound.allow_networks.contains(&network) {
                self.outbound.allow_networks.push(network);
            }
        }
    }

    /// Refuses an address that other machines reach, unless the operator said that this is meant.
    fn check_listen(&self, origin: Origin) -> Result<(), ConfigError> {
        let address = self.server.listen;
        match address.ip().to_canonical().is_loopback() || self.server.insecure_listen {
            true => Ok(()),
            false => Err(ConfigError::PublicListen { address, origin }),
        }
    }

    /// What an engine is opened with. Reads the extra certificates.
    pub fn engine(&self) -> Result<EngineConfig, ConfigError> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{host}:{}", self.server.listen.port());
        Ok(EngineConfig {
            store: self.store.clone(),
            cluster: ClusterOptions { lease: self.cluster.lease, name },
            client: self.client()?,
            lanes: self.lanes.clone(),
            mail: self.mail.clone(),
            webhook_agent: self.webhook_agent.clone(),
            endpoints: self.endpoints.clone(),
            routes: self.routes.clone(),
            connectors: self.connectors.clone(),
            secret_key: self.secret_key.clone(),
        })
    }

    /// Where the operator's key is kept.
    pub fn admin_key_file(&self) -> PathBuf {
        self.store.data.join("admin-key")
    }
}

fn read_server(mut server: Section<'_>) -> Result<ServerConfig, ConfigError> {
    let read = ServerConfig {
        listen: server.get_default("listen")?.parse("an address and a port, such as \"127.0.0.1:8080\"")?,
        insecure_listen: server.get_default("insecure_listen")?.flag()?,
        connections_max: server.get_default("connections_max")?.number(1..=1_000_000)?,
        header_timeout: server.get_default("header_timeout")?.positive_duration()?,
        body_timeout: server.get_default("body_timeout")?.positive_duration()?,
        in_flight_mib_max: server.get_default("in_flight_mib_max")?.number(16..=65_536)?,
        in_flight_mib_per_tenant: server.get_default("in_flight_mib_per_tenant")?.number(16..=65_536)?,
    };
    server.finish()?;
    Ok(read)
}

fn read_store(mut store: Section<'_>) -> Result<StoreConfig, ConfigError> {
    let read = StoreConfig {
        kind: read_kind(store.get_default("kind")?)?,
        data: read_path(store.get_default("data")?)?,
        retention: store.get_default("retention")?.duration()?,
        free_space_min_mib: store.get_default("free_space_min_mib")?.number(0..=1 << 30)?,
        export_dead_letters: store.get_default("export_dead_letters")?.flag()?,
        redis_prefix: read_prefix(store.get_default("redis_prefix")?)?,
        allow_unsafe_redis: store.get_default("allow_unsafe_redis")?.flag()?,
        ..StoreConfig::new(StoreKind::Embedded, "")
    };
    store.finish()?;
    Ok(read)
}

fn read_cluster(mut cluster: Section<'_>) -> Result<ClusterConfig, ConfigError> {
    let lease = cluster.get_default("lease")?;
    let length = lease.duration()?;
    if !(LEASE_MIN..=LEASE_MAX).contains(&length) {
        return Err(lease.must_be("from 1s to 5m"));
    }
    cluster.finish()?;
    Ok(ClusterConfig { lease: length })
}

fn read_kind(kind: Given<'_>) -> Result<StoreKind, ConfigError> {
    let text = kind.text()?;
    match text.as_str() {
        "embedded" => Ok(StoreKind::Embedded),
        "memory" => Ok(StoreKind::Memory),
        #[cfg(feature = "redis")]
        url if url.starts_with("redis") => match redis::check_url(url) {
            Ok(()) => Ok(StoreKind::Redis(Secret::new(text))),
            Err(error) => Err(kind.must_be(error.to_string())),
        },
        #[cfg(not(feature = "redis"))]
        url if url.starts_with("redis") => Err(kind.hidden_must_be(
            "\"embedded\" or \"memory\"; this program was built without Redis (cargo feature `redis`)",
        )),
        _ => Err(kind.must_be("\"embedded\", \"memory\" or an address such as \"redis://localhost:6379\"")),
    }
}

fn read_prefix(prefix: Given<'_>) -> Result<String, ConfigError> {
    let text = prefix.text()?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    match (1..=64).contains(&text.len()) && text.chars().all(is_allowed) {
        true => Ok(text),
        false => Err(prefix.must_be("1 to 64 letters, digits and -_.:")),
    }
}

fn read_path(path: Given<'_>) -> Result<PathBuf, ConfigError> {
    match path.text()? {
        text if text.is_empty() => Err(path.must_be("a path")),
        text => Ok(text.into()),
    }
}

fn read_webhooks(mut webhooks: Section<'_>) -> Result<HeaderValue, ConfigError> {
    let agent = webhooks.get_default("user_agent")?;
    let text = agent.text()?;
    let value = HeaderValue::from_str(&text).ok().filter(|value| (1..=200).contains(&value.len()));
    let value = value.ok_or_else(|| agent.must_be("1 to 200 visible characters, such as \"EmailGateway/1.0\""))?;
    webhooks.finish()?;
    Ok(value)
}

fn read_log(mut log: Section<'_>) -> Result<LogConfig, ConfigError> {
    let level = log.get_default("level")?;
    let right = "error, warn, info, debug or trace, or levels by module such as \"info,entrega=debug\"";
    level.parse::<EnvFilter>(right)?;
    if !level.text()?.split(',').all(is_directive) {
        return Err(level.must_be(right));
    }
    let read = LogConfig { level: level.text()?, format: log.get_default("format")?.choice(&print::LOG_FORMATS)? };
    log.finish()?;
    Ok(read)
}

/// A level, or a module and its level. The filter itself takes any single word for a module.
fn is_directive(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = text.rsplit_once('=').map_or(text, |(_, level)| level).trim();
    LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
}

fn read_shutdown(mut shutdown: Section<'_>) -> Result<ShutdownConfig, ConfigError> {
    let read = ShutdownConfig { grace: shutdown.get_default("grace")?.duration()? };
    shutdown.finish()?;
    Ok(read)
}

fn read_lanes(lanes: Section<'_>) -> Result<Lanes, ConfigError> {
    lanes
        .named()
        .map(|(name, given)| {
            let origin = given.origin();
            let name = LaneName::new(&name).map_err(|source| ConfigError::BadLaneName { origin, source })?;
            let policy = lane::read(given.section()?)?;
            policy.check().map_err(|source| ConfigError::BadLane { lane: name.clone(), source })?;
            Ok((name, Arc::new(policy)))
        })
        .collect()
}

fn read_admin_key(env: &[(String, String)]) -> Result<Option<Secret>, ConfigError> {
    let found = env.iter().find(|(name, _)| name == ADMIN_KEY_VARIABLE);
    let Some((_, key)) = found.filter(|(_, key)| !key.is_empty()) else { return Ok(None) };
    let length_fits = (ADMIN_KEY_LENGTH_MIN..=ADMIN_KEY_LENGTH_MAX).contains(&key.len());
    match length_fits && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(Some(Secret::new(key))),
        false => Err(ConfigError::BadAdminKey { least: ADMIN_KEY_LENGTH_MIN, most: ADMIN_KEY_LENGTH_MAX }),
    }
}

fn read_secret_key(env: &[(String, String)]) -> Result<Option<Secret>, ConfigError> {
    let found = env.iter().find(|(name, _)| name == SECRET_KEY_VARIABLE);
    let Some((_, key)) = found.filter(|(_, key)| !key.is_empty()) else { return Ok(None) };
    match seal::is_key(key) {
        true => Ok(Some(Secret::new(key))),
        false => Err(SealError::BadKey.into()),
    }
}
