//! One lane's loop: settle what ended, claim what may go, sleep until something happens.
//! Invariant: at most `concurrency` attempts run; each ends by its deadline and is settled, even one that panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::lane::Left;
use entrega_core::name::LaneName;
use entrega_core::outcome::{Fault, FaultKind, Outcome};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use futures_util::FutureExt as _;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::RunError;
use crate::channel::Channel;
use crate::engine::Engine;
use crate::settle::Attempted;
use crate::store::ClaimedJob;

pub(super) struct LaneLoop {
    engine: Arc<Engine>,
    lane: LaneName,
    policy: Arc<LanePolicy>,
    channel: Arc<dyn Channel>,
    wake: Arc<Notify>,
    tasks: JoinSet<()>,
    ended_sender: mpsc::Sender<Attempted>,
    ended: mpsc::Receiver<Attempted>,
    running: usize,
}

impl LaneLoop {
    pub(super) fn new(engine: &Arc<Engine>, lane: &LaneName) -> Result<LaneLoop, RunError> {
        let policy = engine.policy(lane)?;
        let no_channel = || RunError::NoChannel { lane: lane.to_string(), channel: policy.channel.clone() };
        let channel = engine.channels.get(&policy.channel).cloned().ok_or_else(no_channel)?;
        let (ended_sender, ended) = mpsc::channel(policy.concurrency as usize);
        Ok(LaneLoop {
            engine: engine.clone(),
            lane: lane.clone(),
            wake: engine.store.wake(lane)?,
            policy,
            channel,
            tasks: JoinSet::new(),
            ended_sender,
            ended,
            running: 0,
        })
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken, grace: Duration) -> Result<(), RunError> {
        let mut ended = Vec::with_capacity(self.policy.concurrency as usize);
        while !shutdown.is_cancelled() {
            let wake_at = self.claim().await?;
            let timer = sleep_until(&self.engine, wake_at);
            tokio::select! {
                _ = self.ended.recv_many(&mut ended, self.policy.concurrency as usize) => {
                    self.gather(&mut ended).await;
                    self.settle(&mut ended).await?;
                }
                () = self.wake.notified() => {}
                () = timer => {}
                () = shutdown.cancelled() => {}
            }
        }
        self.finish(&mut ended, grace).await
    }

    /// Claims as much as there is room for; returns when to ask again.
    async fn claim(&mut self) -> Result<Option<Time>, RunError> {
        let room = (self.policy.concurrency as usize).saturating_sub(self.running);
        if room == 0 {
            return Ok(None);
        }
        let batch = self.engine.store.claim(&self.lane, room).await?;
        batch.expired.iter().for_each(|left| self.report_expired(left));
        for job in batch.jobs {
            self.start(job);
        }
        Ok(batch.wake_at)
    }

    fn start(&mut self, claimed: ClaimedJob) {
        self.running += 1;
        // Finished tasks must leave the set, or it would grow without end.
        while self.tasks.try_join_next().is_some() {}
        let attempt = attempt(self.engine.clone(), self.channel.clone(), self.policy.timeout, claimed);
        let ended = self.ended_sender.clone();
        self.tasks.spawn(async move {
            // The loop is gone only after a failure of the store; then nothing can be settled.
            drop(ended.send(attempt.await).await);
        });
    }

    /// Attempts that end together are settled together: whoever is ready to run goes first, once. Under load that makes
    /// one round of this loop serve many jobs; without load nobody else is ready, and it takes no time.
    async fn gather(&mut self, ended: &mut Vec<Attempted>) {
        tokio::task::yield_now().await;
        while let Ok(attempted) = self.ended.try_recv() {
            ended.push(attempted);
        }
    }

    async fn settle(&mut self, ended: &mut Vec<Attempted>) -> Result<(), RunError> {
        self.running -= ended.len();
        let settlements = ended.drain(..).map(|attempted| self.engine.settlement(&self.policy, attempted)).collect();
        Ok(self.engine.store.settle(&self.lane, settlements).await?)
    }

    /// Lets attempts end for a while; what is cut off then was never settled and starts over at the next start.
    async fn finish(mut self, ended: &mut Vec<Attempted>, grace: Duration) -> Result<(), RunError> {
        let until = self.engine.clock.instant(self.engine.clock.now() + grace);
        while self.running > 0 {
            let received = tokio::time::timeout_at(until, self.ended.recv_many(ended, self.running)).await;
            if received.is_err() {
                tracing::warn!(lane = %self.lane, cutOff = self.running, "Attempts did not end in time; they start over next time");
                break;
            }
            self.settle(ended).await?;
        }
        Ok(())
    }

    fn report_expired(&self, left: &Left) {
        self.engine.metrics.dropped(&self.lane, "ttl_expired");
        tracing::warn!(lane = %self.lane, jobId = %left.id, companyId = %left.tenant, priority = left.priority.as_str(),
            errorReason = "ttl_expired", "Job dropped");
    }
}

async fn sleep_until(engine: &Engine, wake_at: Option<Time>) {
    match wake_at {
        Some(at) => tokio::time::sleep_until(engine.clock.instant(at)).await,
        None => std::future::pending().await,
    }
}

/// One attempt under one deadline. A panic in a channel is that attempt's failure, not the process's.
async fn attempt(engine: Arc<Engine>, channel: Arc<dyn Channel>, timeout: Duration, claimed: ClaimedJob) -> Attempted {
    let started_at = engine.clock.now();
    let deadline = engine.clock.instant(started_at + timeout);
    let attempt = AssertUnwindSafe(channel.attempt(&claimed, deadline)).catch_unwind();
    let outcome = match tokio::time::timeout_at(deadline, attempt).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Outcome::Fault(Fault { kind: FaultKind::Crashed, message: panic_text(&*panic) }),
        Err(_) => Outcome::Fault(Fault { kind: FaultKind::Timeout, message: "no answer in time".into() }),
    };
    let took = engine.clock.now().since(started_at);
    Attempted { claimed, started_at, took, outcome }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the channel panicked: {}", text.unwrap_or("no message"))
}
