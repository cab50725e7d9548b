//! From accepted to the first attempt, on an idle engine.
//!
//! Owns: the row's run.
//! Invariant: the time runs from when the job was named, before it was synced, to when its attempt began.
//! Never: sends a job before the last one has ended.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio_util::sync::CancellationToken;

use crate::ours;
use crate::sink::Sink;

/// Half took no longer than the first, 99 of 100 no longer than the second.
pub async fn measure(folder: &Path, sink: &Sink, jobs: u64) -> Result<(Duration, Duration)> {
    let engine = ours::embedded(folder).await?;
    let shutdown = CancellationToken::new();
    let running = {
        let (engine, shutdown) = (engine.clone(), shutdown.clone());
        tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
    };
    let url = format!("{}/", sink.origin());
    let body = Bytes::from(vec![b'x'; 1024]);
    let mut micros = Histogram::<u64>::new(3)?;
    for number in 0..jobs {
        let taken = engine.submit(&ours::tenant(number), vec![ours::job(&url, body.clone())]).await;
        let id = taken.into_iter().next().context("one answer")??;
        engine.store().ended(id).await?;
        let view = engine.store().job(id).await?.context("the job is known")?;
        let first = view.attempts.first().context("the job was attempted")?;
        micros.record(first.started_at.since(view.accepted_at).as_micros() as u64)?;
    }
    shutdown.cancel();
    running.await??;
    let at = |quantile| Duration::from_micros(micros.value_at_quantile(quantile));
    Ok((at(0.5), at(0.99)))
}
