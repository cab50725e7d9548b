//! BullMQ: the worker most people would use instead.
//!
//! Owns: its installation below the output folder and one run of it.
//! Invariant: the figure is that of a drain whose requests all arrived.
//! Never: fails a run because Node or Redis is missing; the row says so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::post::Shape;
use crate::process;
use crate::rate::Rate;
use crate::redis::Redis;
use crate::sink::Sink;

const PACKAGE: &str = include_str!("../peers/bullmq/package.json");
const WORKER: &str = include_str!("../peers/bullmq/worker.mjs");
const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// Drains `shape.requests` jobs, added beforehand, with one worker process.
pub async fn drain(out: &Path, redis: &Redis, sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let folder = install(out).await?;
    sink.reset().await?;
    let mut node = Command::new("node");
    node.current_dir(&folder).arg("worker.mjs").args([
        redis.port().to_string(),
        sink.origin(),
        shape.requests.to_string(),
        shape.at_once.to_string(),
        shape.body_bytes.to_string(),
    ]);
    let text = process::output(&mut node, redis.folder(), limit).await?;
    let rate: Rate =
        serde_json::from_str(text.trim()).with_context(|| format!("the BullMQ worker printed {text:?}"))?;
    let warm_up = shape.requests.div_ceil(10);
    sink.expect(shape.requests + warm_up).await?;
    Ok(rate)
}

/// Puts the worker and its packages below `out`, unless they are there.
async fn install(out: &Path) -> Result<PathBuf> {
    process::ensure("node", "nodejs").await?;
    process::ensure("npm", "npm").await?;
    let folder = out.join("bullmq");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("worker.mjs"), WORKER)?;
    let installed = folder.join("installed.json");
    if std::fs::read_to_string(&installed).is_ok_and(|text| text == PACKAGE) {
        return Ok(folder);
    }
    std::fs::write(folder.join("package.json"), PACKAGE)?;
    let mut npm = Command::new("npm");
    npm.current_dir(&folder);
    npm.args(["install", "--no-audit", "--no-fund", "--no-package-lock"]);
    process::run(&mut npm, INSTALL_LIMIT).await?;
    std::fs::write(&installed, PACKAGE)?;
    Ok(folder)
}
