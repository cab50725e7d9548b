//! Intake: from what a caller wants to a job that is safe.
//! Invariant: whatever gets past here can be stored, shown and sent; a refusal names the field and the way out.
//! Never: answers before the store has said that the job is durable.

mod email;
mod proxy;
mod request;

use std::collections::BTreeMap;
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::job::{Job, Payload, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use sha2::{Digest as _, Sha256};

pub use self::email::{
    ATTACHMENTS_BYTES_MAX, ATTACHMENTS_MAX, AttachmentWish, EMAIL_BODY_BYTES_MAX, EmailWish, HEADERS_MAX,
    RECIPIENTS_MAX, SUBJECT_CHARS_MAX, check_email, check_mailbox,
};
pub use self::proxy::{NotAsked, Question};
pub use self::request::{BODY_BYTES_MAX, check_request};

use crate::engine::Engine;
use crate::store::{KeptAnswer, NewEntry, Once, StoreError, Submitted};

/// The label under which a mail's external id is carried into logs and dead letters.
pub const EXTERNAL_ID: &str = "externalId";
/// Labels per job.
pub const LABELS_MAX: usize = 16;
/// Bytes in a label's name, and four times as many in its text.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
const LABEL_TEXT_BYTES_MAX: usize = 256;
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// How long a submission with a key of its own is remembered, unless its key says otherwise.
pub const ONCE_FOR: Duration = Duration::from_hours(24);
/// The furthest a job may be put off, and the longest it may then wait.
pub const DELAY_MAX: Duration = Duration::from_hours(365 * 24);

/// What a caller wants sent.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// In which lane.
    pub lane: LaneName,
    /// How urgent.
    pub priority: Priority,
    /// What.
    pub payload: Payload,
    /// Free words carried along.
    pub labels: BTreeMap<String, String>,
    /// Dropped if it still waits after this; the lane's own if `None`.
    pub ttl: Option<Duration>,
    /// Not before this has passed.
    pub delay: Duration,
    /// Sent with every attempt.
    pub idempotency_key: Option<String>,
}

/// What makes a job one job however often it is handed in.
#[derive(Clone, Debug)]
pub struct OnceKey {
    /// The caller's key; a tenant's own.
    pub key: String,
    /// A hash of what was asked for.
    pub request: [u8; 32],
    /// How long it is remembered.
    pub lasts: Duration,
}

impl OnceKey {
    /// A key for what a request asks for, in its parts, if it keeps the rules.
    pub fn new(key: &str, request: &[&[u8]]) -> Result<OnceKey, Refusal> {
        if !is_key(key) {
            return Err(Refusal::invalid("Idempotency-Key", KEY_RULE));
        }
        let hash = request.iter().fold(Sha256::new(), Sha256::chain_update);
        Ok(OnceKey { key: key.to_owned(), request: hash.finalize().into(), lasts: ONCE_FOR })
    }

    /// The key of one part of the request.
    pub fn part(&self, number: usize) -> OnceKey {
        OnceKey { key: format!("{}#{number}", self.key), ..self.clone() }
    }
}

const KEY_RULE: &str = "use 1 to 255 visible ASCII characters";

fn is_key(key: &str) -> bool {
    (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A job that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its id.
    pub id: JobId,
    /// Whether it was taken before, under the same key.
    pub is_repeat: bool,
}

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Something about it is wrong.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which field.
        field: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The lane is full.
    #[error("lane '{lane}' is full: {capacity} jobs wait; try again in {} s", retry_after.as_secs())]
    Full {
        /// Which lane.
        lane: LaneName,
        /// How many may wait.
        capacity: u32,
        /// When to try again.
        retry_after: Duration,
    },
    /// The key was used for something else.
    #[error("Idempotency-Key: this key was used for another request; use a new key, or send the same request again")]
    KeyReused,
    /// Its new id names another job. Cannot happen: ids of one engine only count up.
    #[error("the new id {id} names another job already; send the job once more")]
    IdTaken {
        /// Which.
        id: JobId,
    },
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Refusal {
    /// A field that is wrong.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Refusal {
        Refusal::Invalid { field: field.into(), problem: problem.into() }
    }
}

/// When a caller who met a full lane should try again.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(1);

impl Engine {
    /// Takes jobs for a tenant in one durable write. Each gets its own answer: a bad one does not harm the others.
    pub async fn submit(&self, tenant: &TenantName, new: Vec<NewJob>) -> Vec<Result<JobId, Refusal>> {
        let taken = self.submit_once(tenant, new.into_iter().map(|wish| (wish, Vec::new())).collect()).await;
        taken.into_iter().map(|taken| taken.map(|taken| taken.id)).collect()
    }

    /// The same, where each job may have keys that make it one job however often it is handed in: the first that is
    /// known decides.
    pub async fn submit_once(
        &self,
        tenant: &TenantName,
        new: Vec<(NewJob, Vec<OnceKey>)>,
    ) -> Vec<Result<Taken, Refusal>> {
        self.take(tenant, new.into_iter().map(|(wish, once)| (wish, once, None)).collect()).await
    }

    /// The same, where the answer of a job may be known already: it is done as it is taken.
    async fn take(
        &self,
        tenant: &TenantName,
        new: Vec<(NewJob, Vec<OnceKey>, Option<KeptAnswer>)>,
    ) -> Vec<Result<Taken, Refusal>> {
        let started = self.clock.now();
        let mut answers: Vec<Option<Result<Taken, Refusal>>> = Vec::with_capacity(new.len());
        let mut jobs = Vec::with_capacity(new.len());
        for (wish, once, answer) in new {
            match self.name(tenant, wish) {
                Ok(job) => {
                    let remembered = |OnceKey { key, request, lasts }| Once { key, request, expires: started + lasts };
                    jobs.push(NewEntry { job, once: once.into_iter().map(remembered).collect(), answer });
                    answers.push(None);
                }
                Err(refusal) => answers.push(Some(Err(refusal))),
            }
        }
        let ids: Vec<_> = jobs.iter().map(|entry| (entry.job.id, entry.job.lane.clone())).collect();
        let stored = match jobs.is_empty() {
            true => Ok(Vec::new()),
            false => self.store.take(jobs).await,
        };
        let outcomes = self.outcomes(ids, stored);
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.metrics.intake(self.clock.now().since(started), accepted);
        let mut outcomes = outcomes.into_iter();
        answers.into_iter().map(|answer| answer.or_else(|| outcomes.next()).expect("one answer per job")).collect()
    }

    /// Checks a wish and makes it a job.
    fn name(&self, tenant: &TenantName, wish: NewJob) -> Result<Job, Refusal> {
        let policy = self.policy(&wish.lane)?;
        check(&wish)?;
        check_channel(&wish, &policy)?;
        if let Payload::Http(request) = &wish.payload {
            check_request(&self.filter, request)?;
        }
        let now = self.clock.now();
        let due_at = now + wish.delay;
        let ttl = lifetime(&wish, &policy);
        let id = match &wish.payload {
            Payload::Email(_) => self.chance.job_id(now).of_mail(),
            // Whoever knows the id of a public question may read its answer, so nobody must guess one.
            Payload::Proxy(_) => self.chance.secret_id(now),
            _ => self.chance.job_id(now),
        };
        Ok(Job {
            id,
            lane: wish.lane,
            tenant: tenant.clone(),
            priority: wish.priority,
            payload: wish.payload,
            labels: wish.labels,
            idempotency_key: wish.idempotency_key,
            accepted_at: now,
            due_at,
            expires_at: ttl.map(|ttl| due_at + ttl),
        })
    }

    /// Takes a job that the gateway made itself.
    pub async fn take_made(&self, job: Job) -> Result<(), Refusal> {
        let ids = vec![(job.id, job.lane.clone())];
        let stored = self.store.submit(vec![job]).await;
        self.outcomes(ids, stored).into_iter().try_for_each(|taken| taken.map(drop))
    }

    fn outcomes(
        &self,
        ids: Vec<(JobId, LaneName)>,
        stored: Result<Vec<Submitted>, StoreError>,
    ) -> Vec<Result<Taken, Refusal>> {
        let stored = match stored {
            Ok(stored) => stored,
            // One failed write refuses every job in it with the same reason.
            Err(error) => return ids.iter().map(|_| Err(Refusal::Store(error.clone()))).collect(),
        };
        let outcomes = ids.into_iter().zip(stored).map(|((id, lane), submitted)| match submitted {
            Submitted::Accepted { pushed_out } => {
                if let Some(left) = pushed_out {
                    self.metrics.dropped(&lane, "preempted");
                    tracing::warn!(lane = %lane, jobId = %left.id, companyId = %left.tenant,
                        priority = left.priority.as_str(), errorReason = "preempted", "Job dropped");
                }
                Ok(Taken { id, is_repeat: false })
            }
            Submitted::Repeated { id } => Ok(Taken { id, is_repeat: true }),
            Submitted::OtherRequest => Err(Refusal::KeyReused),
            Submitted::Full => {
                self.metrics.refused(&lane);
                let capacity = self.policy(&lane).map_or(0, |policy| policy.capacity);
                Err(Refusal::Full { lane, capacity, retry_after: RETRY_WHEN_FULL })
            }
            Submitted::Duplicate => Err(Refusal::IdTaken { id }),
            Submitted::Unsaved(error) => Err(Refusal::Store(error)),
        });
        outcomes.collect()
    }
}

fn lifetime(wish: &NewJob, policy: &LanePolicy) -> Option<Duration> {
    wish.ttl.or(policy.ttl)
}

/// A lane takes what its channel can send.
fn check_channel(wish: &NewJob, policy: &LanePolicy) -> Result<(), Refusal> {
    let lane = &wish.lane;
    match (&wish.payload, policy.channel.as_str()) {
        (Payload::Http(_), "email") => {
            Err(Refusal::invalid("lane", format!("'{lane}' takes mails; send one with POST /v1/email/send")))
        }
        (Payload::Http(_), "event" | "webhook") => {
            Err(Refusal::invalid("lane", format!("'{lane}' carries events that the gateway makes by itself")))
        }
        (Payload::Http(_), "proxy") => Err(Refusal::invalid(
            "lane",
            format!("'{lane}' takes questions; ask one with POST /v1/{}", lane.as_str().replacen(':', "/", 1)),
        )),
        (Payload::Email(_), channel) if channel != "email" => {
            Err(Refusal::invalid("lane", format!("'{lane}' does not take mails: its channel is '{}'", policy.channel)))
        }
        _ => Ok(()),
    }
}

fn check(wish: &NewJob) -> Result<(), Refusal> {
    if wish.ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(Refusal::invalid(
            "ttlMs",
            "0 would expire at once; leave it out for the lane's own, or give 1 or more",
        ));
    }
    for (field, length) in [("delayMs", Some(wish.delay)), ("ttlMs", wish.ttl)] {
        if length.is_some_and(|length| length > DELAY_MAX) {
            return Err(Refusal::invalid(field, "at most a year (31536000000)"));
        }
    }
    if wish.labels.len() > LABELS_MAX {
        return Err(Refusal::invalid("labels", format!("{} labels; at most {LABELS_MAX}", wish.labels.len())));
    }
    for (name, text) in &wish.labels {
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX || text.len() > LABEL_TEXT_BYTES_MAX {
            let limits = format!("names have 1 to {LABEL_NAME_BYTES_MAX} bytes, texts at most {LABEL_TEXT_BYTES_MAX}");
            return Err(Refusal::invalid(format!("labels.{}", name.chars().take(64).collect::<String>()), limits));
        }
    }
    match wish.idempotency_key.as_ref().is_none_or(|key| is_key(key)) {
        true => Ok(()),
        false => Err(Refusal::invalid("idempotencyKey", KEY_RULE)),
    }
}
