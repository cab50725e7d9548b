//! What can go wrong with a command, how it is told, and the exit code.
//! Invariant: a message says what happened; a hint says what to do.
//! Never: prints foreign text as it came; control characters could rewrite the terminal.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::text::clean;
use crate::config::ConfigError;
use crate::log::last_words;
use entrega::OpenError;
use entrega::dispatch::RunError;
use entrega::webhook::ConfiguredError;

/// An RFC 9457 answer of the server.
#[derive(Debug)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// The fields that are wrong, each with why.
    pub errors: Vec<(String, String)>,
}

impl Problem {
    /// Reads what can be read; something else than Entrega may have answered.
    pub(super) fn read(status: http::StatusCode, body: &[u8]) -> Problem {
        let document: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(clean);
        let fallback = || format!("the server answered {status}; is it an Entrega server?");
        let detail = text(&document, "detail").or_else(|| text(&document, "title")).unwrap_or_else(fallback);
        let errors = document.get("errors").and_then(Value::as_array).into_iter().flatten();
        let errors = errors.filter_map(|error| Some((text(error, "field")?, text(error, "detail")?)));
        Problem { status: status.as_u16(), detail, errors: errors.collect() }
    }
}

/// Why a command did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nobody answers.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// The URL.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// The server said no.
    #[error("{}", .0.detail)]
    Problem(Problem),
    /// The server said something else than agreed.
    #[error("{url} answered what is no answer of Entrega: {reason}")]
    BadAnswer {
        /// The URL.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What was asked cannot be asked.
    #[error("{what}: {problem}")]
    Usage {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Something that cannot be undone needs a second word.
    #[error("dead letters that would be discarded: {count}; add --yes to do it")]
    NeedsYes {
        /// How many.
        count: u64,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// Others can read what is kept there.
    #[error("{}: others have access to it (mode {mode:04o}), and {problem}; {way_out}", path.display())]
    OpenToOthers {
        /// The file or directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Why that stays so.
        problem: String,
        /// What to do about it.
        way_out: String,
    },
    /// The result cannot be printed.
    #[error("cannot print: {0}")]
    Output(#[from] io::Error),
    /// The checks that failed were printed.
    #[error("{failed} of {total} checks failed")]
    Unhealthy {
        /// How many failed.
        failed: usize,
        /// Of how many.
        total: usize,
    },
    /// What could not be read was listed.
    #[error("not everything could be saved: {damaged} places cannot be read, and with them {lost} jobs that are known")]
    NotWhole {
        /// Places that cannot be read.
        damaged: usize,
        /// Jobs that are known to be lost.
        lost: usize,
    },
    /// The data cannot be opened, or the store failed while it ran.
    #[error("{0}")]
    Store(String),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What went wrong.
        source: io::Error,
    },
    /// Anything that a command ran into.
    #[error("{0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> CliError {
        match error {
            OpenError::Ledger(error) => CliError::Store(error.to_string()),
            OpenError::Store(error) => CliError::Store(error.to_string()),
            #[cfg(feature = "redis")]
            OpenError::Redis(error) => CliError::Store(error.to_string()),
            OpenError::Endpoints(ConfiguredError::Store(error)) => CliError::Store(error.to_string()),
            OpenError::Endpoints(error) => CliError::failed(error),
            OpenError::Lane { .. } | OpenError::Connector { .. } | OpenError::Endpoint { .. } => {
                CliError::failed(error)
            }
            OpenError::Seal(error) => CliError::failed(error),
            OpenError::Client(error) => CliError::failed(error),
            #[cfg(feature = "ses")]
            OpenError::Sns(error) => CliError::failed(error),
            OpenError::Transport(error) => CliError::failed(error),
        }
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> CliError {
        CliError::Store(error.to_string())
    }
}

impl CliError {
    /// Wraps what a command ran into.
    pub fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CliError {
        CliError::Failed(source.into())
    }

    /// The exit code, as documented in `--help`.
    pub fn code(&self) -> u8 {
        match self {
            CliError::Usage { .. } | CliError::NeedsYes { .. } => 2,
            CliError::Problem(problem) if matches!(problem.status, 404 | 410) => 3,
            CliError::Unreachable { .. } => 4,
            CliError::Problem(problem) if matches!(problem.status, 401 | 403) => 5,
            CliError::Config(_) => 6,
            CliError::Store(_) => 7,
            CliError::Listen { .. } => 8,
            CliError::NotWhole { .. } => 9,
            // Whoever read our output has seen enough.
            CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            _ => 1,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            CliError::Unreachable { .. } => {
                Some("start it with `entrega serve`, or name another server with --url or ENTREGA_URL")
            }
            CliError::Problem(problem) if problem.status == 401 => Some(
                "give a key with --key or ENTREGA_ADMIN_KEY; `entrega serve` keeps the operator's in \
                 <data directory>/admin-key",
            ),
            CliError::Problem(problem) if problem.status == 403 => {
                Some("make a key with that scope: entrega keys create --tenant NAME --scope SCOPE")
            }
            CliError::Config(_) => Some("`entrega config defaults` shows every key and what it is for"),
            CliError::BadAnswer { .. } => Some("check --url and ENTREGA_URL"),
            CliError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("another program listens there; stop it, or choose another address with --listen")
            }
            _ => None,
        }
    }

    /// The message for people.
    pub(super) fn message(&self) -> String {
        let mut message = format!("error: {self}");
        if let CliError::Problem(problem) = self {
            // A single error is the detail once more.
            let told = problem.errors.iter().filter(|(field, detail)| problem.detail != format!("{field}: {detail}"));
            for (field, detail) in told {
                message += &format!("\n  {field}: {detail}");
            }
        }
        if let Some(hint) = self.hint() {
            message += &format!("\nhint: {hint}");
        }
        message
    }

    /// Tells it on stderr and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        if self.code() != 0 {
            last_words(self.message());
        }
        ExitCode::from(self.code())
    }
}
