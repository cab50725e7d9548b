//! Upkeep: what must happen now and then.
//! Invariant: each duty does a bounded amount of work per turn.
//! Never: stands in the way of a job.

mod replay;

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::env::Env;
use crate::webhook::{LaneScope, Waiting};

const REPLAY_EVERY: Duration = Duration::from_millis(100);
/// In turns of `REPLAY_EVERY`.
const SWEEP_EVERY: u64 = 10;
/// The same, for jobs whose endpoint may be back.
const ENDPOINTS_EVERY: u64 = 100;

/// Does the duties until `shutdown`.
pub(crate) async fn run(env: Env, shutdown: CancellationToken) {
    let mut ticks = tokio::time::interval(REPLAY_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut replayer = replay::Replayer::default();
    let mut waiting = Waiting::default();
    let mut has_more_to_sweep = false;
    for turn in 0u64.. {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = replayer.turn(&env).await {
            tracing::error!(errorReason = %error, "A replay could not go on; it is tried again");
        }
        if turn.is_multiple_of(ENDPOINTS_EVERY) {
            waiting.look_again();
        }
        if let Err(error) = waiting.turn(&env, LaneScope::Owned).await {
            tracing::error!(errorReason = %error, "Jobs that wait for an endpoint could not be looked at; it is tried again");
        }
        if turn.is_multiple_of(SWEEP_EVERY) || has_more_to_sweep {
            has_more_to_sweep = sweep(&env).await;
        }
    }
}

/// Forgets what has been kept long enough, and writes down every dead letter that leaves. Whether more may be due.
async fn sweep(env: &Env) -> bool {
    env.metrics.tidy();
    let swept = match env.store.sweep().await {
        Ok(swept) => swept,
        Err(error) => {
            tracing::error!(errorReason = %error, "The store could not be swept; it is tried again");
            return false;
        }
    };
    let now = env.clock.now();
    for (dead, why) in swept.dead_letters {
        env.metrics.dead_left(&dead.lane, why, now.since(dead.moved_to_dlq_at));
        tracing::warn!(target: "audit", lane = %dead.lane, jobId = %dead.job_id, dlqId = %dead.job_id,
            companyId = %dead.company_id, why, status = %dead.status, movedToDLQAt = %dead.moved_to_dlq_at,
            "Dead letter removed");
    }
    swept.has_more
}
