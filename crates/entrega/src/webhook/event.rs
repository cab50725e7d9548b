//! Events as receivers get them, and the jobs that carry them.
//! Invariant: the id of a delivery follows from the event's, so that handing an event on again makes none twice; its
//! body is written once and sent as it is.

use entrega_core::body::Body;
use entrega_core::id::JobId;
use entrega_core::job::{Job, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::payload::Content;
use entrega_core::time::Time;
use entrega_core::trace::TRACEPARENT;
use serde::{Deserialize, Serialize};

use super::WEBHOOK_LANE;
use crate::content::{AnyContent, JobContent};

/// An event as receivers get it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event<'a, D: Serialize> {
    pub(crate) event_type: &'a str,
    pub(crate) event_id: &'a str,
    pub(crate) timestamp: Time,
    pub(crate) sequence_number: u32,
    pub(crate) data: D,
}

/// An event on its way to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventBody {
    /// `evt_…`.
    pub event_id: String,
    /// `email.sent`, …
    pub event_type: String,
    /// The bytes that every listener gets.
    pub body: Body,
}

impl Content for EventBody {
    const KIND: &'static str = "webhook";
}

impl JobContent for EventBody {
    fn destination(&self) -> String {
        self.event_type.clone()
    }
}

/// `evt_…`, from the id of the job that hands it on.
pub fn event_id(job: JobId) -> String {
    job.to_string().replacen("job_", "evt_", 1)
}

/// A job that is part of this trace.
pub(crate) fn in_trace(mut job: Job, traceparent: String) -> Job {
    job.labels.insert(TRACEPARENT.to_owned(), traceparent);
    job
}

/// A `webhook.test` for one endpoint, as a job.
pub(super) fn test_event(id: JobId, tenant: &TenantName, endpoint: &str, now: Time) -> Job {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Test<'a> {
        company_id: &'a TenantName,
        endpoint: &'a str,
        message: &'static str,
    }
    let data = Test { company_id: tenant, endpoint, message: "This is a test of your endpoint." };
    let event_type = "webhook.test";
    let event = Event { event_type, event_id: &event_id(id), timestamp: now, sequence_number: 1, data };
    job(id.derive(endpoint.as_bytes()), &tenant.endpoint(endpoint), WEBHOOK_LANE, &body(&event), now)
}

/// The job that delivers an event to one endpoint.
pub(crate) fn delivery(event: &Job, body: &EventBody, endpoint: &str, now: Time) -> Job {
    let whose = event.tenant.endpoint(endpoint);
    let job = job(event.id.derive(endpoint.as_bytes()), &whose, WEBHOOK_LANE, body, now);
    in_trace(job, event.traceparent(1))
}

pub(crate) fn body<D: Serialize>(event: &Event<'_, D>) -> EventBody {
    // Texts, numbers and moments always encode.
    let bytes = serde_json::to_vec(event).expect("plain data encodes");
    EventBody { event_id: event.event_id.to_owned(), event_type: event.event_type.to_owned(), body: Body(bytes.into()) }
}

/// A job that the gateway makes by itself.
pub(crate) fn job(id: JobId, tenant: &TenantName, lane: &str, content: &dyn AnyContent, now: Time) -> Job {
    Job {
        id,
        lane: LaneName::new(lane).expect("a lane name"),
        tenant: tenant.clone(),
        priority: Priority::Normal,
        payload: content.payload(),
        destination: content.destination(),
        earlier: Default::default(),
        labels: Default::default(),
        idempotency_key: None,
        accepted_at: now,
        due_at: now,
        expires_at: None,
    }
}
