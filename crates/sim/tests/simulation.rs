//! The engine under simulated time: promises over many seeds, the same trace for the same seed, and checkers that notice.

use std::num::NonZero;

use entrega_sim::{Bug, Cast, Troubles, run, run_cast};
use parking_lot::Mutex;

const SEEDS: u64 = 1_000;
/// Seeds of several nodes; each takes as long as many of one.
const SEVERAL: u64 = 120;
/// Seeds of several nodes over a ledger that loses writes.
const REWOUND: u64 = 60;
/// A planted bug that is not seen by then is not seen.
const SEEDS_TO_CATCH: u64 = 1_000;

/// Who notices which bug. The same table is in `docs/guarantees.md`.
const CAUGHT_BY: [(Bug, &str); Bug::ALL.len() - CAUGHT_AMONG_NODES.len() - CAUGHT_REWOUND.len()] = [
    (Bug::AcknowledgeBeforeSync, "no_accepted_job_lost"),
    (Bug::RepeatAppliedTwice, "no_double_settle"),
    (Bug::ForgetCauses, "events_gapless"),
    (Bug::DoubleEventNumber, "events_gapless"),
    (Bug::SkipTenant, "turns_fair"),
    (Bug::EndlessTurn, "turns_fair"),
    (Bug::CountHeldAsAttempt, "attempts_bounded"),
    (Bug::ForgetHistory, "attempts_bounded"),
    (Bug::LoseRetry, "nothing_stuck_after_heal"),
    (Bug::RetryEarly, "never_early"),
    (Bug::IgnoreTtl, "ttl_respected"),
    (Bug::ExpireSilently, "no_accepted_job_lost"),
    (Bug::IgnorePriority, "priority_strict"),
    (Bug::ThrottleOffByOne, "throttle_respected"),
    (Bug::ThrottleForgotten, "throttle_respected"),
    (Bug::BreakerNeverCloses, "nothing_stuck_after_heal"),
    (Bug::ForgetReason, "ends_have_reasons"),
    (Bug::WakeTooLate, "nothing_stuck_after_heal"),
    (Bug::ForgetToWake, "nothing_stuck_after_heal"),
    (Bug::DropOnCrash, "no_accepted_job_lost"),
    (Bug::ForgetOnce, "once_is_once"),
    (Bug::ReplayWithoutRemoving, "no_double_settle"),
    (Bug::ReplayUncounted, "attempts_bounded"),
    (Bug::ForgetEnd, "nothing_stuck_after_heal"),
    (Bug::ProgressFirst, "replays_complete"),
    (Bug::PauseUnheard, "pause_holds"),
    (Bug::PauseForgotten, "pause_holds"),
    (Bug::ResumeUnheard, "nothing_stuck_after_heal"),
    (Bug::CancelKeepsInLane, "cancel_is_final"),
    (Bug::CancelRunning, "cancel_is_final"),
    (Bug::DiscardReplaying, "discard_is_final"),
    (Bug::CancelBeforeSync, "cancel_is_final"),
    (Bug::DiscardReturns, "discard_is_final"),
    (Bug::DiscardBeforeSync, "discard_is_final"),
    (Bug::DiscardForgets, "no_accepted_job_lost"),
    (Bug::UnblockUnheard, "nothing_stuck_after_heal"),
    (Bug::SkipTheFuture, "nothing_stuck_after_heal"),
    (Bug::TornBatch, "events_gapless"),
    (Bug::BelieveTheClock, "throttle_respected"),
    (Bug::EndpointThrottleForgotten, "throttle_respected"),
    (Bug::TenantConcurrencyIgnored, "concurrency_bounded"),
    (Bug::PriorityOverLane, "turns_fair"),
    (Bug::SlowBeyondSlots, "concurrency_bounded"),
    (Bug::BreakerIgnored, "breaker_holds"),
    (Bug::PassUnsaid, "breaker_holds"),
    (Bug::CacheBlind, "calls_spared"),
    (Bug::CacheMixesUp, "answers_true"),
    (Bug::CacheKeepsYoung, "answers_true"),
    (Bug::GateForgotten, "throttle_respected"),
    (Bug::GateOffByOne, "throttle_respected"),
    (Bug::GateDeaf, "breaker_holds"),
    (Bug::GateNeverOpens, "nothing_stuck_after_heal"),
    (Bug::AnywayUncounted, "throttle_respected"),
    (Bug::GateImpatient, "never_early"),
];

/// The same for what can go wrong only among several nodes.
const CAUGHT_AMONG_NODES: [(Bug, &str); 16] = [
    (Bug::TwoOwners, "one_owner"),
    (Bug::OldTokenApplied, "nothing_stuck_after_heal"),
    (Bug::LeaseNotRenewed, "one_owner"),
    (Bug::DeadNodesKeep, "lanes_go_on"),
    (Bug::InboxTakenTwice, "no_double_settle"),
    (Bug::InboxNeverTaken, "nothing_stuck_after_heal"),
    (Bug::HandedUnsaid, "nothing_stuck_after_heal"),
    (Bug::LostInHandOver, "nothing_stuck_after_heal"),
    (Bug::StartsStale, "throttle_respected"),
    (Bug::ThrottlePerNode, "throttle_respected"),
    (Bug::GatePerNode, "throttle_respected"),
    (Bug::OrderAnswerUnseen, "orders_expire"),
    (Bug::RegistryUnheard, "nothing_stuck_after_heal"),
    (Bug::LeaseUnlooked, "one_owner"),
    (Bug::ExpiredOrder, "orders_expire"),
    (Bug::SingleFlightPerNode, "calls_spared"),
];

/// The same for what can go wrong only where the ledger loses writes.
const CAUGHT_REWOUND: [(Bug, &str); 1] = [(Bug::RewindUnnoticed, "nothing_stuck_after_heal")];

/// Runs these seeds on all cores; none may break a promise.
fn hold(cast: Cast, seeds: impl Iterator<Item = u64> + Clone + Send) -> Troubles {
    let all = Mutex::new(Troubles::default());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (all, seeds) = (&all, seeds.clone());
            scope.spawn(move || {
                for seed in seeds.skip(first).step_by(threads) {
                    let ran = run_cast(seed, cast, None);
                    assert_eq!(ran.violation, None, "seed {seed}\n{}", ran.trace.join("\n"));
                    all.lock().add(&ran.troubles);
                }
            });
        }
    });
    all.into_inner()
}

#[test]
fn the_promises_hold_for_a_thousand_seeds() {
    let all = hold(Cast::Alone, 0..SEEDS);
    println!("{SEEDS} seeds: {all:?}");
    for (what, count) in all.all() {
        assert!(count > 100, "{what} happened {count} times in {SEEDS} seeds");
    }
}

/// Of several nodes: each seed takes as long as many of one, so there are few here; `entrega-sim --cast several` runs more.
#[test]
fn the_promises_hold_for_several_nodes() {
    let all = hold(Cast::Several, 0..SEVERAL);
    println!("several nodes: {all:?}");
    for (what, count) in all.among_nodes() {
        assert!(count > 0, "{what} never happened");
    }
}

/// Over a ledger that loses its last writes under them.
#[test]
fn the_promises_hold_where_the_ledger_loses_writes() {
    let all = hold(Cast::Rewound, 0..REWOUND);
    println!("several nodes, writes lost: {all:?}");
    for (what, count) in all.where_writes_are_lost() {
        assert!(count > 0, "{what} never happened");
    }
}

#[test]
fn a_seed_of_several_nodes_run_twice_gives_the_same_bytes() {
    for (seed, cast) in [(2, Cast::Several), (5, Cast::Several), (3, Cast::Rewound)] {
        let trace = || run_cast(seed, cast, None).trace.join("\n");
        assert!(trace() == trace(), "seed {seed} came out differently");
    }
}

#[test]
fn a_seed_run_twice_gives_the_same_bytes() {
    for seed in 0..50 {
        let (first, second) = (run(seed).trace, run(seed).trace);
        assert!(first.len() > 50, "seed {seed} did hardly anything");
        assert!(first.join("\n") == second.join("\n"), "seed {seed} came out differently");
    }
    assert_ne!(run(1).trace, run(2).trace);
}

#[test]
fn every_planted_bug_is_caught_by_the_checker_that_is_there_for_it() {
    let mut wrong = Vec::new();
    let alone = CAUGHT_BY.into_iter().map(|(bug, expected)| (Cast::Alone, bug, expected));
    let several = CAUGHT_AMONG_NODES.into_iter().map(|(bug, expected)| (Cast::Several, bug, expected));
    let rewound = CAUGHT_REWOUND.into_iter().map(|(bug, expected)| (Cast::Rewound, bug, expected));
    for (cast, bug, expected) in alone.chain(several).chain(rewound) {
        let is_caught = |seed: &u64| {
            let broken = run_cast(*seed, cast, Some(bug)).violation;
            broken.is_some_and(|broken| broken.checker == expected)
        };
        match (0..SEEDS_TO_CATCH).find(is_caught) {
            None => wrong.push(format!("{expected} does not notice {bug:?} in {SEEDS_TO_CATCH} seeds")),
            Some(seed) => println!("| {bug:?} | `{expected}` | {} |", seed + 1),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
