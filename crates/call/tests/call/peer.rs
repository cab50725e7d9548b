//! A server that the test plays itself, byte by byte, and how to see over which connection a call comes.

use bytes::Bytes;
use entrega_call::{Answer, CallError, Client};
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::server::{in_seconds, post};

/// An answer after which both sides keep the connection.
pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// How a call came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    OverTheSame,
    OverAnother,
}

pub(crate) struct Peer {
    listener: TcpListener,
}

impl Peer {
    pub(crate) async fn start() -> Peer {
        Peer { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.listener.local_addr().unwrap())
    }

    pub(crate) async fn accept(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    /// A call over a connection of its own that is answered with `bytes`.
    pub(crate) async fn call(&self, client: &Client, bytes: &[u8]) -> (Result<Answer, CallError>, TcpStream) {
        self.call_with(client, post(self.url()), bytes).await
    }

    pub(crate) async fn call_with(
        &self,
        client: &Client,
        request: Request<Bytes>,
        bytes: &[u8],
    ) -> (Result<Answer, CallError>, TcpStream) {
        tokio::join!(client.call(request, in_seconds(30)), async {
            let mut stream = self.accept().await;
            take(&mut stream).await.expect("a request");
            stream.write_all(bytes).await.unwrap();
            stream
        })
    }

    /// Another call, answered over whichever connection it comes.
    pub(crate) async fn call_again(&self, client: &Client, mut stream: TcpStream) -> (Came, TcpStream) {
        let (answer, came) = tokio::join!(client.call(post(self.url()), in_seconds(30)), async {
            let over_the_same = async {
                if take(&mut stream).await.is_none() {
                    std::future::pending::<()>().await;
                }
            };
            let mut other = tokio::select! {
                () = over_the_same => None,
                other = self.accept() => Some(other),
            };
            if let Some(other) = &mut other {
                take(other).await.expect("a request");
            }
            let came = if other.is_some() { Came::OverAnother } else { Came::OverTheSame };
            let mut stream = other.unwrap_or(stream);
            stream.write_all(OK).await.unwrap();
            (came, stream)
        });
        assert_eq!(answer.unwrap().body, "ok");
        came
    }
}

/// Reads a request of `post`; `None` where the client hung up.
pub(crate) async fn take(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n{}") {
        // A connection that was reset is as gone as one that was closed.
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(request)
}

/// Waits until the client's side of this connection is closed.
pub(crate) async fn closed(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0, "nothing but the end was to come");
}

/// Lets the runtime see all that happened on sockets so far: what it reads here was written after that.
pub(crate) async fn io_is_seen() {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    one.write_all(b"x").await.unwrap();
    other.read_exact(&mut [0]).await.unwrap();
}
