//! A million waiting jobs: what they cost in memory, and how long a start takes with them.
//!
//! Owns: the row's runs, each in a process of its own, so that nothing else is in the figure.
//! Invariant: the jobs are durable and the lane is paused when the memory is read.
//! Never: counts pages of files that the system would give back.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::frame::LIMIT;
use crate::ours;
use crate::process;

/// What a child saw.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Seen {
    /// Anonymous memory, in MB.
    pub memory_mb: f64,
    /// How long opening the store took, in seconds.
    pub open_seconds: f64,
    /// Jobs that waited.
    pub waiting: u64,
}

/// In a child: opens the store, adds `jobs`, and prints what it saw.
pub async fn be_hoard(folder: &Path, jobs: u64) -> Result<()> {
    let start = Instant::now();
    let engine = ours::embedded(folder).await?;
    let open_seconds = start.elapsed().as_secs_f64();
    engine.store().set_paused(&ours::lane(), true).await?;
    let body = Bytes::from(vec![b'x'; 1024]);
    ours::fill(&engine, "http://127.0.0.1:9/", &body, jobs).await?;
    // reason: memory that was only needed to take the jobs in is given back within a moment
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waiting = u64::from(engine.store().lanes().await?[0].sizes.waiting());
    println!("{}", serde_json::to_string(&Seen { memory_mb: anonymous_mb()?, open_seconds, waiting })?);
    Ok(())
}

/// Starts the child; `exe` is the `entrega-bench` binary.
pub async fn measure(exe: &Path, folder: &Path, jobs: u64) -> Result<Seen> {
    let mut command = Command::new(exe);
    command.arg("hoard").arg("--folder").arg(folder.join("data")).args(["--jobs", &jobs.to_string()]);
    let text = process::output(&mut command, folder, LIMIT).await?;
    serde_json::from_str(text.trim()).with_context(|| format!("the child printed {text:?}"))
}

fn anonymous_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in /proc")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024.0 / 1e6)
}
