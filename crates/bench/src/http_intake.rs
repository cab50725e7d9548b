//! Intake over HTTP: one job a call, many connections, each answered when its job is durable.
//!
//! Owns: the row's run and its comparison, both against the same server in a process of its own.
//! Invariant: the comparison is the same server answering the same bytes, but for the name of a lane that does not
//! exist: it reads, checks the key, parses, refuses, and stores nothing.
//! Never: reuses a data directory.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::frame::LIMIT;
use crate::load::{Load, Loaded};
use crate::ours;
use crate::process::Running;

const KEY: &str = "ek_key-of-the-benchmark";
const CONNECTIONS: usize = 64;

/// What storing and what refusing came to.
pub struct Measured {
    /// Jobs made durable.
    pub stored: Loaded,
    /// The same bytes, refused.
    pub refused: Loaded,
}

/// Serves the API on loopback and prints the port; jobs wait, because no lane runs.
pub async fn be_server(folder: &Path) -> Result<()> {
    let engine = ours::embedded(folder).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    let state = entrega_gateway::api::ApiState {
        open_metrics: true,
        ..entrega_gateway::api::ApiState::new(engine, entrega_gateway::api::hash_key(KEY))
    };
    let limits = entrega_gateway::api::ServerLimits::default();
    entrega_gateway::api::serve(listener, state, limits, CancellationToken::new()).await;
    Ok(())
}

/// Runs both; `exe` is the `entrega-bench` binary, which is also the server.
pub async fn measure(exe: &Path, folder: &Path, requests: u64) -> Result<Measured> {
    let mut command = Command::new(exe);
    command.arg("api").arg("--folder").arg(folder).stdout(Stdio::piped());
    let mut server = Running::start(&mut command)?;
    let stdout = server.child().stdout.take().context("the server's stdout")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("cannot read the server's port")?;
    let port: u16 = line.trim().parse().context("the server printed no port")?;
    // A tenth to warm up, as everywhere.
    load(port, "http", requests.div_ceil(10)).await?;
    let refused = load(port, "none", requests).await?;
    let stored = load(port, "http", requests).await?;
    match (stored.refused, refused.refused == requests) {
        (0, true) => Ok(Measured { stored, refused }),
        (count, _) => bail!("{count} of {requests} jobs were refused, and {} of the refused", refused.refused),
    }
}

async fn load(port: u16, lane: &str, requests: u64) -> Result<Loaded> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {KEY}"))?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let request = serde_json::json!({"url": "http://127.0.0.1:9/", "body": "x".repeat(1024)});
    let body = Bytes::from(serde_json::json!({"lane": lane, "request": request}).to_string());
    let url = format!("http://127.0.0.1:{port}/v1/jobs").parse()?;
    Load { url, headers, body, connections: CONNECTIONS, requests, limit: LIMIT }.run().await
}
