//! Endpoints: where a tenant's webhooks go, as they are kept.
//! Invariant: an endpoint has one or two secrets, the newest first; in memory and at rest they are sealed. Every change
//! gives it another version.
//! Never: knows where it is kept, or opens a secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_core::name::TenantName;
use entrega_core::throttle::Rate;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};

use crate::seal::Sealed;

/// A tenant's webhook URL with its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The tenant.
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
    /// How often it may be called; without a limit of its own if there is none.
    #[serde(default)]
    pub throttle: Option<Rate>,
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
    /// Which change made it what it is; 0 for one that was never kept. A store takes a change only of the version that it
    /// has: of two who read the same and both write, the second would undo what the first did.
    #[serde(default)]
    pub version: u64,
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
    /// One that takes every event, called without a limit, with no secret yet.
    pub fn new(tenant: TenantName, name: &str, url: &str, origin: EndpointOrigin, now: Time) -> Endpoint {
        Endpoint {
            tenant,
            name: name.to_owned(),
            url: url.to_owned(),
            secrets: Vec::new(),
            event_types: Vec::new(),
            throttle: None,
            state: EndpointState::Enabled,
            reason: None,
            failing_since: None,
            origin,
            created_at: now,
            updated_at: now,
            version: 0,
        }
    }

    /// What its secrets are sealed for: one that is moved to another endpoint does not open.
    pub fn context(&self) -> String {
        Endpoint::context_of(&self.tenant, &self.name)
    }

    /// What the secrets of an endpoint with this name are sealed for.
    pub fn context_of(tenant: &TenantName, name: &str) -> String {
        format!("endpoint/{tenant}/{name}")
    }

    /// As it is kept when it is put at this moment. The moment is in the version so that one which is removed and set
    /// anew does not pass for the one that was read before.
    pub(super) fn put_at(self, now: Time) -> Endpoint {
        Endpoint { version: now.as_micros().max(self.version + 1), ..self }
    }

    /// Whose its jobs are in a lane: it takes turns and has gates of its own.
    pub fn lane_name(&self) -> TenantName {
        self.tenant.endpoint(&self.name)
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
    pub(super) fn put(&mut self, endpoint: Arc<Endpoint>) {
        let of_tenant = self.0.entry(endpoint.tenant.clone()).or_default();
        of_tenant.insert(endpoint.name.clone(), endpoint);
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
        let (acme, url) = (TenantName::new("acme").unwrap(), "https://acme.example.com/hooks");
        let mut endpoint = Endpoint::new(acme, "default", url, EndpointOrigin::Api, Time::ZERO);
        assert!(endpoint.takes("email.sent"));
        endpoint.event_types = vec!["email.failed".into()];
        assert!(endpoint.takes("email.failed") && !endpoint.takes("email.sent"));
    }

    #[test]
    fn a_version_never_comes_again_whatever_the_clock_says() {
        let endpoint: Endpoint = serde_json::from_str(
            r#"{"tenant": "acme", "name": "x", "url": "https://x.example.com", "secrets": [], "eventTypes": [],
                "state": "enabled", "reason": null, "failingSince": null, "origin": "api",
                "createdAt": "2026-01-31T09:30:00.000Z", "updatedAt": "2026-01-31T09:30:00.000Z"}"#,
        )
        .unwrap();
        assert_eq!(endpoint.version, 0, "kept before there were versions");
        let first = endpoint.put_at(Time::from_micros(50));
        let second = first.clone().put_at(Time::from_micros(40));
        assert_eq!((first.version, second.version), (50, 51));
    }
}
