//! The verbs of a job's way.
//! Invariant: whatever the server does, no verb ends a worker: a claim that fails brings nothing and says when to come
//! back, a settlement is kept until it is taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use entrega_core::lane::Explanation;
use entrega_core::name::{LaneName, TenantName};
use futures_util::future;
use redis::Value;
use tokio::sync::Notify;

use super::answer::Reader;
use super::link::store_error;
use super::script::{Call, Verb};
use super::{RedisStore, schema};
use crate::store::{
    ChangeError, ClaimBatch, JobFilter, JobStore, JobView, LaneView, MemoryUse, NewEntry, Page, Paged, Settlement,
    StoreError, StoreHealth, Submitted, Swept,
};

/// When to come back after a claim that failed.
const COME_BACK: Duration = Duration::from_millis(200);
/// How long a flush may take before the server counts as gone.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);
/// Who waits for the end of a job says so again this often.
const WAIT_AGAIN: Duration = Duration::from_secs(20);

#[async_trait]
impl JobStore for RedisStore {
    async fn take(&self, jobs: Vec<NewEntry>) -> Result<Vec<Submitted>, StoreError> {
        let shared = &self.shared;
        jobs.iter().try_for_each(|entry| shared.lane(&entry.job.lane).map(drop))?;
        let mut by_lane: Vec<(LaneName, Vec<usize>, Vec<NewEntry>)> = Vec::new();
        let count = jobs.len();
        for (place, entry) in jobs.into_iter().enumerate() {
            let known = by_lane.iter_mut().find(|(lane, ..)| *lane == entry.job.lane);
            match known {
                Some((_, places, entries)) => {
                    places.push(place);
                    entries.push(entry);
                }
                None => by_lane.push((entry.job.lane.clone(), vec![place], vec![entry])),
            }
        }
        let places: Vec<Vec<usize>> = by_lane.iter().map(|(_, places, _)| places.clone()).collect();
        let taken = by_lane.into_iter().map(|(lane, places, jobs)| async move {
            let submitted = shared.lane(&lane)?.submits.submit(jobs).await?;
            Ok::<_, StoreError>(places.into_iter().zip(submitted).collect::<Vec<_>>())
        });
        let mut answers = vec![Submitted::Full; count];
        let taken = future::join_all(taken).await;
        if taken.iter().all(Result::is_err) {
            return taken.into_iter().find_map(Result::err).map_or(Ok(answers), Err);
        }
        // What one lane has taken is taken, whatever another says.
        for (taken, places) in taken.into_iter().zip(places) {
            match taken {
                Ok(taken) => taken.into_iter().for_each(|(place, submitted)| answers[place] = submitted),
                Err(error) => places.into_iter().for_each(|place| answers[place] = Submitted::Unsaved(error.clone())),
            }
        }
        Ok(answers)
    }

    async fn job_once(&self, tenant: &TenantName, key: &str) -> Result<Option<JobId>, StoreError> {
        let reader = Reader("a look at a key");
        let key = schema::once(&self.shared.options.prefix, tenant, key);
        let call = Call::without_lane(&self.shared, Verb::Once).arg(key);
        match call.make(&self.shared).await.map_err(|error| store_error(&error))? {
            Value::Nil => Ok(None),
            id => reader.id(id).map(Some),
        }
    }

    async fn claim(&self, lane: &LaneName, max: usize) -> Result<ClaimBatch, StoreError> {
        let lane = self.shared.lane(lane)?;
        match self.shared.claim(lane, max).await {
            Ok(batch) => Ok(batch),
            Err(error) => {
                tracing::debug!(lane = %lane.name, errorReason = %error, "Nothing could be claimed; it is tried again");
                let wake_at = Some(self.shared.clock.now() + COME_BACK);
                Ok(ClaimBatch { wake_at, ..ClaimBatch::default() })
            }
        }
    }

    async fn settle(&self, lane: &LaneName, settlements: Vec<Settlement>) -> Result<(), StoreError> {
        self.shared.hand_in(self.shared.lane(lane)?, settlements).await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        let drained = future::join_all(self.shared.lanes.values().map(|lane| lane.settlements.drained()));
        match tokio::time::timeout(FLUSH_LIMIT, drained).await {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Unreachable {
                reason: "settlements could not be written in time; their jobs start over when their leases end".into(),
            }),
        }
    }

    async fn release(&self) -> Result<(), StoreError> {
        future::try_join_all(self.shared.lanes.values().map(|lane| self.shared.release(lane))).await.map(drop)
    }

    fn wake(&self, lane: &LaneName) -> Result<Arc<Notify>, StoreError> {
        self.shared.lane(lane).map(|lane| lane.wake.clone())
    }

    async fn cancel(&self, id: JobId, reason: &str) -> Result<JobView, ChangeError> {
        self.shared.cancel(id, reason).await
    }

    async fn unblock(&self, id: JobId) -> Result<(), ChangeError> {
        self.shared.unblock(id).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>, StoreError> {
        Ok(self.shared.find(id).await?.map(|(_, view)| view))
    }

    async fn ended(&self, id: JobId) -> Result<(), StoreError> {
        loop {
            let waiter = self.shared.waiters.wait(id);
            let Some((lane, view)) = self.shared.find(id).await? else { return Ok(()) };
            if rests(view.state) {
                return Ok(());
            }
            let lane = self.shared.lane(&lane)?;
            let length = 2 * WAIT_AGAIN.as_micros() as u64;
            self.shared.change(lane, "wait", |call| call.arg(id.as_bytes()).arg(length)).await?;
            // It may have ended before the others knew that somebody waits.
            let now = self.shared.view(lane, id).await?;
            if now.is_none_or(|view| rests(view.state)) {
                return Ok(());
            }
            // Told or not, it is looked at again: news may be lost.
            drop(tokio::time::timeout(WAIT_AGAIN, waiter.told()).await);
        }
    }

    async fn jobs(&self, filter: &JobFilter, page: Page<JobId>) -> Result<Paged<JobView, JobId>, StoreError> {
        self.shared.list(filter, page).await
    }

    async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        self.shared.explain(id).await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        future::try_join_all(self.shared.lanes.values().map(|lane| self.shared.lane_view(lane))).await
    }

    async fn set_paused(&self, lane: &LaneName, paused: bool) -> Result<(), StoreError> {
        let lane = self.shared.lane(lane)?;
        self.shared.change(lane, if paused { "pause" } else { "resume" }, |call| call).await?;
        if paused {
            self.shared.give_back_ahead(lane).await?;
        }
        lane.wake.notify_one();
        Ok(())
    }

    async fn sweep(&self) -> Result<Swept, StoreError> {
        self.shared.sweep().await
    }

    fn health(&self) -> StoreHealth {
        let pulse = self.shared.pulse.lock().clone();
        StoreHealth {
            kind: "redis",
            durability: pulse.durability(),
            failure: self.shared.link.trouble(),
            refuses: (pulse.memory_ratio().unwrap_or(0.0) >= 1.0).then(|| StoreError::MemoryFull.to_string()),
            unreadable: self.shared.unreadable.load(Ordering::Relaxed),
            memory: Some(MemoryUse {
                used_bytes: pulse.memory_used,
                max_bytes: pulse.memory_max,
                level: pulse.memory_level(),
            }),
            stale_settlements: self.shared.stale.load(Ordering::Relaxed),
            rejected_writes: self.shared.rejected.load(Ordering::Relaxed),
        }
    }

    async fn failed(&self) -> String {
        // A server that is gone comes back: there is no end to wait for.
        future::pending().await
    }
}

fn rests(state: JobState) -> bool {
    state.is_end() || state == JobState::Blocked
}
