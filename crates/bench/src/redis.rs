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
const REWRITE_LIMIT: Duration = Duration::from_secs(60);

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
            if self.ask("PING").await.is_ok_and(|answer| answer.starts_with("+PONG")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("redis-server did not answer in {START_LIMIT:?}")
    }

    /// Forgets everything, in memory and in its file: the next to be measured finds it as it was at the start. Fails
    /// when somebody still writes.
    pub async fn clear(&self) -> Result<()> {
        self.command("FLUSHALL SYNC").await?;
        // A rewrite under way still writes what is gone; only one that begins now leaves the file empty.
        self.rewritten().await?;
        self.command("BGREWRITEAOF").await?;
        self.rewritten().await?;
        match self.keys().await? {
            0 => Ok(()),
            keys => bail!("somebody still writes to Redis: {keys} keys after it was cleared"),
        }
    }

    /// The processor time it has used, threads that write its file included.
    pub async fn processor_time(&self) -> Result<Duration> {
        let figures = self.command("INFO cpu").await?;
        let seconds = |name: &str| {
            let line = figures.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|text| text.trim().parse::<f64>().ok()).with_context(|| format!("no {name} in {figures:?}"))
        };
        Ok(Duration::from_secs_f64(seconds("used_cpu_sys")? + seconds("used_cpu_user")?))
    }

    /// How many keys it has.
    pub async fn keys(&self) -> Result<u64> {
        let answer = self.command("DBSIZE").await?;
        let count = answer.trim_start_matches(':').lines().next().unwrap_or_default();
        count.parse().with_context(|| format!("redis-server counted {answer:?} keys"))
    }

    /// Waits until it rewrites its file no more: what makes it do so belongs to what was measured before.
    pub async fn rewritten(&self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < REWRITE_LIMIT {
            let figures = self.command("INFO persistence").await?;
            if !figures.contains("aof_rewrite_in_progress:1") && !figures.contains("aof_rewrite_scheduled:1") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("redis-server was still rewriting its file after {REWRITE_LIMIT:?}")
    }

    async fn command(&self, command: &str) -> Result<String> {
        let answer = self.ask(command).await.with_context(|| format!("redis-server does not answer {command}"))?;
        match answer.strip_prefix('-') {
            Some(error) => bail!("redis-server answers {command} with {error}"),
            None => Ok(answer),
        }
    }

    /// What it says until it closes the connection, as we ask it to.
    async fn ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Free a moment ago; should somebody else take it, the server says so and ends.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
