//! Addresses that are not written to any more, and what came back about mails.
//! Invariant: a change is one script, so that nodes that make the same one at once make it once.
//!
//! A suppression is kept as the moment since when, its code, and all of it as JSON; the script carries the first moment
//! over without reading the rest. A notice is kept as the moment it is forgotten, what it is known by, and JSON.

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use redis::Value;
use sha2::{Digest as _, Sha256};

use super::answer::{Packed, Reader, micros};
use super::link::store_error;
use super::script::{Call, Verb};
use super::{RedisStore, Shared, schema};
use crate::store::mail::{comparable, note_overflow};
use crate::store::records::{BadRecord, decode_json, encode_json};
use crate::store::{FEEDBACK_FOR, FEEDBACK_MAX, Feedback, MailRegistry, Page, Paged, StoreError, Suppression};

/// The most addresses that one page brings.
const PAGE_MAX: usize = 1000;
/// What a notice begins with: the moment, and a hash of what it is known by.
const NOTICE_HEAD: usize = 8 + 32;
const READING: Reader = Reader("a look at what is known of mails");

impl Shared {
    /// A duty that makes no room and needs some.
    async fn mail(&self, duty: &str, arguments: impl FnOnce(Call) -> Call) -> Result<Value, StoreError> {
        self.mail_call(Verb::Mail, duty, arguments).await
    }

    /// A duty that a full server does as well.
    async fn mail_always(&self, duty: &str, arguments: impl FnOnce(Call) -> Call) -> Result<Value, StoreError> {
        self.mail_call(Verb::MailAlways, duty, arguments).await
    }

    async fn mail_call(
        &self,
        verb: Verb,
        duty: &str,
        arguments: impl FnOnce(Call) -> Call,
    ) -> Result<Value, StoreError> {
        let call = arguments(Call::without_lane(self, verb).arg(duty));
        call.make(self).await.map_err(|error| store_error(&error))
    }
}

fn pack_suppression(suppression: &Suppression) -> Vec<u8> {
    let (since, code) = (micros(suppression.since) as f64, suppression.code.as_str());
    [&since.to_be_bytes()[..], &[code.len() as u8], code.as_bytes(), &encode_json(suppression)].concat()
}

fn read_suppression(value: Value) -> Result<Option<Suppression>, StoreError> {
    let Some(bytes) = READING.bytes(value)? else { return Ok(None) };
    let mut fields = Packed(&bytes);
    let since = fields.moment().zip(fields.short_text()).map(|(since, _)| since);
    let since = since.ok_or_else(|| READING.wrong("a suppression is cut short"))?;
    let suppression: Suppression = decode_json(fields.0).map_err(|error| READING.wrong(error.to_string()))?;
    Ok(Some(Suppression { since, ..suppression }))
}

/// What a notice is known by; a hash has always the same length.
fn known_by(feedback: &Feedback) -> [u8; 32] {
    Sha256::new()
        .chain_update(Sha256::digest(&feedback.feedback_id))
        .chain_update(&feedback.recipient)
        .finalize()
        .into()
}

#[async_trait]
impl MailRegistry for RedisStore {
    async fn suppress(&self, suppression: Suppression) -> Result<(), StoreError> {
        let suppression = suppression.lower_cased();
        let [records, order] = schema::suppressed(&self.shared.options.prefix, &suppression.tenant);
        let record = pack_suppression(&suppression);
        let arguments = |call: Call| call.arg(records).arg(order).arg(&suppression.address).arg(record);
        self.shared.mail("suppress", arguments).await.map(drop)
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        let [records, order] = schema::suppressed(&self.shared.options.prefix, tenant);
        let arguments = |call: Call| call.arg(records).arg(order).arg(comparable(address));
        Ok(READING.number(&self.shared.mail_always("unsuppress", arguments).await?)? == 1)
    }

    async fn suppressed(
        &self,
        tenant: &TenantName,
        addresses: &[&str],
    ) -> Result<Vec<Option<Suppression>>, StoreError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let [records, _] = schema::suppressed(&self.shared.options.prefix, tenant);
        let mut get = redis::cmd("HMGET");
        get.arg(records);
        get.arg(addresses.iter().map(|address| comparable(address)).collect::<Vec<_>>());
        READING.rows(self.shared.link.ask(&get).await?)?.into_iter().map(read_suppression).collect()
    }

    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError> {
        let [records, order] = schema::suppressed(&self.shared.options.prefix, tenant);
        let limit = page.limit.min(PAGE_MAX);
        let after = page.after.unwrap_or_default();
        let arguments = |call: Call| call.arg(records).arg(order).arg(after).arg(limit + 1);
        let [addresses, records] = READING.fields(self.shared.mail_always("suppressions", arguments).await?)?;
        let mut addresses = READING.rows(addresses)?;
        let is_last = addresses.len() <= limit;
        addresses.truncate(limit);
        let records = READING.rows(records)?.into_iter().take(limit).map(read_suppression);
        let note = |error: &StoreError| self.shared.note_unreadable("suppression", error);
        let items = records.filter_map(|read| read.inspect_err(note).ok().flatten()).collect();
        let next = addresses.pop().filter(|_| !is_last).map(|last| READING.word(last)).transpose()?;
        Ok(Paged { items, next })
    }

    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError> {
        let key = schema::feedback(&self.shared.options.prefix, id);
        let (known_by, json) = (known_by(&feedback), encode_json(&feedback));
        let length = FEEDBACK_FOR.as_micros() as u64;
        let arguments = |call: Call| call.arg(key).arg(&known_by[..]).arg(json).arg(length).arg(FEEDBACK_MAX);
        if READING.word(self.shared.mail("note", arguments).await?)? == "full" {
            note_overflow(id);
        }
        Ok(())
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        let prefix = &self.shared.options.prefix;
        let keys = |call| ids.iter().fold(call, |call: Call, id| call.arg(schema::feedback(prefix, *id)));
        let rows = READING.rows(self.shared.mail_always("feedback", keys).await?)?;
        let note = |error: &BadRecord| self.shared.note_unreadable("feedback", error);
        let read = |row: Value| {
            let bytes = READING.bytes(row).ok().flatten().unwrap_or_default();
            let json = bytes.get(NOTICE_HEAD..).unwrap_or_default();
            decode_json::<Feedback>(json).inspect_err(note).ok()
        };
        rows.into_iter().map(|row| Ok(READING.rows(row)?.into_iter().filter_map(read).collect())).collect()
    }
}
