//! Slow attempts: whoever waits for an answer keeps no slot from others.

use super::*;
use crate::policy::{Destinations, LanePolicy};

/// Four slots, three of them for one tenant: 128 slow attempts, 12 of one tenant.
fn four_slots() -> LanePolicy {
    LanePolicy { concurrency: 4, tenant_concurrency: 3, ..LanePolicy::http() }
}

fn jobs(numbers: std::ops::Range<u32>, whose: &str) -> impl Iterator<Item = Waiting> {
    numbers.map(move |number| job(number, whose, Priority::Normal))
}

fn of<'a>(claims: &'a Claims, whose: &str) -> Vec<&'a Claimed> {
    claims.jobs.iter().filter(|job| job.tenant.as_str() == whose).collect()
}

/// Two of twenty tenants whose destinations hung held all slots of the lane for as long as an attempt may take.
#[test]
fn attempts_that_hang_give_their_slots_up() {
    let mut lane = lane(four_slots());
    put(&mut lane, jobs(0..10, "hangs").chain(jobs(10..20, "hangs_too")));
    assert_eq!(lane.claim(NOW, 99).jobs.len(), 4);
    put(&mut lane, jobs(20..22, "well"));
    let full = lane.claim(after(99), 99);
    assert_eq!((full.jobs.len(), full.wake_at), (0, Some(after(100))), "the lane asks to be called when they are slow");
    let claims = lane.claim(after(100), 99);
    assert_eq!(of(&claims, "well").len(), 2);
    assert_eq!((lane.sizes().running() - lane.sizes().slow(), lane.sizes().slow()), (2, lane.sizes().running() - 2));
}

#[test]
fn a_tenant_that_hangs_takes_no_slot_until_it_answers_in_time() {
    let mut lane = lane(four_slots());
    put(&mut lane, jobs(0..40, "hangs"));
    let first = lane.claim(NOW, 99);
    assert_eq!(first.jobs.len(), 3, "the slots of one tenant");
    let then = lane.claim(after(100), 99);
    assert_eq!((then.jobs.len(), lane.slots_taken()), (9, 0), "12 of one tenant, without a slot");
    assert_eq!(lane.claim(after(250), 99).jobs.len(), 0, "and no more than that");
    for job in first.jobs.iter().chain(&then.jobs) {
        assert!(lane.settle(after(500), job.ticket, Next::Leave, Lesson::Down, Duration::ZERO));
    }
    let probes = lane.claim(after(600), 2);
    assert_eq!((probes.jobs.len(), lane.slots_taken()), (2, 0), "nothing of it is under way, but it is known to hang");
    settle_ok(&mut lane, after(601), &probes.jobs[0]);
    assert_eq!(lane.claim(after(601), 99).jobs.len(), 2);
    assert_eq!(lane.slots_taken(), 2, "it answers: three at a time, with slots");
}

/// However many hang, the attempts of the next one that does find room, and give their slots up.
#[test]
fn tenants_that_hang_leave_room_for_those_that_will() {
    let mut lane = lane(LanePolicy { tenant_concurrency: 1, ..four_slots() });
    for number in 0..30 {
        put(&mut lane, jobs(number * 100..number * 100 + 40, &format!("t{number}")));
    }
    for step in 0..100 {
        lane.claim(after(step * 100), 999);
    }
    let slow = lane.sizes().slow();
    assert!((90..128).contains(&slow), "{slow} of 128 places are used, and some are left");
    let most = lane.tenants().map(|tenant| tenant.running).max().unwrap();
    assert!(most <= 4, "{most} of one tenant");
    put(&mut lane, jobs(9000..9001, "well"));
    assert_eq!(of(&lane.claim(after(10_000), 999), "well").len(), 1);
}

#[test]
fn a_lane_with_one_destination_never_has_more_attempts_than_slots() {
    let fifo = Fairness { enable_round_robin: false, ..Fairness::default() };
    let one = LanePolicy { destinations: Destinations::One, ..four_slots() };
    let without_turns = LanePolicy { fairness: fifo, tenant_concurrency: 4, ..four_slots() };
    for policy in [one, without_turns] {
        let mut lane = lane(policy);
        put(&mut lane, jobs(0..10, "a").chain(jobs(10..20, "b")));
        assert_eq!(lane.claim(NOW, 99).jobs.len(), 4);
        let later = lane.claim(after(60_000), 99);
        assert_eq!((later.jobs.len(), later.wake_at, lane.sizes().slow()), (0, None, 0));
    }
}

/// Whoever runs a receiver counts on the limit of its endpoint.
#[test]
fn an_endpoint_never_gets_more_calls_than_its_limit() {
    let mut lane = lane(LanePolicy { breaker: None, ..LanePolicy::webhook() });
    let whose = tenant("m2").endpoint("hooks");
    put(&mut lane, (0..20).map(|number| Waiting { tenant: whose.clone(), ..job(number, "m2", Priority::Normal) }));
    assert_eq!(lane.claim(NOW, 99).jobs.len(), 4);
    assert_eq!(lane.claim(after(100), 99).jobs.len(), 0);
    assert_eq!((lane.sizes().slow(), lane.slots_taken()), (4, 0));
}

/// A full bound must not make the lane's task go round without a pause.
#[test]
fn a_lane_without_room_for_slow_attempts_waits_for_an_end() {
    let mut lane = lane(LanePolicy { concurrency: 1, tenant_concurrency: 1, ..LanePolicy::http() });
    for number in 0..60 {
        put(&mut lane, jobs(number..number + 1, &format!("t{number}")));
    }
    let mut running = Vec::new();
    for step in 0..60 {
        running.extend(lane.claim(after(step * 100), 99).jobs);
    }
    assert_eq!((running.len(), lane.sizes().slow()), (33, 32), "one slot, and 32 without");
    assert_eq!(lane.claim(after(60_000), 99).wake_at, None);
    settle_ok(&mut lane, after(60_000), &running[0]);
    assert_eq!(lane.claim(after(60_000), 99).jobs.len(), 1);
}

/// A claim that called nobody says nothing of its destination.
#[test]
fn a_start_that_came_to_nothing_does_not_make_a_tenant_well() {
    let mut lane = lane(four_slots());
    put(&mut lane, jobs(0..10, "hangs"));
    let first = lane.claim(NOW, 99);
    let second = lane.claim(after(100), 1);
    for job in &first.jobs {
        assert!(lane.settle(after(200), job.ticket, Next::Leave, Lesson::Down, Duration::ZERO));
    }
    assert!(lane.give_back(after(150), second.jobs[0].ticket, after(150)));
    assert_eq!((lane.claim(after(200), 1).jobs.len(), lane.slots_taken()), (1, 0));
}
