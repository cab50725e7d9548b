//! What operators set up: keys, weights, replays under way, endpoints.
//! Invariant: keys and endpoints are in memory, because every request or event asks for one; a change on any node
//! reaches the others at once, or within seconds if its news is lost. An endpoint is changed only as the node that
//! changes it has seen it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::lane::TenantFigures;
use entrega_core::name::TenantName;
use entrega_core::throttle::Rate;
use futures_util::future;
use redis::Value;
use serde::Serialize;

use super::answer::{Reader, time};
use super::link::store_error;
use super::script::{Call, Verb, even_when_full};
use super::{LaneCell, RedisStore, Shared, schema};
use crate::store::endpoint::{self, Endpoints};
use crate::store::{
    ApiKey, ConnectorRegistry, Endpoint, EndpointRegistry, PutEndpointError, Registry, ReplayRun, ReplayStatus,
    StoreError, StoredConnector, TenantSettings, TenantView, records,
};

/// How long a node carries replays on without saying so again.
const LEAD: Duration = Duration::from_secs(3);
/// Throttles that one call sets, so that none takes long.
const THROTTLES_IN_ONE_CALL: usize = 500;
const READING: Reader = Reader("the registry");

#[derive(Default)]
pub(super) struct Registered {
    keys: BTreeMap<String, Arc<ApiKey>>,
    keys_by_hash: HashMap<[u8; 32], Arc<ApiKey>>,
    tenants: BTreeMap<TenantName, TenantSettings>,
    /// Whether a replay was under way when the registry was last read.
    has_replays: bool,
    endpoints: Endpoints,
    connectors: BTreeMap<String, Arc<StoredConnector>>,
}

impl Registered {
    fn read(&mut self, field: &str, value: &[u8]) -> Result<(), records::BadRecord> {
        match field.split_once('/') {
            Some(("key", _)) => {
                let key: Arc<ApiKey> = Arc::new(records::decode_json(value)?);
                self.keys_by_hash.insert(key.hash, key.clone());
                self.keys.insert(key.id.clone(), key);
            }
            Some(("tenant", _)) => {
                let settings: TenantSettings = records::decode_json(value)?;
                self.tenants.insert(settings.tenant.clone(), settings);
            }
            Some(("replay", _)) => {
                let run: ReplayRun = records::decode_json(value)?;
                self.has_replays |= run.status == ReplayStatus::Running;
            }
            Some(("connector", id)) => {
                self.connectors.insert(id.to_owned(), Arc::new(records::decode_json(value)?));
            }
            Some(("endpoint", _)) => self.endpoints.put(Arc::new(records::decode_json(value)?)),
            _ => {}
        }
        Ok(())
    }
}

impl Shared {
    fn registry_key(&self) -> String {
        schema::registry(&self.options.prefix)
    }

    /// Refuses what a later version wrote.
    pub(super) async fn check_format(&self) -> Result<(), StoreError> {
        let key = self.registry_key();
        let ours = schema::FORMAT.to_string();
        self.link.ask(&even_when_full(&[b"HSETNX", key.as_bytes(), b"format", ours.as_bytes()])).await?;
        let found = READING.word(self.link.ask(redis::cmd("HGET").arg(&key).arg("format")).await?)?;
        match found == ours {
            true => Ok(()),
            false => Err(READING.wrong(format!(
                "the data has format {found}, this program knows {ours}; use the program that wrote it"
            ))),
        }
    }

    async fn fields(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let answer = self.link.ask(redis::cmd("HGETALL").arg(self.registry_key())).await?;
        let mut rows = READING.rows(answer)?.into_iter();
        let mut fields = Vec::new();
        while let (Some(field), Some(value)) = (rows.next(), rows.next()) {
            fields.push((READING.word(field)?, READING.bytes(value)?.unwrap_or_default()));
        }
        Ok(fields)
    }

    pub(super) async fn refresh_registry(&self) -> Result<(), StoreError> {
        // What was read last is put down last: an older state must not take the place of a newer one.
        let _one_at_a_time = self.refreshing.lock().await;
        let mut registered = Registered::default();
        for (field, value) in self.fields().await? {
            if let Err(error) = registered.read(&field, &value) {
                self.note_unreadable(&field, &error);
            }
        }
        *self.registered.write() = registered;
        Ok(())
    }

    /// Lanes that are new know nothing of the weights that were set before.
    pub(super) async fn apply_weights(&self) -> Result<(), StoreError> {
        let tenants: Vec<_> = self.registered.read().tenants.values().cloned().collect();
        for settings in tenants {
            self.apply_weight(&settings).await?;
        }
        Ok(())
    }

    async fn apply_weight(&self, settings: &TenantSettings) -> Result<(), StoreError> {
        let weigh = |call: Call| call.arg(settings.tenant.as_str()).arg(settings.weight);
        future::try_join_all(self.lanes.values().map(|lane| self.change(lane, "weigh", weigh))).await.map(drop)
    }

    /// Lanes that are new know nothing of the throttles that endpoints have.
    pub(super) async fn apply_throttles(&self) -> Result<(), StoreError> {
        let endpoints = self.registered.read().endpoints.all();
        let throttles: Vec<_> = endpoints.iter().map(|endpoint| (endpoint.lane_name(), endpoint.throttle)).collect();
        for throttles in throttles.chunks(THROTTLES_IN_ONE_CALL) {
            self.apply(throttles).await?;
        }
        Ok(())
    }

    /// Sets the throttles of endpoints, or takes them away, in the lanes that call them.
    async fn apply(&self, throttles: &[(TenantName, Option<Rate>)]) -> Result<(), StoreError> {
        let set = |call: Call| {
            throttles.iter().fold(call, |call, (name, rate)| {
                let (max, per) = rate.map_or((0, Duration::ZERO), |rate| (rate.max_requests, rate.per()));
                call.arg(name.as_str()).arg(max).arg(per.as_micros() as u64)
            })
        };
        let lanes = self.lanes.values().filter(|lane| lane.policy.calls_endpoints());
        future::try_join_all(lanes.map(|lane| self.change(lane, "throttle", set))).await.map(drop)
    }

    async fn put(&self, field: String, value: &impl Serialize) -> Result<(), StoreError> {
        let (key, json) = (self.registry_key(), records::encode_json(value));
        self.link.ask(&even_when_full(&[b"HSET", key.as_bytes(), field.as_bytes(), &json])).await.map(drop)
    }

    /// Forgets a field; whether there was one.
    async fn remove(&self, field: &str) -> Result<bool, StoreError> {
        let removed = self.link.ask(redis::cmd("HDEL").arg(self.registry_key()).arg(field)).await?;
        self.announce().await?;
        Ok(READING.number(&removed)? == 1)
    }

    /// Tells the other nodes, and this one.
    async fn announce(&self) -> Result<(), StoreError> {
        let news = schema::news(&self.options.prefix);
        self.link.ask(redis::cmd("PUBLISH").arg(news).arg("registry")).await?;
        self.refresh_registry().await
    }

    async fn runs(&self) -> Result<Vec<ReplayRun>, StoreError> {
        let fields = self.fields().await?.into_iter().filter(|(field, _)| field.starts_with("replay/"));
        let read = |(field, value): (String, Vec<u8>)| {
            let run = records::decode_json::<ReplayRun>(&value);
            run.inspect_err(|error| self.note_unreadable(&field, error)).ok()
        };
        let mut runs: Vec<_> = fields.filter_map(read).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.created_at));
        Ok(runs)
    }

    /// Whether this node is the one that carries replays on.
    async fn leads(&self) -> Result<bool, StoreError> {
        let key = schema::replayer(&self.options.prefix);
        if self.lock(&key, LEAD).await? {
            return Ok(true);
        }
        let leader = READING.text(self.link.ask(redis::cmd("GET").arg(&key)).await?)?;
        if leader.as_ref() != Some(&self.node) {
            return Ok(false);
        }
        self.link.ask(redis::cmd("PEXPIRE").arg(&key).arg(LEAD.as_millis() as u64)).await?;
        Ok(true)
    }

    /// Takes a duty that one node has at a time; whether it was free.
    pub(super) async fn lock(&self, key: &str, length: Duration) -> Result<bool, StoreError> {
        let length = length.as_millis().to_string();
        let words: [&[u8]; 6] = [b"SET", key.as_bytes(), self.node.as_bytes(), b"NX", b"PX", length.as_bytes()];
        Ok(self.link.ask(&even_when_full(&words)).await? != Value::Nil)
    }

    async fn tenants_of(&self, lane: &LaneCell) -> Result<Vec<TenantView>, StoreError> {
        let (mut cursor, mut rows) = ("0".to_owned(), BTreeMap::new());
        loop {
            let call = Call::new(self, lane, Verb::Figures).arg("tenants").arg(&cursor);
            let [next, page] = READING.fields(call.make(self).await.map_err(|error| store_error(&error))?)?;
            for row in READING.rows(page)? {
                let (number, figures) = read_tenant(lane, row)?;
                rows.insert(number, TenantView { lane: lane.name.clone(), figures });
            }
            cursor = READING.word(next)?;
            if cursor == "0" {
                return Ok(rows.into_values().collect());
            }
        }
    }
}

/// A tenant and the place in which the lane first saw it.
fn read_tenant(lane: &LaneCell, row: Value) -> Result<(u64, TenantFigures), StoreError> {
    let [name, last, rounds, processed, streak, weight, running, number] = READING.fields(row)?;
    let rounds = READING.number(&rounds)?;
    let last = READING.number(&last)?;
    let figures = TenantFigures {
        tenant: READING.tenant(name)?,
        last_processed_at: (last > 0).then(|| time(last)),
        rounds_without_processing: rounds,
        current_priority: lane.policy.fairness.priority(rounds),
        total_processed: READING.number(&processed)?,
        consecutive_batch_count: READING.small(&streak)?,
        weight: READING.small(&weight)?,
        running: READING.small(&running)?,
    };
    Ok((READING.number(&number)?, figures))
}

#[async_trait]
impl Registry for RedisStore {
    async fn put_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.shared.put(format!("key/{}", key.id), &key).await?;
        self.shared.announce().await
    }

    async fn remove_key(&self, id: &str) -> Result<bool, StoreError> {
        self.shared.remove(&format!("key/{id}")).await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.shared.refresh_registry().await?;
        Ok(self.shared.registered.read().keys.values().map(|key| ApiKey::clone(key)).collect())
    }

    fn key_by_hash(&self, hash: &[u8; 32]) -> Option<Arc<ApiKey>> {
        self.shared.registered.read().keys_by_hash.get(hash).cloned()
    }

    async fn put_tenant(&self, settings: TenantSettings) -> Result<(), StoreError> {
        self.shared.put(format!("tenant/{}", settings.tenant), &settings).await?;
        self.shared.apply_weight(&settings).await?;
        self.shared.announce().await
    }

    async fn tenants(&self) -> Result<Vec<TenantView>, StoreError> {
        let tenants = self.shared.lanes.values().map(|lane| self.shared.tenants_of(lane));
        Ok(future::try_join_all(tenants).await?.into_iter().flatten().collect())
    }

    async fn put_replay(&self, replay: ReplayRun) -> Result<(), StoreError> {
        self.shared.put(format!("replay/{}", replay.id), &replay).await?;
        // Its progress is nobody's news; that there is one, or no more, is.
        let is_running = replay.status == ReplayStatus::Running;
        let is_known = self.shared.registered.read().has_replays && is_running;
        if is_known { Ok(()) } else { self.shared.announce().await }
    }

    async fn replay_run(&self, id: &str) -> Result<Option<ReplayRun>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.shared.registry_key()).arg(format!("replay/{id}"));
        let found = READING.bytes(self.shared.link.ask(&get).await?)?;
        let run = found.map(|json| records::decode_json(&json)).transpose();
        run.map_err(|error| READING.wrong(error.to_string()))
    }

    async fn replay_runs(&self) -> Result<Vec<ReplayRun>, StoreError> {
        self.shared.runs().await
    }

    async fn replays_to_carry_on(&self) -> Result<Vec<ReplayRun>, StoreError> {
        if !self.shared.registered.read().has_replays || !self.shared.leads().await? {
            return Ok(Vec::new());
        }
        let mut runs = self.shared.runs().await?;
        runs.retain(|run| run.status == ReplayStatus::Running);
        Ok(runs)
    }
}

#[async_trait]
impl ConnectorRegistry for RedisStore {
    async fn put_connector(&self, connector: StoredConnector) -> Result<(), StoreError> {
        self.shared.put(format!("connector/{}", connector.id), &connector).await?;
        self.shared.announce().await
    }

    async fn remove_connector(&self, id: &str) -> Result<bool, StoreError> {
        self.shared.remove(&format!("connector/{id}")).await
    }

    fn connector(&self, id: &str) -> Option<Arc<StoredConnector>> {
        self.shared.registered.read().connectors.get(id).cloned()
    }

    fn connectors(&self) -> Vec<Arc<StoredConnector>> {
        self.shared.registered.read().connectors.values().cloned().collect()
    }
}

#[async_trait]
impl EndpointRegistry for RedisStore {
    async fn put_endpoint(&self, endpoint: Endpoint) -> Result<Arc<Endpoint>, PutEndpointError> {
        let (shared, read) = (&self.shared, endpoint.version);
        let endpoint = Arc::new(endpoint.put_at(shared.clock.now()));
        let call = Call::without_lane(shared, Verb::Endpoint).arg(shared.registry_key());
        let call = call.arg(endpoint::key_of(&endpoint.tenant, &endpoint.name)).arg(read);
        let call = call.arg(records::encode_json(&*endpoint));
        let answer = call.make(shared).await.map_err(|error| store_error(&error))?;
        match READING.number(&answer)? {
            1 => {
                shared.apply(&[(endpoint.lane_name(), endpoint.throttle)]).await?;
                shared.announce().await?;
                Ok(endpoint)
            }
            _ => {
                // News of the other change may still be on its way.
                shared.refresh_registry().await?;
                Err(PutEndpointError::Changed)
            }
        }
    }

    async fn remove_endpoint(&self, tenant: &TenantName, name: &str) -> Result<bool, StoreError> {
        let was_there = self.shared.remove(&endpoint::key_of(tenant, name)).await?;
        self.shared.apply(&[(tenant.endpoint(name), None)]).await?;
        Ok(was_there)
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
