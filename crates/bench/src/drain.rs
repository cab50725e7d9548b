//! The drain: synced jobs, delivered to the sink as fast as the lane lets them.
//!
//! Owns: the run of the rows that drain, on whichever store the engine has.
//! Invariant: all jobs are durable before the clock starts; it stops when the sink has them and every settlement is
//! durable.
//! Never: counts a job that was only attempted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use entrega::Engine;
use entrega_core::job::JobState;
use tokio_util::sync::CancellationToken;

use crate::ours;
use crate::post::Shape;
use crate::rate::Rate;
use crate::redis::Redis;
use crate::sink::Sink;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Jobs per second of an engine that is not running yet; it has stopped when this returns.
pub async fn measure(engine: Arc<Engine>, sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let run = Run { engine, other: None, redis: None, sink };
    Ok(run.measure(shape, limit).await?.0)
}

/// Who drains, and where to.
pub struct Run<'a> {
    /// The node that owns the lane.
    pub engine: Arc<Engine>,
    /// Another one, which takes half of the jobs in.
    pub other: Option<Arc<Engine>>,
    /// The server that they share.
    pub redis: Option<&'a Redis>,
    /// Where jobs go.
    pub sink: &'a Sink,
}

impl Run<'_> {
    /// Jobs per second, and the server's processor time for the drain; the engine has stopped when this returns.
    pub async fn measure(&self, shape: Shape, limit: Duration) -> Result<(Rate, Duration)> {
        let shutdown = CancellationToken::new();
        let running = {
            let (engine, shutdown) = (self.engine.clone(), shutdown.clone());
            tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
        };
        let run = async {
            // A tenth to warm up, as for the bare client.
            self.drain(Shape { requests: shape.requests.div_ceil(10), ..shape }).await?;
            self.drain(shape).await
        };
        let late = || format!("the drain took over {limit:?}");
        let drained = tokio::time::timeout(limit, run).await.with_context(late)??;
        shutdown.cancel();
        running.await??;
        Ok(drained)
    }

    async fn drain(&self, shape: Shape) -> Result<(Rate, Duration)> {
        let Run { engine, other, sink, .. } = self;
        let url = format!("{}/", sink.origin());
        engine.store().set_paused(&ours::lane(), true).await?;
        let elsewhere = if other.is_some() { shape.requests / 2 } else { 0 };
        ours::fill(engine, &url, &shape.body(), shape.requests - elsewhere).await?;
        if let Some(other) = other {
            ours::fill(other, &url, &shape.body(), elsewhere).await?;
        }
        while left(engine).await? < shape.requests {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if let Some(redis) = self.redis {
            redis.rewritten().await?;
        }
        sink.reset().await?;
        let used_before = self.processor_time().await?;
        let start = Instant::now();
        engine.store().set_paused(&ours::lane(), false).await?;
        while left(engine).await? > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        engine.store().flush().await?;
        let rate = Rate::new(shape.requests, start.elapsed());
        let used = self.processor_time().await? - used_before;
        sink.expect(shape.requests).await?;
        Ok((rate, used))
    }

    async fn processor_time(&self) -> Result<Duration> {
        match self.redis {
            Some(redis) => redis.processor_time().await,
            None => Ok(Duration::ZERO),
        }
    }
}

/// Jobs that wait or run.
async fn left(engine: &Engine) -> Result<u64> {
    let lanes = engine.store().lanes().await?;
    let sizes = &lanes[0].sizes;
    Ok(u64::from(sizes.waiting() + sizes.in_state(JobState::Running)))
}
