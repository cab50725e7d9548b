//! The records of a local store, table by table.
//!
//! | table | key | value |
//! |---|---|---|
//! | `jobs` | job id, 16 bytes | [`Job`] until it ends, what it carries last; then [`Ended`] for the retention time |
//! | `live` | lane, job id | [`Live`], until it ends; read whole when the lane is loaded |
//! | `history` | job id | `Vec<Attempt>` of failed attempts, until it ends |
//! | `dead` | job id | [`DeadLetter`] as JSON, until TTL or cap |
//! | `registry` | `key/<id>` `tenant/<name>` `senders/<tenant>` `clock` `paused/<lane>` `replay/<id>` `endpoint/<tenant>/<name>` `connector/<id>` `lane/<name>` `format` | JSON |
//! | `registry` | `starts/<lane>` | [`Starts`](entrega_core::lane::Starts): always, where nodes share the ledger, else from an orderly stop to the next start |
//! | `idempotency` | `key/<tenant>/<key>` | [`IdempotencyRecord`] of a job, or of a request that is answered itself, until it expires |
//! | `idempotency` | `expiry/<moment>/…` | nothing; what a sweep looks for |
//! | `mail` | `suppressed/<tenant>/<address>` | [`Suppression`](crate::store::Suppression) as JSON |
//! | `mail` | `feedback/<job id>` | [`Noted`] as JSON, until it expires |
//! | `mail` | `expiry/<moment>/feedback/<job id>` | nothing; what a sweep looks for |
//! | `marks` | `<lane>/<moment>/<job id>` | what is known of a dead letter without reading it |
//! | `orders` | `<moment>/<order>` | the answer to an order of another node |
//! | `figures` | `<lane>` | how a lane stands, as its owner shows it |
//! | `calls` | `gate/<name>` | [`GateMemory`](entrega_core::lane::GateMemory) |
//! | `calls` | `answer/<key>` `call/<key>` | [`CallRow`] of an upstream's answer, and of who makes a call |
//!
//! Invariant: the end of a job takes the place of what it carried, so that ending a job is two writes: this one, and one
//! to leave the index.

use bytes::Bytes;
use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Priority};
use entrega_core::lane::Waiting;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use entrega_ledger::{Key, Ledger, Table};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::reading::{ReadError, load};
pub(super) use super::tables::id_key;
use super::tables::{DEAD, HISTORY, IDEMPOTENCY, JOBS, LIVE};
use crate::store::Feedback;
use crate::store::records::{self, BadRecord};
pub(super) use crate::store::records::{
    Ended, carried_bytes, carry_on, dead_letter, encode, encode_ended, encode_job, encode_json, is_ended, view_of_dead,
};

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
    /// What the job carries.
    pub(super) bytes: u32,
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
            bytes: u32::try_from(carried_bytes(job)).unwrap_or(u32::MAX),
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
            bytes: self.bytes,
        }
    }
}

/// A submission, or a request, that must not happen twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IdempotencyRecord {
    pub(super) request: [u8; 32],
    pub(super) id: JobId,
    pub(super) expires: Time,
    /// Of a request that makes no job: how it stands.
    pub(super) state: Option<RecordState>,
}

/// How a request stands that makes no job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RecordState {
    /// Somebody makes it, until this moment at the latest.
    Running(Time),
    /// This was answered.
    Answered(Vec<u8>),
}

/// What a submission, or a request that makes no job, is remembered by: one key means one request, of whichever kind.
pub(super) fn submission_key(tenant: &TenantName, key: &str) -> String {
    format!("key/{tenant}/{key}")
}

/// Sorts by when a record is forgotten; the name after the moment is that of the record.
pub(super) fn expiry_key(expires: Time, key: &str) -> String {
    format!("{EXPIRY}{:020}/{key}", expires.as_micros())
}

/// What the rows begin with that say when a record is forgotten.
pub(super) const EXPIRY: &str = "expiry/";

/// The record that such a row stands for, and when it is forgotten.
pub(super) fn expired_key(row: &[u8]) -> Option<(Time, &str)> {
    let (moment, key) = std::str::from_utf8(row).ok()?.strip_prefix(EXPIRY)?.split_once('/')?;
    Some((Time::from_micros(moment.parse().ok()?), key))
}

/// What nodes that share the ledger share of calls, until it expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallRow<T> {
    pub(super) expires: Time,
    pub(super) value: T,
}

/// What came back about a mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) expires: Time,
    pub(super) feedback: Vec<Feedback>,
}

/// Where a suppression is kept; with an empty address, what those of a tenant begin with.
pub(super) fn suppressed_key(tenant: &TenantName, address: &str) -> String {
    format!("suppressed/{tenant}/{address}")
}

pub(super) fn feedback_key(id: JobId) -> String {
    format!("feedback/{id}")
}

pub(super) async fn load_idempotency(
    ledger: &dyn Ledger,
    submission_key: &str,
) -> Result<Option<IdempotencyRecord>, ReadError> {
    load(ledger, IDEMPOTENCY, Key::Text(submission_key.to_owned()), decode).await
}

/// The end of a job whose record cannot be read: what its index entry knows.
pub(super) fn end_of_unreadable(id: JobId, live: Live, state: JobState, now: Time) -> Ended {
    Ended {
        lane: live.lane,
        tenant: live.tenant,
        priority: live.priority,
        state,
        reason: None,
        destination: None,
        labels: std::collections::BTreeMap::new(),
        accepted_at: id.made_at(),
        ended_at: now,
        generation: live.generation,
        attempts: Vec::new(),
        answer: None,
        source: None,
    }
}

fn unreadable(table: Table) -> impl Fn(BadRecord) -> ReadError {
    move |error| ReadError::Record { table: table.name, reason: error.to_string() }
}

pub(super) fn decode<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, ReadError> {
    records::decode(bytes).map_err(unreadable(table))
}

pub(super) fn decode_json<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, ReadError> {
    records::decode_json(bytes).map_err(unreadable(table))
}

/// A record of the table `jobs`, whichever it is.
pub(super) enum Stored {
    Job(Job),
    Ended(Ended),
}

pub(super) fn decode_ended(table: Table, bytes: &[u8]) -> Result<Ended, ReadError> {
    records::decode_ended(bytes).map_err(unreadable(table))
}

pub(super) fn decode_stored(bytes: &Bytes) -> Result<Stored, ReadError> {
    match is_ended(bytes) {
        true => decode_ended(JOBS, bytes).map(Stored::Ended),
        false => decode_job(bytes).map(Stored::Job),
    }
}

/// A record of the table `jobs` that must not be an end.
pub(super) fn decode_job(bytes: &Bytes) -> Result<Job, ReadError> {
    records::decode_job(bytes).map_err(unreadable(JOBS))
}

pub(super) async fn load_stored(ledger: &dyn Ledger, id: JobId) -> Result<Option<Stored>, ReadError> {
    let found = ledger.read(JOBS, &[id_key(id)]).await?.pop().flatten();
    found.map(|bytes| decode_stored(&bytes)).transpose()
}

pub(super) async fn load_job(ledger: &dyn Ledger, id: JobId) -> Result<Option<Job>, ReadError> {
    Ok(match load_stored(ledger, id).await? {
        Some(Stored::Job(job)) => Some(job),
        Some(Stored::Ended(_)) | None => None,
    })
}

pub(super) async fn load_live(ledger: &dyn Ledger, live_key: Key) -> Result<Option<Live>, ReadError> {
    load(ledger, LIVE, live_key, decode).await
}

pub(super) async fn load_history(ledger: &dyn Ledger, id: JobId) -> Result<Vec<Attempt>, ReadError> {
    Ok(load(ledger, HISTORY, id_key(id), decode).await?.unwrap_or_default())
}

pub(super) async fn load_dead(ledger: &dyn Ledger, id: JobId) -> Result<Option<DeadLetter>, ReadError> {
    load(ledger, DEAD, id_key(id), decode_json).await
}

/// A row as whoever looks at a ledger from outside understands it: a simulation, or a tool.
#[derive(Clone, Debug)]
pub enum Record {
    /// A job that has not ended.
    Job(Box<Job>),
    /// What is known of a job that ended.
    Ended {
        /// How.
        state: JobState,
        /// Why, where that needs saying.
        reason: Option<String>,
        /// Replays that there had been.
        generation: u8,
        /// Its attempts.
        attempts: Vec<Attempt>,
    },
    /// Where a job stands that has not ended.
    Live {
        /// Not before this.
        due: Time,
        /// Attempts so far.
        attempt: u16,
        /// Replays so far.
        generation: u8,
        /// Why it waits for an operator, if it does.
        blocked: Option<String>,
    },
    /// Its attempts so far.
    History(Vec<Attempt>),
    /// A dead letter.
    Dead(Box<DeadLetter>),
    /// Anything else.
    Other,
}

impl Record {
    /// What a value of a table says.
    pub fn of(table: Table, value: &[u8]) -> Result<Record, ReadError> {
        Ok(match table {
            JOBS => match decode_stored(&Bytes::copy_from_slice(value))? {
                Stored::Job(job) => Record::Job(Box::new(job)),
                Stored::Ended(Ended { state, reason, generation, attempts, .. }) => {
                    Record::Ended { state, reason, generation, attempts }
                }
            },
            LIVE => {
                let Live { due, attempt, generation, blocked, .. } = decode(table, value)?;
                Record::Live { due, attempt, generation, blocked }
            }
            HISTORY => Record::History(decode(table, value)?),
            DEAD => Record::Dead(Box::new(decode_json(table, value)?)),
            _ => Record::Other,
        })
    }
}
