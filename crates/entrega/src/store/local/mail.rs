//! Addresses that are not written to any more, and what came back about mails.
//! Invariant: each change is one durable write, made one at a time; nothing of it is held in memory.

use std::ops::ControlFlow;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};
use serde::de::DeserializeOwned;

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
    /// What is kept under a key and about to change; a record that cannot be read is replaced.
    async fn to_replace<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ReadError> {
        Ok(self.readable(&key, load(self, key).await)?.flatten())
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
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let suppression = suppression.lower_cased();
        let key = records::suppressed_key(&suppression.tenant, &suppression.address);
        let first = self.shared.to_replace(&key).await?;
        let Some(suppression) = suppression.after(first.as_ref()) else { return Ok(()) };
        let mut change = Unit::default();
        change.put(MAIL, Key::Text(key), records::encode_json(&suppression));
        self.shared.change(None, change, Vec::new()).await
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        // Of two who lift the same suppression, one did.
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let key = records::suppressed_key(tenant, &comparable(address));
        let found = self.shared.ledger.read(MAIL, &[Key::Text(key.clone())]).await.map_err(ReadError::from)?;
        if found.iter().all(Option::is_none) {
            return Ok(false);
        }
        let mut change = Unit::default();
        change.remove(MAIL, Key::Text(key));
        self.shared.change(None, change, Vec::new()).await?;
        Ok(true)
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
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let key = records::feedback_key(id);
        let earlier: Option<Noted> = self.shared.to_replace(&key).await?;
        let now = self.shared.clock.now();
        let mut change = Unit::default();
        if let Some(earlier) = &earlier {
            change.remove(MAIL, Key::Text(records::expiry_key(earlier.expires, &key)));
        }
        let mut kept = earlier.filter(|noted| noted.expires > now).map(|noted| noted.feedback).unwrap_or_default();
        if kept.iter().any(|earlier| earlier.is_same(&feedback)) {
            return Ok(());
        }
        if kept.len() >= FEEDBACK_MAX {
            note_overflow(id);
            return Ok(());
        }
        kept.push(feedback);
        // Whole milliseconds, as the record says it: the next note must know the row of this one again.
        let expires = Time::from_millis((now + FEEDBACK_FOR).as_millis());
        change.put(MAIL, Key::Text(records::expiry_key(expires, &key)), Vec::new());
        change.put(MAIL, Key::Text(key), records::encode_json(&Noted { expires, feedback: kept }));
        self.shared.change(None, change, Vec::new()).await
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            all.push(self.shared.feedback_of(*id).await?);
        }
        Ok(all)
    }
}
