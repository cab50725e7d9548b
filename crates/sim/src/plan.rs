//! The plan of a run: what a seed says about lanes, callers, faults and ends of the process.
//! Invariant: a plan follows from its seed alone. After `heal_at` nothing fails any more.
//! Never: looks at what happens in the run.
//!
//! # Layout
//! - here: lanes, faults, operators; `requests`: who comes, and what for; `nodes`: who shares the ledger

mod nodes;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega::events::EVENTS_LANE;
use entrega::store::ConnectorLimits;
use entrega::submission::NewJob;
use entrega::webhook::WEBHOOK_LANE;
use entrega_core::backoff::Backoff;
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::cadence::CadencePolicy;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::{Destinations, LanePolicy, OnExhausted, OnFull, Retry, Scope, ThrottlePolicy};
use entrega_core::throttle::Rate;
use entrega_core::time::Time;

use crate::connector::{self, CONNECTOR_LANE};
use crate::drift::Drift;
use crate::route::{Keeping, PROXY_LANE};

pub use self::nodes::{Cast, NodePlan, NodesPlan};

/// The name of every endpoint there is.
pub const HOOK: &str = "hook";
/// When every run begins.
pub const START: Time = Time::from_millis(1_700_000_000_000);
/// How long things go wrong.
const TROUBLE_MS: u64 = 9_000;
/// Callers come within this.
const CALLERS_MS: u64 = 7_000;
const LIVES_MAX: usize = 4;
/// How much longer throttles count where lanes move from node to node.
const PERIODS_SHARED: u32 = 5;
/// Half of what a clock is set by at most.
const DRIFT_MS_MAX: i64 = 30_000;
const TENANTS: u32 = 5;
/// Of these tenants somebody hears what becomes of their mails.
const TENANTS_LISTENING: u32 = 2;

/// More attempts of one tenant than there can be.
pub const NO_LIMIT: u32 = 1_000;

const CALLS_LANE: &str = "calls";
const DOWN_LANE: &str = "down";
const PACED_LANE: &str = "paced";
const MAIL_LANE: &str = "email:send";

/// A stretch of time, its end not included.
pub type Span = (Time, Time);

/// How a life of the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the so-manieth await of store or destination, whatever is going on there.
    Crash { points: u64 },
    /// After so many polls of the scheduler, whichever task was polled last and wherever it waits.
    Cut { polls: u64 },
    /// In order, after so long.
    Stop { after: Duration },
    /// In order, and killed after so many polls before that is over.
    CutStop { after: Duration, polls: u64 },
}

/// A caller who wants something sent.
#[derive(Clone, Debug)]
pub struct PlannedRequest {
    /// When it comes.
    pub at: Time,
    /// The tenant.
    pub tenant: TenantName,
    /// The job.
    pub job: NewJob,
    /// Makes it one job however often it is handed in.
    pub key: Option<String>,
    /// Whether the caller waits for the API's answer, and has no job made.
    pub waits: bool,
}

/// What an operator does in the middle of trouble.
#[derive(Clone, Debug)]
pub enum Order {
    /// Has a lane stand still for a while. No two of a run are about the same lane.
    Pause { lane: LaneName, until: Time },
    /// Cancels one of the jobs that have not ended.
    Cancel,
    /// Lets blocked jobs go on.
    Unblock,
    /// Gives one of the dead letters up.
    Discard,
}

/// What a seed says.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lanes there are.
    pub lanes: BTreeMap<LaneName, Arc<LanePolicy>>,
    /// How the proxy keeps answers.
    pub keeping: Keeping,
    /// What the API behind the connector allows.
    pub limits: ConnectorLimits,
    /// What every endpoint allows, beside what its lane does.
    pub endpoint_rate: Option<Rate>,
    /// Who comes.
    pub requests: Vec<PlannedRequest>,
    /// Of all lives but the last.
    pub ends: Vec<End>,
    /// When somebody has dead letters replayed although nothing has healed yet.
    pub early_replay: Option<Time>,
    /// What operators do, and when.
    pub orders: Vec<(Time, Order)>,
    /// The store cannot be reached.
    pub outages: Vec<Span>,
    /// It takes no new work.
    pub refusals: Vec<Span>,
    /// It takes its time.
    pub slowness: Vec<Span>,
    /// How wrong the clock is in each life; at the end it is right if no more is said.
    pub drifts: Vec<Drift>,
    /// From then on everything works.
    pub heal_at: Time,
    /// Those that share the ledger, if there are several.
    pub nodes: Option<NodesPlan>,
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn lane_name(name: &str) -> LaneName {
    LaneName::new(name).expect("a lane name")
}

fn tenant_name(number: u32) -> TenantName {
    TenantName::new(&format!("t{number}")).expect("a tenant name")
}

/// Those who are told of their mails.
pub fn listening() -> impl Iterator<Item = TenantName> {
    (0..TENANTS_LISTENING).map(tenant_name)
}

/// Whether somebody is told of this tenant's mails.
pub fn is_listening(tenant: &TenantName) -> bool {
    listening().any(|listening| listening == *tenant)
}

impl Plan {
    /// What a seed says of one node or of several, with the chance that it begins.
    pub fn of_seed(seed: u64, cast: Cast, rng: &mut fastrand::Rng) -> Plan {
        let plan = Plan::draw(rng);
        match (cast != Cast::Alone).then(|| NodesPlan::draw(seed, cast)) {
            // The clock of those who share a ledger is the ledger's.
            Some(nodes) => {
                let lanes = plan.lanes.into_iter().map(|(name, policy)| (name, remembering(policy))).collect();
                Plan { lanes, nodes: Some(nodes), ends: Vec::new(), drifts: Vec::new(), ..plan }
            }
            None => plan,
        }
    }

    /// What this chance says of one node.
    fn draw(rng: &mut fastrand::Rng) -> Plan {
        // Half of the stops come soon after callers that come together, while gates have something to remember.
        let stop = |rng: &mut fastrand::Rng| match rng.bool() {
            true => ms(rng.u64(0..2) * 2_000 + rng.u64(10..250)),
            false => ms(rng.u64(100..4_000)),
        };
        let end = |rng: &mut fastrand::Rng| match rng.u32(0..9) {
            0..3 => End::Stop { after: stop(rng) },
            3 => End::CutStop { after: stop(rng), polls: rng.u64(1..60) },
            4..6 => End::Cut { polls: rng.u64(20..1_500) },
            _ => End::Crash { points: rng.u64(5..250) },
        };
        let requests = requests::draw(rng);
        let ends: Vec<End> = (0..rng.usize(0..LIVES_MAX)).map(|_| end(rng)).collect();
        let early_replay = rng.bool().then(|| START + ms(rng.u64(2_000..TROUBLE_MS)));
        Plan {
            lanes: lanes(rng),
            limits: connector::limits(rng),
            keeping: Keeping { fresh: ms(rng.u64(300..2_500)), stale: ms(rng.u64(2_000..6_000)) },
            requests,
            ends,
            early_replay,
            outages: spans(rng, 2, 6_000),
            refusals: spans(rng, 1, 2_000),
            slowness: spans(rng, 2, 3_000),
            heal_at: START + ms(TROUBLE_MS),
            orders: orders(rng, early_replay),
            drifts: drifts(rng),
            nodes: None,
            endpoint_rate: rng.bool().then(|| Rate { max_requests: rng.u32(1..4), per_ms: rng.u64(200..1_000) }),
        }
    }

    /// When the outage that there is now ends.
    pub fn outage_until(&self, now: Time) -> Option<Time> {
        self.outages.iter().filter(|span| is_in(span, now)).map(|span| span.1).max()
    }

    /// When a node is answered again that the ledger does not answer now.
    pub fn cut_off_until(&self, node: usize, now: Time) -> Option<Time> {
        let node = self.nodes.as_ref().and_then(|nodes| nodes.each.get(node))?;
        self.outage_until(now).max(node.partitioned_until(now))
    }

    /// How wrong the clock is in a life.
    pub fn drift(&self, life: usize) -> Drift {
        self.drifts.get(life).copied().unwrap_or_default()
    }

    /// How long a question to the upstream may take.
    pub fn asking_timeout(&self) -> Duration {
        self.lanes[&lane_name(PROXY_LANE)].timeout
    }

    /// Whether the ledger loses what it acknowledged.
    pub fn loses_writes(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| !nodes.rewinds.is_empty())
    }

    /// Whether new work is refused now.
    pub fn refuses(&self, now: Time) -> bool {
        self.refusals.iter().any(|span| is_in(span, now))
    }

    /// Whether the store is slow now.
    pub fn is_slow(&self, now: Time) -> bool {
        self.slowness.iter().any(|span| is_in(span, now))
    }
}

/// The same lane with a throttle that whoever takes it over must still know of.
fn remembering(mut policy: Arc<LanePolicy>) -> Arc<LanePolicy> {
    Arc::make_mut(&mut policy).throttle.iter_mut().for_each(|throttle| throttle.per *= PERIODS_SHARED);
    policy
}

fn is_in(span: &Span, now: Time) -> bool {
    (span.0..span.1).contains(&now)
}

fn spans(rng: &mut fastrand::Rng, most: usize, longest_ms: u64) -> Vec<Span> {
    let span = |rng: &mut fastrand::Rng| {
        let from = START + ms(rng.u64(0..TROUBLE_MS - longest_ms));
        (from, from + ms(rng.u64(50..longest_ms)))
    };
    (0..rng.usize(0..=most)).map(|_| span(rng)).collect()
}

/// One lane for each gate, so that a broken one is not hidden behind another.
fn lanes(rng: &mut fastrand::Rng) -> BTreeMap<LaneName, Arc<LanePolicy>> {
    let concurrency = rng.u32(2..6);
    let exhausted = if rng.bool() { OnExhausted::Dlq } else { OnExhausted::Blocked };
    let base = LanePolicy {
        channel: "simulated".into(),
        retry: Retry { attempts: rng.u32(1..5), backoff: Backoff::exponential(ms(200), ms(2_000)) },
        timeout: ms(rng.u64(300..1_500)),
        ttl: Some(ms(rng.u64(4_000..60_000))),
        concurrency,
        tenant_concurrency: NO_LIMIT,
        destinations: Destinations::One,
        priority_scope: Scope::Lane,
        ..LanePolicy::http()
    };
    let throttle = |rng: &mut fastrand::Rng, scope| {
        let (max_requests, per) = (rng.u32(1..6), ms(rng.u64(100..600)));
        Some(ThrottlePolicy { max_requests, per, scope })
    };
    let breaker = |rng: &mut fastrand::Rng| BreakerPolicy {
        failures: rng.u32(2..4),
        open: ms(rng.u64(200..1_500)),
        probe_timeout: ms(2_500),
        when_open: WhenOpen::Hold,
    };
    let calls = LanePolicy { throttle: throttle(rng, Scope::Lane), on_exhausted: exhausted, ..base.clone() };
    let (breaker_of_lane, tenant_concurrency) = (Some((breaker(rng), Scope::Lane)), rng.u32(1..3));
    let down = LanePolicy { breaker: breaker_of_lane, tenant_concurrency, ..base.clone() };
    let cadence = CadencePolicy { max: ms(1_000), ..CadencePolicy::starting_at(ms(rng.u64(20..200))) };
    let paced = LanePolicy { cadence: Some(cadence), capacity: 5, on_full: OnFull::Preempt, ..base.clone() };
    let mail = LanePolicy {
        channel: "email".into(),
        throttle: throttle(rng, Scope::Lane),
        rules: LanePolicy::mail().rules,
        dialect: LanePolicy::mail().dialect,
        priority_scope: Scope::Tenant,
        ..base.clone()
    };
    let events = LanePolicy { timeout: ms(1_000), ..LanePolicy::events() };
    let webhook = LanePolicy {
        retry: Retry { attempts: 3, backoff: Backoff::Listed(vec![ms(300), ms(900)]) },
        timeout: base.timeout,
        throttle: throttle(rng, Scope::Tenant),
        breaker: Some((breaker(rng), Scope::Tenant)),
        concurrency: 4,
        tenant_concurrency: 2,
        ..LanePolicy::webhook()
    };
    let proxy = LanePolicy {
        retry: Retry { attempts: 1, ..base.retry.clone() },
        timeout: base.timeout,
        cadence: Some(CadencePolicy { max: ms(500), ..CadencePolicy::starting_at(ms(rng.u64(10..80))) }),
        breaker: Some((BreakerPolicy { when_open: WhenOpen::Pass, ..breaker(rng) }, Scope::Lane)),
        concurrency,
        tenant_concurrency: NO_LIMIT,
        ..LanePolicy::proxy()
    };
    let connector = LanePolicy {
        retry: base.retry.clone(),
        timeout: ms(rng.u64(2_000..6_000)),
        ttl: base.ttl,
        concurrency,
        tenant_concurrency: NO_LIMIT,
        ..LanePolicy::connector()
    };
    let all = [
        (CONNECTOR_LANE, connector),
        (CALLS_LANE, calls),
        (DOWN_LANE, down),
        (PACED_LANE, paced),
        (MAIL_LANE, mail),
        (EVENTS_LANE, events),
        (WEBHOOK_LANE, webhook),
        (PROXY_LANE, proxy),
    ];
    all.into_iter().map(|(name, policy)| (lane_name(name), Arc::new(policy))).collect()
}

/// In half of the runs the clock is set at every start, by up to a minute, forwards or backwards.
fn drifts(rng: &mut fastrand::Rng) -> Vec<Drift> {
    let lives = if rng.bool() { LIVES_MAX } else { 0 };
    let drift = |rng: &mut fastrand::Rng| Drift { ms: rng.i64(-DRIFT_MS_MAX..=DRIFT_MS_MAX) };
    (0..lives).map(|_| drift(rng)).collect()
}

/// At most one pause for each of two lanes; most cancels come soon after callers that come together, and discards while
/// dead letters are replayed.
fn orders(rng: &mut fastrand::Rng, early_replay: Option<Time>) -> Vec<(Time, Order)> {
    let moment = |rng: &mut fastrand::Rng| START + ms(rng.u64(0..TROUBLE_MS));
    let mut orders = Vec::new();
    for lanes in [[CALLS_LANE, DOWN_LANE], [MAIL_LANE, WEBHOOK_LANE]] {
        if rng.bool() {
            let (at, lane) = (moment(rng), lane_name(lanes[rng.usize(0..2)]));
            orders.push((at, Order::Pause { lane, until: at + ms(rng.u64(50..6_000)) }));
        }
    }
    for _ in 0..rng.u32(0..6) {
        let after_callers = START + ms(rng.u64(0..CALLERS_MS) / 2_000 * 2_000 + rng.u64(5..80));
        orders.push((if rng.bool() { after_callers } else { moment(rng) }, Order::Cancel));
    }
    for _ in 0..rng.u32(0..3) {
        orders.push((moment(rng), Order::Unblock));
    }
    for _ in 0..rng.u32(0..4) {
        let soon = early_replay.map(|at| at + ms(rng.u64(100..1_000)));
        let at = soon.filter(|_| rng.bool()).unwrap_or_else(|| moment(rng));
        orders.push((at, Order::Discard));
    }
    orders
}
