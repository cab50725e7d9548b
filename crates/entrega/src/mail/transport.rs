//! Transports: ways on which a mail leaves.
//! Invariant: a transport says for each recipient what came of it; one that reached no server says so, and then nothing
//! was handed over, so that another transport may try.
//! Never: retries, decides, or sends to somebody who was not asked for.

use async_trait::async_trait;
use bytes::Bytes;
use entrega_core::id::JobId;
use entrega_core::mail::MailRefusal;
use entrega_core::name::TenantName;
use entrega_core::outcome::Protocol;
use tokio::time::Instant;

/// A mail on its way out.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Names it.
    pub id: JobId,
    /// Whose it is.
    pub tenant: &'a TenantName,
    /// Where bounces go: the bare address of the sender.
    pub from: &'a str,
    /// Who is still to get it: bare addresses, at least one.
    pub recipients: &'a [&'a str],
    /// The whole message, written out, with lines that end in CRLF.
    pub message: Bytes,
}

/// How long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Until a server is there to be spoken with; then another transport still has time.
    pub reach_by: Instant,
    /// Until it has answered.
    pub deadline: Instant,
}

impl Limits {
    /// All of the time for one server.
    pub fn until(deadline: Instant) -> Limits {
        Limits { reach_by: deadline, deadline }
    }
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// No server took part; nothing was handed over.
    Unreached(MailRefusal),
    /// A server was spoken with.
    Answered {
        /// For each recipient, in order, what was held against it; `None` if it was taken.
        refusals: Vec<Option<MailRefusal>>,
        /// The name that the server gave it.
        message_id: Option<String>,
        /// Whether the connection was lost when the mail may have been taken already.
        ambiguous: bool,
    },
}

/// A way out.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Its name in the configuration.
    fn name(&self) -> &str;
    /// What is spoken on it.
    fn protocol(&self) -> Protocol;
    /// Hands a mail over, and ends by the deadline.
    async fn send(&self, mail: &Outgoing<'_>, limits: Limits) -> Sent;
    /// Whether it could be used now, found out without a mail; what was seen, in words.
    async fn probe(&self, deadline: Instant) -> Result<&'static str, MailRefusal>;
}
