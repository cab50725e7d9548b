//! The bare client: what HTTP alone costs.
//!
//! Owns: the `hyper-util` client that sends the same POSTs as a drain does.
//! Invariant: never more than `at_once` requests are under way, and every
//! request was answered with 200 before the clock stops.
//! Never: stores, retries or waits; that is what it is compared with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;

use crate::rate::Rate;
use crate::sink::Sink;

type Bare = Client<HttpConnector, Full<Bytes>>;

/// What is sent: the same for the bare client, BullMQ and Entrega.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many requests.
    pub requests: u64,
    /// How many are under way at a time.
    pub at_once: usize,
    /// The size of each body.
    pub body_bytes: usize,
}

impl Shape {
    /// The body every request carries.
    pub fn body(&self) -> Bytes {
        Bytes::from(vec![b'x'; self.body_bytes])
    }
}

/// Sends a tenth to warm up, then all of it against the clock.
pub async fn post_all(sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Bare = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(shape.at_once).build(connector);
    let uri: Uri = format!("{}/", sink.origin()).parse()?;
    let run = async {
        let warm_up = Shape { requests: shape.requests.div_ceil(10), ..shape };
        send(&client, &uri, warm_up).await?;
        sink.reset().await?;
        let start = Instant::now();
        send(&client, &uri, shape).await?;
        let rate = Rate::new(shape.requests, start.elapsed());
        sink.expect(shape.requests).await?;
        Ok(rate)
    };
    let late = || format!("the bare client took over {limit:?}");
    tokio::time::timeout(limit, run).await.with_context(late)?
}

async fn send(client: &Bare, uri: &Uri, shape: Shape) -> Result<()> {
    let taken = Arc::new(AtomicU64::new(0));
    let body = shape.body();
    let mut senders = JoinSet::new();
    for _ in 0..shape.at_once {
        let (client, uri, body) = (client.clone(), uri.clone(), body.clone());
        let taken = Arc::clone(&taken);
        senders.spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < shape.requests {
                post(&client, &uri, body.clone()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender.context("a sender stopped")??;
    }
    Ok(())
}

async fn post(client: &Bare, uri: &Uri, body: Bytes) -> Result<()> {
    let request = Request::post(uri.clone()).body(Full::new(body))?;
    let answer = client.request(request).await?;
    let status = answer.status();
    answer.into_body().collect().await?;
    if status != StatusCode::OK {
        bail!("the sink answered {status}");
    }
    Ok(())
}
