//! The records of a local store, table by table.
//!
//! | table | key | value |
//! |---|---|---|
//! | `jobs` | job id, 16 bytes | [`Job`] until it ends, then [`Ended`] for the retention time |
//! | `live` | job id | [`Live`], until it ends; read whole at start-up |
//! | `history` | job id | `Vec<Attempt>` of failed attempts, until it ends |
//! | `dead` | job id | [`DeadLetter`] as JSON, until TTL or cap |
//! | `registry` | `key/<id>` `tenant/<name>` `paused/<lane>` `replay/<id>` `format` | JSON |
//!
//! Invariant: a binary record begins with its version and kind. The end of a job takes the place of what it carried, so
//! that a body is not kept once it is delivered, and ending a job is two writes: this one, and one to leave the index. A dead letter and whatever an operator set up is JSON, because
//! it is rarely written and should be readable in twenty years.

use std::collections::BTreeMap;

use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Payload, Priority};
use entrega_core::lane::Waiting;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disk::{Disk, DiskError, Key, Table};
use crate::store::{JobView, KeptAnswer};

/// Version 1 of every binary record but [`Ended`].
const VERSION: u8 = 1;
/// Version 1 of [`Ended`], which stands in the same table as [`Job`].
const ENDED_VERSION: u8 = 2;

/// The index entry of a job that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Live {
    pub(super) lane: LaneName,
    pub(super) tenant: TenantName,
    pub(super) priority: Priority,
    pub(super) due: Time,
    pub(super) expires: Time,
    pub(super) attempt: u16,
    pub(super) generation: u8,
    /// Why it waits for an operator, if it does.
    pub(super) blocked: Option<String>,
    /// Whether it has a history although its attempts count anew.
    pub(super) unblocked: bool,
}

impl Live {
    pub(super) fn of(job: &Job) -> Live {
        Live {
            lane: job.lane.clone(),
            tenant: job.tenant.clone(),
            priority: job.priority,
            due: job.due_at,
            expires: job.expires_at.unwrap_or(Time::NEVER),
            attempt: 0,
            generation: 0,
            blocked: None,
            unblocked: false,
        }
    }

    pub(super) fn waiting(&self, id: JobId) -> Waiting {
        Waiting {
            id,
            tenant: self.tenant.clone(),
            priority: self.priority,
            due: self.due,
            expires: self.expires,
            attempt: self.attempt,
            generation: self.generation,
        }
    }
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
}

impl Ended {
    pub(super) fn of(job: Job, state: JobState, now: Time, generation: u8) -> Ended {
        Ended {
            destination: destination(&job),
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
        }
    }

    /// The end of a job whose record cannot be read: what its index entry knows.
    pub(super) fn of_unreadable(id: JobId, live: Live, state: JobState, now: Time) -> Ended {
        Ended {
            lane: live.lane,
            tenant: live.tenant,
            priority: live.priority,
            state,
            reason: None,
            destination: None,
            labels: BTreeMap::new(),
            accepted_at: id.made_at(),
            ended_at: now,
            generation: live.generation,
            attempts: Vec::new(),
            answer: None,
        }
    }

    pub(super) fn view(self, id: JobId) -> JobView {
        JobView {
            job_id: id,
            lane: self.lane,
            company_id: self.tenant,
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
            result: self.answer,
        }
    }
}

pub(super) fn destination(job: &Job) -> Option<String> {
    match &job.payload {
        Payload::Http(request) => Some(format!("{} {}", request.method, request.url)),
        Payload::Opaque(_) => None,
    }
}

/// A dead letter as a job.
pub(super) fn view_of_dead(dead: DeadLetter) -> JobView {
    let state = match dead.status {
        entrega_core::dead_letter::DeadLetterStatus::Replayed => JobState::Done,
        _ => JobState::Dlq,
    };
    JobView {
        job_id: dead.job_id,
        destination: destination(&dead.original_data),
        lane: dead.lane,
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

/// A job's record, in one allocation of about the right size.
pub(super) fn encode_job(job: &Job) -> Vec<u8> {
    let carried = match &job.payload {
        Payload::Http(request) => request.url.len() + request.body.0.len(),
        Payload::Opaque(body) => body.0.len(),
    };
    encode_into(job, Vec::with_capacity(256 + carried))
}

/// A binary record. Encoding plain data into memory cannot fail.
pub(super) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    encode_into(record, Vec::with_capacity(192))
}

fn encode_into<T: Serialize>(record: &T, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.push(VERSION);
    postcard::to_extend(record, bytes).expect("plain data encodes")
}

pub(super) fn decode<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, DiskError> {
    let unreadable = |reason: String| DiskError::Record { table: table.name(), reason };
    match bytes.split_first() {
        Some((&VERSION, rest)) => postcard::from_bytes(rest).map_err(|error| unreadable(error.to_string())),
        Some((version, _)) => Err(unreadable(format!("version {version}, this program knows {VERSION}"))),
        None => Err(unreadable("empty".into())),
    }
}

/// Whatever is kept as JSON.
pub(super) fn encode_json<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("plain data encodes")
}

pub(super) fn decode_json<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, DiskError> {
    serde_json::from_slice(bytes).map_err(|error| DiskError::Record { table: table.name(), reason: error.to_string() })
}

pub(super) fn id_key(id: JobId) -> Key {
    Key::Id(*id.as_bytes())
}

/// Reads and decodes one record.
pub(super) fn load<T>(
    disk: &dyn Disk,
    table: Table,
    key: &[u8],
    decode: fn(Table, &[u8]) -> Result<T, DiskError>,
) -> Result<Option<T>, DiskError> {
    let mut found = None;
    disk.read(table, key, &mut |bytes| found = Some(decode(table, bytes)))?;
    found.transpose()
}

/// A record of the table `jobs`, whichever it is.
pub(super) enum Stored {
    Job(Job),
    Ended(Ended),
}

pub(super) fn encode_ended(ended: &Ended) -> Vec<u8> {
    let mut bytes = encode(ended);
    bytes[0] = ENDED_VERSION;
    bytes
}

/// Whether a record of the table `jobs` is the end of one; looking at one byte is cheaper than decoding.
pub(super) fn is_ended(bytes: &[u8]) -> bool {
    bytes.first() == Some(&ENDED_VERSION)
}

pub(super) fn decode_ended(table: Table, bytes: &[u8]) -> Result<Ended, DiskError> {
    let rest = bytes.get(1..).unwrap_or_default();
    postcard::from_bytes(rest).map_err(|error| DiskError::Record { table: table.name(), reason: error.to_string() })
}

fn decode_stored(table: Table, bytes: &[u8]) -> Result<Stored, DiskError> {
    match is_ended(bytes) {
        true => decode_ended(table, bytes).map(Stored::Ended),
        false => decode(table, bytes).map(Stored::Job),
    }
}

/// A record of the table `jobs` that must not be an end.
pub(super) fn decode_job(bytes: &[u8]) -> Result<Job, DiskError> {
    decode(Table::Jobs, bytes)
}

pub(super) fn load_stored(disk: &dyn Disk, id: JobId) -> Result<Option<Stored>, DiskError> {
    load(disk, Table::Jobs, id.as_bytes(), decode_stored)
}

pub(super) fn load_job(disk: &dyn Disk, id: JobId) -> Result<Option<Job>, DiskError> {
    Ok(match load_stored(disk, id)? {
        Some(Stored::Job(job)) => Some(job),
        Some(Stored::Ended(_)) | None => None,
    })
}

pub(super) fn load_live(disk: &dyn Disk, id: JobId) -> Result<Option<Live>, DiskError> {
    load(disk, Table::Live, id.as_bytes(), decode)
}

pub(super) fn load_history(disk: &dyn Disk, id: JobId) -> Result<Vec<Attempt>, DiskError> {
    Ok(load(disk, Table::History, id.as_bytes(), decode)?.unwrap_or_default())
}

pub(super) fn load_dead(disk: &dyn Disk, id: JobId) -> Result<Option<DeadLetter>, DiskError> {
    load(disk, Table::Dead, id.as_bytes(), decode_json)
}
