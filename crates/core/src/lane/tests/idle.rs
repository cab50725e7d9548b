//! Tenants that have had nothing to do for long.

use super::*;
use crate::lane::turns::{IDLE_FOR, IDLE_KEPT};

fn name(number: usize) -> String {
    format!("t{number}")
}

/// A key that may set endpoints could make a lane know ever more names, by setting, testing and removing one after the other.
#[test]
fn a_lane_that_knows_many_forgets_those_that_have_long_been_idle() {
    let mut lane = lane(policy());
    put(&mut lane, (0..IDLE_KEPT as u32 * 2).map(|number| job(number, &name(number as usize), Priority::Normal)));
    let mut left = IDLE_KEPT * 2;
    while left > 3 {
        let claims = lane.claim(NOW, left - 3);
        claims.jobs.iter().for_each(|claimed| settle_ok(&mut lane, NOW, claimed));
        left -= claims.jobs.len();
    }
    lane.forget_idle(NOW + IDLE_FOR - Duration::from_micros(1));
    assert_eq!(lane.tenants().count(), IDLE_KEPT * 2, "nobody has been idle for long enough");
    lane.forget_idle(NOW + IDLE_FOR * 2);
    assert_eq!(lane.tenants().count(), IDLE_KEPT);

    // Whoever still waits is served, and whoever comes back takes a free number and is served, too.
    put(&mut lane, [job(900_000, &name(0), Priority::Normal)]);
    assert_eq!(lane.tenants().count(), IDLE_KEPT + 1);
    let later = NOW + IDLE_FOR * 2;
    let mut served: Vec<_> = lane.claim(later, 10).jobs.into_iter().map(|claimed| claimed.tenant.to_string()).collect();
    served.sort();
    assert_eq!(served.len(), 4);
    assert!(served.contains(&name(0)), "{served:?}");
}

#[test]
fn a_tenant_with_a_weight_a_throttle_or_a_job_is_not_forgotten() {
    let mut lane = lane(policy());
    put(&mut lane, [job(1, "waits", Priority::Normal)]);
    lane.set_weight(&tenant("weighs"), 3);
    lane.set_throttle(&tenant("throttled"), Some(Rate { max_requests: 1, per_ms: 60_000 }));
    for number in 0..IDLE_KEPT * 2 {
        lane.set_weight(&tenant(&name(number)), 1);
    }
    lane.forget_idle(NOW + IDLE_FOR * 2);
    for kept in ["waits", "weighs", "throttled"] {
        assert!(lane.tenant(&tenant(kept)).is_some(), "{kept}");
    }
    assert_eq!(lane.tenants().count(), IDLE_KEPT);
}
