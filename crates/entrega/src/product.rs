//! Products: the kinds of jobs there are. Each registers here what the rest of the program must know of it.
//! Invariant: a product is one folder; nothing outside of it matches on its name.

use entrega_core::body::Body;
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Job};
use entrega_core::name::LaneName;
use entrega_core::payload::Payload;
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;

use crate::chance::Chance;
use crate::content::JobContent;
use crate::env::Env;

/// What a product says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The name by which lanes choose it, as their `channel`, and by which its payloads are known.
    pub name: &'static str,
    /// What holds for its lanes where they do not say otherwise.
    pub policy: fn() -> LanePolicy,
    /// How many of a lane's attempts one tenant may have at once, where the lane does not say so.
    pub tenant_share: fn(&LanePolicy) -> u32,
    /// How its jobs come in, for those who hand one in that does not fit its lane; reads well after the lane's name.
    pub submit_hint: fn(&LaneName) -> String,
    /// What its jobs carry, for people and programs to read; `None` if it cannot be read.
    pub show: fn(&Payload) -> Option<serde_json::Value>,
    /// The id of a new job.
    pub job_id: fn(&Chance, Time) -> JobId,
    /// Whether the beginning of an answer is kept with its attempt, for people who look after the destination.
    pub keeps_excerpt: bool,
    /// Whether nobody would look after a job's dead letter: one that fails is dropped instead.
    pub is_expendable: fn(&Job) -> bool,
    /// Jobs that follow from the end of an attempt; they are kept in the same write.
    pub follow_ups: fn(&Env, &AttemptEnd<'_>) -> Vec<Job>,
}

/// An attempt that ended, and what becomes of its job.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnd<'a> {
    /// The job.
    pub job: &'a Job,
    /// All attempts of this generation, the one that ended last.
    pub attempts: &'a [Attempt],
    /// What becomes of the job.
    pub transition: &'a Transition,
    /// When that was decided.
    pub now: Time,
}

impl Product {
    /// One whose jobs and lanes need nothing of their own.
    pub const fn new<C: JobContent>(policy: fn() -> LanePolicy, submit_hint: fn(&LaneName) -> String) -> Product {
        Product {
            name: C::KIND,
            policy,
            tenant_share: |policy| policy.concurrency,
            submit_hint,
            show: |payload| serde_json::to_value(payload.read::<C>().ok()?).ok(),
            job_id: Chance::job_id,
            keeps_excerpt: false,
            is_expendable: |_| false,
            follow_ups: |_, _| Vec::new(),
        }
    }
}

/// The products of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Products(pub &'static [Product]);

impl Products {
    /// The product of this name.
    pub fn find(&self, name: &str) -> Option<&'static Product> {
        self.0.iter().find(|product| product.name == name)
    }

    /// What a job carries, for people and programs to read: by the name of its product.
    pub fn show(&self, payload: &Payload) -> serde_json::Value {
        let shown = match self.find(payload.kind()) {
            // What cannot be read may hold secrets that nobody could mask.
            Some(product) => (product.show)(payload).unwrap_or_default(),
            None => serde_json::json!(Body(payload.bytes().clone())),
        };
        serde_json::json!({ payload.kind(): shown })
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|product| product.name)
    }
}
