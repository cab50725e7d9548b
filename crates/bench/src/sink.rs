//! The sink: an HTTP server that counts what arrives and says 200.
//!
//! Owns: the server, and the handle on it from another process.
//! Invariant: a request is counted after its body was read to the end.
//! Never: shares a process with what is measured, so that its work is not
//! taken for theirs; listens anywhere but on loopback.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::process::Running;

/// A sink in a process of its own; ends with this handle.
#[derive(Debug)]
pub struct Sink {
    /// Dropped with us; the child also ends when our end of its stdin closes,
    /// so that it does not outlive a bench that was killed.
    _running: Running,
    address: SocketAddr,
}

impl Sink {
    /// Starts `exe sink`; `exe` is the `entrega-bench` binary.
    pub fn start(exe: &Path) -> Result<Self> {
        let mut command = Command::new(exe);
        command.args(["sink", "--port", "0", "--until-stdin-closes"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let stdout = running.child().stdout.take().context("the sink's stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("cannot read the sink's port")?;
        let port: u16 = line.trim().parse().with_context(|| format!("the sink printed {line:?} and not its port"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self { _running: running, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its root, without a slash at the end: `http://127.0.0.1:4711`.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests it took since the last reset.
    pub async fn count(&self) -> Result<u64> {
        let text = self.ask(Method::GET, "/count").await?;
        text.parse().context("the sink's count is not a number")
    }

    /// Starts counting from zero.
    pub async fn reset(&self) -> Result<()> {
        self.ask(Method::POST, "/reset").await.map(drop)
    }

    /// Fails unless exactly `expected` requests arrived.
    pub async fn expect(&self, expected: u64) -> Result<()> {
        let count = self.count().await?;
        if count != expected {
            bail!("{expected} requests were sent, the sink counted {count}");
        }
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str) -> Result<String> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Its error, if any, is also that of the request.
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .body(Full::new(Bytes::new()))?;
        let answer = sender.send_request(request).await?;
        let body = answer.into_body().collect().await?.to_bytes();
        connection.abort();
        String::from_utf8(body.into()).context("the sink's answer is not text")
    }
}

/// Listens on loopback and prints the port; port 0 means any that is free.
pub async fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| format!("cannot listen on port {port}"))?;
    println!("{}", listener.local_addr()?.port());
    Ok(listener)
}

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener) -> Result<()> {
    let count = Arc::new(AtomicU64::new(0));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let count = Arc::clone(&count);
        let answer = service_fn(move |request| answer(request, Arc::clone(&count)));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(async move {
            // A client that goes away in the middle is not the sink's concern:
            // the count tells what was taken.
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>, count: Arc<AtomicU64>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match (request.method(), request.uri().path()) {
        (&Method::GET, "/count") => Bytes::from(count.load(Ordering::Relaxed).to_string()),
        (&Method::POST, "/reset") => {
            count.store(0, Ordering::Relaxed);
            Bytes::from_static(b"ok")
        }
        _ => {
            let mut body = request.into_body();
            while let Some(Ok(_)) = body.frame().await {}
            count.fetch_add(1, Ordering::Relaxed);
            Bytes::from_static(b"ok")
        }
    };
    Ok(Response::new(Full::new(body)))
}
