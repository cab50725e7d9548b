//! Requests that must happen once, with what they were answered, over all nodes.
//! Invariant: of many who begin the same request at once, on any nodes, one does.

use async_trait::async_trait;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use redis::Value;

use super::answer::{Reader, micros, time};
use super::link::store_error;
use super::script::{Call, Verb};
use super::{RedisStore, schema};
use crate::store::{Begun, Once, RequestLog, StoreError};

const READING: Reader = Reader("a request");

#[async_trait]
impl RequestLog for RedisStore {
    async fn begin_request(&self, tenant: &TenantName, request: &Once, runs_until: Time) -> Result<Begun, StoreError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let call = Call::without_lane(shared, Verb::Request).arg("begin");
        let call = call.arg(schema::request(&shared.options.prefix, tenant, &request.key)).arg(&request.request[..]);
        // Lengths, not moments: the server's clock is not this node's.
        let call = call.arg(micros(request.expires).saturating_sub(micros(now)));
        let call = call.arg(micros(runs_until).saturating_sub(micros(now)));
        let [word, more] = READING.fields(call.make(shared).await.map_err(|error| store_error(&error))?)?;
        match READING.word(word)?.as_str() {
            "new" => Ok(Begun::New),
            "running" => Ok(Begun::Running(time(micros(now) + READING.number(&more)?))),
            "ended" => Ok(Begun::Ended(READING.bytes(more)?.unwrap_or_default())),
            "other" => Ok(Begun::OtherRequest),
            other => Err(READING.wrong(other)),
        }
    }

    async fn end_request(
        &self,
        tenant: &TenantName,
        request: &Once,
        answer: Option<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let shared = &self.shared;
        let left = micros(request.expires).saturating_sub(micros(shared.clock.now()));
        let call = Call::without_lane(shared, Verb::RequestAlways).arg("end");
        let call = call.arg(schema::request(&shared.options.prefix, tenant, &request.key)).arg(&request.request[..]);
        let call = call.arg(left);
        let call = if let Some(answer) = answer { call.arg(answer) } else { call };
        let _: Value = call.make(shared).await.map_err(|error| store_error(&error))?;
        Ok(())
    }
}
