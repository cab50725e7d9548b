//! Connectors: third-party APIs, as they are kept.
//! Invariant: credentials are sealed, in memory and at rest.
//! Never: knows where it is kept, or opens a secret.

use std::time::Duration;

use entrega_core::classify::Rule;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use crate::seal::Sealed;

/// A third-party API that somebody set up by the API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredConnector {
    /// Its name.
    pub id: String,
    /// Where it begins.
    pub base_url: String,
    /// How we show who we are, sealed for [`StoredConnector::context`].
    pub auth: Option<Sealed>,
    /// Who may use it; everybody if `None`.
    pub tenant: Option<TenantName>,
    /// Its limits.
    pub limits: ConnectorLimits,
    /// What answers mean, before the rules that hold for every connector.
    pub rules: Vec<Rule>,
    /// When it was set up.
    pub created_at: Time,
    /// When anybody last changed it.
    pub updated_at: Time,
}

impl StoredConnector {
    /// What the secret of a connector is sealed for: one that is moved to another does not open.
    pub fn context(id: &str) -> String {
        format!("connector/{id}")
    }
}

/// How a third-party API may be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorLimits {
    /// At most so many starts, and in any interval of this length.
    pub throttle: Option<(u32, Duration)>,
    /// Whether to go slower where the API asks for it.
    pub adaptive: bool,
    /// How long a call waits for its turn.
    pub throttle_wait: Duration,
    /// What happens then.
    pub on_throttle_timeout: OnThrottleTimeout,
    /// Failures in a row after which nobody is called, and for how long.
    pub breaker: Option<(u32, Duration)>,
    /// One attempt.
    pub timeout: Duration,
}

impl Default for ConnectorLimits {
    fn default() -> ConnectorLimits {
        ConnectorLimits {
            throttle: None,
            adaptive: false,
            throttle_wait: Duration::from_secs(60),
            on_throttle_timeout: OnThrottleTimeout::Proceed,
            breaker: Some((5, Duration::from_secs(30))),
            timeout: Duration::from_secs(30),
        }
    }
}

/// What becomes of a call that waited too long for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnThrottleTimeout {
    /// It goes anyway, with a warning.
    Proceed,
    /// It fails.
    Fail,
    /// It becomes a job; a job goes back to its queue.
    Requeue,
}
