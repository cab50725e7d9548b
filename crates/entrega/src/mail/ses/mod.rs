//! Amazon SES: mails leave through version 2 of its API.
//! Invariant: every recipient is in exactly one call of an attempt, and what that call came to is its result.
//! Never: repeats a call, or says that nothing left when a mail may have been taken.
//!
//! # Layout
//! - `config`: where SES is and who asks
//! - `request`: the call, signed
//! - `answer`: what it came to

mod answer;
mod config;
mod request;

use std::fmt;

use async_trait::async_trait;
use entrega_call::Client;
use entrega_core::mail::MailRefusal;
use entrega_core::outcome::{FaultKind, Protocol};
use tokio::time::Instant;

pub use self::config::{BadSesUrl, SesConfig, SesCredentials};

use self::answer::{Reply, unanswered};
use self::request::{Caller, Unsendable, raw_message};
use super::transport::{Limits, Outgoing, Sent, Transport};
use entrega_call::Clock;

/// The largest message that SES takes, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 40_000_000;
/// The most recipients that SES takes in one call.
pub const RECIPIENTS_MAX: usize = 50;

/// A way out through SES.
pub struct SesTransport {
    name: String,
    caller: Caller,
    client: Client,
    clock: Clock,
}

impl SesTransport {
    /// Calls SES through this client, which may reach what [`SesConfig::client_config`] says, and signs with this clock:
    /// SES refuses what was signed more than a few minutes off its own time.
    pub fn new(name: impl Into<String>, config: SesConfig, client: Client, clock: Clock) -> SesTransport {
        SesTransport { name: name.into(), caller: Caller::new(config), client, clock }
    }

    async fn call(&self, mail: &Outgoing<'_>, raw: &str, recipients: &[&str], deadline: Instant) -> Reply {
        match self.caller.request(mail, raw, recipients, self.clock.wall()) {
            Ok(request) => Reply::of(self.client.call(request, deadline).await),
            Err(error) => Reply::Unreached(unsendable(&error)),
        }
    }
}

impl fmt::Debug for SesTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SesTransport").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Transport for SesTransport {
    fn name(&self) -> &str {
        &self.name
    }

    fn protocol(&self) -> Protocol {
        Protocol::Ses
    }

    /// A mail for more than [`RECIPIENTS_MAX`] goes in several calls.
    async fn send(&self, mail: &Outgoing<'_>, limits: Limits) -> Sent {
        if mail.message.len() > MESSAGE_BYTES_MAX {
            return Sent::Unreached(too_large(mail.message.len()));
        }
        let raw = raw_message(mail);
        let mut tally = Tally::default();
        for recipients in mail.recipients.chunks(RECIPIENTS_MAX) {
            let reply = self.call(mail, &raw, recipients, limits.deadline).await;
            match reply {
                // Only as long as no call before it was answered is another transport free to try everybody.
                Reply::Unreached(refusal) if tally.refusals.is_empty() => return Sent::Unreached(refusal),
                reply => tally.add(reply, recipients.len()),
            }
        }
        let Tally { refusals, message_id, ambiguous } = tally;
        Sent::Answered { refusals, message_id, ambiguous }
    }

    async fn probe(&self, _: Instant) -> Result<&'static str, MailRefusal> {
        Ok("is asked when there is a mail, not before")
    }
}

/// What the calls for one mail came to so far.
#[derive(Default)]
struct Tally {
    refusals: Vec<Option<MailRefusal>>,
    message_id: Option<String>,
    ambiguous: bool,
}

impl Tally {
    /// SES answers a call as one: what it says holds for each of its recipients.
    fn add(&mut self, reply: Reply, recipients: usize) {
        self.ambiguous |= matches!(reply, Reply::Lost(_));
        let refusal = match reply {
            Reply::Taken { message_id } => {
                self.message_id = self.message_id.take().or(message_id);
                None
            }
            Reply::Refused(refusal) | Reply::Lost(refusal) | Reply::Unreached(refusal) => Some(refusal),
        };
        self.refusals.extend(std::iter::repeat_n(refusal, recipients));
    }
}

fn too_large(bytes: usize) -> MailRefusal {
    let message = format!("the message has {bytes} bytes; SES takes at most {MESSAGE_BYTES_MAX}: send smaller files");
    MailRefusal { status: None, code: "too_large".to_owned(), enhanced: None, message }
}

fn unsendable(error: &Unsendable) -> MailRefusal {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    unanswered(FaultKind::Invalid, format!("{error}{cause}"))
}
