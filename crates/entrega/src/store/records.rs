//! The records that every store keeps of a job: what it carries until it ends, what is known of it after.
//! Invariant: a binary record begins with its version. The body of a job is not kept once it has ended: it was
//! delivered, or it is in the dead letter. A dead letter, and whatever an operator set up, is JSON: rarely written, and
//! to be readable in twenty years.
//! Never: knows where records are kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use entrega_core::body::Body;
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::decide::Failure;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Earlier, Job, JobState, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::AnswerSource;
use entrega_core::payload::Payload;
use entrega_core::policy::DeadLetterPolicy;
use entrega_core::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{JobView, KeptAnswer};

/// Version 1 of every binary record but those of jobs.
const VERSION: u8 = 1;
/// Version 1 of [`Ended`], which stands in the same place as a [`JobHead`].
const ENDED_VERSION: u8 = 2;
/// Version 1 of [`JobHead`].
const JOB_VERSION: u8 = 3;

/// A record that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadRecord {
    #[error("{0}")]
    Binary(#[from] postcard::Error),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("version {found}, this program knows {known}")]
    Version { found: u8, known: u8 },
    #[error("it carries {found} bytes, and was written with {written}")]
    Cut { found: usize, written: usize },
    #[error("no product can be called {0}")]
    Kind(String),
    #[error("empty")]
    Empty,
}

/// What is known of a job that ended. The body is gone by then: it was delivered, or it is in the dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) lane: LaneName,
    pub(super) tenant: TenantName,
    pub(super) priority: Priority,
    pub(super) state: JobState,
    pub(super) reason: Option<String>,
    pub(super) destination: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) accepted_at: Time,
    pub(super) ended_at: Time,
    pub(super) generation: u8,
    pub(super) attempts: Vec<Attempt>,
    pub(super) answer: Option<KeptAnswer>,
    /// Where the body of the answer is, if it is another job's: it is not kept twice.
    pub(super) source: Option<AnswerSource>,
}

impl Ended {
    pub(super) fn of(job: Job, state: JobState, now: Time, generation: u8) -> Ended {
        Ended {
            destination: job.destination,
            lane: job.lane,
            tenant: job.tenant,
            priority: job.priority,
            state,
            reason: None,
            labels: job.labels,
            accepted_at: job.accepted_at,
            ended_at: now,
            generation,
            attempts: Vec::new(),
            answer: None,
            source: None,
        }
    }

    /// The same with an answer; the body of one that is another job's stays where it is.
    pub(super) fn with_answer(self, answer: Option<KeptAnswer>) -> Ended {
        let source = answer.as_ref().and_then(|answer| answer.source.clone());
        let answer = answer.map(|answer| match source {
            Some(_) => KeptAnswer { body: Body::default(), ..answer },
            None => answer,
        });
        Ended { answer, source, ..self }
    }

    /// The end of a job whose answer was known when it was taken.
    pub(super) fn answered(job: Job, answer: KeptAnswer) -> Ended {
        let taken_at = job.accepted_at;
        Ended::of(job, JobState::Done, taken_at, 0).with_answer(Some(answer))
    }

    /// As it is shown; the body of an answer that is another job's is missing from it.
    pub(super) fn view(self, id: JobId) -> JobView {
        let source = self.source;
        JobView {
            job_id: id,
            lane: self.lane,
            endpoint: self.tenant.endpoint_name().map(str::to_owned),
            company_id: self.tenant.company(),
            priority: self.priority,
            state: self.state,
            reason: self.reason,
            destination: self.destination,
            labels: self.labels,
            accepted_at: self.accepted_at,
            due_at: None,
            expires_at: None,
            ended_at: Some(self.ended_at),
            generation: self.generation,
            attempts: self.attempts,
            result: self.answer.map(|answer| KeptAnswer { source, ..answer }),
        }
    }
}

/// A dead letter as a job.
pub(super) fn view_of_dead(dead: DeadLetter) -> JobView {
    let state = match dead.status {
        DeadLetterStatus::Replayed => JobState::Done,
        _ => JobState::Dlq,
    };
    JobView {
        job_id: dead.job_id,
        destination: dead.original_data.destination,
        lane: dead.lane,
        endpoint: dead.original_data.tenant.endpoint_name().map(str::to_owned),
        company_id: dead.company_id,
        priority: dead.original_data.priority,
        state,
        reason: Some(dead.last_failure_reason),
        labels: dead.original_data.labels,
        accepted_at: dead.enqueued_at,
        due_at: None,
        expires_at: None,
        ended_at: Some(dead.moved_to_dlq_at),
        generation: dead.generation,
        attempts: dead.attempts,
        result: None,
    }
}

/// The entry of a job that gave up.
pub(super) fn dead_letter(
    job: Job,
    generation: u8,
    attempts: Vec<Attempt>,
    failure: Failure,
    policy: &DeadLetterPolicy,
    now: Time,
) -> DeadLetter {
    // Whole milliseconds, as the record says it: a replay that goes on after a restart must find the same order.
    let now = Time::from_millis(now.as_millis());
    // For whoever reads the entry of a mail; a replay looks again, at all attempts there were.
    let is_mail = attempts.iter().any(|attempt| attempt.mail.is_some());
    let job = Job { earlier: if is_mail { Earlier::of(&attempts) } else { job.earlier.clone() }, ..job };
    DeadLetter {
        job_id: job.id,
        outbox_id: job.id.is_mail().then_some(job.id),
        company_id: job.tenant.company(),
        lane: job.lane.clone(),
        enqueued_at: job.accepted_at,
        original_data: job,
        failed_attempts: attempts.len() as u32,
        last_failure_reason: failure.reason,
        last_failure_code: Some(failure.code),
        last_failure_timestamp: now,
        moved_to_dlq_at: now,
        ttl: u64::try_from(policy.ttl.as_millis()).unwrap_or(u64::MAX),
        status: DeadLetterStatus::Pending,
        attempts,
        generation,
        discard_reason: None,
    }
}

/// An entry that came back carries its earlier attempts along.
pub(super) fn carry_on(dead: &mut DeadLetter, earlier: DeadLetter) {
    dead.failed_attempts += earlier.failed_attempts;
    dead.attempts.splice(0..0, earlier.attempts);
}

/// About how much a job carries.
pub(super) fn carried_bytes(job: &Job) -> usize {
    job.payload.bytes().len()
}

/// A job without what it carries. That follows in the record as it is, so that it is sent out of the record without being
/// copied.
#[derive(Serialize, Deserialize)]
struct JobHead<'a> {
    id: JobId,
    lane: Cow<'a, LaneName>,
    tenant: Cow<'a, TenantName>,
    priority: Priority,
    kind: &'a str,
    carried_bytes: usize,
    destination: Cow<'a, Option<String>>,
    earlier: Cow<'a, Earlier>,
    labels: Cow<'a, BTreeMap<String, String>>,
    idempotency_key: Cow<'a, Option<String>>,
    accepted_at: Time,
    due_at: Time,
    expires_at: Option<Time>,
}

/// A job's record, in one allocation of about the right size.
pub(super) fn encode_job(job: &Job) -> Vec<u8> {
    let head = JobHead {
        id: job.id,
        lane: Cow::Borrowed(&job.lane),
        tenant: Cow::Borrowed(&job.tenant),
        priority: job.priority,
        kind: job.payload.kind(),
        carried_bytes: carried_bytes(job),
        destination: Cow::Borrowed(&job.destination),
        earlier: Cow::Borrowed(&job.earlier),
        labels: Cow::Borrowed(&job.labels),
        idempotency_key: Cow::Borrowed(&job.idempotency_key),
        accepted_at: job.accepted_at,
        due_at: job.due_at,
        expires_at: job.expires_at,
    };
    let mut bytes = encode_into(JOB_VERSION, &head, Vec::with_capacity(256 + carried_bytes(job)));
    bytes.extend_from_slice(job.payload.bytes());
    bytes
}

/// The job of a record. What it carries is a part of the record's own bytes.
pub(super) fn decode_job(record: &Bytes) -> Result<Job, BadRecord> {
    let (head, carried) = postcard::take_from_bytes::<JobHead<'_>>(versioned(JOB_VERSION, record)?)?;
    if carried.len() != head.carried_bytes {
        return Err(BadRecord::Cut { found: carried.len(), written: head.carried_bytes });
    }
    let payload = Payload::kept(head.kind, record.slice_ref(carried));
    Ok(Job {
        payload: payload.ok_or_else(|| BadRecord::Kind(head.kind.to_owned()))?,
        id: head.id,
        lane: head.lane.into_owned(),
        tenant: head.tenant.into_owned(),
        priority: head.priority,
        destination: head.destination.into_owned(),
        earlier: head.earlier.into_owned(),
        labels: head.labels.into_owned(),
        idempotency_key: head.idempotency_key.into_owned(),
        accepted_at: head.accepted_at,
        due_at: head.due_at,
        expires_at: head.expires_at,
    })
}

/// A binary record. Encoding plain data into memory cannot fail.
pub(super) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    encode_into(VERSION, record, Vec::with_capacity(192))
}

fn encode_into<T: Serialize>(version: u8, record: &T, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(version);
    postcard::to_extend(record, bytes).expect("plain data encodes")
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadRecord> {
    Ok(postcard::from_bytes(versioned(VERSION, bytes)?)?)
}

/// What follows the version.
fn versioned(known: u8, bytes: &[u8]) -> Result<&[u8], BadRecord> {
    match bytes.split_first() {
        Some((&found, rest)) if found == known => Ok(rest),
        Some((&found, _)) => Err(BadRecord::Version { found, known }),
        None => Err(BadRecord::Empty),
    }
}

/// Whatever is kept as JSON.
pub(super) fn encode_json<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("plain data encodes")
}

pub(super) fn decode_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadRecord> {
    Ok(serde_json::from_slice(bytes)?)
}

pub(super) fn encode_ended(ended: &Ended) -> Vec<u8> {
    encode_into(ENDED_VERSION, ended, Vec::with_capacity(192))
}

/// Whether a record is the end of a job; looking at one byte is cheaper than decoding.
pub(super) fn is_ended(bytes: &[u8]) -> bool {
    bytes.first() == Some(&ENDED_VERSION)
}

pub(super) fn decode_ended(bytes: &[u8]) -> Result<Ended, BadRecord> {
    Ok(postcard::from_bytes(versioned(ENDED_VERSION, bytes)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let now = Time::from_millis(1_000);
        Job {
            id: JobId::from_bytes([7; 16]),
            lane: LaneName::new("http").unwrap(),
            tenant: TenantName::new("acme").unwrap(),
            priority: Priority::High,
            payload: Payload::opaque(&b"what is carried"[..]),
            destination: Some("POST https://example.com/".into()),
            earlier: Earlier { attempts: 2, accepted: vec!["ann@example.com".into()] },
            labels: [("runId".to_owned(), "4711".to_owned())].into(),
            idempotency_key: Some("order-17".into()),
            accepted_at: now,
            due_at: now,
            expires_at: Some(Time::from_millis(2_000)),
        }
    }

    #[test]
    fn a_job_reads_back_and_carries_the_bytes_of_its_record() {
        let record = Bytes::from(encode_job(&job()));
        let read = decode_job(&record).unwrap();
        assert_eq!(read, job());
        let carried = read.payload.bytes();
        assert!(record.as_ptr_range().contains(&carried.as_ptr()), "it was copied");
    }

    /// What a job carries stands last in its record, and nothing else says where it ends.
    #[test]
    fn a_record_that_was_cut_is_not_taken_for_a_job_that_carries_less() {
        let record = Bytes::from(encode_job(&job()));
        for length in 0..record.len() {
            assert!(decode_job(&record.slice(..length)).is_err(), "{length} of {} bytes", record.len());
        }
        let longer = Bytes::from([&record[..], b"!"].concat());
        assert!(decode_job(&longer).is_err());
    }
}
