//! The `proxy` channel: a question to the upstream of a route, answered from the cache where that will do.
//! Invariant: a fresh answer is given without a call; equal questions at the same moment make one call; only successful
//! answers are kept. Where the upstream gives none, an old answer has to do, and says so.
//! Never: waits for an open breaker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_call::{Client, Clock};
use entrega_core::id::JobId;
use entrega_core::outcome::{Answer, AnswerSource, Cached, Fault, FaultKind, Outcome};
use entrega_core::time::Time;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout_at};

use super::{ProxyCall, Route, Routes};
use crate::channel::Channel;
use crate::http::{IDEMPOTENCY_KEY, OUR_NAME, REQUEST_ID, TRACEPARENT, outcome};
use crate::store::{CachedAnswer, ClaimedJob, Store};

/// How often a call that another node makes is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Keeping an answer takes a moment, and clocks of nodes differ: nobody fails for that.
const MOMENT: Duration = Duration::from_millis(100);
/// Beyond its deadline, how long a call counts as under way for a node that is gone.
const CALL_MARGIN: Duration = Duration::from_secs(1);

/// Questions to upstreams.
pub struct ProxyChannel {
    client: Client,
    store: Arc<dyn Store>,
    clock: Clock,
    routes: Arc<Routes>,
    /// Calls of this process that are under way, by the key of their answer: at most as many as attempts.
    calls: Calls,
}

/// Whoever waits for a call hears of its end in the order in which they came: a simulated run must come out the same
/// again.
type Calls = Mutex<HashMap<String, broadcast::Sender<Came>>>;

/// What a call is made for.
struct Asking<'a> {
    claimed: &'a ClaimedJob,
    route: &'a Route,
    key: String,
    url: String,
    asked_at: Time,
    deadline: Instant,
}

impl Asking<'_> {
    /// Whether the answer of somebody else's call, which came at a moment, answers this question too.
    fn may_share(&self, came_at: Time) -> bool {
        is_young(came_at, self.asked_at, self.route.cache.ttl)
    }
}

/// Whoever keeps an answer may take long over it: one that was too old when the question came is not shared.
fn is_young(came_at: Time, asked_at: Time, ttl: Duration) -> bool {
    asked_at <= came_at + ttl.max(MOMENT)
}

impl ProxyChannel {
    /// Calls through this client, to the upstreams of these routes, and keeps answers in this store.
    pub fn new(client: Client, store: Arc<dyn Store>, clock: Clock, routes: Arc<Routes>) -> ProxyChannel {
        ProxyChannel { client, store, clock, routes, calls: Mutex::default() }
    }

    async fn answer(&self, asking: &Asking<'_>) -> Outcome {
        let kept = self.kept(&asking.key).await;
        if let Some((answer, age)) = kept.as_ref().filter(|(_, age)| *age < asking.route.cache.ttl) {
            return again(&asking.key, answer, *age, None);
        }
        let came = match asking.claimed.past_breaker {
            true => {
                fault(FaultKind::BreakerOpen, "the breaker is open: the upstream failed too often; nobody was called")
            }
            false => self.share(asking, kept.as_ref().map(|(answer, _)| answer.stored_at)).await,
        };
        match kept.filter(|_| leaves_room_for_an_old_answer(&came)) {
            Some((answer, age)) => again(&asking.key, &answer, age, Some(came)),
            None => came,
        }
    }

    /// What is kept for a question, and how old it is. A cache that cannot be read costs a call.
    async fn kept(&self, key: &str) -> Option<(CachedAnswer, Duration)> {
        let stored = self.store.cached(key).await.unwrap_or_else(|error| {
            tracing::debug!(errorReason = %error, "The cache cannot be read");
            None
        })?;
        let age = self.clock.now().since(stored.stored_at);
        Some((stored, age))
    }

    /// Makes the call, or waits for whoever makes the same one; `before` is when the answer was kept that is there now.
    async fn share(&self, asking: &Asking<'_>, before: Option<Time>) -> Outcome {
        let theirs = {
            let mut calls = self.calls.lock();
            let theirs = calls.get(&asking.key).map(broadcast::Sender::subscribe);
            if theirs.is_none() {
                calls.insert(asking.key.clone(), broadcast::channel(1).0);
            }
            theirs
        };
        match theirs {
            None => {
                let under_way = UnderWay { calls: &self.calls, key: Some(&asking.key) };
                let came = self.share_with_nodes(asking, before).await;
                under_way.notify(&came);
                came.outcome
            }
            Some(mut theirs) => {
                // An error means that whoever made the call is gone without a word.
                let told = timeout_at(asking.deadline, theirs.recv()).await;
                match told.ok().and_then(Result::ok) {
                    Some(came) if asking.may_share(came.at) => shared(asking, came, self.clock.now()),
                    Some(_) => {
                        fault(FaultKind::Shared, "the same call, made for another job, was answered too long ago")
                    }
                    None => fault(FaultKind::Timeout, "the same call, made for another job, did not end"),
                }
            }
        }
    }

    /// The same among nodes: one makes the call, the others wait for its answer to be kept. Nobody makes a call after
    /// waiting: the tick that this attempt had is over, and another job has the present one.
    async fn share_with_nodes(&self, asking: &Asking<'_>, before: Option<Time>) -> Came {
        let (key, id) = (asking.key.as_str(), asking.claimed.job.id);
        let lasts = self.clock.until(asking.deadline) + CALL_MARGIN;
        // Where nothing is kept there is nothing to wait for. A cache that cannot be written shares nothing.
        let is_shared = !asking.route.keep().is_zero();
        if !is_shared || self.store.begin_call(key, id, lasts).await.unwrap_or(true) {
            let came = self.call(asking).await;
            if is_shared {
                // What could not be ended here ends by itself.
                drop(self.store.end_call(key, id).await);
            }
            return came;
        }
        loop {
            if timeout_at(asking.deadline, tokio::time::sleep(LOOK_EVERY)).await.is_err() {
                return self.now(id, fault(FaultKind::Timeout, "the same call, made by another node, did not end"));
            }
            // Asked first: an answer is kept before its call counts as over.
            let is_over = self.store.begin_call(key, id, lasts).await.unwrap_or(false);
            if is_over {
                drop(self.store.end_call(key, id).await);
            }
            match self.kept(key).await {
                Some((answer, age)) if before != Some(answer.stored_at) && asking.may_share(answer.stored_at) => {
                    let outcome = again(key, &answer, age, None);
                    return Came { at: answer.stored_at, by: answer.job, outcome };
                }
                _ if is_over => {
                    let message = "the same call, made by another node, brought no answer to keep";
                    return self.now(id, fault(FaultKind::Shared, message));
                }
                _ => {}
            }
        }
    }

    async fn call(&self, asking: &Asking<'_>) -> Came {
        let id = asking.claimed.job.id;
        let request = match request(asking) {
            Ok(request) => request,
            Err(message) => return self.now(id, fault(FaultKind::Invalid, message)),
        };
        let answered = self.client.call(request, asking.deadline).await;
        let came = self.now(id, outcome(answered));
        let keep = asking.route.keep();
        if let Outcome::Answer(answer) = &came.outcome
            && answer.status.is_success()
            && !keep.is_zero()
            && let Err(error) = self
                .store
                .cache(&asking.key, CachedAnswer { stored_at: came.at, job: id, answer: answer.clone().into() }, keep)
                .await
        {
            tracing::debug!(errorReason = %error, "An answer could not be kept");
        }
        came
    }

    fn now(&self, by: JobId, outcome: Outcome) -> Came {
        Came { at: self.clock.now(), by, outcome }
    }
}

/// What came of a call, when, and for which job it was made.
#[derive(Clone, Debug)]
struct Came {
    at: Time,
    by: JobId,
    outcome: Outcome,
}

/// A call that others may wait for; it ends however its maker ends.
struct UnderWay<'a> {
    calls: &'a Calls,
    /// Until it has ended: then the next call of this key may be somebody else's.
    key: Option<&'a str>,
}

impl UnderWay<'_> {
    /// Nobody joins a call that has ended, so that all who did hear of it.
    fn notify(mut self, came: &Came) {
        if let Some(tell) = self.end() {
            // An error means that nobody waits.
            drop(tell.send(came.clone()));
        }
    }

    fn end(&mut self) -> Option<broadcast::Sender<Came>> {
        self.calls.lock().remove(self.key.take()?)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

fn fault(kind: FaultKind, message: impl Into<String>) -> Outcome {
    Outcome::Fault(Fault { kind, message: message.into() })
}

/// An answer that was given before, and is kept under this key.
fn again(key: &str, stored: &CachedAnswer, age: Duration, instead_of: Option<Outcome>) -> Outcome {
    let kept = &stored.answer;
    let mut headers = HeaderMap::new();
    if let Some(Ok(content_type)) = kept.content_type.as_deref().map(HeaderValue::from_str) {
        headers.insert(CONTENT_TYPE, content_type);
    }
    let answer = Answer {
        status: StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK),
        headers,
        body: kept.body.0.clone(),
        truncated: kept.truncated,
        retry_after: None,
    };
    let source = Some(AnswerSource { job: stored.job, key: key.to_owned() });
    Outcome::Cached(Box::new(Cached { answer, source, age, instead_of: instead_of.map(Box::new) }))
}

/// What a call that was made for another job means here: nobody was called for this one.
fn shared(asking: &Asking<'_>, came: Came, now: Time) -> Outcome {
    match came.outcome {
        Outcome::Answer(answer) if answer.status.is_success() => {
            // Where nothing is cached, the answer is safe only once the other job has ended: this one needs a copy.
            let is_cached = !asking.route.keep().is_zero();
            let source = is_cached.then(|| AnswerSource { job: came.by, key: asking.key.clone() });
            Outcome::Cached(Box::new(Cached { answer, source, age: now.since(came.at), instead_of: None }))
        }
        Outcome::Cached(cached) => Outcome::Cached(cached),
        failed => {
            fault(FaultKind::Shared, format!("the same call, made for another job, came to: {}", failed.reason()))
        }
    }
}

/// Whether the upstream gave no answer. A 404 is one, and an old answer would contradict it.
fn leaves_room_for_an_old_answer(came: &Outcome) -> bool {
    match came {
        Outcome::Answer(answer) => answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS,
        Outcome::Fault(fault) => {
            !matches!(fault.kind, FaultKind::Forbidden | FaultKind::Invalid | FaultKind::Crashed | FaultKind::Held)
        }
        Outcome::EndpointDisabled(_) | Outcome::Mail(_) | Outcome::FanOut(_) | Outcome::Cached(_) => false,
    }
}

fn request(asking: &Asking<'_>) -> Result<Request<Bytes>, String> {
    let mut request = Request::get(asking.url.as_str()).body(Bytes::new()).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    let job = &asking.claimed.job;
    let id = HeaderValue::from_str(&job.id.to_string()).map_err(|error| error.to_string())?;
    headers.insert(USER_AGENT, OUR_NAME.clone());
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*;q=0.5"));
    headers.insert(IDEMPOTENCY_KEY.clone(), id.clone());
    headers.insert(REQUEST_ID.clone(), id);
    let trace = HeaderValue::from_str(&job.traceparent(asking.claimed.attempt)).map_err(|error| error.to_string())?;
    headers.insert(TRACEPARENT.clone(), trace);
    for (name, value) in &asking.route.headers {
        let name = HeaderName::try_from(name.as_str()).map_err(|error| error.to_string())?;
        headers.insert(name, HeaderValue::from_str(value.reveal()).map_err(|error| error.to_string())?);
    }
    Ok(request)
}

#[async_trait]
impl Channel for ProxyChannel {
    fn answers_alone(&self) -> bool {
        true
    }

    async fn attempt(&self, claimed: &ClaimedJob, deadline: Instant) -> Outcome {
        let question: ProxyCall = match claimed.job.payload.read() {
            Ok(question) => question,
            Err(error) => return fault(FaultKind::Invalid, error.to_string()),
        };
        let Some(route) = self.routes.get(&claimed.job.lane) else {
            return fault(FaultKind::Invalid, "its route is not configured any more");
        };
        if let Err(bad) = route.check_path(&question.params) {
            return fault(FaultKind::Invalid, bad.to_string());
        }
        let Some(url) = route.url(&question.params) else {
            return fault(FaultKind::Invalid, "its route has no upstream any more");
        };
        let key = route.cache_key(&question.params);
        self.answer(&Asking { claimed, route, key, url, asked_at: self.clock.now(), deadline }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question joined a call whose answer had come long before and was still being kept, and was told that it was new.
    #[test]
    fn an_answer_that_was_too_old_when_the_question_came_is_not_shared() {
        let (came_at, second) = (Time::from_millis(60_000), Duration::from_secs(1));
        for (asked_at, ttl, is_shared) in [
            (came_at - second, Duration::ZERO, true),
            (came_at + MOMENT, Duration::ZERO, true),
            (came_at + second, Duration::ZERO, false),
            (came_at + second, second, true),
            (came_at + second * 2, second, false),
        ] {
            assert_eq!(is_young(came_at, asked_at, ttl), is_shared, "{asked_at:?} {ttl:?}");
        }
    }
}
