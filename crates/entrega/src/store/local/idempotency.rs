//! Requests that must happen once, with what they were answered.
//! Invariant: of many who begin the same request at once, one does; that it is begun, and its answer, are durable.

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};

use super::LocalStore;
use super::changes::Decided;
use super::records::{self, IdempotencyRecord, RecordState};
use super::tables::IDEMPOTENCY;
use crate::store::{Idempotency, IdempotencyLog, RequestState, StoreError};

fn put(key: &str, kept: &IdempotencyRecord) -> Unit {
    let mut unit = Unit::default();
    unit.put(IDEMPOTENCY, Key::Text(records::expiry_key(kept.expires, key)), Vec::new());
    unit.put(IDEMPOTENCY, Key::Text(key.to_owned()), records::encode(kept));
    unit
}

#[async_trait]
impl IdempotencyLog for LocalStore {
    async fn begin_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        runs_until: Time,
    ) -> Result<RequestState, StoreError> {
        let shared = &self.shared;
        let key = records::submission_key(tenant, &request.key);
        let decided = shared.decide(IDEMPOTENCY, &key, |found| {
            let now = shared.clock.now();
            let kept = found.map(|bytes| records::decode::<IdempotencyRecord>(IDEMPOTENCY, bytes)).transpose();
            let kept = shared.readable(&key, kept)?.flatten();
            match kept.filter(|kept| kept.expires > now) {
                // A job's key is no other call's, though its path and body be the same.
                Some(kept) if kept.request != request.request || kept.state.is_none() => {
                    return Ok(Decided::Leave(RequestState::OtherRequest));
                }
                Some(IdempotencyRecord { state: Some(RecordState::Answered(answer)), .. }) => {
                    return Ok(Decided::Leave(RequestState::Ended(answer)));
                }
                Some(IdempotencyRecord { state: Some(RecordState::Running(until)), .. }) if until > now => {
                    return Ok(Decided::Leave(RequestState::Running(until)));
                }
                // Nobody, or one who is gone.
                _ => {}
            }
            shared.refuse_when_full()?;
            let state = Some(RecordState::Running(runs_until));
            let kept =
                IdempotencyRecord { request: request.request, id: JobId::MIN, expires: now + request.lasts, state };
            Ok(Decided::Write(put(&key, &kept), RequestState::New, None))
        });
        decided.await
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Idempotency,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        let key = records::submission_key(tenant, &request.key);
        let decided = shared.decide(IDEMPOTENCY, &key, |found| {
            let begun = found.and_then(|bytes| records::decode::<IdempotencyRecord>(IDEMPOTENCY, bytes).ok());
            let expires = begun.map_or_else(|| shared.clock.now() + request.lasts, |begun| begun.expires);
            let state = Some(answer.clone().map_or(RecordState::Running(Time::ZERO), RecordState::Answered));
            let kept = IdempotencyRecord { request: request.request, id: JobId::MIN, expires, state };
            Ok(Decided::Write(put(&key, &kept), (), None))
        });
        decided.await
    }
}
