//! What can be wrong with a configuration.
//! Invariant: every error says where the value came from, what it was and what would be right.
//! Never: shows a secret.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use entrega_core::name::{BadName, BadTenant, LaneName, TenantName};
use entrega_core::policy::BadPolicy;

use entrega::mail::TransportError;
use entrega::seal::SealError;
use entrega::webhook::BadEndpoint;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file that is built in.
    Defaults,
    /// The operator's file, and the line in it; 0 where no line can be named.
    File(PathBuf, usize),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Defaults => f.write_str("built-in defaults"),
            Origin::File(path, 0) => write!(f, "{}", path.display()),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Env(name) => f.write_str(name),
            Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// More than one thing is wrong.
    #[error("{} things are wrong:\n{}", .0.len(), lines(.0))]
    Several(Vec<ConfigError>),
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}: {source}", file.display())]
    Syntax {
        /// Which file.
        file: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A variable whose name leads nowhere.
    #[error("{name}: not a key; write ENTREGA_<SECTION>__<KEY>, such as ENTREGA_SERVER__LISTEN")]
    BadVariable {
        /// The variable.
        name: String,
    },
    /// A key that nobody reads.
    #[error("{origin}: unknown key '{key}'; {hint}")]
    UnknownKey {
        /// The full path.
        key: String,
        /// Where it was given.
        origin: Origin,
        /// The nearest known key, or all of them.
        hint: String,
    },
    /// A value of the wrong type or beyond its limits.
    #[error("{origin}: {key} = {value}: must be {right}")]
    BadValue {
        /// The full path.
        key: String,
        /// Where it was given.
        origin: Origin,
        /// The value as written, cut to a readable length.
        value: String,
        /// What would be right.
        right: String,
    },
    /// Two keys that exclude each other.
    #[error("{origin}: {key} and {other} exclude each other; leave one out")]
    Clash {
        /// The one.
        key: String,
        /// The other.
        other: String,
        /// Where they were given.
        origin: Origin,
    },
    /// A key that must be there.
    #[error("{key} is missing; {right}")]
    Missing {
        /// The full path.
        key: String,
        /// What to write.
        right: &'static str,
    },
    /// A lane that cannot be called so.
    #[error("{origin}: [lanes]: {source}")]
    BadLaneName {
        /// Where it was given.
        origin: Origin,
        /// What is wrong with it.
        source: BadName,
    },
    /// A lane that cannot be run.
    #[error("lane '{lane}': {source}")]
    BadLane {
        /// Which lane.
        lane: LaneName,
        /// What is wrong with it.
        source: BadPolicy,
    },
    /// A tenant that cannot be called so.
    #[error("{origin}: [tenants]: {source}")]
    BadTenantName {
        /// Where it was given.
        origin: Origin,
        /// What is wrong with it.
        source: BadTenant,
    },
    /// An endpoint that cannot be called so.
    #[error("{origin}: [tenants.{tenant}.endpoints]: the name of an endpoint must be {source}")]
    BadEndpointName {
        /// The tenant.
        tenant: TenantName,
        /// Where it was given.
        origin: Origin,
        /// What would be right.
        source: BadEndpoint,
    },
    /// An endpoint without a URL or without a secret.
    #[error("{}an endpoint needs a URL and a secret; set {missing} too", origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default())]
    HalfEndpoint {
        /// Where the other half was given, if it was.
        origin: Option<Origin>,
        /// The key or the variable that is not there.
        missing: String,
        /// The endpoint, as a path.
        endpoint: String,
    },
    /// More endpoints than a tenant can have.
    #[error("{origin}: [tenants.{tenant}.endpoints]: at most {most} endpoints; several event types can share one")]
    TooManyEndpoints {
        /// The tenant.
        tenant: TenantName,
        /// Where they were given.
        origin: Origin,
        /// How many there can be.
        most: usize,
    },
    /// A route whose lane leads elsewhere.
    #[error("[lanes.\"{lane}\"]: channel = \"{channel}\": the lane of a proxy route has channel = \"proxy\"")]
    NotAProxyLane {
        /// Which lane.
        lane: LaneName,
        /// Its channel.
        channel: String,
    },
    /// A connector whose lane leads elsewhere.
    #[error("[lanes.\"{lane}\"]: channel = \"{channel}\": the lane of a connector has channel = \"connector\"")]
    NotAConnectorLane {
        /// Which lane.
        lane: LaneName,
        /// Its channel.
        channel: String,
    },
    /// A lane that nothing leads to.
    #[error("[lanes.\"{lane}\"]: channel = \"proxy\" is for the lanes of routes: [proxy.x] has the lane \"proxy:x\"")]
    LaneWithoutRoute {
        /// Which lane.
        lane: LaneName,
    },
    /// A way out for mails cannot be set up.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// No key to seal secrets with.
    #[error(transparent)]
    BadSecretKey(#[from] SealError),
    /// The operator's key is not fit for a header, or easily guessed.
    #[error("ENTREGA_ADMIN_KEY: must be {least} to {most} visible ASCII characters without spaces")]
    BadAdminKey {
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
    /// Everybody on the network could read the keys.
    #[error(
        "{origin}: server.listen = {address} is reachable from other machines, and API keys would cross the network in \
         the clear. Listen on loopback (127.0.0.1 or [::1]), or put a proxy that speaks TLS in front and pass \
         --insecure-listen (or set server.insecure_listen = true)"
    )]
    PublicListen {
        /// Where it would listen.
        address: SocketAddr,
        /// Where that was given.
        origin: Origin,
    },
}

fn lines(errors: &[ConfigError]) -> String {
    errors.iter().map(|error| format!("  {error}")).collect::<Vec<_>>().join("\n")
}

impl ConfigError {
    /// What is to be left out to see what else is wrong; `None` where nothing can be.
    pub(super) fn leave_out(&self) -> Option<String> {
        match self {
            ConfigError::BadValue { key, .. }
            | ConfigError::UnknownKey { key, .. }
            | ConfigError::Clash { key, .. } => Some(key.clone()),
            ConfigError::BadLane { lane, .. } => Some(format!("lanes.\"{lane}\"")),
            ConfigError::HalfEndpoint { endpoint, .. } => Some(endpoint.clone()),
            // What lacks a key cannot be read at all.
            ConfigError::Missing { key, .. } => key.rsplit_once('.').map(|(section, _)| section.to_owned()),
            _ => None,
        }
    }
}
