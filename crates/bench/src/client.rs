//! The client alone: what a call of ours costs, without an engine around it.
//!
//! Owns: the client of `entrega-call`, sending the same POSTs as the bare one.
//! Invariant: every call is made as the engine makes it: the address judged,
//! under a deadline, the answer read up to its cap.
//! Never: retries or passes a gate; those belong to the drain.

use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use entrega_call::{AddressFilter, Client, ClientConfig};
use hyper::{Request, StatusCode, Uri};
use tokio::time::Instant;

use crate::post::{self, Post, Shape};
use crate::rate::Rate;
use crate::sink::Sink;

/// The deadline of a call; that of a webhook.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Ours {
    client: Client,
    uri: Uri,
    body: Bytes,
}

/// Sends a tenth to warm up, then all of it against the clock.
pub async fn post_all(sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse()?] };
    let client = Client::new(ClientConfig { filter, ..ClientConfig::default() })?;
    let ours = Ours { client, uri: format!("{}/", sink.origin()).parse()?, body: shape.body() };
    post::all(ours, sink, shape, limit).await
}

impl Post for Ours {
    async fn post(&self) -> Result<()> {
        let request = Request::post(self.uri.clone()).body(self.body.clone())?;
        let answer = self.client.call(request, Instant::now() + CALL_TIMEOUT).await?;
        if answer.status != StatusCode::OK {
            bail!("the sink answered {}", answer.status);
        }
        Ok(())
    }
}
