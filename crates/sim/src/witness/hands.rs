//! Hands: which jobs are being attempted, as somebody sees it who counts what is handed out.
//! Invariant: knows claims and settlements; the store is not asked.

use std::collections::BTreeMap;

use entrega::store::ClaimedJob;
use entrega_core::id::JobId;
use entrega_core::lane::{SLOW_AFTER, SlowBounds, attempts_max};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use crate::witness::Broken;

/// One claim.
#[derive(Clone, Debug)]
struct Claim {
    id: JobId,
    lane: LaneName,
    tenant: TenantName,
    at: Time,
    is_past_breaker: bool,
    /// By which node.
    node: usize,
    /// Whether somebody is at it.
    is_held: bool,
    /// Whether the lane was taken over since.
    is_cut_off: bool,
    /// Unless it ended in time.
    was_slow: bool,
}

/// The most attempts of one tenant.
fn of_tenant_max(policy: &LanePolicy) -> usize {
    SlowBounds::of(policy).map_or(policy.tenant_concurrency, |bounds| bounds.tenant_max) as usize
}

/// How a job was got.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The at.
    pub at: Time,
    /// To be answered without a call.
    pub is_past_breaker: bool,
    /// By which node.
    pub node: usize,
}

/// All claims since the store was opened, by number.
#[derive(Debug, Default)]
pub struct Hands {
    claims: BTreeMap<u64, Claim>,
}

fn number(job: &ClaimedJob) -> u64 {
    job.ticket.number().unwrap_or_default()
}

impl Hands {
    /// The store was opened again: nobody holds anything.
    pub fn clear(&mut self) {
        self.claims.clear();
    }

    /// A job was claimed in a lane that has another owner by now.
    pub fn claimed_in_vain(&mut self, at: Time, node: usize, job: &ClaimedJob) {
        let (id, lane, tenant) = (job.job.id, job.job.lane.clone(), job.job.tenant.clone());
        let (is_past_breaker, is_held, is_cut_off) = (job.past_breaker, false, true);
        let claim = Claim { id, lane, tenant, at, is_past_breaker, node, is_held, is_cut_off, was_slow: true };
        self.claims.insert(number(job), claim);
    }

    /// A job was claimed.
    pub fn claimed(&mut self, at: Time, node: usize, job: &ClaimedJob, policy: &LanePolicy) -> Result<(), Broken> {
        let (id, lane, tenant) = (job.job.id, job.job.lane.clone(), job.job.tenant.clone());
        let (is_past_breaker, is_held, is_cut_off) = (job.past_breaker, true, false);
        let claim = Claim { id, lane, tenant, at, is_past_breaker, node, is_held, is_cut_off, was_slow: true };
        let held = || self.claims.values().filter(|other| other.is_held && other.lane == claim.lane);
        let in_lane = held().count() + 1;
        let of_tenant = held().filter(|other| other.tenant == claim.tenant).count() + 1;
        let checked = match () {
            _ if in_lane > attempts_max(policy) as usize => {
                Err(("concurrency_bounded", format!("is number {in_lane} of its lane")))
            }
            _ if of_tenant > of_tenant_max(policy) => {
                Err(("concurrency_bounded", format!("is number {of_tenant} of {}", claim.tenant)))
            }
            _ if self.slots_taken(&claim) > policy.concurrency as usize => {
                Err(("concurrency_bounded", "finds no slot, and nothing of its tenant was slow".into()))
            }
            _ => Ok(()),
        };
        self.claims.insert(number(job), claim);
        checked
    }

    /// How many attempts hold a slot for certain, this one included: nothing of their tenants has been slow so far.
    fn slots_taken(&self, new: &Claim) -> usize {
        let is_slow = |claim: &Claim| claim.at + SLOW_AFTER <= new.at;
        let in_lane = || self.claims.values().filter(|claim| claim.lane == new.lane);
        let was_slow = |tenant: &TenantName| {
            in_lane()
                .filter(|other| other.tenant == *tenant)
                .any(|other| if other.is_held { is_slow(other) } else { other.was_slow })
        };
        1 + in_lane().filter(|claim| claim.is_held && !was_slow(&claim.tenant)).count()
    }

    /// A lane has a new owner: whoever is at one of its jobs is so no more.
    pub fn cut_off(&mut self, lane: &LaneName) {
        for claim in self.claims.values_mut().filter(|claim| claim.lane == *lane) {
            claim.is_cut_off |= claim.is_held;
            claim.is_held = false;
        }
    }

    /// A node is gone.
    pub fn drop_all(&mut self, node: usize) {
        self.claims.values_mut().filter(|claim| claim.node == node).for_each(|claim| claim.is_held = false);
    }

    /// An attempt was given up; gives the job, if it was still this attempt's.
    pub fn give_back(&mut self, number: u64) -> Option<JobId> {
        let claim = self.claims.get_mut(&number).filter(|claim| claim.is_held)?;
        claim.is_held = false;
        Some(claim.id)
    }

    /// A destination is called; `is_counted` where starts are counted at the moment of the claim, unless somebody stood
    /// still between that and the call. Gives the node.
    pub fn started(&self, now: Time, job: &ClaimedJob, is_counted: bool) -> Result<usize, Broken> {
        match self.claims.get(&number(job)) {
            Some(claim) if claim.is_cut_off => Err(("one_owner", "is attempted after its lane moved".into())),
            Some(claim) if claim.is_held && now > claim.at && is_counted => {
                Err(("throttle_respected", "starts later than it was let go".into()))
            }
            Some(claim) if claim.is_held => Ok(claim.node),
            _ => Err(("one_at_a_time", "is attempted by somebody who does not hold it".into())),
        }
    }

    /// A destination is called by a node that stood still just before that, with a job that was its own then.
    pub fn started_late(&self, node: usize, number: u64) -> Result<(), Broken> {
        match self.claims.get(&number).filter(|claim| claim.node == node && (claim.is_held || claim.is_cut_off)) {
            Some(_) => Ok(()),
            None => Err(("one_at_a_time", "is attempted late by somebody who never held it".into())),
        }
    }

    /// The API is called for a job; gives since when somebody has it.
    pub fn calling(&self, id: JobId) -> Result<Time, Broken> {
        let of_job = || self.claims.values().rev().filter(|claim| claim.id == id);
        match of_job().find(|claim| claim.is_held) {
            Some(claim) => Ok(claim.at),
            None if of_job().any(|claim| claim.is_cut_off) => {
                Err(("one_owner", "is called for after its lane moved".into()))
            }
            None => Err(("one_at_a_time", "is called for by somebody who does not hold it".into())),
        }
    }

    /// Somebody says what came of an attempt. Gives the moment at which it got the job, if that is still its own.
    pub fn settling(&mut self, now: Time, number: u64) -> Option<Time> {
        let claim = self.claims.get_mut(&number).filter(|claim| !claim.is_cut_off)?;
        claim.is_held = false;
        claim.was_slow = claim.at + SLOW_AFTER <= now;
        Some(claim.at)
    }

    /// How a job was got the last time.
    pub fn last_claim(&self, id: JobId) -> Option<Claimed> {
        let claim = self.claims.values().rev().find(|claim| claim.id == id)?;
        Some(Claimed { at: claim.at, is_past_breaker: claim.is_past_breaker, node: claim.node })
    }

    /// Whether somebody is at a job.
    pub fn are_at(&self, id: JobId) -> bool {
        self.claims.values().any(|claim| claim.id == id && claim.is_held)
    }
}
