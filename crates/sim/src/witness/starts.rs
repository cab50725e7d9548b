//! Starts as a destination counts them: no more in any period than its throttle allows, however many nodes there are.
//! Invariant: moments are those that really were, whatever clocks showed.

use std::collections::BTreeMap;
use std::time::Duration;

use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::throttle::Rate;
use entrega_core::time::Time;

use crate::witness::Broken;

/// All starts, by lane, and by tenant where each has a throttle.
#[derive(Debug, Default)]
pub struct Starts {
    by_gate: BTreeMap<(LaneName, Option<TenantName>), Vec<Time>>,
}

impl Starts {
    /// Whoever owns a lane next does not know of what was started there since.
    pub fn lost(&mut self, lane: &LaneName, since: Time) {
        for (_, starts) in self.by_gate.iter_mut().filter(|((of, _), _)| of == lane) {
            starts.retain(|start| *start < since);
        }
    }

    /// A job of a tenant may go; `own` is what its endpoint allows beside its lane.
    pub fn add(
        &mut self,
        at: Time,
        (lane, tenant): (&LaneName, &TenantName),
        policy: &LanePolicy,
        own: Option<Rate>,
    ) -> Result<(), Broken> {
        let by_tenant = policy.throttle.as_ref().is_some_and(|throttle| throttle.scope == Scope::Tenant);
        let starts = self.by_gate.entry((lane.clone(), by_tenant.then(|| tenant.clone()))).or_default();
        // Where a ledger is far away, one that was let go earlier may come later.
        let index = starts.partition_point(|start| *start <= at);
        starts.insert(index, at);
        let is_dense = |(max, per): (u32, Duration)| {
            let span = max as usize;
            let firsts = index.saturating_sub(span)..=index;
            firsts.filter_map(|first| Some((starts[first], starts.get(first + span)?))).any(|(a, b)| *b < a + per)
        };
        let of_lane = policy.throttle.as_ref().map(|throttle| (throttle.max_requests, throttle.per));
        let is_too_many = (of_lane.into_iter())
            .chain(own.map(|rate| (rate.max_requests, rate.per())))
            .chain(policy.cadence.as_ref().map(|cadence| (1, cadence.min)))
            .any(is_dense);
        match is_too_many {
            true => Err(("throttle_respected", format!("in {lane} is one start too many"))),
            false => Ok(()),
        }
    }
}
