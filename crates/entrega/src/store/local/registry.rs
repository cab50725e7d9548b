//! What operators set up: keys, weights, pauses, replays under way, endpoints.
//! Invariant: all of it is in memory, because requests and turns ask for it; the ledger has the same. What other nodes
//! change is read again when they say so, and now and then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::sender::SenderRule;
use entrega_core::throttle::Rate;
use entrega_ledger::{Key, Unit};
use serde::Serialize;

use super::changes::Decided;
use super::lanes::OwnedLane;
use super::pauses::Pause;
use super::reading::{From, ReadError, visit_whole};
use super::recovery::read_error;
use super::tables::REGISTRY;
use super::{LocalStore, Shared, records};
use crate::store::endpoint::{self, Endpoints};
use crate::store::replay::Replays;
use crate::store::{
    ApiKey, BeginReplayError, ConnectorRegistry, Endpoint, EndpointRegistry, KEYS_MAX, Page, Paged, PutEndpointError,
    PutKeyError, Registry, ReplayRun, StoreError, StoredConnector, TenantSettings, TenantView,
};

#[derive(Default)]
pub(super) struct Registered {
    keys: BTreeMap<String, Arc<ApiKey>>,
    keys_by_hash: HashMap<[u8; 32], Arc<ApiKey>>,
    tenants: BTreeMap<TenantName, TenantSettings>,
    senders: BTreeMap<TenantName, Arc<[SenderRule]>>,
    pub(super) replays: Replays,
    endpoints: Endpoints,
    connectors: BTreeMap<String, Arc<StoredConnector>>,
    paused: BTreeSet<LaneName>,
    /// The mark of the last change that is in here.
    version: Option<Bytes>,
}

/// What changes whenever anything else here does, where nodes share the ledger.
const VERSION_KEY: &str = "version";

impl Registered {
    fn put_key(&mut self, key: Arc<ApiKey>) {
        self.keys_by_hash.insert(key.hash, key.clone());
        let replaced = self.keys.insert(key.id.clone(), key.clone());
        if let Some(replaced) = replaced.filter(|replaced| replaced.hash != key.hash) {
            self.keys_by_hash.remove(&replaced.hash);
        }
    }

    /// What is set for a tenant, if anything is. Most gateways set nothing for anybody.
    pub(super) fn settings(&self, tenant: &TenantName) -> Option<&TenantSettings> {
        if self.tenants.is_empty() { None } else { self.tenants.get(&tenant.company()) }
    }

    pub(super) fn is_paused(&self, lane: &LaneName) -> bool {
        self.paused.contains(lane)
    }

    pub(super) fn set_paused(&mut self, lane: &LaneName, paused: bool) {
        match paused {
            true => drop(self.paused.insert(lane.clone())),
            false => drop(self.paused.remove(lane)),
        }
    }

    /// How many other keys the tenant of this one has.
    fn keys_beside(&self, key: &ApiKey) -> usize {
        self.keys.values().filter(|other| other.tenant == key.tenant && other.id != key.id).count()
    }

    fn remove_key(&mut self, id: &str) {
        if let Some(key) = self.keys.remove(id) {
            self.keys_by_hash.remove(&key.hash);
        }
    }
}

impl Shared {
    /// Reads all of it, and sets up this node's lanes by it.
    pub(super) async fn refresh_registry(&self) -> Result<(), ReadError> {
        // What is read must not be older than what this node has put meanwhile, or left on its way.
        let _one_at_a_time = self.registering.lock().await;
        self.settled().await.map_err(read_error)?;
        // Read first: whatever changes from here on gives another.
        let mut registered = Registered { version: self.registry_version().await?, ..Registered::default() };
        visit_whole(&*self.ledger, REGISTRY, From::Up(Vec::new()), |key, value| {
            let key = String::from_utf8_lossy(key);
            if let Err(error) = self.recover_one(&mut registered, &key, value) {
                self.note_unreadable(&key, &error);
            }
            ControlFlow::Continue(())
        })
        .await?;
        let before = std::mem::replace(&mut *self.registered.write(), registered);
        for lane in self.all_owned() {
            self.set_up(&lane);
            let registered = self.registered.read();
            for gone in before
                .endpoints
                .all()
                .iter()
                .filter(|kept| registered.endpoints.get(&kept.tenant, &kept.name).is_none())
            {
                lane.apply_throttle(&gone.lane_name(), None);
            }
        }
        Ok(())
    }

    /// The mark of the last change, as it is in the ledger now.
    async fn registry_version(&self) -> Result<Option<Bytes>, ReadError> {
        let mut found = self.ledger.read(REGISTRY, &[Key::Text(VERSION_KEY.into())]).await?;
        Ok(found.pop().flatten())
    }

    /// Marks that something here changes, for nodes that do not hear of it.
    pub(super) fn mark_change(&self, unit: &mut Unit) {
        if let Some(cluster) = &self.cluster {
            let mark = format!("{:016x} {}", self.options.node, cluster.next_mark());
            unit.put(REGISTRY, Key::Text(VERSION_KEY.into()), mark.into_bytes());
        }
    }

    /// Reads everything again if something changed that this node did not hear of.
    pub(super) async fn look_at_registry(&self) {
        if let Err(error) = self.catch_up().await {
            tracing::debug!(errorReason = %error, "Whether anything was set up could not be read");
        }
    }

    /// The same, for whoever must know it before it goes on.
    pub(super) async fn catch_up(&self) -> Result<(), ReadError> {
        let version = self.registry_version().await?;
        let is_known = version == self.registered.read().version;
        match is_known {
            true => Ok(()),
            false => self.refresh_registry().await,
        }
    }

    pub(super) async fn refresh_registry_or_log(&self) {
        if let Err(error) = self.refresh_registry().await {
            tracing::warn!(errorReason = %error, "Keys and tenants could not be read again; it is tried again");
        }
    }

    /// Sets up a lane of this node's: pause, weights, throttles of endpoints.
    pub(super) fn set_up(&self, lane: &OwnedLane) {
        let registered = self.registered.read();
        lane.apply_pause(registered.is_paused(&lane.name));
        for settings in registered.tenants.values() {
            lane.apply_settings(settings);
        }
        registered.endpoints.all().iter().for_each(|kept| lane.apply_throttle(&kept.lane_name(), kept.throttle));
    }

    fn recover_one(&self, registered: &mut Registered, key: &str, value: &[u8]) -> Result<(), ReadError> {
        match key.split_once('/') {
            Some(("key", _)) => registered.put_key(Arc::new(records::decode_json(REGISTRY, value)?)),
            Some(("tenant", _)) => {
                let settings: TenantSettings = records::decode_json(REGISTRY, value)?;
                registered.tenants.insert(settings.tenant.clone(), settings);
            }
            Some(("senders", tenant)) => {
                let senders: Vec<SenderRule> = records::decode_json(REGISTRY, value)?;
                registered.senders.extend(TenantName::new(tenant).ok().map(|tenant| (tenant, senders.into())));
            }
            Some(("replay", _)) => {
                registered.replays.put(records::decode_json(REGISTRY, value)?);
            }
            Some(("endpoint", _)) => registered.endpoints.put(Arc::new(records::decode_json(REGISTRY, value)?)),
            Some(("connector", id)) => {
                registered.connectors.insert(id.to_owned(), Arc::new(records::decode_json(REGISTRY, value)?));
            }
            Some(("lane", lane)) => {
                let mut scopes = self.scopes.write();
                if !scopes.iter().any(|known| **known == *lane) {
                    scopes.push(lane.into());
                }
            }
            Some(("paused", lane)) => {
                let pause: Pause = records::decode_json(REGISTRY, value)?;
                registered.paused.extend(LaneName::new(lane).ok().filter(|_| pause.paused));
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts a record, whatever was there. A new one may need room; what is there may always be changed, and lanes paused and
    /// replays begun.
    pub(super) async fn put(
        &self,
        key: &str,
        value: &(impl Serialize + Sync),
        then: impl Fn(&Shared) + Clone + Send + Sync + 'static,
    ) -> Result<(), StoreError> {
        let _one_at_a_time = self.registering.lock().await;
        self.put_alone(key, value, then).await
    }

    /// The same for whoever keeps others from registering anything meanwhile.
    async fn put_alone(
        &self,
        key: &str,
        value: &(impl Serialize + Sync),
        then: impl Fn(&Shared) + Clone + Send + Sync + 'static,
    ) -> Result<(), StoreError> {
        let put = self.decide(REGISTRY, key, |found| {
            if found.is_none() && ["key/", "tenant/", "connector/"].iter().any(|kind| key.starts_with(kind)) {
                self.refuse_when_full()?;
            }
            let mut unit = Unit::default();
            unit.put(REGISTRY, Key::Text(key.to_owned()), records::encode_json(value));
            self.mark_change(&mut unit);
            Ok(Decided::Write(unit, (), None).then(then.clone()))
        });
        put.await?;
        self.signal("registry".into());
        Ok(())
    }

    /// Removes a record; whether there was one. Of several who do, one did.
    async fn remove(
        &self,
        key: &str,
        then: impl Fn(&Shared) + Clone + Send + Sync + 'static,
    ) -> Result<bool, StoreError> {
        let _one_at_a_time = self.registering.lock().await;
        let removed = self.decide(REGISTRY, key, |found| {
            let mut unit = Unit::default();
            unit.remove(REGISTRY, Key::Text(key.to_owned()));
            self.mark_change(&mut unit);
            Ok(match found {
                Some(_) => Decided::Write(unit, true, None).then(then.clone()),
                None => Decided::Leave(false),
            })
        });
        let removed = removed.await?;
        self.signal("registry".into());
        Ok(removed)
    }
}

impl OwnedLane {
    /// Sets an endpoint's throttle, or takes it away, where endpoints are called.
    fn apply_throttle(&self, endpoint: &TenantName, rate: Option<Rate>) {
        if self.policy.calls_endpoints {
            self.machine.lock().set_throttle(endpoint, rate);
            self.wake.notify_one();
        }
    }
}

#[async_trait]
impl Registry for LocalStore {
    async fn put_key(&self, key: ApiKey) -> Result<(), PutKeyError> {
        let _one_at_a_time = self.shared.registering.lock().await;
        if self.shared.registered.read().keys_beside(&key) >= KEYS_MAX {
            return Err(PutKeyError::TooMany);
        }
        let kept = Arc::new(key.clone());
        let then = move |shared: &Shared| shared.registered.write().put_key(kept.clone());
        Ok(self.shared.put_alone(&format!("key/{}", key.id), &key, then).await?)
    }

    async fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        let gone = id.to_owned();
        let then = move |shared: &Shared| shared.registered.write().remove_key(&gone);
        self.shared.remove(&format!("key/{id}"), then).await
    }

    async fn keys(&self, page: Page<String>) -> Result<Paged<ApiKey, String>, StoreError> {
        let registered = self.shared.registered.read();
        let after = page.after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = registered.keys.range((after, Bound::Unbounded)).map(|(_, key)| ApiKey::clone(key));
        Ok(Paged::first_of(keys, page.limit, |key| key.id.clone()))
    }

    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.shared.registered.read().keys_by_hash.get(hash).cloned()
    }

    async fn put_tenant(&self, settings: TenantSettings) -> Result<(), StoreError> {
        let kept = settings.clone();
        let then = move |shared: &Shared| {
            shared.all_owned().for_each(|lane| lane.apply_settings(&kept));
            shared.registered.write().tenants.insert(kept.tenant.clone(), kept.clone());
        };
        self.shared.put(&format!("tenant/{}", settings.tenant), &settings, then).await
    }

    fn tenant_settings(&self, tenant: &TenantName) -> TenantSettings {
        self.shared.tenant_settings(tenant)
    }

    async fn put_senders(&self, tenant: &TenantName, senders: Vec<SenderRule>) -> Result<(), StoreError> {
        let (whose, kept): (_, Arc<[SenderRule]>) = (tenant.clone(), senders.clone().into());
        let then = move |shared: &Shared| drop(shared.registered.write().senders.insert(whose.clone(), kept.clone()));
        self.shared.put(&format!("senders/{tenant}"), &senders, then).await
    }

    fn senders(&self, tenant: &TenantName) -> Arc<[SenderRule]> {
        self.shared.registered.read().senders.get(tenant).cloned().unwrap_or_default()
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        self.shared.tenant_views().await
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        self.shared.put_replay(replay).await
    }

    async fn begin_replay(&self, replay: ReplayRun) -> Result<(), BeginReplayError> {
        self.shared.begin_replay(replay).await
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        Ok(self.shared.registered.read().replays.get(id).cloned())
    }

    async fn replay_runs(
        &self,
        tenant: Option<&TenantName>,
        page: Page<String>,
    ) -> Result<Paged<ReplayRun, String>, StoreError> {
        let registered = self.shared.registered.read();
        let newest = registered.replays.newest(tenant, page.after.as_deref()).cloned();
        Ok(Paged::first_of(newest, page.limit, |run| run.id.clone()))
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        if self.shared.house.read().is_none() {
            return Ok(Vec::new());
        }
        Ok(self.shared.registered.read().replays.running().cloned().collect())
    }
}

#[async_trait]
impl ConnectorRegistry for LocalStore {
    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError> {
        let kept = Arc::new(connector);
        let connector = Arc::clone(&kept);
        let then =
            move |shared: &Shared| drop(shared.registered.write().connectors.insert(kept.id.clone(), kept.clone()));
        self.shared.put(&format!("connector/{}", connector.id), &*connector, then).await
    }

    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError> {
        let gone = id.to_owned();
        let then = move |shared: &Shared| drop(shared.registered.write().connectors.remove(&gone));
        self.shared.remove(&format!("connector/{id}"), then).await
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
        let key = endpoint::key_of(&endpoint.tenant, &endpoint.name);
        let one_at_a_time = self.shared.registering.lock().await;
        let put = self.shared.decide(REGISTRY, &key, |found| {
            let kept = found.map(|bytes| records::decode_json::<Endpoint>(REGISTRY, bytes)).transpose()?;
            if kept.map_or(0, |kept| kept.version) != endpoint.version {
                return Ok(Decided::Leave(None));
            }
            if found.is_none() {
                self.shared.refuse_when_full()?;
            }
            let endpoint = Arc::new(endpoint.clone().put_at(self.shared.clock.now()));
            let kept = Arc::clone(&endpoint);
            let mut unit = Unit::default();
            unit.put(REGISTRY, Key::Text(key.clone()), records::encode_json(&*endpoint));
            self.shared.mark_change(&mut unit);
            Ok(Decided::Write(unit, Some(endpoint), None).then(move |shared| {
                shared.all_owned().for_each(|lane| lane.apply_throttle(&kept.lane_name(), kept.throttle));
                shared.registered.write().endpoints.put(kept);
            }))
        });
        let put = put.await?;
        drop(one_at_a_time);
        self.shared.signal("registry".into());
        match put {
            Some(endpoint) => Ok(endpoint),
            None => {
                // What is there now may be another node's.
                self.shared.refresh_registry().await.map_err(StoreError::from)?;
                Err(PutEndpointError::Changed)
            }
        }
    }

    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError> {
        let (of, gone) = (tenant.clone(), name.to_owned());
        let then = move |shared: &Shared| {
            shared.all_owned().for_each(|lane| lane.apply_throttle(&of.endpoint(&gone), None));
            shared.registered.write().endpoints.remove(&of, &gone);
        };
        self.shared.remove(&endpoint::key_of(tenant, name), then).await
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
