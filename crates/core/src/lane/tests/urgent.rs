//! Priorities: within a tenant, or over the whole lane.

use super::*;

fn scoped(priority_scope: Scope) -> Lane {
    lane(LanePolicy { priority_scope, ..policy() })
}

/// A tenant with many `high` mails held those of another back for minutes: everybody's `high` went before anybody's `normal`.
#[test]
fn urgent_jobs_of_one_tenant_do_not_hold_up_another() {
    let urgent = || (0..30).map(|number| job(number, "big", Priority::High));
    let usual = || (30..33).map(|number| job(number, "small", Priority::Normal));
    for (scope, expected) in [(Scope::Tenant, 3), (Scope::Lane, 30)] {
        let mut lane = scoped(scope);
        put(&mut lane, urgent().chain(usual()));
        let order = lane.claim(NOW, 99).jobs;
        let first = order.iter().position(|job| job.tenant == tenant("small")).unwrap();
        assert_eq!((order.len(), first), (33, expected), "{scope:?}");
    }
}

#[test]
fn a_tenants_own_urgent_jobs_go_first_and_its_turn_is_no_longer_for_it() {
    let mut lane = scoped(Scope::Tenant);
    let of = |first: u32, whose: &'static str| {
        let priorities = [Priority::Low, Priority::Normal, Priority::High, Priority::Normal, Priority::High];
        priorities.into_iter().zip(first..).map(move |(priority, number)| job(number, whose, priority))
    };
    put(&mut lane, of(0, "a").chain(of(10, "b")));
    let upcoming = lane.upcoming(99);
    let claimed = ids(&lane.claim(NOW, 99));
    assert_eq!(claimed, [2, 4, 1, 12, 14, 11, 3, 0, 13, 10].map(id));
    assert_eq!(upcoming, claimed, "what is read ahead is what goes");
}

/// A turn that came to nothing begins again where it was, whatever the priorities.
#[test]
fn a_claim_that_is_given_back_is_made_again_in_the_same_order() {
    let mut lane = scoped(Scope::Tenant);
    let mixed = [Priority::Normal, Priority::High, Priority::Low, Priority::High].into_iter().cycle();
    put(
        &mut lane,
        mixed.zip(0..24).map(|(priority, number)| job(number, ["a", "b", "c"][number as usize % 3], priority)),
    );
    let first = lane.claim(NOW, 10);
    for job in first.jobs.iter().rev() {
        assert!(lane.give_back(NOW, job.ticket, NOW));
    }
    assert_eq!(ids(&lane.claim(NOW, 10)), ids(&first));
}
