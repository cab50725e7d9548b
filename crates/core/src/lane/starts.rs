//! The last starts of a lane's throttle, so that an orderly stop need not count as a throttle used up.
//! Invariant: starts are resumed only where they say all that the throttle must know; otherwise it counts as spent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Lane;
use super::gate::Gate;
use crate::name::TenantName;
use crate::policy::Scope;
use crate::time::Time;

/// The most starts that are carried over, of all tenants together; a lane with more counts as spent.
const STARTS_MAX: usize = 200_000;

/// The last starts of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// Older ones were let go.
    per: Duration,
    scope: Scope,
    lane: Vec<Time>,
    tenants: Vec<(TenantName, Vec<Time>)>,
    /// Tenants without starts count as spent at this moment.
    others_spent_at: Option<Time>,
}

fn of(gate: Option<&Gate>, now: Time) -> Vec<Time> {
    gate.and_then(Gate::throttle).map(|throttle| throttle.starts(now).collect()).unwrap_or_default()
}

impl Lane {
    /// The starts that still count at `now`; `None` without a throttle, or if there are too many.
    pub fn starts(&self, now: Time) -> Option<Starts> {
        let throttle = self.policy.throttle.as_ref()?;
        let lane = of(self.gate.as_ref(), now);
        let tenants = self.turns.tenants.iter().map(|tenant| (tenant.name.clone(), of(tenant.gate.as_deref(), now)));
        let tenants: Vec<_> = tenants.filter(|(_, starts)| !starts.is_empty()).collect();
        let count = lane.len() + tenants.iter().map(|(_, starts)| starts.len()).sum::<usize>();
        (count <= STARTS_MAX).then(|| Starts {
            per: throttle.per,
            scope: throttle.scope,
            lane,
            tenants,
            others_spent_at: self.turns.spent_at().filter(|spent_at| *spent_at + throttle.per > now),
        })
    }

    /// Goes on where a lane left off. `false`, and nothing changes, if the throttle is another now and its starts are
    /// not known.
    pub fn resume_with(&mut self, now: Time, starts: &Starts) -> bool {
        // Under a longer period, starts count that were let go.
        let knows_all =
            self.policy.throttle.as_ref().is_some_and(|new| new.scope == starts.scope && new.per <= starts.per);
        if !knows_all {
            return false;
        }
        if let Some(throttle) = self.gate.as_mut().and_then(Gate::throttle_mut) {
            throttle.resume_with(now, &starts.lane);
        }
        if let Some(spent_at) = starts.others_spent_at {
            self.turns.assume_spent(spent_at.min(now));
        }
        for (name, starts) in &starts.tenants {
            let number = self.turns.enter(name, &self.policy);
            let gate = self.turns.tenants[number as usize].gate.as_mut();
            if let Some(throttle) = gate.and_then(|gate| gate.throttle_mut()) {
                throttle.resume_with(now, starts);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Priority;
    use crate::lane::tests::{NOW, after, job, lane, policy, put};
    use crate::policy::{LanePolicy, ThrottlePolicy};

    #[test]
    fn a_lane_that_stopped_in_order_goes_on_within_its_throttle() {
        for scope in [Scope::Lane, Scope::Tenant] {
            let throttle = ThrottlePolicy { max_requests: 2, per: Duration::from_secs(60), scope };
            let policy = LanePolicy { throttle: Some(throttle.clone()), ..policy() };
            let mut stopped = lane(policy.clone());
            put(&mut stopped, [job(1, "a", Priority::Normal)]);
            assert_eq!(stopped.claim(NOW, 9).jobs.len(), 1);
            let starts = stopped.starts(after(1_000)).unwrap();

            let mut resumed = lane(policy.clone());
            put(&mut resumed, (2..5).map(|number| job(number, "a", Priority::Normal)));
            assert!(resumed.resume_with(after(1_000), &starts));
            let claims = resumed.claim(after(1_000), 9);
            assert_eq!((claims.jobs.len(), claims.wake_at), (1, Some(after(60_000))), "{scope:?}: one is left");
            assert_eq!(resumed.claim(after(60_000), 9).jobs.len(), 1, "{scope:?}: the first was a period ago");

            let longer = ThrottlePolicy { per: Duration::from_secs(61), ..throttle };
            let mut changed = lane(LanePolicy { throttle: Some(longer), ..policy });
            assert!(!changed.resume_with(after(1_000), &starts), "{scope:?}: older starts would count");
        }
    }

    /// A crash, a restart, an orderly stop, another restart, all within a period: what the crash hid stays hidden.
    #[test]
    fn a_lane_that_stopped_in_order_while_it_counted_as_spent_counts_as_spent_on() {
        for scope in [Scope::Lane, Scope::Tenant] {
            let throttle = ThrottlePolicy { max_requests: 2, per: Duration::from_secs(60), scope };
            let policy = LanePolicy { throttle: Some(throttle), ..policy() };
            let mut stopped = lane(policy.clone());
            stopped.assume_spent(NOW);
            let starts = stopped.starts(after(1_000)).unwrap();
            let mut resumed = lane(policy);
            assert!(resumed.resume_with(after(1_000), &starts));
            put(&mut resumed, [job(1, "newcomer", Priority::Normal)]);
            assert_eq!(resumed.claim(after(1_000), 9).wake_at, Some(after(60_000)), "{scope:?}");
        }
    }
}
