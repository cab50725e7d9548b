//! Metrics: what is counted, and what is looked up when somebody asks.
//! Invariant: handles are made once per lane, so counting on the way of a job neither allocates nor locks.
//! Never: registers anything global; an engine has its own.

mod proxy;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use entrega_core::job::JobState;
use entrega_core::lane::LaneSizes;
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::Mutex;

pub use self::proxy::ProxyMetrics;

use crate::store::{Count, CountBy, Store, StoreError};

/// Attempt numbers with a label of their own; later ones share the last.
const ATTEMPTS_LABELLED: usize = 12;
/// Tenants with a label of their own; the rest is `other`.
const TENANTS_LABELLED_MAX: usize = 200;
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const LONG_SECONDS: [f64; 10] = [0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86_400.0];
const AGE_SECONDS: [f64; 7] = [60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0];

static METADATA: Metadata<'static> = Metadata::new("entrega", Level::INFO, None);

/// What an attempt came to, for `attempt_duration_seconds`.
#[derive(Clone, Copy, Debug)]
pub enum AttemptOutcome {
    /// Delivered.
    Success,
    /// Tried again.
    Retry,
    /// Given up: dead letter or blocked.
    Failed,
}

struct LaneHandles {
    attempts: Vec<Counter>,
    successes: Vec<Counter>,
    success_rate: Vec<Gauge>,
    durations: [Histogram; 3],
    backoff: Histogram,
    dead: Counter,
    tally: Mutex<Vec<(u64, u64)>>,
}

/// All metrics of one engine.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    lanes: HashMap<LaneName, LaneHandles>,
    intake: Histogram,
    accepted: Counter,
    /// The rows of each dead-letter gauge that were ever shown: at most a few per lane, code and labelled tenant.
    shown: Mutex<HashMap<&'static str, BTreeSet<(LaneName, String)>>>,
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    Key::from_parts(name, labels.iter().map(|(name, value)| Label::new(*name, value.to_string())).collect::<Vec<_>>())
}

impl Metrics {
    /// Metrics for these lanes.
    ///
    /// # Panics
    /// Never: the bucket lists are constants that are not empty.
    pub fn new<'a>(lanes: impl Iterator<Item = &'a LaneName>) -> Metrics {
        let full = |name: &str| Matcher::Full(name.to_owned());
        let recorder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(full("retry_backoff_delay_seconds"), &LONG_SECONDS))
            .and_then(|builder| builder.set_buckets_for_metric(full("dlq_age_seconds"), &AGE_SECONDS))
            .expect("bucket lists are not empty")
            .build_recorder();
        let lanes = lanes.map(|lane| {
            ProxyMetrics::of(&recorder, lane).iter().for_each(ProxyMetrics::register);
            (lane.clone(), LaneHandles::new(&recorder, lane.as_str()))
        });
        let lanes = lanes.collect();
        let intake = recorder.register_histogram(&key("intake_duration_seconds", &[]), &METADATA);
        let accepted = recorder.register_counter(&key("intake_jobs_total", &[]), &METADATA);
        Metrics { handle: recorder.handle(), recorder, lanes, intake, accepted, shown: Mutex::default() }
    }

    /// A submission was answered; so many of its jobs were taken.
    pub fn intake(&self, took: Duration, accepted: usize) {
        self.intake.record(took.as_secs_f64());
        self.accepted.increment(accepted as u64);
    }

    /// An attempt ended.
    pub fn attempt(&self, lane: &LaneName, number: u32, outcome: AttemptOutcome, took: Duration) {
        let Some(handles) = self.lanes.get(lane) else { return };
        let index = (number as usize).clamp(1, ATTEMPTS_LABELLED) - 1;
        handles.attempts[index].increment(1);
        let is_success = matches!(outcome, AttemptOutcome::Success);
        if is_success {
            handles.successes[index].increment(1);
        }
        let mut tally = handles.tally.lock();
        tally[index].0 += 1;
        tally[index].1 += u64::from(is_success);
        drop(tally);
        handles.durations[outcome as usize].record(took.as_secs_f64());
    }

    /// A retry was scheduled.
    pub fn backoff(&self, lane: &LaneName, delay: Duration) {
        if let Some(handles) = self.lanes.get(lane) {
            handles.backoff.record(delay.as_secs_f64());
        }
    }

    /// A job became a dead letter.
    pub fn dead(&self, lane: &LaneName) {
        if let Some(handles) = self.lanes.get(lane) {
            handles.dead.increment(1);
        }
    }

    /// A job ended undelivered.
    pub fn dropped(&self, lane: &LaneName, reason: &'static str) {
        let key = key("lane_jobs_dropped_total", &[("lane", lane.as_str()), ("reason", reason)]);
        self.recorder.register_counter(&key, &METADATA).increment(1);
        if let Some(proxy) = self.proxy(lane) {
            proxy.dropped();
        }
    }

    /// What is counted of the route that a lane belongs to, if it does.
    pub fn proxy<'a>(&'a self, lane: &'a LaneName) -> Option<ProxyMetrics<'a>> {
        ProxyMetrics::of(&self.recorder, lane)
    }

    /// A full lane turned a job away.
    pub fn refused(&self, lane: &LaneName) {
        let key = key("intake_refused_total", &[("lane", lane.as_str())]);
        self.recorder.register_counter(&key, &METADATA).increment(1);
        if let Some(proxy) = self.proxy(lane) {
            proxy.dropped();
        }
    }

    /// An attempt of a connector's call ended.
    pub fn connector_attempt(&self, connector: &str, outcome: &str, took: Duration) {
        let labels = [("connector", connector), ("outcome", outcome)];
        self.recorder.register_counter(&key("connector_attempts_total", &labels), &METADATA).increment(1);
        let duration = key("connector_attempt_duration_seconds", &[("connector", connector)]);
        self.recorder.register_histogram(&duration, &METADATA).record(took.as_secs_f64());
    }

    /// A call waited for its turn, perhaps for no time at all.
    pub fn throttle_wait(&self, lane: &str, took: Duration) {
        let key = key("throttle_wait_seconds", &[("lane", lane)]);
        self.recorder.register_histogram(&key, &METADATA).record(took.as_secs_f64());
    }

    /// A dead letter left: by its TTL or the lane's cap.
    pub fn dead_left(&self, lane: &LaneName, why: &'static str, age: Duration) {
        let labels = [("lane", lane.as_str()), ("reason", why)];
        self.recorder.register_counter(&key("dlq_removed_total", &labels), &METADATA).increment(1);
        self.recorder.register_histogram(&key("dlq_age_seconds", &[]), &METADATA).record(age.as_secs_f64());
    }

    /// Somebody gave a dead letter up.
    pub fn dead_discarded(&self, lane: &LaneName) {
        let labels = [("lane", lane.as_str()), ("reason", "discarded")];
        self.recorder.register_counter(&key("dlq_removed_total", &labels), &METADATA).increment(1);
    }

    /// Folds what was recorded into its buckets; called now and then, so that it does not pile up.
    pub fn tidy(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus reads. What can be counted now is looked up now; of a store that is gone only that it is,
    /// because this is when somebody looks.
    pub async fn render(&self, store: &dyn Store, now: Time) -> Result<String, StoreError> {
        let health = store.health();
        if health.failure.is_none() {
            self.look_at_lanes(store, now).await?;
            self.look_at_dead_letters(store).await?;
            self.look_at_tenants(store).await?;
        }
        self.gauge("store_writable", &[], f64::from(u8::from(health.failure.is_none())));
        self.gauge("store_accepting", &[], f64::from(u8::from(health.refuses.is_none())));
        self.gauge("store_unreadable_records", &[], health.unreadable as f64);
        self.counter("store_rejected_writes_total", health.rejected_writes);
        self.counter("store_stale_settlements_total", health.stale_settlements);
        self.counter("cluster_take_overs_total", health.take_overs);
        self.gauge("cluster_policy_mismatches", &[], health.policy_mismatches.into());
        if let Some(memory) = health.memory {
            self.gauge("store_memory_used_bytes", &[], memory.used_bytes as f64);
            self.gauge("store_memory_max_bytes", &[], memory.max_bytes as f64);
            self.gauge("store_memory_alert", &[("level", "warning")], f64::from(u8::from(memory.level >= 1)));
            self.gauge("store_memory_alert", &[("level", "critical")], f64::from(u8::from(memory.level >= 2)));
        }
        Ok(self.handle.render())
    }

    fn counter(&self, name: &'static str, total: u64) {
        self.recorder.register_counter(&key(name, &[]), &METADATA).absolute(total);
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.recorder.register_gauge(&key(name, labels), &METADATA).set(value);
    }

    async fn look_at_lanes(&self, store: &dyn Store, now: Time) -> Result<(), StoreError> {
        for mut lane in store.lanes().await? {
            if !lane.is_owned {
                // Its owner reports it.
                (lane.sizes, lane.blocked, lane.dead_letters, lane.oldest) = (LaneSizes::default(), 0, 0, None);
            }
            let name = lane.name.as_str();
            let waiting =
                [JobState::Idle, JobState::Queued, JobState::Running, JobState::RetryWait, JobState::Replaying];
            for state in waiting {
                let labels = [("lane", name), ("state", state.as_str())];
                self.gauge("lane_jobs", &labels, lane.sizes.in_state(state).into());
            }
            self.gauge("lane_slow_attempts", &[("lane", name)], lane.sizes.slow().into());
            self.gauge("lane_jobs", &[("lane", name), ("state", "blocked")], lane.blocked.into());
            let oldest = lane.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
            self.gauge("lane_oldest_seconds", &[("lane", name)], oldest);
            self.gauge("lane_paused", &[("lane", name)], f64::from(u8::from(lane.paused)));
            self.gauge("dlq_size", &[("lane", name)], lane.dead_letters.into());
            if let Some(handles) = self.lanes.get(&lane.name) {
                handles.publish_rates();
            }
            if let Some(proxy) = self.proxy(&lane.name) {
                proxy.look(&lane);
            }
        }
        Ok(())
    }

    async fn look_at_dead_letters(&self, store: &dyn Store) -> Result<(), StoreError> {
        let by_code = store.dead_letter_counts(CountBy::Code, None).await?;
        self.dead_letter_gauge("dlq_by_error_code", "code", by_code);
        let mut by_company = store.dead_letter_counts(CountBy::Tenant, None).await?;
        by_company.sort_by_key(|count| std::cmp::Reverse(count.count));
        for rest in by_company.iter_mut().skip(TENANTS_LABELLED_MAX) {
            rest.key = "other".to_owned();
        }
        self.dead_letter_gauge("dlq_by_company", "company", by_company);
        Ok(())
    }

    /// Sets one gauge per lane and key; those that are no longer counted go to zero, or an alert would never clear.
    fn dead_letter_gauge(&self, name: &'static str, label: &'static str, counts: Vec<Count>) {
        let mut now: BTreeMap<(LaneName, String), u64> = BTreeMap::new();
        for count in counts {
            *now.entry((count.lane, count.key)).or_default() += count.count;
        }
        let mut shown = self.shown.lock();
        let shown = shown.entry(name).or_default();
        shown.extend(now.keys().cloned());
        for row in shown.iter() {
            let labels = [("lane", row.0.as_str()), (label, row.1.as_str())];
            self.gauge(name, &labels, now.get(row).copied().unwrap_or(0) as f64);
        }
    }

    async fn look_at_tenants(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut tenants = store.tenants().await?;
        tenants.sort_by_key(|view| std::cmp::Reverse(view.figures.total_processed));
        let mut processed: BTreeMap<String, u64> = BTreeMap::new();
        for view in tenants {
            let figures = &view.figures;
            // The endpoints of a company are its own; of their gauges the busiest one's stays.
            let name = figures.tenant.company();
            let is_known = processed.contains_key(name.as_str()) || processed.len() < TENANTS_LABELLED_MAX;
            let company = if is_known { name.as_str() } else { "other" };
            *processed.entry(company.to_owned()).or_default() += figures.total_processed;
            let labels = [("lane", view.lane.as_str()), ("company", company)];
            self.gauge("tenant_current_priority", &labels, figures.current_priority.into());
            self.gauge("tenant_consecutive_batch", &labels, figures.consecutive_batch_count.into());
            self.gauge("tenant_rounds_without_processing", &labels, figures.rounds_without_processing as f64);
        }
        for (company, total) in processed {
            let key = key("tenant_jobs_processed", &[("company", &company)]);
            self.recorder.register_counter(&key, &METADATA).absolute(total);
        }
        Ok(())
    }
}

impl LaneHandles {
    fn new(recorder: &PrometheusRecorder, lane: &str) -> LaneHandles {
        let numbers: Vec<String> = (1..=ATTEMPTS_LABELLED).map(|number| number.to_string()).collect();
        let numbered = |name| numbers.iter().map(move |number| key(name, &[("lane", lane), ("attempt", number)]));
        let counters = |name| numbered(name).map(|key| recorder.register_counter(&key, &METADATA)).collect();
        let duration = |outcome| {
            let key = key("attempt_duration_seconds", &[("lane", lane), ("outcome", outcome)]);
            recorder.register_histogram(&key, &METADATA)
        };
        LaneHandles {
            attempts: counters("retry_attempts_total"),
            successes: counters("retry_successes_total"),
            success_rate: numbered("retry_success_rate").map(|key| recorder.register_gauge(&key, &METADATA)).collect(),
            durations: [duration("success"), duration("retry"), duration("failed")],
            backoff: recorder.register_histogram(&key("retry_backoff_delay_seconds", &[("lane", lane)]), &METADATA),
            dead: recorder.register_counter(&key("dlq_entries_total", &[("lane", lane)]), &METADATA),
            tally: Mutex::new(vec![(0, 0); ATTEMPTS_LABELLED]),
        }
    }

    fn publish_rates(&self) {
        for (gauge, (attempts, successes)) in self.success_rate.iter().zip(self.tally.lock().iter()) {
            if *attempts > 0 {
                gauge.set(*successes as f64 / *attempts as f64);
            }
        }
    }
}
