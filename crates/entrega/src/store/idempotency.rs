//! Idempotency: what makes a submission or a request happen once.
//! Invariant: whoever hands in the same key with the same request gets the first answer, for as long as the key lasts.

use std::time::Duration;

use entrega_core::time::Time;
use sha2::{Digest as _, Sha256};

/// How long a key is remembered, unless it says otherwise.
pub const IDEMPOTENCY_LASTS: Duration = Duration::from_hours(24);
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// What a key must be.
pub const IDEMPOTENCY_KEY_RULE: &str = "use 1 to 255 visible ASCII characters";

/// Whether a text can be a key.
pub fn is_idempotency_key(key: &str) -> bool {
    (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// A caller's key, and what it was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's key; a tenant's own.
    pub key: String,
    /// A hash of what was asked for: the same key with another request is a mistake.
    pub request: [u8; 32],
    /// How long it is remembered.
    pub lasts: Duration,
}

impl Idempotency {
    /// A key for what a request asks for, in its parts; `None` if it breaks [`IDEMPOTENCY_KEY_RULE`].
    pub fn new(key: &str, request: &[&[u8]]) -> Option<Idempotency> {
        let hash = request.iter().fold(Sha256::new(), Sha256::chain_update);
        is_idempotency_key(key).then(|| Idempotency {
            key: key.to_owned(),
            request: hash.finalize().into(),
            lasts: IDEMPOTENCY_LASTS,
        })
    }

    /// The key of one part of the request.
    pub fn part(&self, number: usize) -> Idempotency {
        Idempotency { key: format!("{}#{number}", self.key), ..self.clone() }
    }
}

/// What is known of a request under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Nothing; it is the caller's to make, and others wait.
    New,
    /// Somebody makes it, until this moment at the latest.
    Running(Time),
    /// It was made, and this was answered.
    Ended(Vec<u8>),
    /// Its key was used for another request.
    OtherRequest,
}
