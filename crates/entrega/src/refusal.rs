//! Refusals: why a job was not taken.
//! Invariant: a refusal names the field and the way out.

use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::quota::Quota;

use crate::store::StoreError;

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Something about it is wrong.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which field.
        field: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The lane is full.
    #[error("lane '{lane}' is full: {capacity} jobs wait; try again in {} s", retry_after.as_secs())]
    Full {
        /// Which lane.
        lane: LaneName,
        /// How many may wait.
        capacity: u32,
        /// When to try again.
        retry_after: Duration,
    },
    /// The tenant has all that it may have.
    #[error(
        "tenant '{tenant}' is over its quota '{}'; try again later, or have an operator raise it (PUT /v1/tenants/{tenant})",
        quota.as_str()
    )]
    OverQuota {
        /// Which.
        quota: Quota,
        /// Whose.
        tenant: TenantName,
        /// When to try again.
        retry_after: Duration,
    },
    /// The tenant is bound to other senders.
    #[error("from: this tenant may not send as {from}; it may send as {allowed}")]
    OtherSender {
        /// Whom the mail was to be from.
        from: String,
        /// Whom it may be from.
        allowed: String,
    },
    /// The key was used for something else.
    #[error("Idempotency-Key: this key was used for another request; use a new key, or send the same request again")]
    KeyReused,
    /// Its new id names another job. Cannot happen: ids of one engine only count up.
    #[error("the new id {id} names another job already; send the job once more")]
    IdTaken {
        /// Its id.
        id: JobId,
    },
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Refusal {
    /// A field that is wrong.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Refusal {
        Refusal::Invalid { field: field.into(), problem: problem.into() }
    }
}
