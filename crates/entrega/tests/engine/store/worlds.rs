//! The stores that the suite runs against, and the table of its scenarios.
//! Invariant: every scenario runs against every store; a failure names both.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use entrega::store::local::tables::TABLES;
use entrega::store::local::{ClusterOptions, LocalOptions, LocalStore};
use entrega_ledger::redis::RedisOptions;
use entrega_ledger::{HeapLedger, Ledger, LsmLedger, RedisLedger};

use super::fixture::{Making, RETENTION, Setup, World};
use super::two_nodes::TwoNodes;
use entrega_testkit::redis;

/// One test per scenario, each against a fresh store.
macro_rules! exercise {
    ($make:path) => {
        exercise!($make, anywhere);
        mod at_the_owner {
            exercise! { $make =>
                admission {
                    a_full_lane_refuses_and_keeps_what_it_has
                    an_urgent_job_pushes_out_the_newest_low_one
                    without_low_jobs_the_newest_normal_one_leaves
                    nothing_as_urgent_is_pushed_out
                    pushing_out_works_within_one_submission
                    a_running_job_is_never_pushed_out
                }
                causing {
                    a_caused_job_gets_into_a_full_lane
                }
                repeating {
                    what_was_refused_is_not_remembered
                }
                quotas {
                    whoever_has_all_its_places_is_refused_and_nobody_else
                    a_tenant_keeps_no_more_bytes_than_it_may
                }
            }
        }
    };
    // What holds at every node; how full a lane is, only its owner knows at this moment.
    ($make:path, anywhere) => {
        exercise! { $make =>
            claiming {
                accepted_jobs_are_claimed_once_in_the_order_they_came
                urgent_jobs_go_first
                tenants_take_turns_of_three
                a_heavier_tenant_has_longer_turns
                a_claim_brings_the_whole_job
                a_running_job_is_not_claimed_again
                a_delayed_job_waits_for_its_moment
                a_lane_starts_no_more_than_its_concurrency
                an_unknown_lane_is_refused_with_the_known_ones
                a_dispatcher_is_woken_by_new_work
                jobs_from_64_tasks_are_each_claimed_once
                no_job_is_claimed_by_two_claimers
            }
            admission {
                an_expired_job_is_dropped_and_the_next_is_looked_at
                a_retry_that_expires_keeps_its_attempts
                an_id_that_is_in_the_lane_is_refused_and_the_first_job_stays
                a_batch_with_an_unknown_lane_is_refused_whole
            }
            quotas {
                what_is_set_for_a_tenant_is_known_at_once
                the_dead_letters_of_one_tenant_push_out_none_of_another
                past_the_cap_the_oldest_of_whoever_has_most_leave
            }
            repeating {
                the_same_key_gives_the_first_id_again
                a_key_used_for_another_request_is_refused
                a_key_is_a_tenants_own
                a_key_is_forgotten_when_it_expires
                of_many_at_once_one_is_taken
                a_job_with_several_keys_is_known_by_each
                the_first_key_that_is_known_decides
                a_key_that_is_used_anew_is_remembered_anew
                the_job_taken_under_a_key_is_found_while_it_is_remembered
            }
            answering {
                an_answer_is_kept_whole_under_its_key
                a_call_is_made_by_one_and_ended_by_nobody_else
                a_job_whose_answer_is_known_is_done_as_it_is_taken
                a_job_whose_answer_was_known_is_forgotten_in_time
                an_answer_that_is_another_jobs_is_shown_and_not_kept_again
            }
            gating {
                a_gate_lets_no_more_through_than_its_throttle
                a_gate_learns_from_calls_and_each_is_its_own
                who_waited_too_long_goes_through_a_throttle_but_not_to_what_is_down
                a_gate_whose_limits_change_knows_what_there_was
                of_many_who_begin_a_request_one_makes_it
                a_request_that_was_given_up_or_whose_maker_is_gone_may_be_made_again
            }
            retrying {
                a_retry_waits_for_its_moment
                a_retry_keeps_its_history_and_counts_on
                a_delivered_job_keeps_its_answer_and_attempts
                what_was_answered_to_an_attempt_is_kept
                many_settlements_are_taken_at_once
                ended_resolves_when_a_job_is_delivered
                ended_resolves_for_every_end
                ended_resolves_when_a_job_is_blocked
                ended_resolves_at_once_for_what_has_ended_or_is_unknown
            }
            blocking {
                out_of_attempts_blocks_where_the_lane_says_so
                an_unblocked_job_has_all_its_attempts_again
                an_unblocked_job_keeps_its_earlier_attempts
                an_unblocked_job_gets_its_time_to_live_again
                only_a_blocked_job_can_be_unblocked
                blocked_jobs_are_told_oldest_first_with_whose_they_are
                a_paused_lane_gives_nothing_and_shows_its_jobs_as_idle
                a_paused_lane_still_takes_and_settles
            }
            causing {
                whatever_becomes_of_a_job_it_can_cause_others
                a_caused_job_wakes_its_lane
                a_caused_job_waits_for_its_moment
                a_caused_job_pushes_nobody_out
                a_job_caused_again_while_it_waits_or_runs_comes_once
                a_job_caused_again_after_its_end_does_not_come_back
                a_refused_settlement_causes_nothing
                causing_a_job_of_an_unknown_lane_is_refused_whole
                a_job_caused_and_submitted_at_the_same_time_comes_once
            }
            cancelling {
                a_waiting_job_is_cancelled_with_the_reason
                a_job_that_waits_for_a_retry_is_cancelled_with_its_attempts
                a_running_job_is_not_cancelled
                a_blocked_job_is_cancelled_with_its_attempts
                a_blocked_replay_that_is_cancelled_is_a_pending_dead_letter_again
                a_blocked_job_that_many_end_or_unblock_ends_once
                what_has_ended_or_is_unknown_is_not_cancelled
            }
            dead_letters {
                a_dead_letter_has_the_whole_job_and_why
                a_page_ends_when_its_entries_carry_much
                a_dead_letter_reads_as_the_contract_says
                a_dead_letter_without_a_reason_is_refused
                a_refused_settlement_changes_nothing
                dead_letters_are_found_by_what_they_are
                dead_letters_are_listed_page_by_page
                dead_letters_are_counted_by_code_tenant_lane_and_hour
                a_discarded_dead_letter_keeps_the_reason
                only_a_pending_dead_letter_is_discarded
            }
            replaying {
                a_replay_keeps_id_and_key_and_counts_its_generation
                only_a_pending_dead_letter_is_replayed
                a_dead_letter_is_replayed_at_most_five_times
                a_delivered_replay_ends_done_and_its_entry_is_replayed
                a_failed_replay_adds_to_its_attempts
                a_retried_replay_keeps_its_generation
                a_cancelled_replay_is_a_pending_dead_letter_again
                a_cancelled_replay_keeps_the_attempts_it_made
                a_replay_has_a_time_to_live_of_its_own
                a_replay_goes_into_a_full_lane
            }
            sweeping {
                retention_forgets_ended_jobs_and_nothing_else
                a_job_is_kept_from_its_end_not_from_its_beginning
                dead_letters_leave_at_their_ttl
                past_the_cap_the_oldest_leave
                a_replaying_dead_letter_stays
            }
            listing {
                every_job_is_listed_once_newest_first
                jobs_are_listed_by_lane_and_tenant
                jobs_are_listed_by_endpoint
                jobs_are_listed_by_state
                jobs_are_listed_by_several_states
                a_long_search_goes_on_with_the_next_page
                a_lane_counts_its_jobs
            }
            explaining {
                a_job_that_nothing_holds_waits_for_its_turn
                delay_and_pause_are_named
                limits_on_concurrency_are_named
                throttle_and_cadence_are_named_with_their_end
                breaker_and_retry_after_are_named_with_their_end
                what_does_not_wait_has_no_explanation
            }
            passing {
                jobs_pass_an_open_breaker_at_once_and_no_gate_counts_them
                while_a_probe_is_under_way_the_others_pass_and_teach_nothing
                a_start_that_called_nobody_is_given_back
                a_start_that_is_given_back_does_not_take_a_penalty_along
                a_probe_that_called_nobody_lets_another_probe_at_once
            }
            registry {
                a_key_is_found_by_its_hash_until_it_is_removed
                a_key_put_again_answers_to_its_new_hash_only
                a_weight_is_shown_for_every_lane
                tenants_have_figures
                replay_runs_are_kept_newest_first
                a_tenant_has_few_replays_and_those_that_ended_leave
                a_tenant_has_no_more_keys_than_it_may
                a_store_says_how_it_is
            }
            endpoints {
                an_endpoint_is_kept_whole_until_it_is_removed
                endpoints_are_a_tenants_own_and_listed_by_name
                of_many_who_remove_an_endpoint_one_did
                a_change_of_what_has_changed_since_is_refused
                of_changes_by_many_at_once_none_is_lost
                what_was_put_is_there_at_once_whoever_else_writes
                a_throttled_endpoint_waits_for_its_next_start_and_holds_up_nobody
                a_throttle_changes_with_its_endpoint
                a_throttle_goes_with_its_endpoint
            }
            mail {
                a_suppressed_address_is_known_whatever_its_case
                a_suppression_is_a_tenants_own
                an_address_suppressed_again_stays_as_it_was_unless_it_complains
                an_address_can_be_written_to_again
                an_address_longer_than_any_harms_nothing
                suppressions_are_listed_page_by_page
                of_bounces_and_a_complaint_at_once_the_complaint_stays
                what_came_back_is_kept_in_order_and_each_notice_once
                no_more_comes_back_about_a_mail_than_is_kept
                what_came_back_is_forgotten_a_week_after_the_last_of_it
                notices_that_come_at_once_are_each_kept_once
            }
        }
    };
    ($make:path => $($module:ident { $($scenario:ident)+ })+) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                if let Some(fixture) = crate::store::fixture::Fixture::new($make).await {
                    crate::store::$module::$scenario(&fixture).await;
                }
            })+
        })+
    };
}

mod memory {
    exercise!(crate::store::worlds::in_memory);
}
mod embedded {
    exercise!(crate::store::worlds::embedded);
}
mod over_redis {
    exercise!(crate::store::worlds::over_redis);
}
mod asked_of_another_node {
    exercise!(crate::store::worlds::asked_of_another_node, anywhere);
}

fn in_memory(setup: Setup) -> Making {
    Box::pin(async move {
        let store = open_over(HeapLedger::new(&TABLES), &setup).await;
        Some(World { store, dir: None })
    })
}

fn embedded(setup: Setup) -> Making {
    Box::pin(async move {
        let dir = tempfile::tempdir().unwrap();
        Some(World { store: open_embedded(dir.path(), &setup).await, dir: Some(dir) })
    })
}

/// A node alone on a server that others could share, under a prefix of its own; `None` where there is no server to be had.
fn over_redis(setup: Setup) -> Making {
    Box::pin(async move {
        if redis::is_left_out() {
            return None;
        }
        Some(World { store: open_node(redis::prefix(), &setup).await, dir: None })
    })
}

/// Two nodes on a server: one owns every lane, and the other is asked.
fn asked_of_another_node(setup: Setup) -> Making {
    Box::pin(async move {
        if redis::is_left_out() {
            return None;
        }
        let prefix = redis::prefix();
        let owner = open_node(prefix.clone(), &setup).await;
        let other = open_node(prefix, &setup).await;
        Some(World { store: Arc::new(TwoNodes { owner, other }), dir: None })
    })
}

/// Opens a node over the ledger on Redis, under this prefix. The time is the test's, so a lease must outlast whatever it
/// lets pass.
pub(crate) async fn open_node(prefix: String, setup: &Setup) -> Arc<LocalStore> {
    let server = RedisOptions { url: redis::shared().url(), prefix, allow_unsafe: false };
    let ledger = Arc::new(RedisLedger::open(server).await.unwrap());
    let cluster = Some(ClusterOptions { lease: Duration::from_hours(365 * 24), name: "node".into() });
    let options = LocalOptions { cluster, ..options(setup) };
    Arc::new(LocalStore::open(ledger, setup.clock.clone(), options).await.unwrap())
}

/// Opens the embedded store in a directory.
pub(crate) async fn open_embedded(path: &Path, setup: &Setup) -> Arc<LocalStore> {
    open_over(LsmLedger::open(path, &TABLES).unwrap(), setup).await
}

/// Opens a store over a ledger.
pub(crate) async fn open_over(ledger: impl Ledger, setup: &Setup) -> Arc<LocalStore> {
    Arc::new(LocalStore::open(Arc::new(ledger), setup.clock.clone(), options(setup)).await.unwrap())
}

/// How the local stores of this suite are set up.
pub(crate) fn options(setup: &Setup) -> LocalOptions {
    LocalOptions { retention: RETENTION, ..LocalOptions::new(setup.lanes.clone()) }
}
