//! Answers that are given again, calls under way, and jobs whose answer is known when they are taken.

use std::time::Duration;

use bytes::Bytes;
use entrega::store::{
    CacheMark, CachedAnswer, Idempotency, JobFilter, KeptAnswer, NewEntry, Page, Settlement, Submitted,
};
use entrega_core::body::Body;
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::outcome::AnswerSource;
use entrega_core::time::Time;

use super::fixture::{Fixture, HOUR, RETENTION, lane};

const MINUTE: Duration = Duration::from_mins(1);

fn answer(f: &Fixture, text: &'static str) -> CachedAnswer {
    let answer = KeptAnswer {
        status: 200,
        content_type: Some("application/json".into()),
        body: Body(Bytes::from_static(text.as_bytes())),
        truncated: false,
        cache: None,
        source: None,
    };
    CachedAnswer { stored_at: f.now(), job: caller(1), answer }
}

fn caller(number: u128) -> JobId {
    JobId::from_parts(Time::from_millis(1), number)
}

pub(crate) async fn an_answer_is_kept_whole_under_its_key(f: &Fixture) {
    assert_eq!(f.store.cached("cache:score:1").await.unwrap(), None);
    let first = answer(f, "one");
    f.store.cache("cache:score:1", first.clone(), HOUR).await.unwrap();
    assert_eq!(f.store.cached("cache:score:1").await.unwrap(), Some(first));
    assert_eq!(f.store.cached("cache:score:2").await.unwrap(), None);
    let second = answer(f, "two");
    f.store.cache("cache:score:1", second.clone(), HOUR).await.unwrap();
    assert_eq!(f.store.cached("cache:score:1").await.unwrap(), Some(second), "the newest one stays");
}

pub(crate) async fn a_call_is_made_by_one_and_ended_by_nobody_else(f: &Fixture) {
    let (one, other) = (caller(1), caller(2));
    assert!(f.store.begin_call("k", one, MINUTE).await.unwrap());
    assert!(!f.store.begin_call("k", other, MINUTE).await.unwrap());
    assert!(f.store.begin_call("another", other, MINUTE).await.unwrap());
    // Its node was gone in the middle, and its job is attempted again: it waited for itself, in vain.
    assert!(f.store.begin_call("k", one, MINUTE).await.unwrap());
    f.store.end_call("k", other).await.unwrap();
    assert!(!f.store.begin_call("k", other, MINUTE).await.unwrap(), "it is still the first one's");
    f.store.end_call("k", one).await.unwrap();
    assert!(f.store.begin_call("k", other, MINUTE).await.unwrap());
}

pub(crate) async fn a_job_whose_answer_is_known_is_done_as_it_is_taken(f: &Fixture) {
    let kept = KeptAnswer {
        status: 200,
        content_type: None,
        body: Body(Bytes::from_static(b"known")),
        truncated: false,
        cache: Some(CacheMark { age_seconds: 7, stale: false, motivo: None }),
        source: None,
    };
    let job = f.job("http", "acme");
    let id = job.id;
    let once = Idempotency { key: "look-1".into(), request: [1; 32], lasts: HOUR };
    let entry = |job| NewEntry { job, idempotency: vec![once.clone()], answer: Some(kept.clone()) };
    let taken = f.store.take(vec![entry(job)]).await.unwrap();
    assert_eq!(taken, [Submitted::Accepted { pushed_out: None }]);
    let view = f.view(id).await;
    assert_eq!((view.state, view.result, view.attempts.len()), (JobState::Done, Some(kept.clone()), 0));
    assert!(f.store.claim(&lane("http"), 10).await.unwrap().jobs.is_empty(), "there is nothing to attempt");
    let sizes = f.store.lanes().await.unwrap();
    assert!(sizes.iter().all(|lane| lane.sizes.waiting() == 0), "it has no place in its lane");
    tokio::time::timeout(Duration::from_secs(5), f.store.ended(id)).await.unwrap().unwrap();
    // It is remembered like any other.
    let again = f.store.take(vec![entry(f.job("http", "acme"))]).await.unwrap();
    assert_eq!(again, [Submitted::Repeated { id }]);
}

pub(crate) async fn a_job_whose_answer_was_known_is_forgotten_in_time(f: &Fixture) {
    let kept = KeptAnswer {
        status: 204,
        content_type: None,
        body: Body::default(),
        truncated: false,
        cache: None,
        source: None,
    };
    let job = f.job("http", "acme");
    let id = job.id;
    f.store.take(vec![NewEntry { job, idempotency: Vec::new(), answer: Some(kept) }]).await.unwrap();
    assert!(f.store.job(id).await.unwrap().is_some());
    f.advance(RETENTION + HOUR);
    f.store.sweep().await.unwrap();
    assert!(f.store.job(id).await.unwrap().is_none(), "ended jobs are kept for a while");
}

/// Every hit kept the whole answer again: 2 000 questions without a key, each with the same 125 KB, filled 250 MB.
pub(crate) async fn an_answer_that_is_another_jobs_is_shown_and_not_kept_again(f: &Fixture) {
    let stored = answer(f, "the whole answer");
    let job = f.job("http", "acme");
    let first = job.id;
    f.submit_all(vec![job]).await;
    let source = Some(AnswerSource { job: first, key: "k".into() });
    let mark = Some(CacheMark { age_seconds: 1, stale: false, motivo: None });
    let again = KeptAnswer { cache: mark, source, ..stored.answer.clone() };
    f.store.cache("k", CachedAnswer { job: first, ..stored.clone() }, HOUR).await.unwrap();
    let hit = f.job("http", "acme");
    let hit_id = hit.id;
    f.store.take(vec![NewEntry { job: hit, idempotency: Vec::new(), answer: Some(again.clone()) }]).await.unwrap();
    let body = async |id| f.view(id).await.result.map(|result| result.body);
    assert_eq!(body(hit_id).await, Some(stored.answer.body.clone()), "the first has not ended: the cache has it");

    let claimed = f.claim_one("http").await;
    let settlement = Settlement { answer: Some(stored.answer.clone()), ..f.settlement(claimed, Transition::Done) };
    f.store.settle(&lane("http"), vec![settlement]).await.unwrap();
    f.store.flush().await.unwrap();
    let another = answer(f, "of another call");
    f.store.cache("k", CachedAnswer { job: hit_id, ..another }, HOUR).await.unwrap();
    assert_eq!(body(hit_id).await, Some(stored.answer.body.clone()), "the first job's record has it");
    let listed = f.store.jobs(&JobFilter::default(), Page { after: None, limit: 10 }).await.unwrap();
    let bodies: Vec<_> = listed.items.into_iter().filter_map(|view| view.result).map(|result| result.body).collect();
    assert_eq!(bodies, [stored.answer.body.clone(), stored.answer.body.clone()]);

    // One that came by a settlement keeps no copy either; where nobody has it any more, that is said.
    let gone = KeptAnswer { source: Some(AnswerSource { job: caller(77), key: "gone".into() }), ..again };
    let job = f.job("http", "acme");
    let third = job.id;
    f.submit_all(vec![job]).await;
    let claimed = f.claim_one("http").await;
    let settlement = Settlement { answer: Some(gone), ..f.settlement(claimed, Transition::Done) };
    f.store.settle(&lane("http"), vec![settlement]).await.unwrap();
    f.store.flush().await.unwrap();
    let view = f.view(third).await;
    assert_eq!((view.state, view.result), (JobState::Done, None), "the record holds no body");
    assert!(view.reason.unwrap().contains("not kept any more"));
}
