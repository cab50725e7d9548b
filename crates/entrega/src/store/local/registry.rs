//! What operators set up: keys, weights, pauses, replays under way, endpoints.
//! Invariant: all of it is in memory, because requests and turns ask for it; the ledger has the same.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::throttle::Rate;
use entrega_ledger::{Key, Unit};
use serde::Serialize;

use super::reading::{From, PAGE_ROWS, ReadError, visit};
use super::tables::REGISTRY;
use super::{LocalStore, Shared, records};
use crate::store::endpoint::{self, Endpoints};
use crate::store::{
    ApiKey, ConnectorRegistry, Endpoint, EndpointRegistry, PutEndpointError, Registry, ReplayRun, ReplayStatus,
    StoreError, StoredConnector, TenantSettings, TenantView,
};

#[derive(Default)]
pub(super) struct Registered {
    keys: BTreeMap<String, Arc<ApiKey>>,
    keys_by_hash: HashMap<[u8; 32], Arc<ApiKey>>,
    tenants: BTreeMap<TenantName, TenantSettings>,
    replays: BTreeMap<String, ReplayRun>,
    endpoints: Endpoints,
    connectors: BTreeMap<String, Arc<StoredConnector>>,
}

impl Registered {
    fn put_key(&mut self, key: Arc<ApiKey>) {
        self.keys_by_hash.insert(key.hash, key.clone());
        let replaced = self.keys.insert(key.id.clone(), key.clone());
        if let Some(replaced) = replaced.filter(|replaced| replaced.hash != key.hash) {
            self.keys_by_hash.remove(&replaced.hash);
        }
    }

    fn remove_key(&mut self, id: &str) {
        if let Some(key) = self.keys.remove(id) {
            self.keys_by_hash.remove(&key.hash);
        }
    }
}

impl Shared {
    pub(super) async fn recover_registry(&self) -> Result<(), ReadError> {
        let mut registered = Registered::default();
        visit(&*self.ledger, REGISTRY, From::Up(Vec::new()), PAGE_ROWS, |key, value| {
            let key = String::from_utf8_lossy(key);
            if let Err(error) = self.recover_one(&mut registered, &key, value) {
                self.note_unreadable(&key, &error);
            }
            ControlFlow::Continue(())
        })
        .await?;
        registered.tenants.values().for_each(|settings| self.apply_weight(settings));
        registered.endpoints.all().iter().for_each(|kept| self.apply_throttle(&kept.lane_name(), kept.throttle));
        *self.registered.write() = registered;
        Ok(())
    }

    fn recover_one(&self, registered: &mut Registered, key: &str, value: &[u8]) -> Result<(), ReadError> {
        match key.split_once('/') {
            Some(("key", _)) => registered.put_key(Arc::new(records::decode_json(REGISTRY, value)?)),
            Some(("tenant", _)) => {
                let settings: TenantSettings = records::decode_json(REGISTRY, value)?;
                registered.tenants.insert(settings.tenant.clone(), settings);
            }
            Some(("replay", id)) => {
                registered.replays.insert(id.to_owned(), records::decode_json(REGISTRY, value)?);
            }
            Some(("endpoint", _)) => registered.endpoints.put(Arc::new(records::decode_json(REGISTRY, value)?)),
            Some(("connector", id)) => {
                registered.connectors.insert(id.to_owned(), Arc::new(records::decode_json(REGISTRY, value)?));
            }
            Some(("lane", lane)) => self.scopes.write().push(lane.into()),
            Some(("paused", lane)) => {
                if let Some(lane) = LaneName::new(lane).ok().and_then(|lane| self.lanes.get(&lane)) {
                    lane.machine.lock().pause();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_weight(&self, settings: &TenantSettings) {
        for lane in self.lanes.values() {
            lane.machine.lock().set_weight(&settings.tenant, settings.weight);
        }
    }

    /// Sets an endpoint's throttle, or takes it away, in the lanes that call endpoints.
    fn apply_throttle(&self, endpoint: &TenantName, rate: Option<Rate>) {
        for lane in self.lanes.values().filter(|lane| lane.policy.calls_endpoints()) {
            lane.machine.lock().set_throttle(endpoint, rate);
            lane.wake.notify_one();
        }
    }

    async fn put(
        &self,
        key: String,
        value: &impl Serialize,
        then: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), StoreError> {
        let mut change = Unit::default();
        change.put(REGISTRY, Key::Text(key), records::encode_json(value));
        self.change_then(None, change, then).await
    }
}

#[async_trait]
impl Registry for LocalStore {
    async fn put_key(&self, key: ApiKey) -> Result<(), StoreError> {
        let kept = Arc::new(key.clone());
        let then = move |shared: &Shared| shared.registered.write().put_key(kept);
        self.shared.put(format!("key/{}", key.id), &key, then).await
    }

    async fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        // Of two who remove the same key, one did.
        let _one_at_a_time = self.shared.changes.lock().await;
        if !self.shared.registered.read().keys.contains_key(id) {
            return Ok(false);
        }
        let mut change = Unit::default();
        change.remove(REGISTRY, Key::Text(format!("key/{id}")));
        let id = id.to_owned();
        self.shared.change_then(None, change, move |shared| shared.registered.write().remove_key(&id)).await?;
        Ok(true)
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        Ok(self.shared.registered.read().keys.values().map(|key| ApiKey::clone(key)).collect())
    }

    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.shared.registered.read().keys_by_hash.get(hash).cloned()
    }

    async fn put_tenant(&self, settings: TenantSettings) -> Result<(), StoreError> {
        let kept = settings.clone();
        let then = move |shared: &Shared| {
            shared.apply_weight(&kept);
            shared.registered.write().tenants.insert(kept.tenant.clone(), kept);
        };
        self.shared.put(format!("tenant/{}", settings.tenant), &settings, then).await
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        let mut views = Vec::new();
        for lane in self.shared.lanes.values() {
            let machine = lane.machine.lock();
            views.extend(machine.tenants().map(|figures| TenantView { lane: lane.name.clone(), figures }));
        }
        Ok(views)
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        let kept = replay.clone();
        let then = move |shared: &Shared| drop(shared.registered.write().replays.insert(kept.id.clone(), kept));
        self.shared.put(format!("replay/{}", replay.id), &replay, then).await
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        Ok(self.shared.registered.read().replays.get(id).cloned())
    }

    async fn replay_runs(&self) -> Result<Vec<ReplayRun>, StoreError> {
        let mut runs: Vec<_> = self.shared.registered.read().replays.values().cloned().collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.created_at));
        Ok(runs)
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        let registered = self.shared.registered.read();
        let running = registered.replays.values().filter(|run| run.status == ReplayStatus::Running);
        Ok(running.cloned().collect())
    }
}

#[async_trait]
impl ConnectorRegistry for LocalStore {
    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError> {
        let kept = Arc::new(connector);
        let connector = Arc::clone(&kept);
        let then = move |shared: &Shared| drop(shared.registered.write().connectors.insert(kept.id.clone(), kept));
        self.shared.put(format!("connector/{}", connector.id), &*connector, then).await
    }

    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError> {
        // Of two who remove the same connector, one did.
        let _one_at_a_time = self.shared.changes.lock().await;
        if !self.shared.registered.read().connectors.contains_key(id) {
            return Ok(false);
        }
        let mut change = Unit::default();
        change.remove(REGISTRY, Key::Text(format!("connector/{id}")));
        let id = id.to_owned();
        self.shared
            .change_then(None, change, move |shared| drop(shared.registered.write().connectors.remove(&id)))
            .await?;
        Ok(true)
    }

    fn connector(&self, id: &str) -> Option<Arc<StoredConnector>> {
        self.shared.registered.read().connectors.get(id).cloned()
    }

    fn connectors(&self) -> Vec<Arc<StoredConnector>> {
        self.shared.registered.read().connectors.values().cloned().collect()
    }
}

#[async_trait]
impl EndpointRegistry for LocalStore {
    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError> {
        let _one_at_a_time = self.shared.changes.lock().await;
        // A caller who went away may have left a change that is on its way to the ledger.
        self.shared.settled().await?;
        let kept = self.endpoint(&endpoint.tenant, &endpoint.name);
        if kept.map_or(0, |kept| kept.version) != endpoint.version {
            return Err(PutEndpointError::Changed);
        }
        let endpoint = Arc::new(endpoint.put_at(self.shared.clock.now()));
        let kept = Arc::clone(&endpoint);
        let then = move |shared: &Shared| {
            shared.apply_throttle(&kept.lane_name(), kept.throttle);
            shared.registered.write().endpoints.put(kept);
        };
        self.shared.put(endpoint::key_of(&endpoint.tenant, &endpoint.name), &*endpoint, then).await?;
        Ok(endpoint)
    }

    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError> {
        // Of two who remove the same endpoint, one did.
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        if self.endpoint(tenant, name).is_none() {
            return Ok(false);
        }
        let mut change = Unit::default();
        change.remove(REGISTRY, Key::Text(endpoint::key_of(tenant, name)));
        let (tenant, name) = (tenant.clone(), name.to_owned());
        let then = move |shared: &Shared| {
            shared.apply_throttle(&tenant.endpoint(&name), None);
            shared.registered.write().endpoints.remove(&tenant, &name);
        };
        self.shared.change_then(None, change, then).await?;
        Ok(true)
    }

    fn endpoint(&self, tenant: &TenantName, name: &str) -> Option<Arc<Endpoint>> {
        self.shared.registered.read().endpoints.get(tenant, name)
    }

    fn endpoints_of(&self, tenant: &TenantName) -> Vec<Arc<Endpoint>> {
        self.shared.registered.read().endpoints.of(tenant)
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.shared.registered.read().endpoints.all()
    }
}
