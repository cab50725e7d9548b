//! What is kept under which key.
//!
//! | key | holds |
//! |---|---|
//! | `<prefix>:registry` | hash: `key/<id>` `tenant/<name>` `replay/<id>` `endpoint/<tenant>/<name>` `connector/<id>` `format` → JSON |
//! | `<prefix>:once:<tenant>:<key>` | a submission that must not happen twice (msgpack), until it expires |
//! | `<prefix>:suppressed:<tenant>` | hash: address → since when, code and all of a suppression (see `mail`) |
//! | `<prefix>:addresses:<tenant>` | sorted set: the same addresses, for listings |
//! | `<prefix>:feedback:<job id>` | list: what came back about a mail, until it expires |
//! | `<prefix>:<key of a route>` | an answer that is given again, until it expires |
//! | `<prefix>:call:<key of a route>` | who makes the call for it, for as long as that may take |
//! | `<prefix>:request:<tenant>:<key>` | a request that is answered itself, and its answer (msgpack), until it expires |
//! | `<prefix>:sweeper`, `<prefix>:replayer` | which node sweeps, which carries replays on, for a moment |
//! | `<prefix>:news` | channel: `wake <lane>`, `paused <lane>`, `ended <id>`, `registry` |
//!
//! and for each lane, all beginning with `<prefix>:{<lane>}:`, so that a cluster would keep them together:
//!
//! | key | holds |
//! |---|---|
//! | `state` | what the lane knows as a whole (msgpack): sizes, rounds, gates, whether it is paused |
//! | `live` | hash: id → the entry of a job that has not ended (packed, see `lua/lane/entries.lua`) |
//! | `jobs` | hash: id → the job's record until it ends; then `E`, moment, state, tenant and what is known of it |
//! | `history` | hash: id → failed attempts, until it ends |
//! | `why` | hash: id → why it is blocked |
//! | `ends` | hash: id → moment, state and reason of one that was dropped or cancelled, until a sweep puts it in `jobs` |
//! | `index` | sorted set: every id that is known, for listings |
//! | `arrivals:<priority>` | sorted set: waiting jobs, oldest first |
//! | `queue:<priority>:<tenant>` | list: ready jobs |
//! | `ring:<priority>` | list: tenants in line |
//! | `tenants` | hash: tenant → its turns and gate (msgpack) |
//! | `parked` | sorted set: tenants by when they may go again |
//! | `starts`, `starts:<tenant>` | list: the last starts, for the throttle |
//! | `own:<tenant>` | list: the last starts, for the tenant's own throttle |
//! | `delays` | sorted set: jobs by when they are due |
//! | `leases` | sorted set: the id and token of each job of a claim, or of one job whose lease was renewed, by when that ends |
//! | `nodes` | hash: node → attempts under way |
//! | `waited` | sorted set: jobs that somebody on some node waits for |
//! | `dead` | hash: id → the dead letter as JSON, as it was buried |
//! | `mark` | hash: id → what has happened to it since (msgpack) |
//! | `tried` | hash: id → attempts of replays that were ended |
//! | `dead:age` | sorted set: dead letters by age |
//! | `dead:counts` | hash: tenant, code, hour → how many are open |
//! | `outbox` | list: jobs for other lanes |
//!
//! Within lanes, ids are their 16 bytes; moments are microseconds.

use entrega_core::breaker::WhenOpen;
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::{LanePolicy, OnFull, Scope};
use serde::Serialize;
use std::time::Duration;

/// The version of all this; a program that knows only older ones must not touch it.
pub(super) const FORMAT: u32 = 4;

/// What scripts are told about a lane.
pub(super) struct LaneKeys {
    /// What its keys begin with.
    pub(super) prefix: String,
    /// Its policy as JSON.
    pub(super) policy: String,
}

pub(super) fn registry(prefix: &str) -> String {
    format!("{prefix}:registry")
}

pub(super) fn once(prefix: &str, tenant: &TenantName, key: &str) -> String {
    format!("{prefix}:once:{tenant}:{key}")
}

/// Where the suppressions of a tenant are, and where their order is.
pub(super) fn suppressed(prefix: &str, tenant: &TenantName) -> [String; 2] {
    [format!("{prefix}:suppressed:{tenant}"), format!("{prefix}:addresses:{tenant}")]
}

pub(super) fn feedback(prefix: &str, id: JobId) -> String {
    format!("{prefix}:feedback:{id}")
}

pub(super) fn request(prefix: &str, tenant: &TenantName, key: &str) -> String {
    format!("{prefix}:request:{tenant}:{key}")
}

/// Where an answer is kept to be given again; `key` is what a route says.
pub(super) fn answer(prefix: &str, key: &str) -> String {
    format!("{prefix}:{key}")
}

/// Held by whoever makes the call for that answer.
pub(super) fn call(prefix: &str, key: &str) -> String {
    format!("{prefix}:call:{key}")
}

pub(super) fn replayer(prefix: &str) -> String {
    format!("{prefix}:replayer")
}

pub(super) fn sweeper(prefix: &str) -> String {
    format!("{prefix}:sweeper")
}

pub(super) fn news(prefix: &str) -> String {
    format!("{prefix}:news")
}

impl LaneKeys {
    pub(super) fn new(prefix: &str, lane: &LaneName, policy: &LanePolicy, ahead: usize) -> LaneKeys {
        let told = Told { ahead, ..Told::of(prefix, lane, policy) };
        LaneKeys {
            prefix: format!("{prefix}:{{{lane}}}:"),
            policy: serde_json::to_string(&told).expect("plain data encodes"),
        }
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// The part of a policy that the scripts keep; moments and lengths in microseconds.
#[derive(Serialize)]
struct Told {
    lane: String,
    news: String,
    capacity: u32,
    preempt: bool,
    concurrency: u32,
    /// Jobs that a node may claim ahead of its slots.
    ahead: usize,
    tenant_concurrency: u32,
    turns: bool,
    batch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    throttle: Option<ToldThrottle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<ToldBreaker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cadence: Option<ToldCadence>,
}

#[derive(Serialize)]
struct ToldThrottle {
    max: u32,
    per: f64,
    scope: Scope,
}

#[derive(Serialize)]
struct ToldBreaker {
    failures: u32,
    open: f64,
    probe: f64,
    pass: bool,
    scope: Scope,
}

#[derive(Serialize)]
struct ToldCadence {
    initial: f64,
    min: f64,
    max: f64,
    slow_after: f64,
    step: f64,
    penalty: f64,
}

/// A length as scripts take it. From whole nanoseconds: seconds with a fraction would be off by a rounding, and the
/// scripts' moments with them.
pub(super) fn micros(length: Duration) -> f64 {
    length.as_nanos() as f64 / 1000.0
}

impl Told {
    fn of(prefix: &str, lane: &LaneName, policy: &LanePolicy) -> Told {
        Told {
            lane: lane.to_string(),
            news: news(prefix),
            capacity: policy.capacity,
            preempt: policy.on_full == OnFull::Preempt,
            concurrency: policy.concurrency,
            ahead: 0,
            tenant_concurrency: policy.tenant_concurrency,
            turns: policy.fairness.enable_round_robin,
            batch: policy.fairness.max_jobs_per_tenant_batch,
            throttle: policy.throttle.as_ref().map(|throttle| ToldThrottle {
                max: throttle.max_requests,
                per: micros(throttle.per),
                scope: throttle.scope,
            }),
            breaker: policy.breaker.as_ref().map(|(breaker, scope)| ToldBreaker {
                failures: breaker.failures,
                open: micros(breaker.open),
                probe: micros(breaker.probe_timeout),
                pass: breaker.when_open == WhenOpen::Pass,
                scope: *scope,
            }),
            cadence: policy.cadence.as_ref().map(|cadence| ToldCadence {
                initial: micros(cadence.initial),
                min: micros(cadence.min),
                max: micros(cadence.max),
                slow_after: micros(cadence.slow_after),
                step: micros(cadence.step),
                penalty: cadence.penalty,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tick of 463 ms became 462 999.999… µs, and was shown a microsecond short.
    #[test]
    fn whole_microseconds_stay_whole() {
        for ms in 1..100_000 {
            assert_eq!(micros(Duration::from_millis(ms)), (ms * 1000) as f64, "{ms} ms");
        }
    }
}
