//! Intake in process: many callers, each waiting for its job to be durable.
//!
//! Owns: the row's run.
//! Invariant: a job counts when its caller was told that it is safe.
//! Never: batches on the callers' side; that is the store's work.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::ours;
use crate::rate::Rate;

/// Jobs per second with `callers` waiting at a time.
pub async fn in_process(folder: &Path, callers: u64, jobs: u64) -> Result<Rate> {
    let engine = ours::embedded(folder).await?;
    let body = Bytes::from(vec![b'x'; 1024]);
    let taken = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (engine, body, taken) = (engine.clone(), body.clone(), taken.clone());
        tasks.spawn(async move {
            let tenant = ours::tenant(caller);
            while taken.fetch_add(1, Ordering::Relaxed) < jobs {
                let job = ours::job("http://127.0.0.1:9/", body.clone());
                for answer in engine.submit(&tenant, vec![job]).await {
                    answer?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.context("a caller stopped")??;
    }
    Ok(Rate::new(jobs, start.elapsed()))
}
