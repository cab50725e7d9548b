//! What an answer that is an error says of what happened, and why a ledger on Redis cannot be opened.
//! Invariant: what an operator or time can mend is `Unclear`, so that it is tried again; what would fail the same way for
//! ever is `Broken`.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{BadUrl, Unfit};
use crate::LedgerError;

/// Why a ledger on Redis cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RedisOpenError {
    /// The address cannot be read.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// Nobody answers there, or not as a server that can be used.
    #[error("Redis at {address} cannot be used: {reason}")]
    Connect {
        /// Where, without the password.
        address: String,
        /// What came of it.
        reason: String,
    },
    /// It would lose jobs.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// What lies there was written by a version that kept its data in another way.
    #[error(
        "Redis at {address} holds data of an older version under the prefix {prefix}; use another prefix (`[store] \
         redis_prefix`), or empty it"
    )]
    OlderData {
        /// Where, without the password.
        address: String,
        /// What its keys begin with.
        prefix: String,
    },
}

pub(super) fn unclear(doing: &'static str, reason: impl ToString) -> LedgerError {
    LedgerError::Unclear { doing, reason: reason.to_string() }
}

/// What an error says of what happened.
pub(super) fn failed(doing: &'static str, error: &RedisError) -> LedgerError {
    let reason = error.to_string();
    match error.code() {
        Some("OOM") => LedgerError::Full { reason },
        Some("ERR" | "EXECABORT" | "WRONGTYPE" | "CROSSSLOT" | "MOVED") => LedgerError::Broken { doing, reason },
        _ => LedgerError::Unclear { doing, reason },
    }
}

/// Whether a connection is of no more use: it is cut, it says nothing, or the server is not, or no longer, one that takes
/// writes.
pub(super) fn is_over(error: &RedisError) -> bool {
    is_cut(error) || error.is_timeout()
}

/// Whether that holds for the other connections to the same server as well. One that says nothing may only be waiting for
/// a large answer.
pub(super) fn is_cut(error: &RedisError) -> bool {
    let takes_no_writes = matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading)
    );
    let is_gone = error.is_connection_dropped() || error.is_io_error() || error.is_unrecoverable_error();
    takes_no_writes || (is_gone && !error.is_timeout())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        answer.extract_error().unwrap_err()
    }

    #[test]
    fn an_error_says_whether_to_try_again() {
        for line in
            ["READONLY r", "MASTERDOWN m", "LOADING l", "NOAUTH a", "WRONGPASS a", "NOPERM a", "BUSY b", "MISCONF m"]
        {
            assert!(matches!(failed("writing", &said(line)), LedgerError::Unclear { .. }), "{line}");
        }
        for line in ["ERR e", "WRONGTYPE w"] {
            assert!(matches!(failed("writing", &said(line)), LedgerError::Broken { .. }), "{line}");
        }
        assert!(matches!(failed("writing", &said("OOM o")), LedgerError::Full { .. }));
    }

    #[test]
    fn a_server_that_takes_no_writes_is_given_up() {
        for (line, is_given_up) in
            [("READONLY r", true), ("MASTERDOWN m", true), ("LOADING l", true), ("OOM o", false), ("NOPERM n", false)]
        {
            assert_eq!((is_over(&said(line)), is_cut(&said(line))), (is_given_up, is_given_up), "{line}");
        }
        let slow = RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!((is_over(&slow), is_cut(&slow)), (true, false), "the others may be well");
        let cut = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((is_over(&cut), is_cut(&cut)), (true, true));
    }
}
