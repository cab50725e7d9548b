//! Requests that must happen once, with what they were answered.
//! Invariant: of many who begin the same request at once, one does; that it is begun, and its answer, are durable.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};

use super::records::{self, Kept, Standing};
use super::tables::ONCE;
use super::{LocalStore, Shared};
use crate::store::{Begun, Once, RequestLog, StoreError};

impl Shared {
    async fn put_request(&self, key: String, kept: &Kept) -> Result<(), StoreError> {
        let mut change = Unit::default();
        change.put(ONCE, Key::Text(records::expiry_key(kept.expires, &key)), Vec::new());
        change.put(ONCE, Key::Text(key), records::encode(kept));
        self.change(None, change, Vec::new()).await
    }
}

#[async_trait]
impl RequestLog for LocalStore {
    async fn begin_request(&self, tenant: &TenantName, request: &Once, runs_until: Time) -> Result<Begun, StoreError> {
        let _one_at_a_time = self.shared.changes.lock().await;
        // A caller who went away may have left a change that is on its way to the ledger.
        self.shared.settled().await?;
        let key = records::request_key(tenant, &request.key);
        let now = self.shared.clock.now();
        let kept = self.shared.readable(&key, records::load_kept(&*self.shared.ledger, &key).await)?.flatten();
        match kept.filter(|kept| kept.expires > now) {
            Some(kept) if kept.request != request.request => return Ok(Begun::OtherRequest),
            Some(Kept { stands: Some(Standing::Answered(answer)), .. }) => return Ok(Begun::Ended(answer)),
            Some(Kept { stands: Some(Standing::Running(until)), .. }) if until > now => {
                return Ok(Begun::Running(until));
            }
            // Nobody, or one who is gone.
            _ => {}
        }
        if self.shared.is_full.load(Ordering::Relaxed) {
            return Err(self.shared.disk_full());
        }
        let stands = Some(Standing::Running(runs_until));
        let kept = Kept { request: request.request, id: JobId::MIN, expires: request.expires, stands };
        self.shared.put_request(key, &kept).await?;
        Ok(Begun::New)
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Once,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let _one_at_a_time = self.shared.changes.lock().await;
        let key = records::request_key(tenant, &request.key);
        let stands = Some(answer.map_or(Standing::Running(Time::ZERO), Standing::Answered));
        let kept = Kept { request: request.request, id: JobId::MIN, expires: request.expires, stands };
        self.shared.put_request(key, &kept).await
    }
}
