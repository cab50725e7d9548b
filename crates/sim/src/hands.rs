//! Hands: which node holds which job, as somebody sees it who counts what is handed out.
//! Invariant: knows claims, settlements and the ends of nodes; whether a lease has ended is judged by what its node could
//! do about it, not by what the store says.
//! Never: looks at leases.

use std::collections::BTreeMap;

use entrega::store::ClaimedJob;
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use crate::plan::{Plan, Span};
use crate::store::{LEASE, RENEW_EVERY};
use crate::witness::Broken;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its node is at it.
    Held,
    /// Its node is gone.
    Orphaned,
    /// The store took it from its node, which may not know.
    TakenOver,
    /// It was settled or given back.
    Over,
}

/// One claim.
#[derive(Clone, Debug)]
struct Claim {
    id: JobId,
    lane: LaneName,
    tenant: TenantName,
    node: usize,
    at: Time,
    is_past_breaker: bool,
    state: State,
}

/// How a node got a job.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// When.
    pub at: Time,
    /// To be answered without a call.
    pub is_past_breaker: bool,
}

/// How a destination's call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// By whoever holds the job.
    Own,
    /// By a node that was stalled and does not know yet that another has it.
    Late,
}

/// All claims since the store was opened, by the number of their lease.
pub struct Hands {
    /// When the store could not be reached.
    outages: Vec<Span>,
    /// When each node stood still.
    stalls: Vec<Vec<Span>>,
    claims: BTreeMap<u64, Claim>,
}

fn number(job: &ClaimedJob) -> u64 {
    job.ticket.number().unwrap_or_default()
}

fn meets(spans: &[Span], from: Time, to: Time) -> bool {
    spans.iter().any(|span| span.0 <= to && from <= span.1)
}

impl Hands {
    /// Of the nodes of a plan.
    pub fn new(plan: &Plan) -> Hands {
        Hands { outages: plan.outages.clone(), stalls: vec![Vec::new(); plan.nodes.len()], claims: BTreeMap::new() }
    }

    /// A node does nothing for a while.
    pub fn stalled(&mut self, node: usize, span: Span) {
        self.stalls[node].push(span);
    }

    /// The store was opened again: nobody holds anything.
    pub fn clear(&mut self) {
        self.claims.clear();
    }

    /// A node got a job.
    pub fn claimed(&mut self, at: Time, node: usize, job: &ClaimedJob, policy: &LanePolicy) -> Result<(), Broken> {
        let (id, lane, tenant) = (job.job.id, job.job.lane.clone(), job.job.tenant.clone());
        let is_past_breaker = job.past_breaker;
        let claim = Claim { id, lane, tenant, node, at, is_past_breaker, state: State::Held };
        let in_lane = |other: &&Claim| other.state == State::Held && other.lane == claim.lane;
        let held = || self.claims.values().filter(in_lane);
        let of_node = held().filter(|other| other.node == node).count() + 1;
        let of_tenant = held().filter(|other| other.tenant == claim.tenant).count() + 1;
        let checked = match () {
            _ if of_node > policy.concurrency as usize => {
                Err(("concurrency_bounded", format!("is number {of_node} on node {node}")))
            }
            _ if of_tenant > policy.tenant_concurrency as usize => {
                Err(("concurrency_bounded", format!("is number {of_tenant} of {}", claim.tenant)))
            }
            _ => Ok(()),
        };
        self.claims.insert(number(job), claim);
        checked
    }

    /// A node calls a destination.
    pub fn started(&self, now: Time, job: &ClaimedJob) -> Result<Start, Broken> {
        let Some(claim) = self.claims.get(&number(job)) else {
            return Err(("leases_hold", "is attempted by nobody who got it".into()));
        };
        match (claim.state, meets(&self.stalls[claim.node], claim.at, now)) {
            (State::Held, false) if now > claim.at => {
                Err(("throttle_respected", "starts later than it was let go".into()))
            }
            (State::Held, _) => Ok(Start::Own),
            (State::TakenOver | State::Over, true) => Ok(Start::Late),
            _ => Err(("leases_hold", "is attempted by somebody who does not hold it".into())),
        }
    }

    /// A node calls for a job that it got, once or again. Gives since when it has it; a node that lost a job and got it
    /// back may be at it twice, and then nobody knows.
    pub fn calling(&self, now: Time, node: usize, id: JobId) -> Result<Option<Time>, Broken> {
        let is_at_it = |claim: &&Claim| match claim.state {
            State::Held => true,
            State::TakenOver => self.were_held_up(node, claim.at, now),
            State::Orphaned | State::Over => false,
        };
        let mut own = self.claims.values().filter(|claim| claim.node == node && claim.id == id).filter(is_at_it);
        match (own.next(), own.next()) {
            (None, _) => Err(("leases_hold", "is called for by somebody who does not hold it".into())),
            (Some(claim), None) => Ok(Some(claim.at)),
            (Some(_), Some(_)) => Ok(None),
        }
    }

    /// A node says what came of an attempt; what that is worth is for others to judge.
    /// Gives the moment at which it got the job.
    pub fn settling(&mut self, number: u64) -> Option<Time> {
        self.end(number, State::Over).map(|claim| claim.at)
    }

    /// How a node got a job the last time.
    pub fn last_claim(&self, node: usize, id: JobId) -> Option<Claimed> {
        let claim = self.claims.values().rev().find(|claim| claim.node == node && claim.id == id)?;
        Some(Claimed { at: claim.at, is_past_breaker: claim.is_past_breaker })
    }

    /// Whether a node was held up at some moment between two, or the store was out of reach.
    pub fn were_held_up(&self, node: usize, from: Time, to: Time) -> bool {
        meets(&self.stalls[node], from, to) || meets(&self.outages, from, to)
    }

    /// Whether a node did nothing at some moment between two.
    pub fn stood_still(&self, node: usize, from: Time, to: Time) -> bool {
        meets(&self.stalls[node], from, to)
    }

    /// Whether a node is at a job.
    pub fn are_at(&self, id: JobId) -> bool {
        self.claims.values().any(|claim| claim.id == id && claim.state == State::Held)
    }

    /// A node that stops gives back what it holds.
    pub fn given_back(&mut self, number: u64, by: usize) -> Result<JobId, Broken> {
        match self.end(number, State::Over) {
            Some(claim) if claim.node != by => {
                Err(("leases_hold", format!("{} of node {} is given back by node {by}", claim.id, claim.node)))
            }
            claim => claim.map(|claim| claim.id).ok_or(("leases_hold", "nobody's job is given back".into())),
        }
    }

    /// The store takes a job from a node that has not renewed its lease.
    pub fn taken_over(&mut self, now: Time, number: u64) -> Result<JobId, Broken> {
        let Some(claim) = self.end(number, State::TakenOver) else {
            return Err(("leases_hold", "nobody's job is taken over".into()));
        };
        let since = now - LEASE - RENEW_EVERY;
        let is_held_up = self.were_held_up(claim.node, since, now);
        match claim.state {
            State::Held if !is_held_up => {
                Err(("leases_hold", format!("{} is taken from node {}, which is at it", claim.id, claim.node)))
            }
            _ => Ok(claim.id),
        }
    }

    /// A node was killed: others get what it held, in time.
    pub fn orphaned(&mut self, node: usize) {
        let held = self.claims.values_mut().filter(|claim| claim.node == node && claim.state == State::Held);
        held.for_each(|claim| claim.state = State::Orphaned);
    }

    /// Ends a claim; gives it as it was before.
    fn end(&mut self, number: u64, how: State) -> Option<Claim> {
        let claim = self.claims.get_mut(&number)?;
        let before = claim.clone();
        claim.state = how;
        Some(before)
    }
}
