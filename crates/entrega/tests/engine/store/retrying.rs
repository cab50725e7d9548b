//! Settlements: a retry waits and remembers, an end is an end and whoever waits for it is told.

use std::pin::pin;

use entrega::store::{KeptAnswer, Settlement};
use entrega_core::body::Body;
use entrega_core::decide::Transition;
use entrega_core::job::{Job, JobState};
use futures_util::FutureExt as _;

use super::fixture::{Fixture, SECOND, TOOK, failure, lane, soon};

pub(crate) async fn a_retry_waits_for_its_moment(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, 5 * SECOND).await;
    let view = f.view(id).await;
    assert_eq!((view.state, view.due_at), (JobState::RetryWait, Some(f.now() + 5 * SECOND)));
    let early = f.claim("http", 10).await;
    assert!(early.jobs.is_empty());
    assert_eq!(early.wake_at, Some(f.now() + 5 * SECOND));
    f.advance(5 * SECOND);
    assert_eq!(f.state(id).await, JobState::RetryWait, "due, but not running yet");
    assert_eq!(f.claim_ids("http").await, [id]);
}

pub(crate) async fn a_retry_keeps_its_history_and_counts_on(f: &Fixture) {
    let id = f.add("http", "acme").await;
    for number in 1..=3 {
        let claimed = f.claim_one("http").await;
        assert_eq!((claimed.attempt, claimed.history.len()), (number, number as usize - 1));
        f.retry(claimed, SECOND).await;
        f.advance(SECOND);
    }
    let attempts = f.view(id).await.attempts;
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(attempts[2].started_at, f.now() - SECOND);
    assert_eq!(attempts[2].duration_ms, TOOK.as_millis() as u64);
    assert_eq!(attempts[2].code, "http_503");
    assert_eq!(attempts[2].reason, Some(failure("http_503").reason));
    assert_eq!(f.claim_one("http").await.history, attempts);
}

pub(crate) async fn a_delivered_job_keeps_its_answer_and_attempts(f: &Fixture) {
    let id = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    f.advance(SECOND);
    let mut settlement = f.settlement(f.claim_one("http").await, Transition::Done);
    let answer = KeptAnswer {
        status: 201,
        content_type: Some("application/json".into()),
        body: Body(bytes::Bytes::from_static(&[0xfe, b'{'])),
        truncated: true,
        cache: None,
        source: None,
    };
    settlement.answer = Some(answer.clone());
    f.store.settle(&lane("http"), vec![settlement]).await.unwrap();
    f.store.flush().await.unwrap();
    let view = f.view(id).await;
    assert_eq!((view.state, view.ended_at), (JobState::Done, Some(f.now())));
    assert_eq!(view.result, Some(answer));
    assert_eq!(view.destination.as_deref(), Some("POST https://example.com/hook"));
    assert_eq!(view.accepted_at, f.now() - SECOND);
    let codes: Vec<_> = view.attempts.iter().map(|attempt| (attempt.number, attempt.code.as_str())).collect();
    assert_eq!(codes, [(1, "http_503"), (2, "ok")]);
    assert!(f.store.dead_letter(id).await.unwrap().is_none());
}

/// Webhooks keep what an endpoint said to each attempt, whatever becomes of them.
pub(crate) async fn what_was_answered_to_an_attempt_is_kept(f: &Fixture) {
    let said = |settlement: &mut Settlement| settlement.attempts.last_mut().unwrap().answer = Some("no\u{2028}".into());
    let settle = async |settlement: Settlement| {
        f.store.settle(&lane("http"), vec![settlement]).await.unwrap();
        f.store.flush().await.unwrap();
    };
    for end in [Transition::Done, Transition::DeadLetter { failure: failure("http_500") }] {
        let id = f.add("http", "acme").await;
        let again = Transition::Retry { at: f.now() + SECOND, failure: failure("http_500") };
        let mut settlement = f.settlement(f.claim_one("http").await, again);
        said(&mut settlement);
        settle(settlement).await;
        let answers = async || f.view(id).await.attempts.into_iter().map(|attempt| attempt.answer).collect::<Vec<_>>();
        assert_eq!(answers().await, [Some("no\u{2028}".to_owned())], "while it waits");
        f.advance(SECOND);
        settle(f.settlement(f.claim_one("http").await, end)).await;
        assert_eq!(answers().await, [Some("no\u{2028}".to_owned()), None]);
    }
}

pub(crate) async fn many_settlements_are_taken_at_once(f: &Fixture) {
    let jobs: Vec<_> = (0..300).map(|_| f.job("http", "acme")).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    f.submit_all(jobs).await;
    let claimed = f.claim("http", 300).await.jobs;
    let settlements = claimed.into_iter().map(|claimed| f.settlement(claimed, Transition::Done)).collect();
    soon(f.store.settle(&lane("http"), settlements)).await.unwrap();
    f.store.flush().await.unwrap();
    for id in ids {
        assert_eq!(f.state(id).await, JobState::Done);
    }
}

pub(crate) async fn ended_resolves_when_a_job_is_delivered(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let mut ended = pin!(f.store.ended(id));
    assert!(ended.as_mut().now_or_never().is_none(), "it waits");
    f.retry(f.claim_one("http").await, SECOND).await;
    assert!(ended.as_mut().now_or_never().is_none(), "a retry is no end");
    f.advance(SECOND);
    f.done(f.claim_one("http").await).await;
    soon(ended).await.unwrap();
    assert_eq!(f.state(id).await, JobState::Done, "whoever was told finds it ended");
}

pub(crate) async fn ended_resolves_for_every_end(f: &Fixture) {
    let dead = f.add("http", "acme").await;
    let mut ended = pin!(f.store.ended(dead));
    assert!(ended.as_mut().now_or_never().is_none());
    f.dead(f.claim_one("http").await, "http_404").await;
    soon(ended).await.unwrap();

    let cancelled = f.add("http", "acme").await;
    let mut ended = pin!(f.store.ended(cancelled));
    assert!(ended.as_mut().now_or_never().is_none());
    f.store.cancel(cancelled, "not wanted").await.unwrap();
    soon(ended).await.unwrap();

    let dropped = f.accept(Job { expires_at: Some(f.now() + SECOND), ..f.job("http", "acme") }).await;
    let mut ended = pin!(f.store.ended(dropped));
    assert!(ended.as_mut().now_or_never().is_none());
    f.advance(SECOND);
    f.claim("http", 1).await;
    soon(ended).await.unwrap();
    assert_eq!(f.state(dropped).await, JobState::Dropped);
}

/// Whoever was waiting was told, whoever came a moment later waited for the operator.
pub(crate) async fn ended_resolves_when_a_job_is_blocked(f: &Fixture) {
    let id = f.add("http", "acme").await;
    let mut early = pin!(f.store.ended(id));
    assert!(early.as_mut().now_or_never().is_none());
    f.block(f.claim_one("http").await).await;
    soon(early).await.unwrap();
    soon(f.store.ended(id)).await.unwrap();
    f.store.unblock(id).await.unwrap();
    let mut again = pin!(f.store.ended(id));
    assert!(again.as_mut().now_or_never().is_none(), "it is on its way again");
    f.done(f.claim_one("http").await).await;
    soon(again).await.unwrap();
}

pub(crate) async fn ended_resolves_at_once_for_what_has_ended_or_is_unknown(f: &Fixture) {
    let done = f.add("http", "acme").await;
    f.done(f.claim_one("http").await).await;
    let dead = f.add_dead("http", "acme", "http_404").await;
    for id in [done, dead, f.job("http", "acme").id] {
        soon(f.store.ended(id)).await.unwrap();
    }
}
