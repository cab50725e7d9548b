//! A Redis server for one run.
//!
//! Owns: the `redis-server` process and the folder of its data.
//! Invariant: it persists as the gateway demands (an append-only file synced
//! every second, nothing evicted), for every peer alike.
//! Never: uses a server that was there before.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::{self, Running};

const START_LIMIT: Duration = Duration::from_secs(10);

/// A running server; it and its data are gone when dropped.
#[derive(Debug)]
pub struct Redis {
    // Before the folder: fields drop in this order.
    running: Running,
    folder: TempDir,
    port: u16,
}

impl Redis {
    /// Installs the server when it is missing, then starts one on a free port
    /// with its data in a new folder below `out`.
    pub async fn start(out: &Path) -> Result<Self> {
        process::ensure("redis-server", "redis-server").await?;
        let folder = tempfile::Builder::new().prefix("redis-").tempdir_in(out)?;
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--maxmemory-policy", "noeviction", "--save", ""])
            .arg("--dir")
            .arg(folder.path().canonicalize()?)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let running = Running::start(&mut command)?;
        let mut redis = Self { running, folder, port };
        redis.answers().await?;
        eprintln!("bench: redis-server on port {port}");
        Ok(redis)
    }

    /// Where it listens, on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:4711`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The folder of its data, also good for what its clients print.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn answers(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if let Some(status) = self.running.ended()? {
                bail!("redis-server ended with {status}");
            }
            if ping(self.port).await.is_ok_and(|answer| &answer == b"+PONG") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("redis-server did not answer in {START_LIMIT:?}")
    }
}

async fn ping(port: u16) -> std::io::Result<[u8; 5]> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"PING\r\n").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Free a moment ago; should somebody else take it, the server says so and ends.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
