//! The records of a local store, table by table.
//!
//! | table | key | value |
//! |---|---|---|
//! | `jobs` | job id, 16 bytes | [`Job`] until it ends, then [`Ended`] for the retention time |
//! | `live` | job id | [`Live`], until it ends; read whole at start-up |
//! | `history` | job id | `Vec<Attempt>` of failed attempts, until it ends |
//! | `dead` | job id | [`DeadLetter`] as JSON, until TTL or cap |
//! | `registry` | `key/<id>` `tenant/<name>` `paused/<lane>` `replay/<id>` `endpoint/<tenant>/<name>` `connector/<id>` `format` | JSON |
//! | `registry` | `starts/<lane>` | [`Starts`](entrega_core::lane::Starts), from an orderly stop to the next start |
//! | `once` | `key/<tenant>/<key>` | [`Kept`], until it expires |
//! | `once` | `request/<tenant>/<key>` | [`Kept`] of a request that is answered itself, until it expires |
//! | `once` | `expiry/<moment>/…` | nothing; what a sweep looks for |
//! | `mail` | `suppressed/<tenant>/<address>` | [`Suppression`](crate::store::Suppression) as JSON |
//! | `mail` | `feedback/<job id>` | [`Noted`] as JSON, until it expires |
//! | `mail` | `expiry/<moment>/feedback/<job id>` | nothing; what a sweep looks for |
//!
//! Invariant: the end of a job takes the place of what it carried, so that ending a job is two writes: this one, and one
//! to leave the index.

use entrega_core::dead_letter::DeadLetter;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job, JobState, Priority};
use entrega_core::lane::Waiting;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::disk::{Disk, DiskError, Key, Table};
use crate::store::Feedback;
use crate::store::records::{self, BadRecord};
pub(super) use crate::store::records::{
    Ended, carried_bytes, carry_on, dead_letter, destination, encode, encode_ended, encode_job, encode_json, is_ended,
    view_of_dead,
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

/// A submission that must not happen twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) request: [u8; 32],
    pub(super) id: JobId,
    pub(super) expires: Time,
    /// Of a request that makes no job: how it stands.
    pub(super) stands: Option<Standing>,
}

/// How a request stands that makes no job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Standing {
    /// Somebody makes it, until this moment at the latest.
    Running(Time),
    /// This was answered.
    Answered(Vec<u8>),
}

/// What a request that makes no job is remembered by.
pub(super) fn request_key(tenant: &TenantName, key: &str) -> String {
    format!("request/{tenant}/{key}")
}

/// What a submission is remembered by.
pub(super) fn once_key(tenant: &TenantName, key: &str) -> String {
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

pub(super) fn load_kept(disk: &dyn Disk, once_key: &str) -> Result<Option<Kept>, DiskError> {
    load(disk, Table::Once, once_key.as_bytes(), decode)
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
    }
}

fn unreadable(table: Table) -> impl Fn(BadRecord) -> DiskError {
    move |error| DiskError::Record { table: table.name(), reason: error.to_string() }
}

pub(super) fn decode<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, DiskError> {
    records::decode(bytes).map_err(unreadable(table))
}

pub(super) fn decode_json<T: DeserializeOwned>(table: Table, bytes: &[u8]) -> Result<T, DiskError> {
    records::decode_json(bytes).map_err(unreadable(table))
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

pub(super) fn decode_ended(table: Table, bytes: &[u8]) -> Result<Ended, DiskError> {
    records::decode_ended(bytes).map_err(unreadable(table))
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
