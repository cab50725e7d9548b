//! Destinations for the tests: real servers on loopback, some well behaved, some not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use entrega_call::{AddressFilter, ClientConfig};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A config that may call plain http on loopback, where the servers of these tests are.
pub(crate) fn loopback() -> ClientConfig {
    ClientConfig {
        filter: AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] },
        ..ClientConfig::default()
    }
}

/// A deadline that many seconds away.
#[allow(clippy::disallowed_methods, reason = "a test is its own clock")]
pub(crate) fn in_seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

/// A POST of a small body.
pub(crate) fn post(url: impl AsRef<str>) -> Request<Bytes> {
    let body = Bytes::from_static(b"{}");
    Request::post(url.as_ref()).body(body).unwrap()
}

/// A well-behaved server, and how many connections and requests it has seen.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) requests: Arc<AtomicUsize>,
}

impl Server {
    /// Answers every request with what `answer` makes of it.
    pub(crate) async fn start<F>(answer: F) -> Self
    where
        F: Fn(Request<Bytes>) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server =
            Self { address: listener.local_addr().unwrap(), connections: Arc::default(), requests: Arc::default() };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (answer, requests) = (answer.clone(), requests.clone());
                tokio::spawn(serve(stream, move |request| {
                    requests.fetch_add(1, Ordering::SeqCst);
                    answer(request)
                }));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve<S, F>(stream: S, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Bytes>) -> Response<Full<Bytes>>,
{
    let answer = &answer;
    let service = service_fn(|request: Request<Incoming>| async move {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, hyper::Error>(answer(Request::from_parts(head, body)))
    });
    let serving = hyper::server::conn::http1::Builder::new();
    // A client that goes away in mid-answer is part of some tests, and no concern of the server's.
    let _ = serving.serve_connection(TokioIo::new(stream), service).await;
}

/// A server that reads one request, writes `bytes`, says so, and then hands the connection to
/// the test, which decides how it goes on.
pub(crate) async fn misbehaving(bytes: Vec<u8>) -> (String, oneshot::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (written, when_written) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n{}") {
            stream.read_buf(&mut request).await.unwrap();
        }
        stream.write_all(&bytes).await.unwrap();
        written.send(stream).expect("the test waits for this");
    });
    (url, when_written)
}
