//! The SMTP transport: a mail is handed to one server, over connections that are kept for the next one.
//! Invariant: an answer is given a moment before the deadline with whatever is known by then; a connection whose state
//! is in doubt is dropped, never kept.
//! Never: sends a password in the clear unless told to, or repeats a mail that may have been taken.
//!
//! # Layout
//! - `url`: the configuration, from `smtp://…`
//! - `opening`: from a host's name to a server that is ready for mail: greeting, TLS, login
//! - `conversation`: one mail on one connection; `envelope`: its commands; `data`: its text
//! - `progress`: what is known of a mail so far; `lost`: why no more will be
//! - `wire`: the connection; `reply`: what a server says on it
//! - `pool`: connections that wait for the next mail

mod conversation;
mod data;
mod envelope;
mod lost;
mod opening;
mod pool;
mod progress;
mod reply;
mod url;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::mail::MailRefusal;
use entrega_core::outcome::Protocol;
use tokio::time::{Instant, timeout, timeout_at};

use self::conversation::{After, Origin, hand_over};
use self::lost::Lost;
use self::opening::{Connection, Server};
use self::pool::Pool;
use self::progress::Progress;
use super::transport::{Limits, Outgoing, Sent, Transport};
use entrega_call::{Clock, Resolve};

pub use self::opening::SmtpSetupError;
pub use self::url::{BadSmtpUrl, SmtpConfig, SmtpTls};

/// The answer is ready this long before whoever waits for it stops waiting.
const MARGIN: Duration = Duration::from_millis(20);
/// Servers count the mails of a connection too, and cut long ones off.
const MAILS_PER_CONNECTION_MAX: u32 = 100;
/// Where so many were left by the server, the next one was too.
const KEPT_LOOKED_AT_MAX: usize = 100;
/// What came of the mail is known by then; a slow server must not hold up the news.
const TIDYING_MAX: Duration = Duration::from_secs(1);

/// A way out through one SMTP server.
pub struct SmtpTransport {
    name: String,
    server: Server,
    pool: Pool,
    clock: Clock,
}

impl SmtpTransport {
    /// Checks the configuration; connects only when there is a mail.
    pub fn new(name: &str, config: SmtpConfig) -> Result<SmtpTransport, SmtpSetupError> {
        let pool = Pool::new(config.idle_max);
        Ok(SmtpTransport { name: name.to_owned(), server: Server::new(config)?, pool, clock: Clock::system() })
    }

    /// The same, with this resolver for the server's name.
    pub fn with_resolver(mut self, resolver: Arc<dyn Resolve>) -> SmtpTransport {
        self.server.resolver = resolver;
        self
    }

    /// The same, with idle connections aging by this clock.
    pub fn with_clock(self, clock: Clock) -> SmtpTransport {
        SmtpTransport { clock, ..self }
    }

    async fn deliver(&self, mail: &Outgoing<'_>, reach_by: Instant, progress: &mut Progress) -> Result<(), Lost> {
        if let Some(mut connection) = self.kept_connection() {
            match hand_over(&mut connection, Origin::Pool, mail, progress).await? {
                After::Stale => {}
                after => return self.put_away(connection, after).await,
            }
        }
        let mut connection = timeout_at(reach_by, self.server.open()).await.unwrap_or(Err(Lost::Timeout))?;
        let after = hand_over(&mut connection, Origin::Opened, mail, progress).await?;
        self.put_away(connection, after).await
    }

    /// Whatever a server said since, it was about the time that passed, and would be taken for its answer to this mail.
    fn kept_connection(&self) -> Option<Connection> {
        let kept = std::iter::from_fn(|| self.pool.take(self.clock.now()));
        kept.take(KEPT_LOOKED_AT_MAX).find_map(|mut kept| kept.wire.is_still_quiet().then_some(kept))
    }

    /// Keeps the connection for the next mail where that is safe.
    async fn put_away(&self, mut connection: Connection, after: After) -> Result<(), Lost> {
        let is_ready = match after {
            After::Keep => true,
            After::Reset => match timeout(TIDYING_MAX, connection.wire.say(b"RSET\r\n")).await {
                Ok(Ok(reply)) => reply.is_success(),
                Ok(Err(_)) | Err(_) => false,
            },
            After::Drop | After::Stale => false,
        };
        // Whatever a server says without being asked is a farewell.
        if !is_ready || !connection.wire.is_quiet() {
            return Ok(());
        }
        let surplus = match connection.mails < MAILS_PER_CONNECTION_MAX {
            true => self.pool.put(connection, self.clock.now()),
            false => Some(connection),
        };
        if let Some(mut surplus) = surplus {
            // A farewell that fails leaves nothing undone: the connection goes either way.
            let _ = timeout(TIDYING_MAX, surplus.wire.close()).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Transport for SmtpTransport {
    fn name(&self) -> &str {
        &self.name
    }

    fn protocol(&self) -> Protocol {
        Protocol::Smtp
    }

    async fn send(&self, mail: &Outgoing<'_>, limits: Limits) -> Sent {
        let limit = limits.deadline.checked_sub(MARGIN).unwrap_or(limits.deadline);
        let mut progress = Progress::new(mail.recipients.len());
        let ended = timeout_at(limit, self.deliver(mail, limits.reach_by, &mut progress)).await;
        progress.sent(ended.unwrap_or(Err(Lost::Timeout)))
    }

    async fn probe(&self, deadline: Instant) -> Result<&'static str, MailRefusal> {
        let opened = timeout_at(deadline, self.server.open()).await.unwrap_or(Err(Lost::Timeout));
        let mut connection = opened.map_err(|lost| lost.refusal())?;
        // A farewell that fails leaves nothing undone: the connection goes either way.
        let _ = timeout(TIDYING_MAX, connection.wire.close()).await;
        Ok("answers, and takes the login where there is one")
    }
}
