//! Requests that must happen once, with what they were answered.
//! Invariant: of many who begin the same request at once, one does; that it is begun, and its answer, are durable.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};

use super::LocalStore;
use super::changes::Decided;
use super::records::{self, Kept, Standing};
use super::tables::ONCE;
use crate::store::{Begun, Once, RequestLog, StoreError};

fn put(key: &str, kept: &Kept) -> Unit {
    let mut unit = Unit::default();
    unit.put(ONCE, Key::Text(records::expiry_key(kept.expires, key)), Vec::new());
    unit.put(ONCE, Key::Text(key.to_owned()), records::encode(kept));
    unit
}

#[async_trait]
impl RequestLog for LocalStore {
    async fn begin_request(&self, tenant: &TenantName, request: &Once, runs_until: Time) -> Result<Begun, StoreError> {
        let shared = &self.shared;
        let key = records::request_key(tenant, &request.key);
        let decided = shared.decide(ONCE, &key, |found| {
            let now = shared.clock.now();
            let kept = found.map(|bytes| records::decode::<Kept>(ONCE, bytes)).transpose();
            let kept = shared.readable(&key, kept)?.flatten();
            match kept.filter(|kept| kept.expires > now) {
                Some(kept) if kept.request != request.request => return Ok(Decided::Leave(Begun::OtherRequest)),
                Some(Kept { stands: Some(Standing::Answered(answer)), .. }) => {
                    return Ok(Decided::Leave(Begun::Ended(answer)));
                }
                Some(Kept { stands: Some(Standing::Running(until)), .. }) if until > now => {
                    return Ok(Decided::Leave(Begun::Running(until)));
                }
                // Nobody, or one who is gone.
                _ => {}
            }
            if shared.is_full.load(Ordering::Relaxed) {
                return Err(shared.no_room());
            }
            let stands = Some(Standing::Running(runs_until));
            let kept = Kept { request: request.request, id: JobId::MIN, expires: request.expires, stands };
            Ok(Decided::Write(put(&key, &kept), Begun::New, None))
        });
        decided.await
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Once,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let key = records::request_key(tenant, &request.key);
        let stands = Some(answer.map_or(Standing::Running(Time::ZERO), Standing::Answered));
        let kept = Kept { request: request.request, id: JobId::MIN, expires: request.expires, stands };
        self.shared.decide(ONCE, &key, |_| Ok(Decided::Write(put(&key, &kept), (), None))).await
    }
}
