//! Nodes over one server, in this process: each a store of its own, as a process would have one.
//! Invariant: nodes made with the same options share their data; whatever is waited for has a limit.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use entrega::chance::Chance;
use entrega::clock::Clock;
use entrega::store::redis::{RedisOptions, RedisStore, TimeOf};
use entrega_core::id::JobId;
use entrega_core::job::{Body, HttpRequest, Job, JobState, Payload};

pub(crate) use crate::cluster::{bounded, eventually};
use crate::fixture::{Fixture, Setup};
use crate::redis::RedisServer;

/// By hand: so long that leases are not renewed by themselves while a test runs.
pub(crate) const LEASE: Duration = Duration::from_mins(30);

/// How the nodes of a test are set up.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) options: RedisOptions,
}

impl World {
    /// The time is the test's.
    pub(crate) fn by_hand(server: &RedisServer) -> World {
        World::new(server, Setup::new(), TimeOf::Node, Some(LEASE))
    }

    /// The time is the server's, as when it is used.
    pub(crate) fn by_server(server: &RedisServer) -> World {
        let setup = Setup { clock: Clock::system(), chance: Arc::new(Chance::from_system()), ..Setup::new() };
        World::new(server, setup, TimeOf::Server, None)
    }

    fn new(server: &RedisServer, setup: Setup, time_of: TimeOf, lease: Option<Duration>) -> World {
        let options = RedisOptions { time_of, lease, ..setup.on_redis(server.url()) };
        World { setup, options }
    }

    pub(crate) fn leased_for(mut self, lease: Duration) -> World {
        self.options.lease = Some(lease);
        self
    }

    /// One more node.
    pub(crate) async fn node(&self) -> Fixture {
        let store = RedisStore::open(self.options.clone(), self.setup.clock.clone()).await;
        let store = store.unwrap_or_else(|error| panic!("{}: {error}", self.options.url));
        Fixture::over(Arc::new(store), self.setup.clone())
    }

    pub(crate) async fn nodes<const N: usize>(&self) -> [Fixture; N] {
        let mut nodes = Vec::new();
        for _ in 0..N {
            nodes.push(self.node().await);
        }
        nodes.try_into().unwrap_or_else(|_| unreachable!("as many as were made"))
    }

    /// The message with which this server is refused.
    pub(crate) async fn refusal(&self) -> String {
        match RedisStore::open(self.options.clone(), self.setup.clock.clone()).await {
            Ok(_) => panic!("{} was accepted", self.options.url),
            Err(error) => error.to_string(),
        }
    }
}

/// A job that carries so many bytes.
pub(crate) fn heavy_job(node: &Fixture, bytes: usize) -> Job {
    let job = node.job("http", "acme");
    let Payload::Http(request) = job.payload else { unreachable!("it is made with a request") };
    Job { payload: Payload::Http(HttpRequest { body: Body(vec![b'x'; bytes].into()), ..request }), ..job }
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
