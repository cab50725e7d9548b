//! Load: many connections, each sending one request after another.
//!
//! Owns: the connections, the latencies, the count of refusals.
//! Invariant: a latency runs from before a request is sent until its answer
//! is read to the end; an answer other than 2xx is counted as refused.
//! Never: opens a connection while the clock runs; sends a request before the
//! connection's last one was answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::rate::Rate;

/// What to send where.
#[derive(Debug, Clone)]
pub struct Load {
    /// `http://127.0.0.1:4711/path`.
    pub url: Uri,
    /// Sent with every request; `Host` is added.
    pub headers: HeaderMap,
    /// The body of every request.
    pub body: Bytes,
    /// Connections, each with one request under way.
    pub connections: usize,
    /// Requests in all.
    pub requests: u64,
    /// When to give up.
    pub limit: Duration,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Answers per second, refusals included.
    pub rate: Rate,
    /// Half of the answers took no longer than this.
    pub p50: Duration,
    /// Ninety-nine of a hundred took no longer than this.
    pub p99: Duration,
    /// Answers other than 2xx.
    pub refused: u64,
}

/// Latencies in nanoseconds, to three digits.
struct Tally {
    latencies: Histogram<u64>,
    refused: u64,
}

impl Tally {
    fn new() -> Result<Self> {
        let latencies = Histogram::new(3)?;
        Ok(Self { latencies, refused: 0 })
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.latencies.add(&other.latencies)?;
        self.refused += other.refused;
        Ok(())
    }

    fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.latencies.value_at_quantile(quantile))
    }
}

impl Load {
    /// Sends it all; an error when a connection breaks or the time runs out.
    pub async fn run(self) -> Result<Loaded> {
        let limit = self.limit;
        let late = || format!("the load took over {limit:?}");
        tokio::time::timeout(limit, self.send()).await.with_context(late)?
    }

    async fn send(self) -> Result<Loaded> {
        let (load, connections) = (Arc::new(self.with_host()?), self.connections as u64);
        let ready = Arc::new(Barrier::new(self.connections + 1));
        let mut senders = JoinSet::new();
        for index in 0..connections {
            let extra = u64::from(index < load.requests % connections);
            let share = load.requests / connections + extra;
            let sender = load.connect().await?;
            senders.spawn(send_share(Arc::clone(&load), sender, share, Arc::clone(&ready)));
        }
        ready.wait().await;
        let start = Instant::now();
        let mut all = Tally::new()?;
        while let Some(tally) = senders.join_next().await {
            all.add(&tally.context("a sender stopped")??)?;
        }
        Ok(Loaded {
            rate: Rate::new(load.requests, start.elapsed()),
            p50: all.quantile(0.5),
            p99: all.quantile(0.99),
            refused: all.refused,
        })
    }

    fn with_host(&self) -> Result<Self> {
        if self.connections == 0 {
            bail!("a load needs a connection");
        }
        let mut load = self.clone();
        let authority = self.url.authority().context("a URL without a host")?;
        let host = HeaderValue::from_str(authority.as_str())?;
        load.headers.insert(HOST, host);
        Ok(load)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let host = self.url.host().context("a URL without a host")?;
        let stream = TcpStream::connect((host, self.url.port_u16().unwrap_or(80))).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the sender; its error is also that of the request.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(&self) -> Result<Request<Full<Bytes>>> {
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path).body(Full::new(self.body.clone()))?;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

async fn send_share(
    load: Arc<Load>,
    mut sender: SendRequest<Full<Bytes>>,
    share: u64,
    ready: Arc<Barrier>,
) -> Result<Tally> {
    let mut tally = Tally::new()?;
    ready.wait().await;
    for _ in 0..share {
        let request = load.request()?;
        let start = Instant::now();
        sender.ready().await?;
        let answer = sender.send_request(request).await?;
        let refused = !answer.status().is_success();
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        let nanos = u64::try_from(start.elapsed().as_nanos())?;
        tally.latencies.record(nanos)?;
        tally.refused += u64::from(refused);
    }
    Ok(tally)
}
