//! Errors: what can go wrong with a call, one variant per thing a retry rule tells apart.
//! Invariant: `CallError::code` is stable; dead letters and metrics are filed under it.
//! Never: carries a header value or a body.

use std::error::Error as StdError;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use entrega_core::outcome::FaultKind;
use rustls::pki_types::pem;
use thiserror::Error;

use crate::address::ForbiddenAddress;
use crate::method::MethodProblem;
use crate::url::UrlProblem;

/// A cause from below. Shared, because errors are kept and told on, and causes cannot be cloned.
type Cause = Arc<dyn StdError + Send + Sync>;

/// An error and its causes on one line, for people.
#[must_use]
pub fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("writing to a String never fails");
        cause = error.source();
    }
    text
}

/// Why a call has no answer.
#[derive(Clone, Debug, Error)]
pub enum CallError {
    /// The host name could not be looked up, or has no address.
    #[error("cannot look up {host}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The destination has no address that calls may reach.
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
    /// The name leads to no address that calls may reach. Which it leads to is not said: whoever chose the name may not
    /// know, and must not learn it here.
    #[error("{host} leads to an address that may not be called; `[outbound] allow_networks` opens networks")]
    ForbiddenName {
        /// The host of the URL.
        host: String,
        /// The first of its addresses.
        address: ForbiddenAddress,
    },
    /// No TCP connection came about. What the name leads to is not said.
    #[error("cannot connect")]
    Connect {
        /// The address tried last.
        address: SocketAddr,
        /// What the network said.
        #[source]
        source: Arc<io::Error>,
    },
    /// TCP works, but no trusted TLS session came about.
    #[error("cannot agree on TLS with {host}")]
    Tls {
        /// The host of the URL.
        host: String,
        /// What the handshake said.
        #[source]
        source: Cause,
    },
    /// The limit for connecting passed; nothing was sent.
    #[error("no connection to {host} in time")]
    ConnectTimeout {
        /// The host of the URL.
        host: String,
    },
    /// The deadline passed before the whole answer was there.
    #[error("no whole answer in time")]
    Timeout,
    /// The connection was lost, or the answer was not HTTP, after sending had begun.
    #[error("the connection failed before the whole answer was read")]
    Aborted {
        /// What the connection said.
        #[source]
        source: Cause,
    },
    /// The request cannot be sent as it is, now or later.
    #[error("the request cannot be sent")]
    BadRequest(#[from] RequestProblem),
}

/// What makes a request impossible to send.
#[derive(Clone, Debug, Error)]
pub enum RequestProblem {
    /// Its URL must not be called.
    #[error(transparent)]
    Url(UrlProblem),
    /// Its method is none that may be used.
    #[error(transparent)]
    Method(#[from] MethodProblem),
    /// The HTTP client refused it.
    #[error("the HTTP client refused it")]
    Refused(#[source] Cause),
}

impl CallError {
    /// The stable name of this error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Resolve { .. } => "resolve",
            Self::Forbidden(_) | Self::ForbiddenName { .. } => "forbidden_address",
            Self::Connect { .. } => "connect",
            Self::Tls { .. } => "tls",
            Self::ConnectTimeout { .. } | Self::Timeout => "timeout",
            Self::Aborted { .. } => "aborted",
            Self::BadRequest(_) => "bad_request",
        }
    }

    /// What kind of fault this is to the rules that judge it.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Resolve { .. } => FaultKind::Resolve,
            Self::Forbidden(_) | Self::ForbiddenName { .. } => FaultKind::Forbidden,
            Self::Connect { .. } => FaultKind::Connect,
            Self::Tls { .. } => FaultKind::Tls,
            Self::ConnectTimeout { .. } | Self::Timeout => FaultKind::Timeout,
            Self::Aborted { .. } => FaultKind::Aborted,
            Self::BadRequest(_) => FaultKind::Invalid,
        }
    }

    /// The message and its causes on one line, for people.
    #[must_use]
    pub fn reason(&self) -> String {
        with_causes(self)
    }
}

impl From<UrlProblem> for CallError {
    fn from(problem: UrlProblem) -> Self {
        match problem {
            UrlProblem::Forbidden(address) => Self::Forbidden(address),
            other => Self::BadRequest(RequestProblem::Url(other)),
        }
    }
}

/// Why a client could not be made.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The extra certificates are not PEM.
    #[error("the extra CA certificates are not valid PEM")]
    Pem(#[source] pem::Error),
    /// The extra certificates are PEM, but none is a certificate.
    #[error("the extra CA file holds no certificate")]
    NoCertificate,
    /// One of the extra certificates cannot be a trust root.
    #[error("an extra CA certificate cannot be used as a trust root")]
    Certificate(#[source] rustls::Error),
    /// The TLS library refuses its own settings.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_holds_the_whole_chain() {
        let refused = CallError::Connect {
            address: "192.0.2.1:443".parse().unwrap(),
            source: Arc::new(io::Error::other("nobody home")),
        };
        assert_eq!(refused.reason(), "cannot connect: nobody home", "and not what a name leads to");
        let plain = CallError::from(UrlProblem::PlainHttp);
        assert_eq!(plain.code(), "bad_request");
        assert!(plain.reason().contains("allow_http = true"), "{}", plain.reason());
    }
}
