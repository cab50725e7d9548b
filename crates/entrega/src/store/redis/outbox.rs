//! Jobs on their way to other lanes: caused by a settlement and written with it, moved on afterwards.
//! Invariant: a job leaves the outbox only after its lane has it; moving one twice changes nothing, because the lane
//! knows its id.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::job::Job;

use super::answer::Reader;
use super::{LaneCell, Shared};
use crate::store::{StoreError, records};

/// Entries moved at a time.
const MOVED_MAX: isize = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// Moves jobs on until the store is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        shared.outbox.notified().await;
        for lane in shared.lanes.values() {
            while let Err(error) = shared.empty_outbox(lane).await {
                tracing::warn!(lane = %lane.name, errorReason = %error, "Jobs for other lanes could not be moved on; it is tried again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Shared {
    async fn empty_outbox(&self, lane: &LaneCell) -> Result<(), StoreError> {
        let (reader, key) = (Reader("the outbox"), lane.keys.key("outbox"));
        loop {
            let entries = self.link.ask(redis::cmd("LRANGE").arg(&key).arg(0).arg(MOVED_MAX - 1)).await?;
            let entries = reader.rows(entries)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let entry = reader.bytes(entry)?.unwrap_or_default();
                match records::decode::<Vec<Job>>(&entry) {
                    Ok(jobs) => self.move_on(jobs).await?,
                    Err(error) => self.note_unreadable("outbox", &error),
                }
                self.link.ask(redis::cmd("LREM").arg(&key).arg(1).arg(&entry)).await?;
            }
        }
    }

    async fn move_on(&self, jobs: Vec<Job>) -> Result<(), StoreError> {
        for job in jobs {
            match self.lane(&job.lane) {
                Ok(lane) => self.put_in(lane, std::slice::from_ref(&job)).await?,
                Err(error) => {
                    tracing::error!(jobId = %job.id, lane = %job.lane, errorReason = %error, "A job's lane is gone; the job cannot be moved on")
                }
            }
        }
        Ok(())
    }
}
