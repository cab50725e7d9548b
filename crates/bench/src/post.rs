//! Posts: many tasks that send the same request through one client.
//!
//! Owns: what is sent, the tasks that send it, the clock around them.
//! Invariant: never more than `at_once` requests are under way, and every
//! request was answered before the clock stops.
//! Never: knows which client it is that sends.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::rate::Rate;
use crate::sink::Sink;

/// What is sent: the same for every client, BullMQ and Entrega.
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

/// A client with the one request it sends.
pub(crate) trait Post: Clone + Send + Sync + 'static {
    /// Sends it; an answer other than 200 is an error.
    fn post(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Sends a tenth to warm up, then all of it against the clock.
pub(crate) async fn all<P: Post>(post: P, sink: &Sink, shape: Shape, limit: Duration) -> Result<Rate> {
    let run = async {
        let warm_up = Shape { requests: shape.requests.div_ceil(10), ..shape };
        send(&post, warm_up).await?;
        sink.reset().await?;
        let start = Instant::now();
        send(&post, shape).await?;
        let rate = Rate::new(shape.requests, start.elapsed());
        sink.expect(shape.requests).await?;
        Ok(rate)
    };
    let late = || format!("{} posts took over {limit:?}", shape.requests);
    tokio::time::timeout(limit, run).await.with_context(late)?
}

async fn send<P: Post>(post: &P, shape: Shape) -> Result<()> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for _ in 0..shape.at_once {
        let (post, taken) = (post.clone(), Arc::clone(&taken));
        senders.spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < shape.requests {
                post.post().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender.context("a sender stopped")??;
    }
    Ok(())
}
