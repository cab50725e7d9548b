//! `entrega serve`: the gateway, until it is told to stop.
//! Invariant: it says where it listens only when it does; when it ends by itself it says why, with an exit code.
//! Never: shows a key that it did not just make.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::CliError;
use super::private;
use crate::api::{self, ApiState, RESERVED, ServerLimits};
use crate::config::Config;
use crate::handles::{self, Shares, Wanted};
use crate::log::Log;
use entrega::mail::MAIL;
use entrega::{Engine, EngineConfig, StoreKind};
use entrega_call::{NameLimits, NameResolver};
use entrega_core::policy::LanePolicy;

/// Runs the gateway that `config` describes. The last lines of its log are written by the end.
pub(super) async fn run(config: Config) -> Result<(), CliError> {
    let log = Log::of_process(&config.log).map_err(CliError::failed)?;
    let ran = run_logged(&config, &log).await;
    log.flush();
    ran
}

async fn run_logged(config: &Config, log: &Log) -> Result<(), CliError> {
    private::folder(&config.store.data)?;
    let shares = share_handles(config)?;
    let engine = Arc::new(Engine::open(engine_config(config, shares)?).await?);
    let address = config.server.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| CliError::Listen { address, source })?;
    let address = listener.local_addr().map_err(|source| CliError::Listen { address, source })?;
    // A key is made only by a server that runs, so that it is shown by the one that made it.
    let (admin_key, is_new) = admin_key(config)?;
    log.push(announcement(config, address, is_new.then_some(admin_key.as_str())).as_bytes());

    let shutdown = CancellationToken::new();
    let state = ApiState {
        open_metrics: address.ip().is_loopback(),
        user_header: config.outbound.user_header.clone(),
        log: Some(log.clone()),
        ..ApiState::new(engine.clone(), api::hash_key(&admin_key))
    };
    let limits = ServerLimits {
        connections_max: shares.inbound.saturating_sub(RESERVED).max(1),
        in_flight_bytes_max: config.server.in_flight_mib_max << 20,
        in_flight_bytes_per_tenant: config.server.in_flight_mib_per_tenant << 20,
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

/// Raises the limit of file handles, and shares them out.
fn share_handles(config: &Config) -> Result<Shares, CliError> {
    let handles = handles::raise_limit().map_err(CliError::failed)?;
    let is_mail = |policy: &LanePolicy| policy.channel == MAIL.name;
    let mails: u32 = config.lanes.values().filter(|policy| is_mail(policy)).map(|policy| policy.concurrency).sum();
    let idle: usize = config.mail.transports.iter().map(|transport| transport.idle_connections).sum();
    let wanted = Wanted {
        inbound: config.server.connections_max + RESERVED,
        outbound: config.outbound.connections_max,
        mail: idle + mails as usize,
    };
    let shares = handles::share(handles, wanted).map_err(CliError::failed)?;
    if shares.inbound < wanted.inbound || shares.outbound < wanted.outbound {
        tracing::warn!(
            handles,
            inbound = shares.inbound,
            outbound = shares.outbound,
            "Fewer connections than configured: file handles are scarce; raise the limit (ulimit -n, LimitNOFILE=)"
        );
    }
    Ok(shares)
}

/// What the engine is opened with, within its shares.
fn engine_config(config: &Config, shares: Shares) -> Result<EngineConfig, CliError> {
    let mut engine = config.engine()?;
    engine.store.cached_files_max = shares.store_cached;
    engine.client.connections_max = shares.outbound;
    // A tenant has at most a quarter of them.
    let per_tenant_max = (shares.look_ups / 4).max(1);
    let limits = NameLimits { look_ups_max: shares.look_ups, per_tenant_max, ..NameLimits::default() };
    engine.client.resolver = Arc::new(NameResolver::new(limits));
    Ok(engine)
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
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
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

/// What a person at the terminal wants to know first.
fn announcement(config: &Config, address: std::net::SocketAddr, new_key: Option<&str>) -> String {
    let kept = match &config.store.kind {
        StoreKind::Embedded => format!("in {}", config.store.data.display()),
        StoreKind::Memory => "in memory only: lost when this process ends".into(),
        #[cfg(feature = "redis")]
        kind @ StoreKind::Redis(_) => format!("in {kind}"),
    };
    let mut text = format!("Entrega {} listens on http://{address}; jobs are kept {kept}\n", env!("CARGO_PKG_VERSION"));
    if let Some(key) = new_key {
        let file = config.admin_key_file();
        text += &format!("Admin key, shown this once and kept in {}:\n  {key}\n", file.display());
    }
    if !config.mail.transports.is_empty() {
        let names: Vec<&str> = config.mail.transports.iter().map(|transport| transport.name.as_str()).collect();
        text += &format!("Mails leave through {}\n", names.join(", then "));
    }
    if config.outbound.allow_http || !config.outbound.allow_networks.is_empty() {
        let networks = config.outbound.allow_networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let http = config.outbound.allow_http;
        text += &format!("Outbound is open beyond the default: plain http {http}, networks [{networks}]\n");
    }
    text
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
