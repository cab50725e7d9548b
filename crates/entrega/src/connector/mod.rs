//! Connectors: third-party APIs with their base URL, their credentials and their limits.
//! Invariant: whoever waits and whatever is a job call an API through the same gates, and over all nodes that share the
//! store; no request leaves the base URL.
//! Never: shows a credential.
//!
//! # Layout
//! - here: what a connector is, and where it is found; `auth`: its credentials
//! - `limits`: what those may be; `gate`: the same, as the store keeps them; `watch`: what is counted of its calls
//! - `request`: one request through it; `channel`: a job's

mod auth;
mod channel;
mod gate;
mod limits;
mod request;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{
    AddressFilter, ApiClient, ApiClientError, ApiConfig, BadBaseUrl, BadCredentials, BaseUrl, BudgetGate, Client,
    Gates, Retrier, RetryPolicy, Rules, SharedTurns, ThrottleGate,
};
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::classify::Rule;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::{LanePolicy, Scope, ThrottlePolicy};
use entrega_core::retry_budget::BudgetPolicy;
use entrega_core::time::Time;
use parking_lot::Mutex;

pub use self::auth::{Auth, BadAuth};
pub use self::channel::ConnectorChannel;
pub use self::limits::{BREAKER_FAILURES_MAX, SECONDS_MAX, THROTTLE_MAX, TIMEOUT_MS_MAX};
pub use self::request::{ConnectorCall, Failed, Names, Replied};

use self::gate::StoreGate;
use self::watch::Watch;
use crate::env::Env;
use crate::product::Product;
use crate::seal::{Seal, SealError};
use crate::store::{ConnectorLimits, GateName, OnThrottleTimeout, StoreError, StoredConnector};

/// Requests to third-party APIs.
pub const CONNECTOR: Product = Product::new::<ConnectorCall>(LanePolicy::connector, |_| {
    "takes requests to connectors; make one with POST /v1/connectors/{id}/requests".into()
});
/// The lane of connectors that have none of their own.
pub const CONNECTOR_LANE: &str = "connector";
/// What the lanes of configured connectors begin with; the others share the lane before the colon.
pub const LANE_PREFIX: &str = "connector:";
/// Characters of a connector's name.
pub const ID_LENGTH_MAX: usize = 32;
/// Connectors that the store keeps.
pub const CONNECTORS_MAX: usize = 1_000;
/// Rules of one connector.
pub const RULES_MAX: usize = 50;

/// A third-party API that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Connector {
    /// Its name.
    pub id: String,
    /// Where it begins, as it was written.
    pub base_url: String,
    /// Its credentials.
    pub auth: Option<Auth>,
    /// Who may use it; everybody if `None`.
    pub tenant: Option<TenantName>,
    /// Its limits.
    pub limits: ConnectorLimits,
    /// What answers mean, before the rules that hold for every connector.
    pub rules: Vec<Rule>,
}

/// What is wrong with a connector; reads well after "must be".
#[derive(Debug, thiserror::Error)]
pub enum BadConnector {
    /// A name that cannot stand in a path.
    #[error("1 to {ID_LENGTH_MAX} characters of a-z, 0-9, _ and -")]
    Id,
    /// Not a URL that paths can follow.
    #[error("an absolute URL without user info, query or fragment, such as https://api.example.com/v1: {0}")]
    BaseUrl(#[from] BadBaseUrl),
    /// A URL that would not be called.
    #[error("a URL that may be called: {0}")]
    Filtered(#[from] entrega_call::UrlProblem),
    /// A limit that no connector may have.
    #[error("from {least} to {most}")]
    Limit {
        /// The smallest there may be.
        least: u64,
        /// And the largest.
        most: u64,
    },
}

/// Refuses a name that breaks the rules.
pub fn check_id(id: &str) -> Result<(), BadConnector> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    match (1..=ID_LENGTH_MAX).contains(&id.len()) && id.chars().all(is_allowed) {
        true => Ok(()),
        false => Err(BadConnector::Id),
    }
}

/// Refuses a base URL that cannot be one, or that the outbound filter would not let through.
pub fn check_base_url(filter: &AddressFilter, url: &str) -> Result<BaseUrl, BadConnector> {
    let base: BaseUrl = url.parse()?;
    filter.check_url(&base.to_uri())?;
    Ok(base)
}

/// Why a connector cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// There is none of that name, or none for this tenant.
    #[error("there is no connector '{id}'")]
    Unknown {
        /// Its id.
        id: String,
    },
    /// Its credentials cannot be opened.
    #[error("the credentials of connector '{id}' cannot be opened: {source}")]
    Sealed {
        /// Its id.
        id: String,
        /// What went wrong.
        source: SealError,
    },
    /// It was kept by another program, or may not be called any more.
    #[error("connector '{id}' cannot be called: {reason}")]
    Unfit {
        /// Its id.
        id: String,
        /// What went wrong.
        reason: String,
    },
}

/// Why a connector could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PutConnectorError {
    /// Something about it is wrong.
    #[error("{field}: must be {source}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What would be right.
        source: BadConnector,
    },
    /// Its credentials cannot stand in a header.
    #[error("auth: {0}")]
    Auth(#[from] BadCredentials),
    /// It would be called elsewhere with the credentials that it has.
    #[error(
        "auth: the base URL leads to another server than '{before}': give the credentials for it; those that are there \
         are not sent elsewhere (to go without, remove the connector first)"
    )]
    CredentialsNeeded {
        /// Where it began.
        before: String,
    },
    /// There are as many as there may be.
    #[error("there are {CONNECTORS_MAX} connectors; remove one that is not used any more")]
    TooMany,
    /// Its place is in the configuration.
    #[error("this connector is from the configuration: change it there and start again")]
    Configured,
    /// There is none of this name.
    #[error("there is no connector with this id")]
    Unknown,
    /// Its credentials could not be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A client, and for which state of its connector it was made.
type Made = (Option<Time>, ApiClient);

/// All connectors: those of the configuration, and those that the store keeps.
pub struct Connectors {
    configured: BTreeMap<String, Arc<Connector>>,
    env: Env,
    seal: Arc<Seal>,
    /// Connections that all connectors share.
    client: Client,
    /// What may be called.
    filter: AddressFilter,
    clients: Mutex<HashMap<String, Made>>,
}

impl Connectors {
    /// Those of the configuration, and those that the store keeps.
    pub fn new(
        configured: Vec<Connector>,
        env: Env,
        seal: Arc<Seal>,
        client: Client,
        filter: AddressFilter,
    ) -> Connectors {
        let configured = configured.into_iter().map(|connector| (connector.id.clone(), Arc::new(connector)));
        Connectors { configured: configured.collect(), env, seal, client, filter, clients: Mutex::default() }
    }

    /// Whether the configuration says what it is.
    pub fn is_configured(&self, id: &str) -> bool {
        self.configured.contains_key(id)
    }

    /// One connector, and when it was last changed if the store keeps it.
    pub fn find(&self, id: &str) -> Result<(Arc<Connector>, Option<Time>), ConnectorError> {
        if let Some(connector) = self.configured.get(id) {
            return Ok((connector.clone(), None));
        }
        let stored = self.env.store.connector(id).ok_or_else(|| ConnectorError::Unknown { id: id.to_owned() })?;
        Ok((Arc::new(self.opened(&stored)?), Some(stored.updated_at)))
    }

    /// Sets a connector up, or changes the one that is there; whether it is new. Without `auth` the one that is there
    /// keeps its own.
    pub async fn put(&self, connector: Connector) -> Result<bool, PutConnectorError> {
        let Connector { id, base_url, auth, tenant, limits, rules } = connector;
        check_id(&id).map_err(|source| PutConnectorError::Invalid { field: "id", source })?;
        limits::check(&limits, rules.len())?;
        if self.is_configured(&id) {
            return Err(PutConnectorError::Configured);
        }
        let base = check_base_url(&self.filter, &base_url)
            .map_err(|source| PutConnectorError::Invalid { field: "baseUrl", source })?;
        let kept = self.env.store.connector(&id);
        if kept.is_none() && self.env.store.connectors().len() >= CONNECTORS_MAX {
            return Err(PutConnectorError::TooMany);
        }
        let auth = match auth {
            None => match kept.as_ref().filter(|kept| kept.auth.is_some()) {
                Some(kept) if !is_same_server(&kept.base_url, &base) => {
                    return Err(PutConnectorError::CredentialsNeeded { before: kept.base_url.clone() });
                }
                kept => kept.and_then(|kept| kept.auth.clone()),
            },
            Some(auth) => {
                auth.credentials()?;
                Some(self.seal.seal(&auth.write(), &StoredConnector::context(&id))?)
            }
        };
        let now = self.env.clock.now();
        let created_at = kept.as_ref().map_or(now, |kept| kept.created_at);
        let stored = StoredConnector { id, base_url, auth, tenant, limits, rules, created_at, updated_at: now };
        self.env.store.put_connector(stored).await?;
        Ok(kept.is_none())
    }

    /// Forgets a connector.
    pub async fn remove(&self, id: &str) -> Result<(), PutConnectorError> {
        if self.is_configured(id) {
            return Err(PutConnectorError::Configured);
        }
        match self.env.store.remove_connector(id).await? {
            true => {
                self.clients.lock().remove(id);
                Ok(())
            }
            false => Err(PutConnectorError::Unknown),
        }
    }

    /// All of them, by name; one that cannot be opened is shown without its credentials.
    pub fn all(&self) -> Vec<(Connector, Option<Time>)> {
        let mut all: BTreeMap<String, (Connector, Option<Time>)> = BTreeMap::new();
        for stored in self.env.store.connectors() {
            let shown = Connector { auth: None, ..plain(&stored) };
            all.insert(stored.id.clone(), (self.opened(&stored).unwrap_or(shown), Some(stored.updated_at)));
        }
        all.extend(self.configured.iter().map(|(id, connector)| (id.clone(), (Connector::clone(connector), None))));
        all.into_values().collect()
    }

    fn opened(&self, stored: &StoredConnector) -> Result<Connector, ConnectorError> {
        let id = || stored.id.clone();
        let unfit = |reason: String| ConnectorError::Unfit { id: id(), reason };
        let secret = stored.auth.as_ref().map(|sealed| self.seal.open(sealed, &StoredConnector::context(&stored.id)));
        let secret = secret.transpose().map_err(|source| ConnectorError::Sealed { id: id(), source })?;
        let auth = secret.map(|secret| Auth::read(secret.reveal())).transpose();
        Ok(Connector { auth: auth.map_err(|error| unfit(error.to_string()))?, ..plain(stored) })
    }

    /// What a connector's own rules are; none if it is gone.
    pub fn rules(&self, id: &str) -> Vec<Rule> {
        match self.configured.get(id) {
            Some(connector) => connector.rules.clone(),
            None => self.env.store.connector(id).map(|stored| stored.rules.clone()).unwrap_or_default(),
        }
    }

    /// What becomes of calls that wait too long for their turn; as by default if the connector is gone.
    pub fn on_throttle_timeout(&self, id: &str) -> OnThrottleTimeout {
        let limits = match self.configured.get(id) {
            Some(connector) => Some(connector.limits.clone()),
            None => self.env.store.connector(id).map(|stored| stored.limits.clone()),
        };
        limits.unwrap_or_default().on_throttle_timeout
    }

    /// The client of a connector as it is now. Those that nothing changed share their gates and what they learned.
    /// Only who may use it gets it, also if that was changed since a job was handed in.
    pub fn client(&self, id: &str, tenant: &TenantName) -> Result<ApiClient, ConnectorError> {
        let (connector, changed_at) = self.find(id)?;
        if connector.tenant.as_ref().is_some_and(|owner| owner != tenant) {
            return Err(ConnectorError::Unknown { id: id.to_owned() });
        }
        let mut clients = self.clients.lock();
        if let Some((_, client)) = clients.get(id).filter(|(made_for, _)| *made_for == changed_at) {
            return Ok(client.clone());
        }
        let client = self.make(&connector)?;
        clients.insert(id.to_owned(), (changed_at, client.clone()));
        Ok(client)
    }

    fn make(&self, connector: &Connector) -> Result<ApiClient, ConnectorError> {
        let unfit = |reason: String| ConnectorError::Unfit { id: connector.id.clone(), reason };
        let base_url = check_base_url(&self.filter, &connector.base_url).map_err(|error| unfit(error.to_string()))?;
        let mut config = ApiConfig::connector(&connector.id, base_url);
        let credentials = connector.auth.as_ref().map(Auth::credentials).transpose();
        config.credentials = credentials.map_err(|error| unfit(error.to_string()))?;
        config.rules = connector.rules.iter().rev().cloned().fold(Rules::connector(), Rules::preceded_by);
        config.retry = RetryPolicy { timeout: connector.limits.timeout, ..RetryPolicy::connector() };
        config.client.filter = self.filter.clone();
        let observer = Watch::new(self.env.metrics.clone(), &connector.id);
        let retrier = Retrier {
            clock: self.env.clock.clone(),
            chance: self.env.chance.draws(),
            gates: self.gates(connector),
            observer: Some(Arc::new(observer)),
        };
        ApiClient::over(self.client.clone(), config, retrier).map_err(|error: ApiClientError| unfit(error.to_string()))
    }

    fn gates(&self, connector: &Connector) -> Gates {
        let limits = &connector.limits;
        let gate = GateName { name: gate_name(&connector.id), policy: Arc::new(gate_policy(limits)) };
        let shared = SharedTurns::new(Arc::new(StoreGate::new(self.env.store.clone(), gate)), self.env.clock.clone());
        // What the API says of its limit is learned here; what was configured holds over all nodes.
        let learned = limits.throttle.filter(|_| limits.adaptive);
        Gates {
            throttle: learned.map(|(max, per)| ThrottleGate::adaptive(max, per, self.env.clock.clone())),
            throttle_wait_max: limits.throttle_wait,
            on_throttle_timeout: match limits.on_throttle_timeout {
                OnThrottleTimeout::Proceed => entrega_call::OnThrottleTimeout::Proceed,
                OnThrottleTimeout::Fail | OnThrottleTimeout::Requeue => entrega_call::OnThrottleTimeout::Fail,
            },
            budget: Some(BudgetGate::new(BudgetPolicy::default(), self.env.clock.clone())),
            shared: Some(Arc::new(shared)),
            ..Gates::default()
        }
    }

    /// The starts per period that an adaptive throttle allows for now.
    pub fn estimate(&self, id: &str) -> Option<f64> {
        let clients = self.clients.lock();
        clients.get(id)?.1.gates().throttle.as_ref().map(ThrottleGate::estimate)
    }
}

/// Whether credentials for the one URL may be sent to the other. One that cannot be read any more is no reason to.
fn is_same_server(before: &str, now: &BaseUrl) -> bool {
    before.parse::<BaseUrl>().is_ok_and(|before| before.has_origin_of(now))
}

fn plain(stored: &StoredConnector) -> Connector {
    Connector {
        id: stored.id.clone(),
        base_url: stored.base_url.clone(),
        auth: None,
        tenant: stored.tenant.clone(),
        limits: stored.limits.clone(),
        rules: stored.rules.clone(),
    }
}

/// The lane of a connector's jobs: its own where there is one.
pub fn lane_of(id: &str, lanes: &BTreeMap<LaneName, Arc<LanePolicy>>) -> LaneName {
    let own = LaneName::new(&format!("{LANE_PREFIX}{id}")).ok().filter(|lane| lanes.contains_key(lane));
    own.unwrap_or_else(|| LaneName::new(CONNECTOR_LANE).expect("a lane name"))
}

fn gate_name(id: &str) -> LaneName {
    LaneName::new(&format!("gate:{id}")).expect("an id is shorter than a lane's name")
}

fn gate_policy(limits: &ConnectorLimits) -> LanePolicy {
    let throttle = limits.throttle;
    let breaker = limits.breaker.map(|(failures, open): (u32, Duration)| {
        (BreakerPolicy { failures, open, probe_timeout: limits.timeout, when_open: WhenOpen::Hold }, Scope::Lane)
    });
    LanePolicy {
        throttle: throttle.map(|(max_requests, per)| ThrottlePolicy { max_requests, per, scope: Scope::Lane }),
        breaker,
        ..LanePolicy::connector()
    }
}
