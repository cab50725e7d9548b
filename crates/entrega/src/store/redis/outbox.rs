//! Jobs on their way to other lanes: caused by a settlement and written with it, moved on afterwards.
//! Invariant: a job leaves the outbox only after its lane has it; moving one twice changes nothing, because the lane
//! knows its id.
//! Never: throws away what this node cannot move; another may know its lane or its version.

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
        let mut is_left = false;
        for lane in shared.lanes.values() {
            // One that cannot be emptied keeps no other from it.
            if let Err(error) = shared.empty_outbox(lane).await {
                is_left = true;
                tracing::warn!(lane = %lane.name, errorReason = %error,
                    "Jobs for other lanes could not be moved on; it is tried again");
            }
        }
        if is_left {
            tokio::time::sleep(PAUSE).await;
            shared.outbox.notify_one();
        }
    }
}

impl Shared {
    async fn empty_outbox(&self, lane: &LaneCell) -> Result<(), StoreError> {
        let (reader, key) = (Reader("the outbox"), lane.keys.key("outbox"));
        let mut stranded = 0;
        loop {
            let mut range = redis::cmd("LRANGE");
            range.arg(&key).arg(stranded).arg(stranded + MOVED_MAX - 1);
            let entries = reader.rows(self.link.ask(&range).await?)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let entry = reader.bytes(entry)?.unwrap_or_default();
                match self.move_on(&entry).await? {
                    true => drop(self.link.ask(redis::cmd("LREM").arg(&key).arg(1).arg(&entry)).await?),
                    false => stranded += 1,
                }
            }
        }
    }

    /// Whether this node could.
    async fn move_on(&self, entry: &[u8]) -> Result<bool, StoreError> {
        let jobs = match records::decode::<Vec<Job>>(entry) {
            Ok(jobs) => jobs,
            Err(error) => {
                self.note_unreadable("outbox", &error);
                return Ok(false);
            }
        };
        if let Some(job) = jobs.iter().find(|job| self.lane(&job.lane).is_err()) {
            tracing::error!(jobId = %job.id, lane = %job.lane,
                "A job's lane is not configured here; the job waits in the outbox");
            return Ok(false);
        }
        for job in jobs {
            self.put_in(self.lane(&job.lane)?, std::slice::from_ref(&job)).await?;
        }
        Ok(true)
    }
}
