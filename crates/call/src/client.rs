//! The client: one request out, one answer back.
//! Invariant: one deadline covers look-up, connect, TLS, headers and body.
//! Never: follows a redirect, or repeats a request of which a byte may have left.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::address::AddressFilter;
use crate::answer::{self, Answer};
use crate::connect::TcpConnector;
use crate::error::{CallError, ClientError, RequestProblem};
use crate::gate::Later;
use crate::resolve::{Resolve, SystemResolver};
use crate::tls::Connector;

/// The most bytes the status line and headers of an answer may have.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long an answer that is there may be held up for the sake of its connection. A destination that sends the rest
/// slowly, or without end, would hold it up until the deadline otherwise.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(50);
/// So long before the deadline it is given at the latest: whoever asked stops waiting at the same moment, and would take
/// an answer that is there for none.
const DRAIN_MARGIN: Duration = Duration::from_millis(20);

/// What a [`Client`] may do and how much it keeps.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where calls may go.
    pub filter: AddressFilter,
    /// How names become addresses; the filter judges those, whoever found them.
    pub resolver: Arc<dyn Resolve>,
    /// Certificates (PEM) to trust beside the public roots, for a private CA.
    pub extra_ca_pem: Option<Vec<u8>>,
    /// How much of an answer's body is kept.
    pub answer_bytes_max: usize,
    /// How many idle connections to one host are kept for the next call.
    pub idle_per_host_max: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// How long look-up, connect and TLS may take together. The deadline of a call holds as well.
    pub connect_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            filter: AddressFilter::default(),
            resolver: Arc::new(SystemResolver),
            extra_ca_pem: None,
            answer_bytes_max: 64 * 1024,
            idle_per_host_max: 256,
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// Makes calls and keeps their connections. Clones are cheap and share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

/// Carries requests out and answers back in the place of connections, for programs that simulate destinations.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// One request and its answer; the client sees to the deadline.
    fn exchange(&self, request: Request<Bytes>) -> Later<'_, Result<Answer, CallError>>;
}

#[derive(Debug)]
enum Way {
    Wire(legacy::Client<Connector, Full<Bytes>>),
    Given(Arc<dyn Exchange>),
}

#[derive(Debug)]
struct Shared {
    way: Way,
    filter: Arc<AddressFilter>,
    answer_bytes_max: usize,
}

impl Client {
    /// Makes a client.
    ///
    /// # Errors
    /// [`ClientError`] when the extra certificates cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let filter = Arc::new(config.filter);
        let connector = Connector::new(
            TcpConnector::new(Arc::clone(&filter), config.resolver),
            filter.allow_http,
            config.extra_ca_pem.as_deref(),
            config.connect_timeout,
        )?;
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.idle_per_host_max)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            // Only what met a closed connection before its first byte; never what may have left.
            .retry_canceled_requests(true)
            .build(connector);
        let way = Way::Wire(http);
        Ok(Self { shared: Arc::new(Shared { way, filter, answer_bytes_max: config.answer_bytes_max }) })
    }

    /// A client that opens no connection: whatever may be called is answered by `exchange`.
    #[must_use]
    pub fn over(exchange: Arc<dyn Exchange>) -> Self {
        let ClientConfig { filter, answer_bytes_max, .. } = ClientConfig::default();
        Self { shared: Arc::new(Shared { way: Way::Given(exchange), filter: Arc::new(filter), answer_bytes_max }) }
    }

    /// Sends `request` and reads its answer, all before `deadline`. Any status is an answer.
    ///
    /// The headers are sent as given: see [`check_headers`](crate::check_headers).
    ///
    /// # Errors
    /// [`CallError`] when there is no whole answer.
    pub async fn call(&self, request: Request<Bytes>, deadline: Instant) -> Result<Answer, CallError> {
        self.shared.filter.check_url(request.uri())?;
        if request.method() == Method::CONNECT {
            return Err(RequestProblem::Tunnel.into());
        }

        let mut expiry = pin!(sleep_until(deadline));
        // A call that comes too late must not be sent at all: its answer would not be waited for.
        if poll_fn(|cx| Poll::Ready(expiry.as_mut().poll(cx).is_ready())).await {
            return Err(CallError::Timeout);
        }
        // The exchange is polled first: an answer that is there counts, however late we look.
        let (answer, rest) = tokio::select! {
            biased;
            exchanged = self.exchange(request) => exchanged?,
            () = &mut expiry => return Err(CallError::Timeout),
        };
        if let Some(rest) = rest {
            let until = deadline.checked_sub(DRAIN_MARGIN).unwrap_or(deadline);
            // What is left of it then costs its connection and nothing else.
            drop(timeout_at(until, timeout(DRAIN_TIME_MAX, answer::drain(rest))).await);
        }
        Ok(answer)
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<(Answer, Option<Incoming>), CallError> {
        let http = match &self.shared.way {
            Way::Wire(http) => http,
            Way::Given(given) => return Ok((given.exchange(request).await?, None)),
        };
        let mut request = request.map(Full::new);
        *request.version_mut() = Version::HTTP_11;
        let response = http.request(request).await;
        let response = response.map_err(CallError::from_exchange)?;
        let read = answer::read(response, self.shared.answer_bytes_max).await;
        read.map_err(|error| CallError::Aborted { source: Arc::new(error) })
    }
}
