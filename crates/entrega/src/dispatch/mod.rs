//! Dispatch: claims what may go, attempts it, hands the outcomes over for settlement.
//! Invariant: a lane never has more attempts under way than it has slots and may have slow ones, and starts none that it
//! could not record.
//! Never: decides; the machine says what goes next, `settle` what comes of it.

mod attempt;
mod lane;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::channel::Channels;
use crate::env::Env;
use crate::settle::Settler;
use crate::store::StoreError;

/// Why an engine stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store can no longer be written: a send that cannot be recorded would become a duplicate.
    #[error("delivery stopped because the store failed: {reason}")]
    StoreFailed {
        /// What the store said.
        reason: String,
    },
    /// A lane names a channel that is not there.
    #[error("lane '{lane}' wants channel '{channel}', which this engine does not have")]
    NoChannel {
        /// Which lane.
        lane: String,
        /// Which channel.
        channel: String,
    },
    /// A lane lets jobs past its open breaker, and its channel would call what is down.
    #[error(
        "lane '{lane}' says breaker.when_open = \"pass\", but channel '{channel}' cannot answer without a call; write \
         when_open = \"hold\""
    )]
    CannotPass {
        /// Which lane.
        lane: String,
        /// Which channel.
        channel: String,
    },
    /// A verb of the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What runs the lanes of an engine.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub(crate) env: Env,
    pub(crate) channels: Arc<Channels>,
    pub(crate) settler: Settler,
}

impl Dispatch {
    /// Runs every lane until `shutdown`, then lets attempts finish for at most `grace`. Whatever is cut off starts
    /// over the next time.
    pub(crate) async fn run(&self, shutdown: CancellationToken, grace: Duration) -> Result<(), RunError> {
        let mut tasks = JoinSet::new();
        for lane in self.env.lanes.keys() {
            tasks.spawn(lane::LaneLoop::new(self, lane)?.run(shutdown.clone(), grace));
        }
        let result = self.watch(&mut tasks).await;
        // One lane's failure is the store's: the others stop as well.
        shutdown.cancel();
        while tasks.join_next().await.is_some() {}
        result
    }

    async fn watch(&self, tasks: &mut JoinSet<Result<(), RunError>>) -> Result<(), RunError> {
        loop {
            tokio::select! {
                biased;
                reason = self.env.store.failed() => return Err(RunError::StoreFailed { reason }),
                ended = tasks.join_next() => match ended {
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => return Err(error),
                    Some(Err(error)) => return Err(RunError::StoreFailed { reason: format!("a lane's task ended: {error}") }),
                    None => return Ok(()),
                },
            }
        }
    }
}
