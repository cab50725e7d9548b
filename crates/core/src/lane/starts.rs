//! The last starts of a lane, so that an orderly stop need not count as a throttle used up or a tick taken.
//! Invariant: starts are resumed only where they say all that the gates must know; otherwise they count as spent. They
//! are as old at the next start as they were at the stop: how long it was in between only the clock could say, and it may
//! have been set since.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gate::Gate;
use super::{Claimed, Lane};
use crate::cadence::Cadence;
use crate::name::TenantName;
use crate::policy::Scope;
use crate::throttle::Throttle;
use crate::time::Time;

/// The most starts that are carried over, of all tenants together; a lane with more counts as spent.
const STARTS_MAX: usize = 200_000;

/// The last starts of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starts {
    /// When the lane stopped, by the clock of then.
    stopped_at: Time,
    /// Under which throttle; starts older than its period were let go.
    throttle: Option<(Duration, Scope)>,
    lane: Vec<Time>,
    tenants: Vec<(TenantName, Vec<Time>)>,
    /// Of tenants with a throttle of their own, its period and its starts.
    own: Vec<(TenantName, Duration, Vec<Time>)>,
    /// Tenants without starts count as spent at this moment.
    others_spent_at: Option<Time>,
    /// When the cadence allows the next start.
    next_tick: Option<Time>,
}

impl Starts {
    /// The same starts by a clock that all who own the lane share: they are as old as they are.
    pub fn by_a_shared_clock(self, now: Time) -> Starts {
        Starts { stopped_at: now, ..self }
    }

    /// The same starts, each so much later: written down before they are made, they begin by then.
    pub fn later(mut self, by: Duration) -> Starts {
        let own = self.own.iter_mut().map(|(_, _, starts)| starts);
        let tenants = self.tenants.iter_mut().map(|(_, starts)| starts);
        own.chain(tenants).chain([&mut self.lane]).flatten().for_each(|start| *start = *start + by);
        self.next_tick = self.next_tick.map(|next| next + by);
        self
    }

    /// Whether these tell of something later than those do: of two owners of a lane, the last one knows more.
    pub fn are_later_than(&self, other: &Starts) -> bool {
        self.last() > other.last()
    }

    fn last(&self) -> Option<Time> {
        let own = self.own.iter().map(|(_, _, starts)| starts);
        let tenants = self.tenants.iter().map(|(_, starts)| starts);
        own.chain(tenants).chain([&self.lane]).flatten().chain(&self.next_tick).max().copied()
    }

    /// Starts that are as old at `now` as they were at the stop.
    fn aged(&self, now: Time, starts: &[Time]) -> Vec<Time> {
        starts.iter().map(|start| now - self.stopped_at.since(*start)).collect()
    }
}

fn of(throttle: Option<&Throttle>, now: Time) -> Vec<Time> {
    throttle.map(|throttle| throttle.starts(now).collect()).unwrap_or_default()
}

impl Lane {
    /// Moves the starts of a claim, which were counted at `from`, to `now`: between the decision and the start of its
    /// attempts something had to be read or written. Called before anybody claims again.
    pub fn restamp(&mut self, claimed: &[Claimed], from: Time, now: Time) {
        if let Some(gate) = &mut self.gate {
            gate.restamp(from, now);
        }
        for claimed in claimed {
            let tenant = self.turns.find(&claimed.tenant);
            let own = tenant.and_then(|tenant| self.turns.tenants[tenant as usize].gate.as_deref_mut());
            own.into_iter().for_each(|gate| gate.restamp(from, now));
        }
    }

    /// Whether anything counts its starts.
    pub fn counts_starts(&self) -> bool {
        self.policy.throttle.is_some() || self.policy.cadence.is_some() || self.turns.has_own_throttles()
    }

    /// The starts that still count at `now`; `None` where no gate counts them, or if there are too many.
    pub fn starts(&self, now: Time) -> Option<Starts> {
        let throttle = self.policy.throttle.as_ref().map(|throttle| (throttle.per, throttle.scope));
        let next_tick = self.gate.as_ref().and_then(Gate::cadence).map(Cadence::next_start);
        let gates = || self.turns.tenants.iter().filter_map(|tenant| Some((&tenant.name, tenant.gate.as_deref()?)));
        let own = gates().filter_map(|(name, gate)| {
            let own = gate.own_throttle()?;
            Some((name.clone(), own.rate().per(), own.starts(now).collect()))
        });
        let own: Vec<(TenantName, Duration, Vec<Time>)> = own.collect();
        if throttle.is_none() && next_tick.is_none() && own.is_empty() {
            return None;
        }
        let lane = of(self.gate.as_ref().and_then(Gate::throttle), now);
        let tenants = gates().map(|(name, gate)| (name.clone(), of(gate.throttle(), now)));
        let tenants: Vec<_> = tenants.filter(|(_, starts)| !starts.is_empty()).collect();
        let of_tenants = tenants.iter().map(|(_, starts)| starts).chain(own.iter().map(|(_, _, starts)| starts));
        let count = lane.len() + of_tenants.map(Vec::len).sum::<usize>();
        let others_spent_at =
            throttle.and_then(|(per, _)| self.turns.spent_at().filter(|spent_at| *spent_at + per > now));
        (count <= STARTS_MAX).then_some(Starts {
            stopped_at: now,
            throttle,
            lane,
            tenants,
            own,
            others_spent_at,
            next_tick,
        })
    }

    /// Goes on where a lane left off. `false`, and nothing changes, if its gates are others now and their starts are not
    /// known.
    pub fn resume_with(&mut self, now: Time, starts: &Starts) -> bool {
        // Under a longer period, starts count that were let go.
        let knows_starts = self
            .policy
            .throttle
            .as_ref()
            .is_none_or(|new| starts.throttle.is_some_and(|(per, scope)| new.scope == scope && new.per <= per));
        let knows_tick = self.policy.cadence.is_none() || starts.next_tick.is_some();
        if !(knows_starts && knows_tick) {
            return false;
        }
        if let Some(gate) = &mut self.gate {
            if let Some(throttle) = gate.throttle_mut() {
                throttle.resume_with(now, &starts.aged(now, &starts.lane));
            }
            if let (Some(cadence), Some(next)) = (gate.cadence_mut(), starts.next_tick) {
                cadence.resume_with(now, now + next.since(starts.stopped_at));
            }
        }
        if let Some(spent_at) = starts.others_spent_at {
            self.turns.assume_spent(now - starts.stopped_at.since(spent_at));
        }
        for (name, of_tenant) in &starts.tenants {
            let number = self.turns.enter(name, &self.policy);
            let gate = self.turns.tenants[number as usize].gate.as_mut();
            if let Some(throttle) = gate.and_then(|gate| gate.throttle_mut()) {
                throttle.resume_with(now, &starts.aged(now, of_tenant));
            }
        }
        self.resume_own_throttles(now, starts);
        true
    }

    /// Those throttles were set before this; one that is another now, or of which nothing was written down, is spent.
    fn resume_own_throttles(&mut self, now: Time, starts: &Starts) {
        let kept: HashMap<_, _> = starts.own.iter().map(|(name, per, own)| (name, (*per, own))).collect();
        for tenant in &mut self.turns.tenants {
            let Some(own) = tenant.gate.as_mut().and_then(|gate| gate.own_throttle_mut()) else { continue };
            match kept.get(&tenant.name) {
                Some((per, kept)) if own.rate().per() <= *per => own.resume_with(now, &starts.aged(now, kept)),
                _ => own.assume_spent(now),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cadence::CadencePolicy;
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

    /// The clock was set forwards between an orderly stop and the next start, and the throttle took that for time that had
    /// passed: twice as many starts in one period as it allows.
    #[test]
    fn a_clock_set_between_stop_and_start_neither_refills_a_throttle_nor_skips_a_tick() {
        let minute = Duration::from_secs(60);
        for scope in [Scope::Lane, Scope::Tenant] {
            let throttle = ThrottlePolicy { max_requests: 2, per: minute, scope };
            let cadence = Some(CadencePolicy { max: minute, ..CadencePolicy::starting_at(Duration::from_secs(10)) });
            let throttled = LanePolicy { throttle: Some(throttle), ..policy() };
            let paced = LanePolicy { cadence, ..policy() };
            for (policy, starts, wait_s) in [(throttled, 2, 59), (paced, 1, 9)] {
                let mut stopped = lane(policy.clone());
                put(&mut stopped, (0..2).map(|number| job(number, "a", Priority::Normal)));
                assert_eq!(stopped.claim(NOW, 9).jobs.len(), starts);
                let starts = stopped.starts(after(1_000)).unwrap();
                for restart in [NOW + minute * 10, NOW - minute * 10] {
                    let mut resumed = lane(policy.clone());
                    put(&mut resumed, [job(7, "a", Priority::Normal)]);
                    assert!(resumed.resume_with(restart, &starts));
                    let claims = resumed.claim(restart, 9);
                    assert!(claims.jobs.is_empty(), "{scope:?} {restart}");
                    assert_eq!(claims.wake_at, Some(restart + Duration::from_secs(wait_s)), "{scope:?} {restart}");
                }
            }
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

    #[test]
    fn a_cadence_goes_on_after_an_orderly_stop_and_waits_a_tick_after_any_other() {
        let paced = || LanePolicy { cadence: Some(CadencePolicy::starting_at(Duration::from_secs(10))), ..policy() };
        let mut stopped = lane(paced());
        put(&mut stopped, [job(1, "a", Priority::Normal)]);
        assert_eq!(stopped.claim(NOW, 9).jobs.len(), 1);
        let starts = stopped.starts(after(4_000)).unwrap();

        let next_start = |lane: &mut Lane| {
            put(lane, [job(2, "a", Priority::Normal)]);
            let claims = lane.claim(after(4_000), 9);
            assert!(claims.jobs.is_empty());
            claims.wake_at
        };
        let mut resumed = lane(paced());
        assert!(resumed.resume_with(after(4_000), &starts));
        assert_eq!(next_start(&mut resumed), Some(after(10_000)), "a tick after the last start");
        let mut crashed = lane(paced());
        crashed.assume_spent(after(4_000));
        assert_eq!(next_start(&mut crashed), Some(after(14_000)), "nobody knows when that was");
        let throttle = ThrottlePolicy { max_requests: 2, per: Duration::from_secs(60), scope: Scope::Lane };
        let unpaced = lane(LanePolicy { throttle: Some(throttle), ..policy() });
        let mut changed = lane(paced());
        assert!(!changed.resume_with(after(4_000), &unpaced.starts(NOW).unwrap()), "the tick is not known");
    }
}
