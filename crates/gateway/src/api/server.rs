//! The server: connections, within limits.
//! Invariant: a connection costs bounded memory and ends when it is slow or somebody else needs its place; health answers when
//! all places are taken; a shutdown lets requests in flight finish.
//! Never: knows routes; it hands every request to the router. Whatever reads and writes bytes can be a connection,
//! so TLS only has to wrap the stream.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use entrega_call::Clock;
use futures_util::FutureExt as _;
use http::Request;
use http::header::{CONNECTION, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::problem::ApiError;
use super::seats::{Seat, Seats};
use super::traffic::{CallBody, CallContext, Traffic, metered};
use super::write_timeout::WriteTimeout;
use super::{Api, ApiState, router};

/// What one connection may buffer, and the most bytes in a request's headers; more answer 431.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// What is answered on the reserved connections.
const HEALTH: &str = "/health/";
/// The pause after an accept that failed for want of something (file handles, memory): trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What callers may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at once. One more takes the place of an idle one, or is told to come again; health has a few of its own.
    pub connections_max: usize,
    /// From the end of one request to the last byte of the next one's headers, so also how long a connection may
    /// idle: hyper has one clock for both.
    pub header_timeout: Duration,
    /// From the first byte of a body to its last, and how long a piece of an answer may wait to be taken.
    pub body_timeout: Duration,
    /// Bytes in a body.
    pub body_bytes_max: usize,
    /// Bytes in a mail with its files.
    pub mail_bytes_max: usize,
    /// Bodies larger than `body_bytes_max` that are in memory at once; further ones wait.
    pub large_bodies_max: usize,
    /// Bytes of bodies and answers in memory at once.
    pub in_flight_bytes_max: usize,
    /// The same for one tenant.
    pub in_flight_bytes_per_tenant: usize,
    /// Calls of one tenant that wait at once: long polls, and requests to connectors.
    pub waiting_calls_max: usize,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout: Duration,
}

/// Calls of one tenant that wait at once, unless it was given another quota.
pub const WAITING_CALLS_MAX: usize = 256;

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            connections_max: 4096,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            body_bytes_max: 1 << 20,
            mail_bytes_max: 14 << 20,
            large_bodies_max: 16,
            in_flight_bytes_max: 256 << 20,
            in_flight_bytes_per_tenant: 64 << 20,
            waiting_calls_max: WAITING_CALLS_MAX,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// Answers on `listener` until `shutdown`, then finishes what is in flight.
pub async fn serve(listener: TcpListener, state: ApiState, limits: ServerLimits, shutdown: CancellationToken) {
    let http = protocol(&limits);
    let mut seats = Seats::new(limits.connections_max, Clock::system());
    let (drain_timeout, write_timeout) = (limits.drain_timeout, limits.body_timeout);
    let api = Arc::new(Api::new(state, limits, shutdown.clone()));
    let traffic = api.traffic.clone();
    let service = Service { router: router(api), traffic, shutdown: shutdown.clone() };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => match ended {
                Ok(number) => seats.free(number),
                Err(error) => {
                    report(&error);
                    seats.free_abandoned();
                }
            },
            stream = accept(&listener), if connections.len() < seats.limit() => {
                let (stream, seat) = (WriteTimeout::new(stream, write_timeout), seats.take());
                connections.spawn(converse(http.clone(), stream, service.clone(), seat));
            }
        }
    }
    drop(listener);
    drain(connections, drain_timeout).await;
}

fn protocol(limits: &ServerLimits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    // At most 100 headers is hyper's own limit; setting it would cost an allocation per request.
    http.max_header_size(BUFFER_BYTES_MAX).max_buf_size(BUFFER_BYTES_MAX);
    http
}

/// The next connection.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small and whole: waiting to fill a packet only delays them. Without it, it still works.
                drop(stream.set_nodelay(true));
                return stream;
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::error!(errorReason = %error, "A connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What answers the calls of every connection.
#[derive(Clone)]
struct Service {
    router: Router,
    traffic: Arc<Traffic>,
    shutdown: CancellationToken,
}

/// One connection, to its end. Gives the number of its seat.
async fn converse<S>(http: http1::Builder, stream: S, service: Service, seat: Arc<Seat>) -> u64
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shutdown, taken) = (service.shutdown.clone(), seat.clone());
    let answering = service_fn(move |request: Request<Incoming>| service.answer(&taken, request));
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answering));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = seat.must_leave() => match seat.was_used() {
            true => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            // Nothing was asked yet, so nobody waits for an answer.
            false => Ok(()),
        }
    };
    if let Err(error) = ended {
        tracing::debug!(errorReason = %error, "A connection broke off");
    }
    seat.number
}

impl Service {
    /// A handler that panics has made a mistake, its caller has not: the caller gets an answer, and the connection lives.
    /// Nothing a handler leaves half done is seen by others: what they share is in the store, which changes in whole verbs.
    fn answer(
        &self,
        seat: &Arc<Seat>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<CallBody>, Infallible>> + use<> {
        let call = CallContext::new(self.traffic.clone(), seat.occupy());
        let method = request.method().clone();
        let is_turned_away = seat.is_reserved && !request.uri().path().starts_with(HEALTH);
        request.extensions_mut().insert(call.clone());
        let (mut router, seat) = (self.router.clone(), seat.clone());
        async move {
            if is_turned_away {
                let mut response = ApiError::Busy.into_response();
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                return Ok(metered(&call, &method, response));
            }
            let answered = AssertUnwindSafe(router.call(request.map(Body::new))).catch_unwind().await;
            let mut response = answered.unwrap_or_else(|panic| Ok(apology(&*panic)))?;
            if seat.is_leaving() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(metered(&call, &method, response))
        }
    }
}

fn apology(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    ApiError::Panicked { message: text.unwrap_or("a panic without words").to_owned() }.into_response()
}

fn report(error: &JoinError) {
    if error.is_panic() {
        tracing::error!(errorReason = %error, "A connection's task panicked");
    }
}

async fn drain(mut connections: JoinSet<u64>, limit: Duration) {
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            if let Err(error) = ended {
                report(&error);
            }
        }
    };
    if tokio::time::timeout(limit, all_ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "Connections were cut: they did not end in time");
        connections.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// The connection was dropped without a word: the caller could not tell it from a network that failed.
    #[tokio::test]
    async fn a_handler_that_panics_answers_500_and_the_connection_goes_on() {
        async fn fault() -> &'static str {
            panic!("what only the log may know")
        }
        let router = Router::new().route("/fault", get(fault)).route("/", get(async || "well"));
        let (mut caller, stream) = duplex(BUFFER_BYTES_MAX);
        let service = Service { router, traffic: Traffic::new(0, 0, 1), shutdown: CancellationToken::new() };
        let http = protocol(&ServerLimits::default());
        let server = tokio::spawn(converse(http, stream, service, Seats::new(1, Clock::system()).take()));
        caller.write_all(b"GET /fault HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        caller.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 500 "), "{text}");
        assert!(text.contains("application/problem+json") && text.contains("urn:entrega:problem:internal"), "{text}");
        assert!(!text.contains("what only the log may know"), "{text}");
        assert!(text.ends_with("well"), "{text}");
        server.await.unwrap();
    }
}
