//! The bare client: what HTTP alone costs.
//!
//! Owns: the `hyper-util` client that sends the same POSTs as a drain does.
//! Invariant: its answers are read to the end, as those of the others are.
//! Never: stores, retries or waits; that is what it is compared with.

use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::post::{self, Post, Shape};
use crate::rate::Rate;
use crate::sink::Sink;

#[derive(Clone)]
struct Bare {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    body: Bytes,
}

/// Sends a tenth to warm up, then all of it against the clock.
pub async fn post_all(sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(shape.at_once).build(connector);
    let bare = Bare { client, uri: format!("{}/", sink.origin()).parse()?, body: shape.body() };
    post::all(bare, sink, shape, limit).await
}

impl Post for Bare {
    async fn post(&self) -> Result<()> {
        let request = Request::post(self.uri.clone()).body(Full::new(self.body.clone()))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        answer.into_body().collect().await?;
        if status != StatusCode::OK {
            bail!("the sink answered {status}");
        }
        Ok(())
    }
}
