//! Configured endpoints: put into the store at start.
//! Invariant: afterwards the store has every endpoint of the configuration, as it says, and no other that came from one.
//! Never: changes what is as it should be, or forgets what was learned of an endpoint: whether it fails, since when.

use std::sync::Arc;

use entrega_call::AddressFilter;
use entrega_core::name::TenantName;
use entrega_core::policy::LanePolicy;
use entrega_core::throttle::Rate;
use entrega_core::time::Time;

use super::change_endpoint;
use super::endpoint::{BadEndpoint, check_event_type, check_name, check_secret, check_throttle, check_url};
use crate::seal::{Seal, SealError, Sealed};
use crate::secret::Secret;
use crate::store::{Endpoint, EndpointOrigin, EndpointState, PutEndpointError, Store};

/// An endpoint as the configuration says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The tenant.
    pub tenant: TenantName,
    /// Its name.
    pub name: String,
    /// Where webhooks go.
    pub url: String,
    /// What they are signed with.
    pub secret: Secret,
    /// Which events it gets; all if empty.
    pub event_types: Vec<String>,
    /// How often it may be called.
    pub throttle: Option<Rate>,
    /// Whether it is called.
    pub enabled: bool,
}

impl EndpointConfig {
    /// Refuses one that could not be called, naming the field.
    pub(crate) fn check<'a>(
        &self,
        filter: &AddressFilter,
        lanes: impl IntoIterator<Item = &'a Arc<LanePolicy>>,
    ) -> Result<(), (&'static str, BadEndpoint)> {
        check_name(&self.name).map_err(|error| ("name", error))?;
        check_url(filter, &self.url).map_err(|error| ("url", error))?;
        check_secret(self.secret.reveal()).map_err(|error| ("secret", error))?;
        self.event_types.iter().try_for_each(|kind| check_event_type(kind)).map_err(|error| ("eventTypes", error))?;
        let throttle = self.throttle.map(|rate| check_throttle(rate, lanes));
        throttle.transpose().map(drop).map_err(|error| ("throttle", error))
    }
}

/// Why one is disabled that the configuration disables; when that changes, it is enabled again.
const REASON: &str = "disabled in the configuration";

/// Why the endpoints of a configuration could not be put into the store.
#[derive(Debug, thiserror::Error)]
pub enum ConfiguredError {
    /// The store could not do it.
    #[error("the configured endpoints cannot be stored: {0}")]
    Store(#[from] PutEndpointError),
    /// A secret could not be sealed, or the stored one not be opened.
    #[error("endpoint '{name}' of tenant '{tenant}': {source}")]
    Secret {
        /// The tenant.
        tenant: TenantName,
        /// Its name.
        name: String,
        /// What went wrong.
        source: SealError,
    },
}

/// Puts the endpoints of a configuration into the store, and removes those that left it.
///
/// # Errors
/// The store cannot be written, or a secret not be sealed. Where other nodes share the store (`is_shared`), a secret
/// that was sealed with another key is one too: sealing it anew would lock the others out.
pub async fn put_configured(
    store: &dyn Store,
    seal: &Seal,
    now: Time,
    configured: &[EndpointConfig],
    is_shared: bool,
) -> Result<(), ConfiguredError> {
    for endpoint in configured {
        let failed =
            |source| ConfiguredError::Secret { tenant: endpoint.tenant.clone(), name: endpoint.name.clone(), source };
        // A node that starts at the same moment may be faster; then this one finds that all is as it should be.
        let change = |kept: Option<&Endpoint>| {
            let secrets = secrets(seal, endpoint, kept, is_shared).map_err(failed)?;
            let wanted = wanted(endpoint, secrets, kept, now);
            let is_new = kept != Some(&wanted);
            Ok::<_, ConfiguredError>(is_new.then_some(Endpoint { updated_at: now, ..wanted }))
        };
        change_endpoint(store, &endpoint.tenant, &endpoint.name, change).await?;
    }
    let is_configured = |kept: &Endpoint| {
        configured.iter().any(|endpoint| endpoint.tenant == kept.tenant && endpoint.name == kept.name)
    };
    for kept in store.endpoints() {
        if kept.origin == EndpointOrigin::Config && !is_configured(&kept) {
            store.remove_endpoint(&kept.tenant, &kept.name).await.map_err(PutEndpointError::from)?;
            tracing::info!(companyId = %kept.tenant, endpoint = kept.name, "Endpoint removed; it is not configured any more");
        }
    }
    Ok(())
}

/// What is kept, if it is the configured secret; otherwise that one, sealed.
fn secrets(
    seal: &Seal,
    endpoint: &EndpointConfig,
    kept: Option<&Endpoint>,
    is_shared: bool,
) -> Result<Vec<Sealed>, SealError> {
    let context = Endpoint::context_of(&endpoint.tenant, &endpoint.name);
    let newest = kept.and_then(|kept| Some((kept, kept.secrets.first()?)));
    if let Some((kept, newest)) = newest {
        match seal.open(newest, &context) {
            Ok(secret) if secret == endpoint.secret => return Ok(kept.secrets.clone()),
            Err(SealError::Locked) if !is_shared => tracing::warn!(
                companyId = %endpoint.tenant,
                endpoint = endpoint.name,
                "The stored secret was sealed with another key; the configured one takes its place"
            ),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(vec![seal.seal(endpoint.secret.reveal(), &context)?])
}

fn wanted(endpoint: &EndpointConfig, secrets: Vec<Sealed>, kept: Option<&Endpoint>, now: Time) -> Endpoint {
    let (state, reason) = match kept {
        _ if !endpoint.enabled => (EndpointState::Disabled, Some(REASON.to_owned())),
        Some(kept) if kept.reason.as_deref() != Some(REASON) => (kept.state, kept.reason.clone()),
        _ => (EndpointState::Enabled, None),
    };
    Endpoint {
        tenant: endpoint.tenant.clone(),
        name: endpoint.name.clone(),
        url: endpoint.url.clone(),
        secrets,
        event_types: endpoint.event_types.clone(),
        throttle: endpoint.throttle,
        state,
        reason,
        failing_since: kept.and_then(|kept| kept.failing_since),
        origin: EndpointOrigin::Config,
        created_at: kept.map_or(now, |kept| kept.created_at),
        updated_at: kept.map_or(now, |kept| kept.updated_at),
        version: kept.map_or(0, |kept| kept.version),
    }
}
