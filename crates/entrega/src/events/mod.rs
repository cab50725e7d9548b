//! Events: what receivers are told, and how it becomes one delivery for each endpoint that listens.
//! Invariant: the id of an event follows from what it is about, and that of a delivery from the event's, so that
//! nothing has to be counted or looked up, and nothing comes twice.
//!
//! # Layout
//! - here: who listens, and the job that hands an event on; `channel`: the fan-out

mod channel;

use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::name::TenantName;
use entrega_core::payload::Content;
use entrega_core::policy::LanePolicy;
use serde::{Deserialize, Serialize};

pub use self::channel::EventChannel;

use crate::content::JobContent;
use crate::env::Env;
use crate::product::Product;
use crate::webhook::EventBody;
use crate::webhook::event::{Event, body, job};

/// Events on their way to whoever listens.
pub const EVENTS: Product =
    Product::new::<Published>(LanePolicy::events, |_| "carries events that the gateway makes by itself".into());

/// An event that whoever listens is to hear of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published(pub EventBody);

impl Content for Published {
    const KIND: &'static str = "event";
}

impl JobContent for Published {
    fn destination(&self) -> String {
        self.0.destination()
    }
}

/// The lane in which events are handed on.
pub const EVENTS_LANE: &str = "events";

/// The most events of one mail that are looked for: no mail is attempted as often, replays included.
pub const EVENTS_MAX: u32 = 1000;

/// Whether somebody listens to a tenant's events. One that nobody listens to would cost as much as what it is about.
pub(crate) fn has_listeners(env: &Env, tenant: &TenantName) -> bool {
    env.lanes.contains_key(EVENTS_LANE) && !env.store.endpoints_of(tenant).is_empty()
}

/// The job that hands an event on to whoever listens.
pub(crate) fn event<D: Serialize>(id: JobId, tenant: &TenantName, event: &Event<'_, D>) -> Job {
    job(id, tenant, EVENTS_LANE, &Published(body(event)), event.timestamp)
}

/// The id of the job that hands the n-th event of a mail on; the event's own id is made of the same bits.
pub fn event_job(mail: JobId, sequence: u32) -> JobId {
    mail.derive(format!("event {sequence}").as_bytes())
}
