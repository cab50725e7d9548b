//! Losses: why a mail got no further.
//! Invariant: every loss has a code that the rules know, and a text that names the way out where there is one.
//! Never: shows a password.

use std::io;

use entrega_core::mail::{AUTH, MailRefusal, TURNED_AWAY};
use entrega_core::outcome::FaultKind;

use super::reply::{Reply, one_line};
use super::wire::WireError;

/// Why.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("the name '{host}' could not be looked up: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("the name '{host}' has no address")]
    NoAddress { host: String },
    // Tenants read it: which addresses the servers have is not theirs to know.
    #[error("no connection to the mail server: {source}")]
    Connect { source: io::Error },
    #[error("no connection to the mail server in time")]
    Unreachable,
    #[error("{host}:{port} does not begin as an SMTP server does: {source}")]
    Opening { host: String, port: u16, source: WireError },
    #[error("{}", .0.text())]
    Turned(Reply),
    #[error("the server offers no STARTTLS; nothing is sent unencrypted (tls=if_offered or tls=never would allow it)")]
    NoTls,
    #[error(
        "the server offers no STARTTLS, and the password is not sent in the clear (allow_plain_auth would allow it)"
    )]
    PasswordInClear,
    #[error("the server refused STARTTLS: {}", .0.text())]
    TlsRefused(Reply),
    #[error("the server sent more before encryption began; somebody may be in between")]
    TlsInjected,
    #[error(
        "no encryption with {host}: {source} (outbound.ca_file names certificates to trust; tls=never goes without)"
    )]
    Tls { host: String, source: io::Error },
    #[error("the server refused the login: {} {}", .0.code, .0.text())]
    Login(Reply),
    #[error("the server offers neither AUTH PLAIN nor AUTH LOGIN; leave user and password out if it wants none")]
    NoLogin,
    #[error("the connection was lost: {0}")]
    Aborted(#[from] WireError),
    #[error("the time for the attempt was over")]
    Timeout,
}

impl Lost {
    /// As what it is held against a recipient.
    pub(super) fn refusal(&self) -> MailRefusal {
        match self {
            // A server that has nothing to do with us says so of no mail in particular.
            Lost::Turned(reply) if reply.code >= 500 => {
                fault(TURNED_AWAY, &format!("the server turned us away: {}", reply.refusal().reason()))
            }
            Lost::Turned(reply) => reply.refusal(),
            lost => fault(lost.code(), &lost.to_string()),
        }
    }

    /// The same when the server had all of the mail.
    pub(super) fn refusal_after_the_end(&self) -> MailRefusal {
        let message = format!("{self}, after the end of the mail and before the server's answer; it may have arrived");
        fault(self.code(), &message)
    }

    fn code(&self) -> &'static str {
        match self {
            Lost::Resolve { .. } | Lost::NoAddress { .. } => FaultKind::Resolve.code(),
            Lost::Connect { .. } | Lost::Opening { .. } | Lost::Turned(_) => FaultKind::Connect.code(),
            Lost::NoTls | Lost::PasswordInClear | Lost::TlsRefused(_) | Lost::TlsInjected | Lost::Tls { .. } => {
                FaultKind::Tls.code()
            }
            Lost::Login(_) | Lost::NoLogin => AUTH,
            Lost::Aborted(_) => FaultKind::Aborted.code(),
            Lost::Unreachable | Lost::Timeout => FaultKind::Timeout.code(),
        }
    }
}

fn fault(code: &str, message: &str) -> MailRefusal {
    MailRefusal { status: None, code: code.to_owned(), enhanced: None, message: one_line(message) }
}
