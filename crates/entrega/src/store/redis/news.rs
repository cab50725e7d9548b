//! What other nodes say: there is work, a job has ended, the registry has changed.
//! Invariant: what was missed while nobody listened is looked up afterwards.
//! Never: carries anything that is not also kept; news may be lost.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::id::JobId;
use futures_util::StreamExt as _;

use super::{Shared, schema};

const PAUSE: Duration = Duration::from_millis(500);
/// Lanes and registry are looked at this often even if nobody says anything.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Listens until the store is dropped.
pub(super) async fn listen(shared: Arc<Shared>) {
    let channel = schema::news(&shared.options.prefix);
    loop {
        match shared.link.listen(&channel).await {
            Ok(stream) => {
                shared.catch_up().await;
                hear(&shared, stream).await;
            }
            Err(error) => tracing::debug!(errorReason = %error, "Other nodes cannot be heard; it is tried again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn hear(shared: &Shared, mut stream: redis::aio::PubSubStream) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.tick().await;
    // When the one connection had to be made again, this one may be as dead.
    let number = shared.link.number();
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(message) => shared.heard(message.get_payload_bytes()).await,
                None => return,
            },
            _ = look.tick() => shared.catch_up().await,
            () = shared.link.renewed(number) => return,
        }
    }
}

impl Shared {
    async fn heard(&self, message: &[u8]) {
        let space = message.iter().position(|&byte| byte == b' ').unwrap_or(message.len());
        let (what, which) = (&message[..space], message.get(space + 1..).unwrap_or_default());
        match what {
            b"wake" => {
                let lane = self.lanes.values().find(|lane| lane.name.as_str().as_bytes() == which);
                lane.into_iter().for_each(|lane| lane.wake.notify_one());
            }
            b"paused" => {
                let lane = self.lanes.values().find(|lane| lane.name.as_str().as_bytes() == which);
                if let Some(lane) = lane
                    && let Err(error) = self.give_back_ahead(lane).await
                {
                    tracing::warn!(lane = %lane.name, errorReason = %error, "Jobs could not be given back; they run although the lane is paused");
                }
            }
            b"ended" => {
                let id = <[u8; 16]>::try_from(which).map(JobId::from_bytes);
                id.into_iter().for_each(|id| self.waiters.tell(&[id]));
            }
            b"registry" => self.refresh_or_log().await,
            _ => {}
        }
    }

    async fn refresh_or_log(&self) {
        if let Err(error) = self.refresh_registry().await {
            tracing::warn!(errorReason = %error, "Keys and tenants could not be read again; it is tried again");
        }
    }

    /// Looks at everything that may have been missed.
    async fn catch_up(&self) {
        self.lanes.values().for_each(|lane| lane.wake.notify_one());
        self.waiters.tell_all();
        self.outbox.notify_one();
        self.refresh_or_log().await;
    }
}
