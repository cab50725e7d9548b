//! Quotas: nobody fills a lane alone.

use super::*;

/// A hundred requests with a delay of a year took all places of a lane, and everybody else was refused.
#[test]
fn a_tenant_that_fills_its_places_leaves_the_rest_to_others() {
    let mut lane = lane(LanePolicy { capacity: 100, ..policy() });
    let in_a_year = |number| Waiting { due: after(31_536_000_000), ..job(number, "hoards", Priority::Normal) };
    put(&mut lane, (0..90).map(in_a_year));
    assert_eq!(lane.admit(&in_a_year(90)), Admission::OverQuota(Quota::Places));
    assert_eq!(lane.tenants_without_places(9), [tenant("hoards")]);
    put(&mut lane, (100..110).map(|number| job(number, "others", Priority::Normal)));
    assert_eq!(lane.admit(&job(110, "others", Priority::Normal)), Admission::Full);
    assert!(lane.remove(id(0)).is_ok());
    put(&mut lane, [in_a_year(90)]);
}

#[test]
fn the_places_of_all_endpoints_are_their_tenants_and_those_under_way_take_none() {
    let mut lane = lane(policy());
    lane.set_quotas(&tenant("m2"), Quotas { places: Some(2), ..Quotas::default() });
    let to = |number, endpoint: &str| Waiting {
        tenant: tenant("m2").endpoint(endpoint),
        ..job(number, "m2", Priority::Normal)
    };
    put(&mut lane, [to(0, "one"), to(1, "two")]);
    assert_eq!(lane.usage(&tenant("m2")), Usage { places: 2, bytes: 200 });
    assert_eq!(lane.admit(&to(2, "three")), Admission::OverQuota(Quota::Places));
    put(&mut lane, [job(9, "another", Priority::Normal)]);
    let claims = lane.claim(NOW, 99);
    assert_eq!(lane.usage(&tenant("m2").endpoint("one")), Usage { places: 0, bytes: 200 });
    put(&mut lane, [to(2, "three")]);
    for job in &claims.jobs {
        settle_ok(&mut lane, NOW, job);
    }
    assert_eq!(lane.usage(&tenant("m2")), Usage { places: 1, bytes: 100 });
    lane.set_quotas(&tenant("m2"), Quotas::default());
    put(&mut lane, [to(3, "one"), to(4, "one")]);
}

/// What was accepted elsewhere, or follows from what was accepted, is in whatever its tenant has.
#[test]
fn what_must_get_in_gets_in() {
    let mut lane = lane(policy());
    lane.set_quotas(&tenant("a"), Quotas { places: Some(0), ..Quotas::default() });
    assert_eq!(lane.admit(&job(0, "a", Priority::High)), Admission::OverQuota(Quota::Places));
    assert!(lane.admit_always(&job(0, "a", Priority::Normal)));
    lane.publish(NOW);
    lane.restore(NOW, &job(1, "a", Priority::Normal));
    assert_eq!(lane.usage(&tenant("a")).places, 2);
}
