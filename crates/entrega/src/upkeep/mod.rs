//! Upkeep: what must happen now and then.
//! Invariant: each duty does a bounded amount of work per turn.
//! Never: stands in the way of a job.

mod endpoints;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::endpoints::Whose;
use crate::engine::Engine;

const REPLAY_EVERY: Duration = Duration::from_millis(100);
/// In turns of `REPLAY_EVERY`.
const SWEEP_EVERY: u64 = 10;
/// The same, for jobs whose endpoint may be back.
const ENDPOINTS_EVERY: u64 = 100;

/// Lets jobs go on that waited for an endpoint which is enabled now, without waiting for the next turn.
pub(crate) async fn let_go(engine: Arc<Engine>) {
    if let Err(error) = endpoints::Waiting::default().look(&engine, Whose::Anybodys).await {
        tracing::warn!(errorReason = %error, "Jobs that wait for an endpoint could not be looked at; it is tried again");
    }
}

/// Does the duties until `shutdown`.
pub async fn run(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut ticks = tokio::time::interval(REPLAY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut replayer = replay::Replayer::default();
    let mut waiting = endpoints::Waiting::default();
    for turn in 0u64.. {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = replayer.turn(&engine).await {
            tracing::error!(errorReason = %error, "A replay could not go on; it is tried again");
        }
        if turn.is_multiple_of(ENDPOINTS_EVERY)
            && let Err(error) = waiting.look(&engine, Whose::Ours).await
        {
            tracing::error!(errorReason = %error, "Jobs that wait for an endpoint could not be looked at; it is tried again");
        }
        if turn.is_multiple_of(SWEEP_EVERY) {
            sweep(&engine).await;
        }
    }
}

/// Forgets what has been kept long enough, and writes down every dead letter that leaves.
async fn sweep(engine: &Engine) {
    engine.metrics.tidy();
    let swept = match engine.store.sweep().await {
        Ok(swept) => swept,
        Err(error) => return tracing::error!(errorReason = %error, "The store could not be swept; it is tried again"),
    };
    let now = engine.clock.now();
    for (dead, why) in swept.dead_letters {
        engine.metrics.dead_left(&dead.lane, why, now.since(dead.moved_to_dlq_at));
        tracing::warn!(target: "audit", lane = %dead.lane, jobId = %dead.job_id, dlqId = %dead.job_id,
            companyId = %dead.company_id, why, status = %dead.status, movedToDLQAt = %dead.moved_to_dlq_at,
            "Dead letter removed");
    }
}
