//! Endpoints: where a tenant's webhooks go, as they are kept.
//! Invariant: an endpoint has one or two secrets, the newest first; in memory and at rest they are sealed.
//! Never: knows where it is kept, or opens a secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use crate::seal::Sealed;

/// A tenant's webhook URL with its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Whose.
    pub tenant: TenantName,
    /// Its name, the tenant's own.
    pub name: String,
    /// Where webhooks go.
    pub url: String,
    /// What they are signed with, sealed for [`Endpoint::context`]: the newest first, and during a rotation the one
    /// before it.
    pub secrets: Vec<Sealed>,
    /// Which events it gets; all if empty.
    pub event_types: Vec<String>,
    /// Whether it is called.
    pub state: EndpointState,
    /// Why it is not.
    pub reason: Option<String>,
    /// Since when every attempt has failed.
    pub failing_since: Option<Time>,
    /// Who set it up.
    pub origin: EndpointOrigin,
    /// When it was set up.
    pub created_at: Time,
    /// When anybody last changed it.
    pub updated_at: Time,
}

/// Whether an endpoint is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointState {
    /// It is.
    Enabled,
    /// Not now; what is for it waits.
    Paused,
    /// Not until somebody enables it; what is for it waits.
    Disabled,
}

/// Who set an endpoint up, and so who may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointOrigin {
    /// The configuration.
    Config,
    /// A caller of the API.
    Api,
}

impl Endpoint {
    /// What its secrets are sealed for: one that is moved to another endpoint does not open.
    pub fn context(&self) -> String {
        Endpoint::context_of(&self.tenant, &self.name)
    }

    /// What the secrets of an endpoint with this name are sealed for.
    pub fn context_of(tenant: &TenantName, name: &str) -> String {
        format!("endpoint/{tenant}/{name}")
    }

    /// Whether it gets events of this type.
    pub fn takes(&self, event_type: &str) -> bool {
        self.event_types.is_empty() || self.event_types.iter().any(|taken| taken == event_type)
    }
}

/// What an endpoint is kept under; neither name can hold a slash.
pub(super) fn key_of(tenant: &TenantName, name: &str) -> String {
    format!("endpoint/{tenant}/{name}")
}

/// All endpoints, in memory: every event asks for those of its tenant.
#[derive(Default)]
pub(super) struct Endpoints(BTreeMap<TenantName, BTreeMap<String, Arc<Endpoint>>>);

impl Endpoints {
    pub(super) fn put(&mut self, endpoint: Endpoint) {
        let of_tenant = self.0.entry(endpoint.tenant.clone()).or_default();
        of_tenant.insert(endpoint.name.clone(), Arc::new(endpoint));
    }

    pub(super) fn remove(&mut self, tenant: &TenantName, name: &str) {
        if let Some(of_tenant) = self.0.get_mut(tenant) {
            of_tenant.remove(name);
            if of_tenant.is_empty() {
                self.0.remove(tenant);
            }
        }
    }

    pub(super) fn get(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>> {
        self.0.get(tenant)?.get(name).cloned()
    }

    pub(super) fn of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>> {
        self.0.get(tenant).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.0.values().flat_map(BTreeMap::values).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_event_types_takes_all_of_them() {
        let mut endpoint = Endpoint {
            tenant: TenantName::new("acme").unwrap(),
            name: "default".into(),
            url: "https://acme.example.com/hooks".into(),
            secrets: Vec::new(),
            event_types: Vec::new(),
            state: EndpointState::Enabled,
            reason: None,
            failing_since: None,
            origin: EndpointOrigin::Api,
            created_at: Time::ZERO,
            updated_at: Time::ZERO,
        };
        assert!(endpoint.takes("email.sent"));
        endpoint.event_types = vec!["email.failed".into()];
        assert!(endpoint.takes("email.failed") && !endpoint.takes("email.sent"));
    }
}
