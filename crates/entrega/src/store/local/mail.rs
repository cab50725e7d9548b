//! Addresses that are not written to any more, and what came back about mails.
//! Invariant: each change is one durable write, made on what was read; nothing of it is held in memory.

use std::ops::ControlFlow;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};
use serde::de::DeserializeOwned;

use super::changes::Decided;
use super::reading::{self, From, ReadError, visit};
use super::records::{self, Noted};
use super::tables::MAIL;
use super::{LocalStore, Shared};
use crate::store::mail::{comparable, note_overflow};
use crate::store::{FEEDBACK_FOR, FEEDBACK_MAX, Feedback, MailRegistry, Page, Paged, StoreError, Suppression};

async fn load<T: DeserializeOwned>(shared: &Shared, key: &str) -> Result<Option<T>, ReadError> {
    reading::load(&*shared.ledger, MAIL, Key::Text(key.to_owned()), records::decode_json).await
}

impl Shared {
    /// What is kept and about to change; a record that cannot be read is replaced.
    fn to_replace<T: DeserializeOwned>(&self, key: &str, found: Option<&Bytes>) -> Result<Option<T>, ReadError> {
        let decoded = found.map(|bytes| records::decode_json(MAIL, bytes)).transpose();
        Ok(self.readable(&key, decoded)?.flatten())
    }

    async fn list_suppressed(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, ReadError> {
        let of_tenant = records::suppressed_key(tenant, "");
        let from = match &page.after {
            // No key lies between this one and what follows the last address.
            Some(address) => format!("{of_tenant}{address}\0"),
            None => of_tenant.clone(),
        };
        let mut items: Vec<Suppression> = Vec::new();
        let mut next = None;
        visit(&*self.ledger, MAIL, From::Up(from.into_bytes()), page.limit + 1, |key, value| {
            if !key.starts_with(of_tenant.as_bytes()) {
                return ControlFlow::Break(());
            }
            if items.len() >= page.limit {
                next = items.last().map(|last| last.address.clone());
                return ControlFlow::Break(());
            }
            match records::decode_json(MAIL, value) {
                Ok(suppression) => items.push(suppression),
                Err(error) => self.note_unreadable(&String::from_utf8_lossy(key), &error),
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(Paged { items, next })
    }

    async fn feedback_of(&self, id: JobId) -> Result<Vec<Feedback>, ReadError> {
        let noted = self.readable(&id, load::<Noted>(self, &records::feedback_key(id)).await)?.flatten();
        let now = self.clock.now();
        Ok(noted.filter(|noted| noted.expires > now).map(|noted| noted.feedback).unwrap_or_default())
    }
}

#[async_trait]
impl MailRegistry for LocalStore {
    async fn suppress(&self, suppression: Suppression) -> Result<(), StoreError> {
        let suppression = suppression.lower_cased();
        let key = records::suppressed_key(&suppression.tenant, &suppression.address);
        let decided = self.shared.decide(MAIL, &key, |found| {
            let first = self.shared.to_replace(&key, found)?;
            Ok(match suppression.clone().after(first.as_ref()) {
                Some(suppression) => Decided::put(MAIL, &key, records::encode_json(&suppression), ()),
                None => Decided::Leave(()),
            })
        });
        decided.await
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        // Of two who lift the same suppression, one did.
        let key = records::suppressed_key(tenant, &comparable(address));
        let decided = self.shared.decide(MAIL, &key, |found| {
            let mut unit = Unit::default();
            unit.remove(MAIL, Key::Text(key.clone()));
            Ok(if found.is_some() { Decided::Write(unit, true, None) } else { Decided::Leave(false) })
        });
        decided.await
    }

    async fn suppressed(
        &self,
        tenant: &TenantName,
        addresses: &[&str],
    ) -> Result<Vec<Option<Suppression>>, StoreError> {
        let key = |address: &&str| Key::Text(records::suppressed_key(tenant, &comparable(address)));
        let keys: Vec<Key> = addresses.iter().map(key).collect();
        let found = self.shared.ledger.read(MAIL, &keys).await.map_err(ReadError::from)?;
        let decode = |bytes: Option<Bytes>| bytes.map(|bytes| records::decode_json(MAIL, &bytes)).transpose();
        Ok(found.into_iter().map(decode).collect::<Result<_, _>>()?)
    }

    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError> {
        Ok(self.shared.list_suppressed(tenant, page).await?)
    }

    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError> {
        let key = records::feedback_key(id);
        let decided = self.shared.decide(MAIL, &key, |found| {
            let earlier: Option<Noted> = self.shared.to_replace(&key, found)?;
            let now = self.shared.clock.now();
            let mut unit = Unit::default();
            if let Some(earlier) = &earlier {
                unit.remove(MAIL, Key::Text(records::expiry_key(earlier.expires, &key)));
            }
            let mut kept = earlier.filter(|noted| noted.expires > now).map(|noted| noted.feedback).unwrap_or_default();
            if kept.iter().any(|earlier| earlier.is_same(&feedback)) {
                return Ok(Decided::Leave(()));
            }
            if kept.len() >= FEEDBACK_MAX {
                note_overflow(id);
                return Ok(Decided::Leave(()));
            }
            kept.push(feedback.clone());
            // Whole milliseconds, as the record says it: the next note must know the row of this one again.
            let expires = Time::from_millis((now + FEEDBACK_FOR).as_millis());
            unit.put(MAIL, Key::Text(records::expiry_key(expires, &key)), Vec::new());
            unit.put(MAIL, Key::Text(key.clone()), records::encode_json(&Noted { expires, feedback: kept }));
            Ok(Decided::Write(unit, (), None))
        });
        decided.await
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            all.push(self.shared.feedback_of(*id).await?);
        }
        Ok(all)
    }
}
