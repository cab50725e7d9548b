//! Destinations that hang, in simulated time and with the shipped policies: whoever calls others notices nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega::EngineParts;
use entrega::channel::Channel;
use entrega::http::HttpRequest;
use entrega::store::ClaimedJob;
use entrega::store::local::tables::TABLES;
use entrega::store::local::{LocalOptions, LocalStore, WriterOn};
use entrega::submission::NewJob;
use entrega_call::{AddressFilter, Clock};
use entrega_core::lane::{SlowBounds, attempts_max};
use entrega_core::name::TenantName;
use entrega_core::outcome::{Answer, Outcome};
use entrega_core::policy::LanePolicy;
use entrega_ledger::HeapLedger;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::world::{lane, tenant};

/// How long a destination that is well takes.
const ANSWERS_IN: Duration = Duration::from_millis(2);

/// Destinations of which some hang; it knows how long the jobs of the others took from their submission to their answer.
struct Destinations {
    clock: Clock,
    /// Whoever's name begins with this.
    hanging: &'static str,
    hang_for: Duration,
    took: Mutex<Vec<Duration>>,
    /// Under way now, and the most that ever were.
    calls: Mutex<(u32, u32)>,
}

#[async_trait]
impl Channel for Destinations {
    async fn attempt(&self, claimed: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
        {
            let mut calls = self.calls.lock();
            calls.0 += 1;
            calls.1 = calls.1.max(calls.0);
        }
        let hangs = claimed.job.tenant.as_str().starts_with(self.hanging);
        // reason: this is how long the destination takes, in time that is simulated.
        tokio::time::sleep(if hangs { self.hang_for } else { ANSWERS_IN }).await;
        self.calls.lock().0 -= 1;
        if !hangs {
            self.took.lock().push(self.clock.now().since(claimed.job.id.made_at()));
        }
        Outcome::Answer(Answer {
            status: http::StatusCode::OK,
            headers: http::HeaderMap::new(),
            body: bytes::Bytes::new(),
            truncated: false,
            retry_after: None,
        })
    }
}

/// What the tenants of destinations that are well saw.
#[derive(Debug)]
struct Seen {
    delivered: usize,
    p99: Duration,
    most_at_once: u32,
}

/// A load on one lane: `tenants` by turns, `per_second` jobs in all, of which those whose names begin with `hanging` hang.
struct Load {
    policy: LanePolicy,
    tenants: Vec<TenantName>,
    hanging: &'static str,
    hang_for: Duration,
    per_second: u32,
    seconds: u32,
}

impl Load {
    async fn run(self) -> Seen {
        let (clock, lanes) = (Clock::system(), BTreeMap::from([(lane(), Arc::new(self.policy))]));
        let destinations = Arc::new(Destinations {
            clock: clock.clone(),
            hanging: self.hanging,
            hang_for: self.hang_for,
            took: Mutex::default(),
            calls: Mutex::default(),
        });
        let options = LocalOptions { writer: WriterOn::Task, ..LocalOptions::new(lanes.clone()) };
        let store = LocalStore::open(Arc::new(HeapLedger::new(&TABLES)), clock.clone(), options).await.unwrap();
        let channel: Arc<dyn Channel> = destinations.clone();
        let channels = [("http".to_owned(), channel)].into();
        let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
        let usual = EngineParts::over(Arc::new(store), clock, lanes);
        let engine = Arc::new(EngineParts { channels, filter, ..usual }.build());
        let shutdown = CancellationToken::new();
        let running = tokio::spawn({
            let (engine, shutdown) = (engine.clone(), shutdown.clone());
            async move { engine.run(shutdown, Duration::from_secs(20)).await }
        });
        let mut tick = tokio::time::interval(Duration::from_secs(1) / self.per_second);
        for number in 0..self.per_second * self.seconds {
            tick.tick().await;
            let whose = &self.tenants[number as usize % self.tenants.len()];
            let job = NewJob::new(lane(), HttpRequest::post("http://127.0.0.1:9/", &b"{}"[..]));
            for taken in engine.submit(whose, vec![job]).await {
                taken.unwrap();
            }
        }
        // reason: the time of this runtime stands still, and passes at once when all wait: whatever is under way answers.
        tokio::time::sleep(self.hang_for).await;
        shutdown.cancel();
        running.await.unwrap().unwrap();
        let mut took = destinations.took.lock().clone();
        took.sort();
        Seen { delivered: took.len(), p99: took[took.len() * 99 / 100], most_at_once: destinations.calls.lock().1 }
    }
}

fn tenants(name: &str, count: usize) -> impl Iterator<Item = TenantName> {
    (0..count).map(move |number| tenant(&format!("{name}{number}")))
}

/// With two of twenty hanging the others got 13 % of what they sent, with ten 3 %: all 64 slots waited for an answer.
#[tokio::test(start_paused = true)]
async fn ten_tenants_of_twenty_whose_destinations_hang_cost_the_others_nothing() {
    let load = |hanging| Load {
        policy: LanePolicy::http(),
        tenants: tenants("hangs", 10).zip(tenants("well", 10)).flat_map(<[_; 2]>::from).collect(),
        hanging,
        hang_for: Duration::from_secs(10),
        per_second: 600,
        seconds: 15,
    };
    let (usual, seen) = (load("nobody").run().await, load("hangs").run().await);
    assert_eq!((usual.delivered, seen.delivered), (9_000, 4_500), "all of those who are well");
    assert!(seen.p99 <= usual.p99 * 2, "{seen:?}, and {usual:?} with none hanging");
    assert!(seen.most_at_once <= attempts_max(&LanePolicy::http()), "{seen:?}");
}

/// From 128 endpoints that took 4.5 s on, the webhooks of the others went from 2 ms to 2.3 s: four calls each, 512 slots.
#[tokio::test(start_paused = true)]
async fn a_hundred_and_forty_endpoints_that_hang_cost_the_other_half_nothing() {
    let policy = LanePolicy { channel: "http".into(), ..LanePolicy::webhook() };
    let endpoints = |name| tenants(name, 140).map(|tenant| tenant.endpoint("hooks"));
    let load = |hanging| Load {
        policy: policy.clone(),
        tenants: endpoints("hangs").zip(endpoints("well")).flat_map(<[_; 2]>::from).collect(),
        hanging,
        hang_for: Duration::from_millis(4_500),
        per_second: 560,
        seconds: 10,
    };
    let (usual, seen) = (load("nobody").run().await, load("hangs").run().await);
    assert_eq!((usual.delivered, seen.delivered), (5_600, 2_800), "all of those who are well");
    assert!(seen.p99 <= usual.p99 * 2, "{seen:?}, and {usual:?} with none hanging");
    assert!(seen.most_at_once <= SlowBounds::of(&policy).unwrap().max + policy.concurrency, "{seen:?}");
}
