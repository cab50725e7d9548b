//! Addresses that are not written to any more, and what came back about mails.
//! Invariant: each change is one durable write, made one at a time; nothing of it is held in memory.

use std::ops::ControlFlow;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::de::DeserializeOwned;

use super::disk::{Batch, DiskError, Key, Order, Table};
use super::jobs::blocking;
use super::records::{self, Noted};
use super::{LocalStore, Shared};
use crate::store::mail::{comparable, note_overflow};
use crate::store::{FEEDBACK_FOR, FEEDBACK_MAX, Feedback, MailRegistry, Page, Paged, StoreError, Suppression};

fn load<T: DeserializeOwned>(shared: &Shared, key: &str) -> Result<Option<T>, DiskError> {
    records::load(&*shared.disk, Table::Mail, key.as_bytes(), records::decode_json)
}

impl Shared {
    /// What is kept under a key and about to change; a record that cannot be read is replaced.
    fn to_replace<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, DiskError> {
        Ok(self.readable(&key, load(self, key))?.flatten())
    }

    fn list_suppressed(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, DiskError> {
        let of_tenant = records::suppressed_key(tenant, "");
        let from = match &page.after {
            // No key lies between this one and what follows the last address.
            Some(address) => format!("{of_tenant}{address}\0"),
            None => of_tenant.clone(),
        };
        let mut items: Vec<Suppression> = Vec::new();
        let mut next = None;
        self.disk.scan(Table::Mail, Order::UpFrom(from.as_bytes()), &mut |key, value| {
            if !key.starts_with(of_tenant.as_bytes()) {
                return ControlFlow::Break(());
            }
            if items.len() >= page.limit {
                next = items.last().map(|last| last.address.clone());
                return ControlFlow::Break(());
            }
            match records::decode_json(Table::Mail, value) {
                Ok(suppression) => items.push(suppression),
                Err(error) => self.note_unreadable(&String::from_utf8_lossy(key), &error),
            }
            ControlFlow::Continue(())
        })?;
        Ok(Paged { items, next })
    }

    fn feedback_of(&self, id: JobId) -> Result<Vec<Feedback>, DiskError> {
        let noted = self.readable(&id, load::<Noted>(self, &records::feedback_key(id)))?.flatten();
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
        let first = self.shared.to_replace(&key)?;
        let Some(suppression) = suppression.after(first.as_ref()) else { return Ok(()) };
        let mut batch = Batch::default();
        batch.put(Table::Mail, Key::Text(key), records::encode_json(&suppression));
        self.shared.change(batch, Vec::new()).await
    }

    async fn unsuppress(&self, tenant: &TenantName, address: &str) -> Result<bool, StoreError> {
        // Of two who lift the same suppression, one did.
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let key = records::suppressed_key(tenant, &comparable(address));
        if !self.shared.disk.read(Table::Mail, key.as_bytes(), &mut |_| {})? {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.remove(Table::Mail, Key::Text(key));
        self.shared.change(batch, Vec::new()).await?;
        Ok(true)
    }

    async fn suppressed(
        &self,
        tenant: &TenantName,
        addresses: &[&str],
    ) -> Result<Vec<Option<Suppression>>, StoreError> {
        let look = |address: &&str| load(&self.shared, &records::suppressed_key(tenant, &comparable(address)));
        Ok(addresses.iter().map(look).collect::<Result<_, _>>()?)
    }

    async fn suppressions(
        &self,
        tenant: &TenantName,
        page: Page<String>,
    ) -> Result<Paged<Suppression, String>, StoreError> {
        let (shared, tenant) = (self.shared.clone(), tenant.clone());
        blocking(move || shared.list_suppressed(&tenant, page)).await
    }

    async fn note_feedback(&self, id: JobId, feedback: Feedback) -> Result<(), StoreError> {
        let _one_at_a_time = self.shared.changes.lock().await;
        self.shared.settled().await?;
        let key = records::feedback_key(id);
        let earlier: Option<Noted> = self.shared.to_replace(&key)?;
        let now = self.shared.clock.now();
        let mut batch = Batch::default();
        if let Some(earlier) = &earlier {
            batch.remove(Table::Mail, Key::Text(records::expiry_key(earlier.expires, &key)));
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
        batch.put(Table::Mail, Key::Text(records::expiry_key(expires, &key)), Vec::new());
        batch.put(Table::Mail, Key::Text(key), records::encode_json(&Noted { expires, feedback: kept }));
        self.shared.change(batch, Vec::new()).await
    }

    async fn feedback(&self, ids: &[JobId]) -> Result<Vec<Vec<Feedback>>, StoreError> {
        let (shared, ids) = (self.shared.clone(), ids.to_vec());
        blocking(move || ids.into_iter().map(|id| shared.feedback_of(id)).collect()).await
    }
}
