//! One lane's own task: goes to the desk when there is something new, and sees to an orderly end.
//! Invariant: it sleeps until it is woken or until something is due; it polls nothing.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::name::LaneName;
use entrega_core::time::Time;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::desk::Desk;
use crate::engine::Engine;

pub(super) struct LaneLoop {
    lane: LaneName,
    desk: Arc<Desk>,
}

impl LaneLoop {
    pub(super) fn new(engine: &Arc<Engine>, lane: &LaneName) -> Result<LaneLoop, RunError> {
        Ok(LaneLoop { lane: lane.clone(), desk: Desk::new(engine, lane)? })
    }

    pub(super) async fn run(self, shutdown: CancellationToken, grace: Duration) -> Result<(), RunError> {
        let wake = self.desk.wake.clone();
        while !shutdown.is_cancelled() {
            let attended = self.desk.attend(false).await?;
            // In this order, not in one drawn by chance: a simulated run must come out the same again.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = wake.notified() => {}
                () = sleep_until(&self.desk.engine, attended.wake_at) => {}
            }
        }
        self.finish(grace).await
    }

    /// Lets attempts end for a while; what is cut off then was never settled and starts over at the next start.
    async fn finish(self, grace: Duration) -> Result<(), RunError> {
        let clock = &self.desk.engine.clock;
        let until = clock.instant(clock.now() + grace);
        loop {
            let running = self.desk.attend(true).await?.running;
            if running == 0 {
                return Ok(());
            }
            if tokio::time::timeout_at(until, self.desk.wake.notified()).await.is_err() {
                tracing::warn!(lane = %self.lane, cutOff = running, "Attempts did not end in time; they start over");
                self.desk.dismiss().await;
                return Ok(());
            }
        }
    }
}

async fn sleep_until(engine: &Engine, wake_at: Option<Time>) {
    match wake_at {
        Some(at) => tokio::time::sleep_until(engine.clock.instant(at)).await,
        None => std::future::pending().await,
    }
}
