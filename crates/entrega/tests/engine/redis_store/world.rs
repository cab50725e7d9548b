//! Nodes over one server, in this process: each a store of its own, as a process would have one.
//! Invariant: nodes made by the same world share their data; whatever is waited for has a limit.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::http::HttpRequest;
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega::store::{ClaimBatch, ClaimedJob};
use entrega_call::Clock;
use entrega_core::body::Body;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::payload::Payload;
use entrega_core::policy::LanePolicy;
use entrega_ledger::redis::RedisOptions;
use entrega_ledger::{Ledger, RedisLedger};

use crate::store::fixture::{Fixture, RETENTION, Setup, lane};
use entrega_testkit::redis::{self, RedisServer};
pub(crate) use entrega_testkit::wait::{bounded, eventually};

/// By hand: nobody is given up, however far a test moves its clock.
const FOR_EVER: Duration = Duration::from_hours(365 * 24);
/// Of nodes that go by the server's time: short, so that a test need not wait long for the end of one.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// From the end of an owner to its successor: its lease and a little more, looks at it, and the load of its lanes.
pub(crate) const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(5);

/// How the nodes of a test are set up.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) server: RedisOptions,
    retention: Duration,
    lease: Duration,
    is_by_hand: bool,
}

impl World {
    /// The time is the test's, and the first node owns everything for as long as it lives.
    pub(crate) fn by_hand(server: &RedisServer) -> World {
        World::new(server, Setup::new(), FOR_EVER, true)
    }

    /// The time is the server's, as when it is used.
    pub(crate) fn by_server(server: &RedisServer) -> World {
        let setup = Setup { clock: Clock::system(), chance: Arc::new(Chance::from_system()), ..Setup::new() };
        World::new(server, setup, LEASE, false)
    }

    fn new(server: &RedisServer, setup: Setup, lease: Duration, is_by_hand: bool) -> World {
        let server = RedisOptions { url: server.url(), prefix: redis::prefix(), allow_unsafe: false };
        World { setup, server, retention: RETENTION, lease, is_by_hand }
    }

    pub(crate) fn leased_for(self, lease: Duration) -> World {
        World { lease, ..self }
    }

    /// Ended jobs are kept for so long.
    pub(crate) fn keeping_for(self, retention: Duration) -> World {
        World { retention, ..self }
    }

    /// Its nodes go by this clock from now on.
    pub(crate) fn by_clock(mut self, clock: Clock) -> World {
        self.setup.clock = clock;
        World { is_by_hand: true, ..self }
    }

    /// With one more lane, or another policy for it.
    pub(crate) fn with_lane(mut self, name: &str, policy: LanePolicy) -> World {
        self.setup.lanes.insert(lane(name), Arc::new(policy));
        self
    }

    pub(crate) async fn ledger(&self) -> Arc<RedisLedger> {
        let ledger = RedisLedger::open(self.server.clone()).await;
        Arc::new(ledger.unwrap_or_else(|error| panic!("{}: {error}", self.server.url)))
    }

    /// One more node.
    pub(crate) async fn node(&self) -> Fixture {
        self.node_over(self.ledger().await).await
    }

    /// One more node, over a ledger of its own.
    pub(crate) async fn node_over(&self, ledger: Arc<dyn Ledger>) -> Fixture {
        let store = self.open(ledger).await.unwrap_or_else(|error| panic!("{}: {error}", self.server.url));
        let (store, clock) = store;
        Fixture::over(Arc::new(store), Setup { clock, ..self.setup.clone() })
    }

    /// Every process has a clock of its own.
    async fn open(&self, ledger: Arc<dyn Ledger>) -> Result<(LocalStore, Clock), String> {
        let clock = if self.is_by_hand { self.setup.clock.clone() } else { Clock::system() };
        let cluster = Some(ClusterOptions { lease: self.lease, name: "node".into() });
        let options =
            LocalOptions { retention: self.retention, cluster, ..LocalOptions::new(self.setup.lanes.clone()) };
        let store = LocalStore::open(ledger, clock.clone(), options).await.map_err(|error| error.to_string())?;
        Ok((store, clock))
    }

    /// So many nodes; the first owns every lane.
    pub(crate) async fn nodes<const N: usize>(&self) -> [Fixture; N] {
        let mut nodes = Vec::new();
        for _ in 0..N {
            nodes.push(self.node().await);
        }
        nodes.try_into().unwrap_or_else(|_| unreachable!("as many as were made"))
    }

    /// The message with which this server is refused.
    pub(crate) async fn refusal(&self) -> String {
        let refused = match RedisLedger::open(self.server.clone()).await {
            Ok(ledger) => self.open(Arc::new(ledger)).await.map(drop),
            Err(error) => Err(error.to_string()),
        };
        refused.expect_err(&self.server.url)
    }

    /// The key of something in the ledger.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.server.prefix)
    }

    /// Which ownership of a lane this is, as the server has it.
    pub(crate) fn epoch(&self, server: &RedisServer, lane: &str) -> u64 {
        let epoch = server.command(&["HGET", &self.key(&format!("shard:lane/{lane}")), "epoch"]);
        epoch.parse().unwrap_or_else(|_| panic!("lane {lane} has no owner: {epoch}"))
    }
}

/// Whether a node owns a lane.
pub(crate) async fn owns(node: &Fixture, name: &str) -> Result<bool, String> {
    let lanes = node.store.lanes().await.map_err(|error| error.to_string())?;
    Ok(lanes.iter().any(|view| view.name.as_str() == name && view.is_owned))
}

/// Waits until a node owns a lane.
pub(crate) async fn takes_over(node: &Fixture, name: &str, limit: Duration) {
    let is_owner = async || if owns(node, name).await? { Ok(()) } else { Err("it does not".to_owned()) };
    eventually(limit, &format!("it owns {name}"), is_owner).await;
}

/// Waits until something of a lane can be claimed on a node; what that is.
pub(crate) async fn claims(node: &Fixture, name: &str, limit: Duration) -> ClaimedJob {
    let claim = async || node.claim(name, 1).await.jobs.pop().ok_or_else(|| "nothing".to_owned());
    eventually(limit, &format!("a job of {name} can be claimed"), claim).await
}

/// A worker that got nothing, though there is something, is told when to come back, or called.
pub(crate) async fn comes_back(node: &Fixture, batch: &ClaimBatch) {
    let wake = node.store.wake(&lane("http")).unwrap();
    let is_called = batch.wake_at.is_some() || tokio::time::timeout(LEASE, wake.notified()).await.is_ok();
    assert!(is_called, "a worker that got nothing knows when to come back");
}

/// A job that carries so many bytes.
pub(crate) fn heavy_job(node: &Fixture, bytes: usize) -> Job {
    let job = node.job("http", "acme");
    let request: HttpRequest = job.payload.read().unwrap();
    Job { payload: Payload::of(&HttpRequest { body: Body(vec![b'x'; bytes].into()), ..request }), ..job }
}

/// Waits until a job stands so.
pub(crate) async fn becomes(node: &Fixture, id: JobId, state: JobState, limit: Duration) {
    let stands = async || match node.store.job(id).await {
        Ok(Some(view)) if view.state == state => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually(limit, &format!("{id} is {state}"), stands).await;
}

/// A figure out of `INFO`.
pub(crate) fn info(server: &RedisServer, section: &str, name: &str) -> u64 {
    let info = server.command(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in:\n{info}"))
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(name: &str, pid: u64) {
    let kill = format!("kill -{name} {pid}");
    let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(status.success(), "{kill}: {status}");
}
