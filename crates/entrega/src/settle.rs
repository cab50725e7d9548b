//! Settling: from an outcome to a settlement, with its counts and log lines.
//! Invariant: every end has a reason, a metric and a log line.
//! Never: writes; the dispatcher hands settlements to the store in batches.

use std::borrow::Cow;
use std::time::Duration;

use entrega_core::body::Body;
use entrega_core::classify::Rule;
use entrega_core::decide::{Attempts, Transition, decide};
use entrega_core::excerpt::excerpt;
use entrega_core::job::{Attempt, Job};
use entrega_core::mail::Mailed;
use entrega_core::mask::mask_text;
use entrega_core::outcome::{Cached, FanOut, FaultKind, Lesson, Outcome};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use crate::env::Env;
use crate::metrics::AttemptOutcome;
use crate::product::{AttemptEnd, Products};
use crate::store::{CacheMark, ClaimedJob, KeptAnswer, Settlement};

/// An attempt that ended.
#[derive(Debug)]
pub struct Attempted {
    /// The job as it was claimed.
    pub claimed: ClaimedJob,
    /// When the attempt began.
    pub started_at: Time,
    /// How long it took.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
    /// Rules of the job's own destination; they come before those of its lane.
    pub rules: Vec<Rule>,
}

/// Settles attempts.
#[derive(Clone)]
pub struct Settler {
    env: Env,
    products: Products,
}

impl Settler {
    /// For jobs of these products.
    pub fn new(env: Env, products: Products) -> Settler {
        Settler { env, products }
    }

    /// Decides what becomes of a job, and says so.
    pub fn settlement(&self, policy: &LanePolicy, attempted: Attempted) -> Settlement {
        let Attempted { claimed, started_at, took, mut outcome, rules } = attempted;
        if let Outcome::Mail(mailed) = &mut outcome {
            mailed.judge(&policy.rules);
        }
        let now = started_at + took;
        let policy = &*with_rules(policy, rules);
        let attempts = Attempts::after(&claimed.history, claimed.attempt);
        let product = self.products.find(claimed.job.payload.kind());
        let mut transition = decide(now, policy, attempts, claimed.expires, &outcome, self.env.chance.roll());
        // A dead letter on its way back stays one.
        if claimed.generation == 0 && product.is_some_and(|product| (product.is_expendable)(&claimed.job)) {
            transition = transition.without_dead_letter();
        }
        self.report(policy, &claimed.job, attempts.counted, &transition, now, took);
        if let Some(proxy) = self.env.metrics.proxy(&claimed.job.lane) {
            proxy.settled(&outcome, &transition);
        }
        let (code, reason) = match (&transition, &outcome) {
            (Transition::Done, Outcome::Cached(cached)) => {
                (outcome.code(), cached.instead_of.is_some().then(|| outcome.reason()))
            }
            (Transition::Done, _) => ("ok".to_owned(), None),
            _ => (outcome.code(), Some(outcome.reason())),
        };
        let mut attempts = claimed.history;
        // However long a job waits for its destination, one line says so.
        attempts.pop_if(|last| !FaultKind::counts(&code) && !FaultKind::counts(&last.code));
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let lesson = if claimed.past_breaker { Lesson::Apart } else { lesson(&outcome, &transition, now) };
        let job = claimed.job;
        let keeps_excerpt = product.is_some_and(|product| product.keeps_excerpt);
        let excerpt = outcome.answer().filter(|_| keeps_excerpt).and_then(|answer| excerpt(&answer.body));
        let Recorded { answer, mail, mut causes } = recorded(outcome, &transition);
        attempts.push(Attempt {
            number: claimed.attempt,
            started_at,
            duration_ms,
            code,
            reason,
            mail,
            answer: excerpt,
        });
        if let Some(product) = product {
            let ended = AttemptEnd { job: &job, attempts: &attempts, transition: &transition, now };
            causes.extend((product.follow_ups)(&self.env, &ended));
        }
        Settlement {
            ticket: claimed.ticket,
            job,
            generation: claimed.generation,
            attempts,
            lesson,
            took,
            answer,
            transition,
            causes,
        }
    }

    fn report(&self, policy: &LanePolicy, job: &Job, attempt: u32, transition: &Transition, now: Time, took: Duration) {
        let outcome = match transition {
            Transition::Done => AttemptOutcome::Success,
            Transition::Retry { .. } => AttemptOutcome::Retry,
            Transition::Blocked { .. } | Transition::DeadLetter { .. } | Transition::Dropped { .. } => {
                AttemptOutcome::Failed
            }
        };
        self.env.metrics.attempt(&job.lane, attempt, outcome, took);
        match transition {
            Transition::Done => {
                tracing::debug!(lane = %job.lane, jobId = %job.id, companyId = %job.tenant.company(), traceId = job.trace_id(), attempt,
                    latencyMs = took.as_millis() as u64, "Job delivered");
            }
            Transition::Retry { at, failure } => {
                let delay = at.since(now);
                self.env.metrics.backoff(&job.lane, delay);
                tracing::info!(lane = %job.lane, jobId = %job.id, companyId = %job.tenant.company(), traceId = job.trace_id(), attempt, labels = labels(job),
                    maxAttempts = policy.retry.attempts, latencyMs = took.as_millis() as u64,
                    errorCode = failure.code, errorReason = mask_text(&failure.reason), isRetryable = true,
                    nextRetryDelay = delay.as_millis() as u64, "Job failed, scheduling retry");
            }
            Transition::Blocked { failure } => {
                tracing::warn!(lane = %job.lane, jobId = %job.id, companyId = %job.tenant.company(), traceId = job.trace_id(), attempt, labels = labels(job),
                    errorCode = failure.code, errorReason = mask_text(&failure.reason), isRetryable = false,
                    "Job blocked; an operator decides");
            }
            Transition::DeadLetter { failure } => {
                self.env.metrics.dead(&job.lane);
                tracing::warn!(lane = %job.lane, jobId = %job.id, dlqId = %job.id, companyId = %job.tenant.company(), traceId = job.trace_id(), attempt,
                    labels = labels(job), errorCode = failure.code, errorReason = mask_text(&failure.reason), isRetryable = false,
                    "Job moved to the dead letters");
            }
            Transition::Dropped { failure } => {
                self.env.metrics.dropped(&job.lane, "failed");
                tracing::warn!(lane = %job.lane, jobId = %job.id, companyId = %job.tenant.company(), traceId = job.trace_id(), attempt,
                    priority = job.priority.as_str(), errorCode = failure.code, errorReason = mask_text(&failure.reason),
                    isRetryable = false, "Job dropped");
            }
        }
    }
}

/// What a job's own destination says of answers comes before what its lane says.
fn with_rules(policy: &LanePolicy, own: Vec<Rule>) -> Cow<'_, LanePolicy> {
    match own.is_empty() {
        true => Cow::Borrowed(policy),
        false => Cow::Owned(LanePolicy { rules: [own, policy.rules.clone()].concat(), ..policy.clone() }),
    }
}

/// `runId=4711 source=erp`: a log line has no nested fields. An external id may be an address.
fn labels(job: &Job) -> String {
    mask_text(&job.labels.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>().join(" "))
}

/// A destination that wants a slower pace without saying how slow holds the lane for as long as the job waits: longer
/// each time the same job meets it.
fn lesson(outcome: &Outcome, transition: &Transition, now: Time) -> Lesson {
    match (outcome, outcome.lesson(), transition) {
        (Outcome::Mail(_), Lesson::Slower(None), Transition::Retry { at, .. }) => Lesson::Slower(Some(at.since(now))),
        (_, lesson, _) => lesson,
    }
}

/// What is kept of an outcome.
#[derive(Default)]
struct Recorded {
    /// Of a delivered call, its answer; of an event, itself.
    answer: Option<KeptAnswer>,
    /// Of a mail, what came of it for each recipient.
    mail: Option<Box<Mailed>>,
    /// What follows from it.
    causes: Vec<Job>,
}

fn recorded(outcome: Outcome, transition: &Transition) -> Recorded {
    match outcome {
        Outcome::Answer(answer) if *transition == Transition::Done => {
            Recorded { answer: Some(answer.into()), ..Recorded::default() }
        }
        Outcome::Cached(cached) => {
            let Cached { answer, source, age, instead_of } = *cached;
            let motivo = instead_of.as_ref().map(|failure| failure.motive().to_owned());
            let cache = Some(CacheMark { age_seconds: age.as_secs(), stale: motivo.is_some(), motivo });
            Recorded { answer: Some(KeptAnswer { cache, source, ..answer.into() }), ..Recorded::default() }
        }
        Outcome::Mail(mailed) => Recorded { mail: Some(mailed), ..Recorded::default() },
        Outcome::FanOut(FanOut { jobs, body }) => {
            let content_type = Some("application/json".to_owned());
            let answer =
                KeptAnswer { status: 200, content_type, body: Body(body), truncated: false, cache: None, source: None };
            Recorded { answer: Some(answer), causes: jobs, ..Recorded::default() }
        }
        Outcome::Answer(_) | Outcome::EndpointDisabled(_) | Outcome::Fault(_) => Recorded::default(),
    }
}
