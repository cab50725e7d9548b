//! Signals of all nodes, on a connection that only listens.
//! Invariant: it is made again when it ends, and when the others had to be made again: it may be as dead as they were.
//! Never: carries anything that is not also kept; signals may be lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::PubSubStream;
use redis::{ErrorKind, RedisError};
use tokio::sync::broadcast;

use super::address::Address;
use super::connection::{CONNECT_TIMEOUT, Connections};
use super::error::RedisOpenError;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// What listens.
pub(super) struct Listener {
    address: Address,
    channel: String,
    stream: PubSubStream,
}

impl Listener {
    pub(super) async fn open(url: &str, channel: String) -> Result<Listener, RedisOpenError> {
        let address = Address::read(url)?;
        let failed = |error: RedisError| RedisOpenError::Connect {
            address: address.shown().to_owned(),
            reason: error.to_string(),
        };
        let stream = subscribe(&address, &channel).await.map_err(failed)?;
        Ok(Listener { address, channel, stream })
    }

    /// Passes signals on for as long as the ledger is there.
    pub(super) async fn run(mut self, connections: Arc<Connections>, signals: broadcast::Sender<Arc<str>>) {
        let mut number = connections.owners.number();
        loop {
            tokio::select! {
                () = pass_on(&mut self.stream, &signals) => {
                    connections.give_up_all("the server closed a connection");
                    tokio::time::sleep(PAUSE).await;
                }
                () = connections.owners.renewed(number) => {}
            }
            self.stream = loop {
                // Before it listens: whatever changes meanwhile lets it look again.
                number = connections.owners.number();
                match subscribe(&self.address, &self.channel).await {
                    Ok(stream) => break stream,
                    Err(error) => {
                        tracing::debug!(errorReason = %error, "Other nodes cannot be heard; it is tried again");
                    }
                }
                tokio::time::sleep(PAUSE).await;
            };
        }
    }
}

/// Ends with the connection.
async fn pass_on(stream: &mut PubSubStream, signals: &broadcast::Sender<Arc<str>>) {
    while let Some(message) = stream.next().await {
        if let Ok(topic) = message.get_payload::<String>() {
            // Nobody may listen.
            drop(signals.send(topic.into()));
        }
    }
}

async fn subscribe(address: &Address, channel: &str) -> Result<PubSubStream, RedisError> {
    let listening = async {
        let (mut sink, stream) = address.client().await?.get_async_pubsub().await?.split();
        sink.subscribe(channel).await?;
        Ok(stream)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, listening).await {
        Ok(listening) => listening,
        Err(_) => Err(RedisError::from((ErrorKind::Io, "no answer in time"))),
    }
}
