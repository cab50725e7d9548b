//! The world of several nodes: each a real `entrega serve` with a folder of its own, all over one Redis.
//! Invariant: whatever is waited for has a limit, and running into it says how things stand.

#![allow(dead_code, reason = "every test binary that names this module uses another part of it")]

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::CallError;
use entrega_call::Clock;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::destination::Destination;
use crate::server::Server;
use entrega_testkit::redis::RedisServer;
use entrega_testkit::wait::eventually;

/// Owners that are silent for two seconds are replaced, and attempts last no longer.
pub const SHORT_LEASES: &str = "[cluster]\nlease = \"2s\"\n[lanes.http]\ntimeout = \"2s\"\n";
pub const LEASE: Duration = Duration::from_secs(2);
/// From the end of an owner to its successor: its lease and a little more, looks at it, and the load of its lanes.
pub const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(5);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A node; killed with -9 when dropped.
pub struct Node {
    server: Server,
    /// Goes after the servers that use it.
    folder: Arc<TempDir>,
}

impl Deref for Node {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Node {
    pub fn start(redis: &RedisServer, config: &str) -> Node {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("entrega.toml"), config).unwrap();
        Node::start_in(Arc::new(folder), redis)
    }

    /// Starts one that was killed again, in its folder.
    pub fn again(&self, redis: &RedisServer) -> Node {
        Node::start_in(self.folder.clone(), redis)
    }

    fn start_in(folder: Arc<TempDir>, redis: &RedisServer) -> Node {
        Node { server: Server::start_with(folder.path(), &["--store", &redis.url()]), folder }
    }

    /// What came of an array of jobs.
    pub async fn send(&self, jobs: &Value) -> Result<Taken, CallError> {
        let answer = self.call("POST", "/v1/jobs", jobs).await?;
        let json: Value = serde_json::from_slice(&answer.body).unwrap();
        let Value::Array(rows) = json else { return Ok(Taken { ids: Vec::new(), problems: vec![json] }) };
        let ids = rows.iter().filter_map(|row| row["jobId"].as_str()).map(str::to_owned).collect();
        let problems = rows.iter().map(|row| &row["problem"]).filter(|problem| problem.is_object()).cloned().collect();
        Ok(Taken { ids, problems })
    }

    /// Sends one job, which must be taken; its id.
    pub async fn send_one(&self, job: &Value) -> String {
        self.ok("POST", "/v1/jobs", job).await["jobId"].as_str().expect("an id").to_owned()
    }

    /// What it answers, whatever that is, for the message of a test that fails.
    async fn shown(&self, path: &str) -> String {
        match self.call("GET", path, &Value::Null).await {
            Ok(answer) => format!("{} {}", answer.status, String::from_utf8_lossy(&answer.body)),
            Err(error) => error.reason(),
        }
    }

    pub async fn job(&self, id: &str) -> Value {
        self.ok("GET", &format!("/v1/jobs/{id}"), &Value::Null).await
    }

    /// The job once it is done.
    pub async fn done(&self, id: &str, limit: Duration) -> Value {
        let is_done = async || {
            let job = self.job(id).await;
            if job["state"] == "done" { Ok(job) } else { Err(job.to_string()) }
        };
        eventually(limit, "the job is done", is_done).await
    }

    pub async fn sizes(&self) -> Value {
        let lanes = self.ok("GET", "/v1/lanes", &Value::Null).await;
        let lane = lanes["items"].as_array().and_then(|lanes| lanes.iter().find(|lane| lane["lane"] == "http"));
        lane.map(|lane| lane["sizes"].clone()).unwrap_or_else(|| panic!("no lane http: {lanes}"))
    }

    /// Waits until nothing waits or runs in the lane.
    pub async fn empty(&self, limit: Duration) {
        let is_empty = async || {
            let sizes = self.sizes().await;
            let is_empty = sizes.as_object().is_some_and(|sizes| sizes.values().all(|count| count == 0));
            if is_empty { Ok(()) } else { Err(sizes.to_string()) }
        };
        eventually(limit, "the lane is empty", is_empty).await;
    }

    /// How many attempts this node has made and ended.
    pub async fn attempts(&self) -> u64 {
        let answer = self.call("GET", "/metrics", &Value::Null).await.unwrap();
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status.is_success(), "GET /metrics: {} {text}", answer.status);
        let lines = text.lines().filter(|line| line.starts_with("retry_attempts_total{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

/// What came of an array of jobs.
pub struct Taken {
    pub ids: Vec<String>,
    pub problems: Vec<Value>,
}

pub fn job(url: &str, tenant: &str) -> Value {
    json!({"tenant": tenant, "request": {"url": url}})
}

/// Tests that keep every core busy, or measure moments, run one after the other: held until dropped, over all
/// processes of a test run.
pub fn alone() -> File {
    let file = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/nodes.lock")).unwrap();
    file.lock().unwrap();
    file
}

/// Waits until every job in `accepted` has arrived; fails with what the node knows of one that has not.
pub async fn all_arrive(node: &Node, destination: &Destination, accepted: &BTreeSet<String>, limit: Duration) {
    let clock = Clock::system();
    let until = clock.now() + limit;
    loop {
        let lost = destination.missing(accepted);
        let Some(first) = lost.first() else { return };
        if clock.now() > until {
            let (job, lanes) = (node.shown(&format!("/v1/jobs/{first}")).await, node.shown("/v1/lanes").await);
            let (count, all, log) = (lost.len(), accepted.len(), node.log());
            panic!("{count} of {all} accepted jobs did not arrive\n{first}: {job}\nlanes: {lanes}\n{log}");
        }
        // reason: other processes deliver; looking through all jobs costs too much to do it at every arrival
        tokio::time::sleep(5 * LOOK_EVERY).await;
    }
}
