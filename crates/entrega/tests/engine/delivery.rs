//! A job's way from end to end, against a real HTTP destination.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use entrega::PRODUCTS;
use entrega::channel::Channel;
use entrega::dispatch::RunError;
use entrega::settle::{Attempted, Settler};
use entrega::store::ClaimedJob;
use entrega::store::Idempotency;
use entrega::store::local::tables::TABLES;
use entrega::submission::Taken;
use entrega_core::breaker::{BreakerPolicy, WhenOpen};
use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::job::JobState;
use entrega_core::outcome::{Answer, Fault, FaultKind, Lesson, Outcome};
use entrega_core::policy::{LanePolicy, OnExhausted, Scope};
use entrega_ledger::{HeapLedger, LedgerDouble, LedgerError};

use crate::world::{self, Parts, Reply, World, lane, quick_policy};

#[tokio::test]
async fn a_destination_that_fails_twice_gets_it_on_the_third_attempt() {
    let script = |hit: &world::Hit| Reply::Status(if hit.nth <= 2 { 500 } else { 200 });
    let world = World::start(Parts::default(), script).await;
    let id = world.submit("acme", vec![world.job("/orders")]).await[0];
    let view = world.end_of(id).await;
    assert_eq!(view.state, JobState::Done);
    let codes: Vec<_> = view.attempts.iter().map(|attempt| (attempt.number, attempt.code.as_str())).collect();
    assert_eq!(codes, [(1, "http_500"), (2, "http_500"), (3, "ok")]);
    for (pair, (least_ms, most_ms)) in view.attempts.windows(2).zip([(75, 125), (150, 250)]) {
        let ended = pair[0].started_at + Duration::from_millis(pair[0].duration_ms);
        let waited = pair[1].started_at.since(ended).as_millis();
        // Durations are whole milliseconds, and a busy machine may be late, never early.
        assert!((least_ms - 1..most_ms + 500).contains(&waited), "waited {waited} ms");
    }
    let hits = world.sink.hits();
    assert!(
        hits.iter().all(|hit| hit.id == id.to_string() && hit.idempotency_key == id.to_string()),
        "same ids each time"
    );
    assert!(hits.iter().all(|hit| &hit.body[..] == b"{\"hello\":1}" && hit.path == "/orders"));
    assert_eq!(view.result.unwrap().status, 200);
    world.stop().await.unwrap();
}

#[tokio::test]
async fn a_404_is_a_dead_letter_at_once_and_replay_delivers_it_under_the_same_id() {
    let world = World::start(Parts::default(), |_| Reply::Status(404)).await;
    let id = world.submit("acme", vec![world.job("/gone")]).await[0];
    assert_eq!(world.end_of(id).await.state, JobState::Dlq);
    let dead = world.engine.store().dead_letter(id).await.unwrap().unwrap();
    assert_eq!((dead.failed_attempts, dead.last_failure_reason.as_str()), (1, "HTTP 404 Not Found"));
    assert_eq!(dead.last_failure_code.as_deref(), Some("http_404"));

    world.sink.set(|_| Reply::Status(200));
    world.engine.store().replay(id).await.unwrap();
    let view = world.end_of(id).await;
    assert_eq!((view.state, view.generation), (JobState::Done, 1));
    let ids: Vec<_> = world.sink.hits().into_iter().map(|hit| hit.id).collect();
    assert_eq!(ids, [id.to_string(), id.to_string()]);
    let dead = world.engine.store().dead_letter(id).await.unwrap().unwrap();
    assert_eq!(dead.status, DeadLetterStatus::Replayed);
    world.stop().await.unwrap();
}

#[tokio::test]
async fn attempts_run_out_as_the_lane_says() {
    for (on_exhausted, state) in [(OnExhausted::Dlq, JobState::Dlq), (OnExhausted::Blocked, JobState::Blocked)] {
        let mut policy = LanePolicy { on_exhausted, ..quick_policy() };
        policy.retry.attempts = 2;
        let world = World::start(Parts { policy, ..Parts::default() }, |_| Reply::Status(503)).await;
        let id = world.submit("acme", vec![world.job("/down")]).await[0];
        let ended = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                let view = world.engine.store().job(id).await.unwrap().unwrap();
                if view.state == state {
                    return view;
                }
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(ended.await.expect("it ends").state, state);
        assert_eq!(world.sink.hits().len(), 2);
        world.stop().await.unwrap();
    }
}

#[tokio::test]
async fn two_small_tenants_do_not_wait_for_a_big_one() {
    let world = World::start(Parts::default(), |_| Reply::Status(200)).await;
    world.engine.store().set_paused(&lane(), true).await.unwrap();
    for _ in 0..10 {
        world.submit("big", vec![world.job("/big"); 1000]).await;
    }
    let mut small = world.submit("small-a", vec![world.job("/small"); 10]).await;
    small.extend(world.submit("small-b", vec![world.job("/small"); 10]).await);
    world.engine.store().set_paused(&lane(), false).await.unwrap();
    for id in small {
        world.end_of(id).await;
    }
    let hits = world.sink.hits();
    let last = hits.iter().rposition(|hit| hit.path == "/small").unwrap();
    assert!(last < 120, "the last of the small tenants' jobs arrived {last}th");
    world.stop().await.unwrap();
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let script = |hit: &world::Hit| if hit.nth == 1 { Reply::RetryAfter(429, "1") } else { Reply::Status(200) };
    let world = World::start(Parts::default(), script).await;
    let id = world.submit("acme", vec![world.job("/busy")]).await[0];
    assert_eq!(world.end_of(id).await.state, JobState::Done);
    let hits = world.sink.hits();
    let waited = hits[1].at.since(hits[0].at);
    assert!(waited >= Duration::from_millis(990), "came back after {waited:?}, asked for a second");
    world.stop().await.unwrap();
}

#[tokio::test]
async fn a_destination_that_never_answers_is_cut_off_at_the_deadline() {
    let mut policy = LanePolicy { timeout: Duration::from_millis(150), ..quick_policy() };
    policy.retry.attempts = 1;
    let world = World::start(Parts { policy, ..Parts::default() }, |_| Reply::Hang).await;
    let id = world.submit("acme", vec![world.job("/hang")]).await[0];
    let view = world.end_of(id).await;
    assert_eq!((view.state, view.attempts[0].code.as_str()), (JobState::Dlq, "timeout"));
    assert!(view.attempts[0].duration_ms >= 149, "{} ms", view.attempts[0].duration_ms);
    world.stop().await.unwrap();
}

struct Panics;

#[async_trait]
impl Channel for Panics {
    async fn attempt(&self, _: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
        panic!("a bug in a channel");
    }
}

#[tokio::test]
async fn a_channel_that_panics_fails_its_job_and_nothing_else() {
    let world =
        World::start(Parts { channel: Some(Arc::new(Panics)), ..Parts::default() }, |_| Reply::Status(200)).await;
    let id = world.submit("acme", vec![world.job("/")]).await[0];
    let view = world.end_of(id).await;
    assert_eq!((view.state, view.attempts[0].code.as_str()), (JobState::Dlq, "crashed"));
    assert!(view.reason.unwrap().contains("a bug in a channel"));
    world.stop().await.unwrap();
}

/// Reaches nobody, but knows an answer of its own for what was let past the breaker.
struct Remembers;

#[async_trait]
impl Channel for Remembers {
    async fn attempt(&self, job: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
        match job.past_breaker {
            true => Outcome::Answer(Answer {
                status: http::StatusCode::OK,
                headers: http::HeaderMap::new(),
                body: bytes::Bytes::from_static(b"as of yesterday"),
                truncated: false,
                retry_after: None,
            }),
            false => Outcome::Fault(Fault { kind: FaultKind::Connect, message: "nobody there".into() }),
        }
    }

    fn answers_alone(&self) -> bool {
        true
    }
}

fn passing_policy() -> LanePolicy {
    let hour = Duration::from_hours(1);
    let breaker = BreakerPolicy { failures: 1, open: hour, probe_timeout: hour, when_open: WhenOpen::Pass };
    let mut policy = LanePolicy { breaker: Some((breaker, Scope::Lane)), ..quick_policy() };
    policy.retry.attempts = 1;
    policy
}

#[tokio::test]
async fn while_a_destination_is_down_jobs_are_answered_without_a_call() {
    let parts = Parts { policy: passing_policy(), channel: Some(Arc::new(Remembers)), ..Parts::default() };
    let world = World::start(parts, |_| Reply::Status(200)).await;
    let first = world.submit("acme", vec![world.job("/")]).await[0];
    assert_eq!(world.end_of(first).await.state, JobState::Dlq);
    for id in world.submit("acme", vec![world.job("/"); 20]).await {
        let view = world.end_of(id).await;
        assert_eq!((view.state, &view.result.unwrap().body.0[..]), (JobState::Done, &b"as of yesterday"[..]));
    }
    let breaker = world.engine.store().lanes().await.unwrap()[0].breaker.unwrap();
    assert_eq!((breaker.state.as_str(), breaker.opened, breaker.half_opened), ("open", 1, 0));
    world.stop().await.unwrap();
}

#[tokio::test]
async fn from_what_was_let_past_nobody_learns() {
    let engine = world::engine(Parts::default()).await;
    let world = World::start(Parts::default(), |_| Reply::Status(200)).await;
    engine.submit(&world::tenant("acme"), vec![world.job("/"); 2]).await;
    for (claimed, past_breaker) in engine.store().claim(&lane(), 2).await.unwrap().jobs.into_iter().zip([false, true]) {
        let outcome = Outcome::Fault(Fault { kind: FaultKind::Connect, message: "nobody there".into() });
        let claimed = ClaimedJob { past_breaker, ..claimed };
        let attempted = Attempted {
            claimed,
            started_at: engine.env().clock.now(),
            took: Duration::ZERO,
            outcome,
            rules: Vec::new(),
        };
        let settler = Settler::new(engine.env().clone(), PRODUCTS);
        let lesson = settler.settlement(&quick_policy(), attempted).lesson;
        assert_eq!(lesson, if past_breaker { Lesson::Apart } else { Lesson::Down });
    }
}

/// An HTTP channel would call what is down, and no throttle would count it.
#[tokio::test]
async fn jobs_are_let_past_only_to_a_channel_that_answers_alone() {
    let parts = Parts { policy: passing_policy(), ..Parts::default() };
    let error = World::start(parts, |_| Reply::Status(200)).await.ended().await.unwrap_err();
    assert!(matches!(error, RunError::CannotPass { .. }), "{error}");
    assert!(error.to_string().contains("lane 'http'") && error.to_string().contains("when_open = \"hold\""));
}

#[tokio::test]
async fn when_the_store_cannot_be_written_nothing_is_accepted_and_delivery_stops() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = is_broken.clone();
    let ledger = LedgerDouble::over(Arc::new(HeapLedger::new(&TABLES))).before_write(move |_| {
        let gone = || LedgerError::Broken { doing: "writing the store", reason: "the disk is gone".into() };
        (!breaks.load(Ordering::SeqCst)).then_some(()).ok_or_else(gone)
    });
    let world = World::start(Parts { ledger: Arc::new(ledger), ..Parts::default() }, |_| Reply::Status(200)).await;
    let first = world.submit("acme", vec![world.job("/before")]).await[0];
    world.end_of(first).await;
    is_broken.store(true, Ordering::SeqCst);
    let refused = world.engine.submit(&world::tenant("acme"), vec![world.job("/after")]).await;
    assert!(refused[0].as_ref().is_err_and(|refusal| refusal.to_string().contains("the disk is gone")), "{refused:?}");
    let sink = world.sink.clone();
    assert!(matches!(world.ended().await, Err(RunError::StoreFailed { .. } | RunError::Store(_))));
    assert!(sink.hits().iter().all(|hit| hit.path == "/before"), "nothing that was refused was sent");
}

#[tokio::test]
async fn shutdown_lets_attempts_finish_and_records_them() {
    let world = World::start(Parts::default(), |_| Reply::Status(200)).await;
    let ids = world.submit("acme", vec![world.job("/"); 500]).await;
    let (engine, sink) = (world.engine.clone(), world.sink.clone());
    world.stop().await.unwrap();
    let mut done = 0;
    for id in ids {
        let state = engine.store().job(id).await.unwrap().unwrap().state;
        assert!(matches!(state, JobState::Done | JobState::Queued), "{state}");
        done += usize::from(state == JobState::Done);
    }
    assert_eq!(sink.hits().len(), done, "every call that was made is recorded");
}

#[tokio::test]
async fn a_job_handed_in_again_under_any_of_its_keys_is_the_first_one() {
    let world = World::start(Parts::default(), |_| Reply::Status(200)).await;
    let key = |name: &str| Idempotency::new(name, &[b"the same request"]).unwrap();
    let submit = async |keys: Vec<Idempotency>| {
        let mut taken = world.engine.submit_once(&world::tenant("acme"), vec![(world.job("/"), keys)]).await;
        taken.remove(0).unwrap()
    };
    let brief = Idempotency { lasts: Duration::ZERO, ..key("brief") };
    let first = submit(vec![key("call"), brief.clone(), key("order")]).await;
    assert!(!first.is_repeat);
    for keys in [vec![key("call")], vec![key("order")], vec![key("other"), key("order")]] {
        assert_eq!(submit(keys).await, Taken { id: first.id, is_repeat: true });
    }
    assert!(!submit(vec![brief]).await.is_repeat, "each key lasts as long as it says");
}
