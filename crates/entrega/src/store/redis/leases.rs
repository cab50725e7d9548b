//! Leases: at most one node holds a job.
//! Invariant: an attempt under way has its lease renewed in time; one that was lost is known to be.
//! Never: stops an attempt; its settlement will change nothing.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::time::Time;

use super::answer::Reader;
use super::entry::Entry;
use super::script::{Call, Verb};
use super::{LaneCell, Shared};
use crate::store::{ClaimedJob, StoreError};

/// Leases are looked at so many times in the length of one.
const LOOKS_PER_LEASE: u32 = 12;
/// Renewed when this part of it has passed.
const RENEWED_AFTER: u32 = 3;
/// Leases in one call.
const CALL_LEASES: usize = 500;
/// How long after the end of an attempt its lease is still renewed; nobody can be at it any more.
const AFTER_ATTEMPT: Duration = Duration::from_secs(10);

/// A lease on a job.
#[derive(Debug)]
pub(super) struct Lease {
    /// As it was handed out.
    pub(super) entry: Entry,
    /// When its attempt began, about; never for a job that lies ready.
    pub(super) claimed_at: Time,
    pub(super) renewed_at: Time,
}

impl Lease {
    pub(super) fn token(&self) -> u64 {
        self.entry.token()
    }
}

/// A job, and the token under which it is held.
type Leased = (JobId, u64);

/// Renews leases until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>, lane: Arc<LaneCell>) {
    loop {
        tokio::time::sleep(lane.lease / LOOKS_PER_LEASE).await;
        shared.renew_or_log(&lane, lane.lease / RENEWED_AFTER).await;
    }
}

impl Shared {
    /// Gives all leases of this node back.
    pub(super) async fn release(&self, lane: &LaneCell) -> Result<(), StoreError> {
        drop(lane.ahead.drop_all());
        let mut held: Vec<Leased> = lane.turns.leases.lock().drain().map(|(id, lease)| (id, lease.token())).collect();
        // What still waits to be settled was attempted: giving it back would send it again.
        held.retain(|(id, _)| !lane.settlements.is_settling(*id));
        self.give_back(lane, &held).await
    }

    /// Gives back what was claimed ahead: the lane is paused, and what has not started shall not.
    pub(super) async fn give_back_ahead(&self, lane: &LaneCell) -> Result<(), StoreError> {
        let held: Vec<_> = {
            let mut leases = lane.turns.leases.lock();
            lane.ahead.drop_all().into_iter().filter_map(|id| Some((id, leases.remove(&id)?.token()))).collect()
        };
        self.give_back(lane, &held).await
    }

    /// Gives back what came too late to be kept; should it fail, the leases end by themselves.
    pub(super) async fn give_back_or_log(&self, lane: &LaneCell, stray: &[ClaimedJob]) {
        let held: Vec<_> = {
            let mut leases = lane.turns.leases.lock();
            let ids = stray.iter().map(|claimed| claimed.job.id);
            ids.filter_map(|id| Some((id, leases.remove(&id)?.token()))).collect()
        };
        if let Err(error) = self.give_back(lane, &held).await {
            tracing::warn!(lane = %lane.name, errorReason = %error, "Jobs could not be given back; they wait for their leases");
        }
    }

    async fn give_back(&self, lane: &LaneCell, held: &[Leased]) -> Result<(), StoreError> {
        for some in held.chunks(CALL_LEASES) {
            let pairs = |call: Call| some.iter().fold(call, |call, (id, token)| call.arg(id.as_bytes()).arg(*token));
            self.change(lane, "release", pairs).await?;
        }
        Ok(())
    }

    /// Renews everything at once: after an outage others might take it for abandoned.
    pub(super) async fn renew_all(&self) {
        for lane in self.lanes.values() {
            self.renew_or_log(lane, Duration::ZERO).await;
        }
    }

    async fn renew_or_log(&self, lane: &LaneCell, age_min: Duration) {
        if let Err(reason) = self.renew(lane, age_min).await {
            tracing::warn!(lane = %lane.name, errorReason = reason, "Leases could not be renewed; it is tried again");
        }
    }

    /// Renews the leases that were last renewed so long ago.
    async fn renew(&self, lane: &LaneCell, age_min: Duration) -> Result<(), String> {
        let now = self.clock.now();
        let old: Vec<Leased> = {
            let leases = lane.turns.leases.lock();
            let is_old = |lease: &Lease| now.since(lease.renewed_at) >= age_min;
            let is_at_it = |lease: &Lease| now.since(lease.claimed_at) < lane.policy.timeout + AFTER_ATTEMPT;
            let is_wanted =
                |id: &JobId, lease: &Lease| is_old(lease) && (is_at_it(lease) || lane.settlements.is_settling(*id));
            leases.iter().filter(|(id, lease)| is_wanted(id, lease)).map(|(id, lease)| (*id, lease.token())).collect()
        };
        for some in old.chunks(CALL_LEASES) {
            let length = u64::try_from(lane.lease.as_micros()).unwrap_or(u64::MAX);
            let call = Call::new(self, lane, Verb::Extend).arg(length);
            let call = some.iter().fold(call, |call, (id, token)| call.arg(id.as_bytes()).arg(*token));
            let lost = call.make(self).await.map_err(|error| error.to_string())?;
            let lost = Reader("renewing leases").ids(lost).map_err(|error| error.to_string())?;
            self.note_renewed(lane, some, &lost, now);
        }
        Ok(())
    }

    fn note_renewed(&self, lane: &LaneCell, asked: &[Leased], lost: &[JobId], now: Time) {
        let mut leases = lane.turns.leases.lock();
        for (id, token) in asked {
            let Some(kept) = leases.get_mut(id).filter(|kept| kept.token() == *token) else { continue };
            kept.renewed_at = now;
            if lost.contains(id) {
                leases.remove(id);
                tracing::warn!(lane = %lane.name, jobId = %id, "A lease ended while its attempt was under way; another node may have the job");
            }
        }
    }
}
