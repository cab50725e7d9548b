//! One lane's own task: polls its workers' pool when there is something new, and sees to an orderly end.
//! Invariant: it sleeps until it is woken or until something is due; it never spins.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::name::LaneName;
use entrega_core::time::Time;
use tokio_util::sync::CancellationToken;

use super::Dispatch;
use super::RunError;
use super::pool::WorkerPool;
use crate::env::Env;

pub(super) struct LaneLoop {
    lane: LaneName,
    pool: Arc<WorkerPool>,
}

impl LaneLoop {
    pub(super) fn new(dispatch: &Dispatch, lane: &LaneName) -> Result<LaneLoop, RunError> {
        Ok(LaneLoop { lane: lane.clone(), pool: WorkerPool::new(dispatch, lane)? })
    }

    pub(super) async fn run(self, shutdown: CancellationToken, grace: Duration) -> Result<(), RunError> {
        let wake = self.pool.wake.clone();
        while !shutdown.is_cancelled() {
            let polled = self.pool.poll(false).await?;
            // In this order, not in one drawn by chance: a simulated run must come out the same again.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = wake.notified() => {}
                () = sleep_until(&self.pool.env, polled.wake_at) => {}
            }
        }
        self.finish(grace).await
    }

    /// Lets attempts end for a while; what is cut off then was never settled and starts over at the next start.
    async fn finish(self, grace: Duration) -> Result<(), RunError> {
        let clock = &self.pool.env.clock;
        let until = clock.instant(clock.now() + grace);
        loop {
            let running = self.pool.poll(true).await?.running;
            if running == 0 {
                return Ok(());
            }
            if tokio::time::timeout_at(until, self.pool.wake.notified()).await.is_err() {
                tracing::warn!(lane = %self.lane, cutOff = running, "Attempts did not end in time; they start over");
                self.pool.shut_down().await;
                return Ok(());
            }
        }
    }
}

async fn sleep_until(env: &Env, wake_at: Option<Time>) {
    match wake_at {
        Some(at) => tokio::time::sleep_until(env.clock.instant(at)).await,
        None => std::future::pending().await,
    }
}
