//! Dead letters: what is kept of a job that gave up, and how it is found, counted and given up.

use entrega::PRODUCTS;
use entrega::store::local::dead_letter_rows;
use entrega::store::{ChangeError, Count, CountBy, DeadLetterFilter, Page, readable};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus, NoReplay};
use entrega_core::decide::{Failure, Transition};
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState};
use entrega_core::payload::Payload;
use serde_json::json;

use super::fixture::{Fixture, HOUR, SECOND, failure, lane, tenant};
use super::ledger::TestLedger;

pub(crate) async fn a_dead_letter_has_the_whole_job_and_why(f: &Fixture) {
    let job = f.job("http", "acme");
    let id = f.accept(job.clone()).await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    f.dead(f.claim_one("http").await, "http_404").await;
    let entry = f.entry(id).await;
    assert_eq!(entry.original_data, job);
    assert_eq!((entry.job_id, entry.lane, entry.company_id), (id, job.lane, job.tenant));
    assert_eq!(entry.last_failure_reason, "it failed with http_404");
    assert_eq!(entry.last_failure_code.as_deref(), Some("http_404"));
    assert_eq!((entry.enqueued_at, entry.moved_to_dlq_at), (job.accepted_at, f.now()));
    assert_eq!((entry.failed_attempts, entry.generation), (2, 0));
    assert_eq!(entry.status, DeadLetterStatus::Pending);
    let codes: Vec<_> = entry.attempts.iter().map(|attempt| (attempt.number, attempt.code.as_str())).collect();
    assert_eq!(codes, [(1, "http_503"), (2, "http_404")]);
    let view = f.view(id).await;
    assert_eq!((view.state, view.reason.as_deref()), (JobState::Dlq, Some("it failed with http_404")));
    assert_eq!(view.attempts, entry.attempts);
    assert!(f.claim_ids("http").await.is_empty());
}

/// SPEC §4, name by name: dashboards, exports and scripts read these fields.
pub(crate) async fn a_dead_letter_reads_as_the_contract_says(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    let entry = f.entry(id).await;
    let written = readable(&entry, |payload| PRODUCTS.show(payload));
    let expected = json!({
        "jobId": id.to_string(),
        "companyId": "acme",
        "lane": "http",
        "originalData": {
            "jobId": id.to_string(),
            "lane": "http",
            "companyId": "acme",
            "priority": "normal",
            "destination": "POST https://example.com/hook",
            "payload": { "http": {
                "method": "POST",
                "url": "https://example.com/hook",
                "headers": [["x-b", "2"], ["x-a", "1"]],
                "body": { "base64": "/wB4" },
            }},
            "labels": { "runId": "run_456" },
            "idempotencyKey": format!("workflow:acme:{id}:send:v1"),
            "acceptedAt": "2026-01-31T09:30:00.000Z",
            "dueAt": "2026-01-31T09:30:00.000Z",
            "expiresAt": null,
        },
        "failedAttempts": 1,
        "lastFailureReason": "it failed with http_404",
        "lastFailureCode": "http_404",
        "lastFailureTimestamp": "2026-01-31T09:30:00.000Z",
        "enqueuedAt": "2026-01-31T09:30:00.000Z",
        "movedToDLQAt": "2026-01-31T09:30:00.000Z",
        "ttl": 604_800_000,
        "status": "pending",
        "attempts": [{
            "number": 1,
            "startedAt": "2026-01-31T09:30:00.000Z",
            "durationMs": 40,
            "code": "http_404",
            "reason": "it failed with http_404",
        }],
        "generation": 0,
    });
    assert_eq!(written, expected);
    let stored = serde_json::to_value(&entry).unwrap();
    assert_eq!(serde_json::from_value::<DeadLetter>(stored).unwrap(), entry);
}

pub(crate) async fn a_dead_letter_without_a_reason_is_refused(f: &Fixture) {
    for reason in ["", " \n"] {
        let id = f.add("http", "acme").await;
        let failure = Failure { code: "http_404".into(), reason: reason.into() };
        let settlement = f.settlement(f.claim_one("http").await, Transition::DeadLetter { failure });
        assert!(f.store.settle(&lane("http"), vec![settlement]).await.is_err(), "{reason:?}");
        f.store.flush().await.unwrap();
        assert!(f.store.dead_letter(id).await.unwrap().is_none());
        assert!(!f.state(id).await.is_end(), "the job is not lost with its entry");
    }
}

/// A settlement is one write: when one job of it is refused, the others have not ended either, and all can be
/// settled again.
pub(crate) async fn a_refused_settlement_changes_nothing(f: &Fixture) {
    let delivered = f.add("http", "acme").await;
    let given_up = f.add("http", "acme").await;
    let (first, second) = (f.claim_one("http").await, f.claim_one("http").await);
    let (tickets, jobs) = ([first.ticket, second.ticket], [first.job.clone(), second.job.clone()]);
    let no_reason = Failure { code: "http_404".into(), reason: String::new() };
    let done = f.settlement(first, Transition::Done);
    let dead = f.settlement(second, Transition::DeadLetter { failure: no_reason });
    let attempts = [done.attempts.clone(), dead.attempts.clone()];
    assert!(f.store.settle(&lane("http"), vec![done, dead]).await.is_err());

    let transitions = [Transition::Done, Transition::DeadLetter { failure: failure("http_404") }];
    let again = tickets.into_iter().zip(jobs).zip(attempts).zip(transitions);
    let again = again.map(|(((ticket, job), attempts), transition)| entrega::store::Settlement {
        ticket,
        job,
        generation: 0,
        attempts,
        transition,
        lesson: entrega_core::outcome::Lesson::Up,
        took: super::fixture::TOOK,
        answer: None,
        causes: Vec::new(),
    });
    f.store.settle(&lane("http"), again.collect()).await.unwrap();
    f.store.flush().await.unwrap();
    assert_eq!(f.state(delivered).await, JobState::Done);
    assert_eq!(f.state(given_up).await, JobState::Dlq);
}

async fn found(f: &Fixture, filter: DeadLetterFilter) -> Vec<JobId> {
    let page = f.store.dead_letters(&filter, Page { after: None, limit: 100 }).await.unwrap();
    assert!(page.next.is_none());
    page.items.iter().map(|entry| entry.job_id).collect()
}

pub(crate) async fn dead_letters_are_found_by_what_they_are(f: &Fixture) {
    let first = f.add_dead("http", "a", "http_404").await;
    f.advance(60 * SECOND);
    let second = f.add_dead("http", "b", "timeout").await;
    let third = f.add_dead("small", "a", "timeout").await;
    f.store.discard(third, "not wanted").await.unwrap();
    let any = DeadLetterFilter::default;
    assert_eq!(found(f, any()).await, [third, second, first], "the newest first");
    assert_eq!(found(f, DeadLetterFilter { oldest_first: true, ..any() }).await, [first, second, third]);
    assert_eq!(found(f, DeadLetterFilter { lane: Some(lane("http")), ..any() }).await, [second, first]);
    assert_eq!(found(f, DeadLetterFilter { tenant: Some(tenant("a")), ..any() }).await, [third, first]);
    assert_eq!(found(f, DeadLetterFilter { code: Some("timeout".into()), ..any() }).await, [third, second]);
    let status = Some(DeadLetterStatus::Discarded);
    assert_eq!(found(f, DeadLetterFilter { status, ..any() }).await, [third]);
    assert_eq!(found(f, DeadLetterFilter { older_than_seconds: Some(60), ..any() }).await, [first]);
    assert_eq!(found(f, DeadLetterFilter { text: Some("with http_4".into()), ..any() }).await, [first]);
    assert_eq!(found(f, DeadLetterFilter { before: Some(f.now()), ..any() }).await, [first]);
}

pub(crate) async fn dead_letters_are_listed_page_by_page(f: &Fixture) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(f.add_dead("http", "acme", "http_404").await);
    }
    for oldest_first in [true, false] {
        let filter = DeadLetterFilter { oldest_first, ..DeadLetterFilter::default() };
        let (mut after, mut pages) = (None, Vec::new());
        loop {
            let page = f.store.dead_letters(&filter, Page { after, limit: 2 }).await.unwrap();
            pages.push(page.items.iter().map(|entry| entry.job_id).collect::<Vec<_>>());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(pages.concat(), ids, "oldest first: {oldest_first}");
        ids.reverse();
    }
}

pub(crate) async fn dead_letters_are_counted_by_code_tenant_lane_and_hour(f: &Fixture) {
    f.add_dead("http", "a", "http_404").await;
    f.add_dead("http", "b", "http_404").await;
    f.advance(HOUR);
    f.add_dead("http", "a", "timeout").await;
    f.add_dead("small", "a", "timeout").await;
    let hours = ["2026-01-31T09:00:00.000Z", "2026-01-31T10:00:00.000Z"];
    let rows = |rows: &[(&str, &str, u64)]| -> Vec<_> {
        rows.iter().map(|&(name, key, count)| Count { lane: lane(name), key: key.into(), count }).collect()
    };
    for (by, expected) in [
        (CountBy::Code, rows(&[("http", "http_404", 2), ("http", "timeout", 1), ("small", "timeout", 1)])),
        (CountBy::Tenant, rows(&[("http", "a", 2), ("http", "b", 1), ("small", "a", 1)])),
        (CountBy::Lane, rows(&[("http", "http", 3), ("small", "small", 1)])),
        (CountBy::Hour, rows(&[("http", hours[0], 2), ("http", hours[1], 1), ("small", hours[1], 1)])),
    ] {
        assert_eq!(f.store.dead_letter_counts(by, None).await.unwrap(), expected, "{by:?}");
    }
    let of_b = f.store.dead_letter_counts(CountBy::Code, Some(&tenant("b"))).await.unwrap();
    assert_eq!(of_b, rows(&[("http", "http_404", 1)]));
}

/// `lastFailureCode` may be left out (SPEC §4); such entries were counted under no name at all.
#[tokio::test]
async fn a_dead_letter_without_a_code_is_counted_as_unknown() {
    let (disk, f) = TestLedger::world().await;
    let id = f.add_dead("http", "acme", "http_404").await;
    let entry = DeadLetter { last_failure_code: None, ..f.entry(id).await };
    let disk = disk.copy();
    disk.change(dead_letter_rows(&entry));
    let f = Fixture::over(disk.open(&f.setup).await, f.setup.clone());
    let counts = f.store.dead_letter_counts(CountBy::Code, None).await.unwrap();
    assert_eq!(counts, [Count { lane: lane("http"), key: "unknown".into(), count: 1 }]);
    let filter = DeadLetterFilter { code: Some("unknown".into()), ..Default::default() };
    let found = f.store.dead_letters(&filter, Page { after: None, limit: 10 }).await.unwrap();
    assert_eq!(found.items, [entry], "it is found by what it is counted under, and shown as it is");
}

pub(crate) async fn a_discarded_dead_letter_keeps_the_reason(f: &Fixture) {
    let id = f.add_dead("http", "acme", "http_404").await;
    f.store.discard(id, "the customer left").await.unwrap();
    let entry = f.entry(id).await;
    assert_eq!(entry.status, DeadLetterStatus::Discarded);
    assert_eq!(entry.discard_reason.as_deref(), Some("the customer left"));
    assert_eq!(entry.last_failure_reason, "it failed with http_404");
    assert_eq!(f.state(id).await, JobState::Dlq);
}

pub(crate) async fn only_a_pending_dead_letter_is_discarded(f: &Fixture) {
    let discarded = f.add_dead("http", "acme", "http_404").await;
    f.store.discard(discarded, "the customer left").await.unwrap();
    let replaying = f.add_dead("http", "acme", "http_404").await;
    f.store.replay(replaying).await.unwrap();
    for (id, expected) in [(discarded, DeadLetterStatus::Discarded), (replaying, DeadLetterStatus::Replaying)] {
        let refused = f.store.discard(id, "again").await.unwrap_err();
        let NoReplay::NotPending { status } = no_replay(refused) else { panic!("it is not pending") };
        assert_eq!(status, expected);
    }
    assert_eq!(f.entry(discarded).await.discard_reason.as_deref(), Some("the customer left"));
    let unknown = f.store.discard(f.add("single", "acme").await, "a live job").await.unwrap_err();
    assert!(matches!(unknown, ChangeError::Unknown), "{unknown}");
}

/// Why a dead letter does not come back.
pub(crate) fn no_replay(error: ChangeError) -> NoReplay {
    match error {
        ChangeError::NoReplay(why) => why,
        other => panic!("refused for another reason: {other}"),
    }
}

/// A mail may carry megabytes: two hundred of them on one page would be more than a machine has.
pub(crate) async fn a_page_ends_when_its_entries_carry_much(f: &Fixture) {
    for _ in 0..5 {
        let job = Job { payload: Payload::opaque(vec![7; 6 << 20]), ..f.job("http", "acme") };
        f.accept(job).await;
        f.dead(f.claim_one("http").await, "http_404").await;
        f.advance(SECOND);
    }
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = Page { after, limit: 200 };
        let page = f.store.dead_letters(&DeadLetterFilter::default(), page).await.unwrap();
        pages.push(page.items.len());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages.iter().sum::<usize>(), 5, "none is left out: {pages:?}");
    assert!(pages.iter().all(|rows| *rows <= 3), "{pages:?}");
}
