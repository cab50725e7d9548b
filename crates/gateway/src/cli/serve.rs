//! `entrega serve`: the gateway, until it is told to stop.
//! Invariant: it says where it listens only when it does; when it ends by itself it says why, with an exit code.
//! Never: shows a key that it did not just make.

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::error::CliError;
use super::private;
use crate::api::{self, ApiState, ServerLimits};
use crate::config::{Config, LogConfig, LogFormat};
use entrega::{Engine, StoreKind};

/// Runs the gateway that `config` describes.
pub(super) async fn run(config: Config) -> Result<(), CliError> {
    start_log(&config.log);
    private::folder(&config.store.data)?;
    let engine = Arc::new(Engine::open(config.engine()?).await?);
    let address = config.server.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| CliError::Listen { address, source })?;
    let address = listener.local_addr().map_err(|source| CliError::Listen { address, source })?;
    // A key is made only by a server that runs, so that it is shown by the one that made it.
    let (admin_key, is_new) = admin_key(&config)?;
    announce(&config, address, is_new.then_some(admin_key.as_str()));

    let shutdown = CancellationToken::new();
    let state = ApiState {
        open_metrics: address.ip().is_loopback(),
        user_header: config.outbound.user_header.clone(),
        ..ApiState::new(engine.clone(), api::hash_key(&admin_key))
    };
    let limits = ServerLimits {
        connections_max: config.server.connections_max,
        header_timeout: config.server.header_timeout,
        body_timeout: config.server.body_timeout,
        ..ServerLimits::default()
    };
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    let server = tokio::spawn(api::serve(listener, state, limits, shutdown.clone()));
    let ran = engine.run(shutdown.clone(), config.shutdown.grace).await;
    shutdown.cancel();
    // The server ends within its own limit; whether it was cut off then matters to nobody any more.
    drop(server.await);
    ran?;
    tracing::info!("Stopped; everything that was settled is in the store");
    Ok(())
}

/// The operator's key, and whether it was made just now.
fn admin_key(config: &Config) -> Result<(String, bool), CliError> {
    if let Some(key) = &config.admin_key {
        return Ok((key.reveal().to_owned(), false));
    }
    let path = config.admin_key_file();
    match std::fs::read_to_string(&path) {
        Ok(key) if !key.trim().is_empty() => {
            private::file(&path)?;
            Ok((key.trim().to_owned(), false))
        }
        Ok(_) => keep_new_key(&path).map(|key| (key, true)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => keep_new_key(&path).map(|key| (key, true)),
        Err(source) => Err(CliError::File { path, source }),
    }
}

fn keep_new_key(path: &Path) -> Result<String, CliError> {
    let key = api::new_key();
    // An empty file may be there; its mode stays as it is when it is written.
    private::file(path)?;
    let keep = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        writeln!(file, "{key}")?;
        file.sync_all()?;
        // Its name too: it was shown, so somebody keeps it.
        path.parent().map_or(Ok(()), |folder| std::fs::File::open(folder)?.sync_all())
    };
    keep().map_err(|source| CliError::File { path: path.to_owned(), source })?;
    Ok(key)
}

fn announce(config: &Config, address: std::net::SocketAddr, new_key: Option<&str>) {
    let kept = match &config.store.kind {
        StoreKind::Embedded => format!("in {}", config.store.data.display()),
        StoreKind::Memory => "in memory only: lost when this process ends".into(),
        #[cfg(feature = "redis")]
        kind @ StoreKind::Redis(_) => format!("in {kind}"),
    };
    eprintln!("Entrega {} listens on http://{address}; jobs are kept {kept}", env!("CARGO_PKG_VERSION"));
    if let Some(key) = new_key {
        eprintln!("Admin key, shown this once and kept in {}:\n  {key}", config.admin_key_file().display());
    }
    if !config.mail.transports.is_empty() {
        let names: Vec<&str> = config.mail.transports.iter().map(|transport| transport.name.as_str()).collect();
        eprintln!("Mails leave through {}", names.join(", then "));
    }
    if config.outbound.allow_http || !config.outbound.allow_networks.is_empty() {
        let networks = config.outbound.allow_networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        eprintln!(
            "Outbound is open beyond the default: plain http {}, networks [{networks}]",
            config.outbound.allow_http
        );
    }
}

/// The first signal asks for an orderly end, the second ends at once.
async fn cancel_on_signal(shutdown: CancellationToken) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return tracing::error!("Signals cannot be heard; stop this process by killing it, which loses nothing");
    };
    let mut wait = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    wait().await;
    // First, because the log may have nobody left to read it.
    shutdown.cancel();
    tracing::info!("Stopping: attempts under way may finish; a second signal ends at once");
    wait().await;
    std::process::exit(130);
}

/// Log lines go to stderr: JSON, or for people on a terminal.
pub(super) fn start_log(log: &LogConfig) {
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let is_pretty = match log.format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Json => false,
        LogFormat::Pretty => true,
    };
    // A second engine in one process keeps the first one's log.
    let started = match is_pretty {
        true => lines.compact().try_init(),
        false => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
    drop(started);
}
