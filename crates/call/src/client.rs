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
use entrega_core::outcome::Answer;
use http::Request;
use http::header::RETRY_AFTER;
use tokio::time::{Instant, sleep_until};

use crate::address::AddressFilter;
use crate::clock::Clock;
use crate::connect::TcpConnector;
use crate::error::{CallError, ClientError, RequestProblem};
use crate::gate::Later;
use crate::method::check_method;
use crate::parse_retry_after;
use crate::pool::PoolLimits;
use crate::resolve::{NameResolver, Resolve};
use crate::tls::Connector;
use crate::wire::Wire;

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
    /// How many idle connections are kept in all. Where one is too many, the one that has been idle longest is closed.
    pub idle_max: usize,
    /// How many connections are open in all, idle ones included. A call that needs one more closes the one that has been idle
    /// longest, or waits for one to end.
    pub connections_max: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// How long look-up, connect and TLS may take together. The deadline of a call holds as well.
    pub connect_timeout: Duration,
    /// For answers that name a date on which to come again.
    pub clock: Clock,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            filter: AddressFilter::default(),
            resolver: Arc::new(NameResolver::default()),
            extra_ca_pem: None,
            answer_bytes_max: 64 * 1024,
            idle_per_host_max: 256,
            idle_max: 1024,
            connections_max: 8192,
            idle_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            clock: Clock::system(),
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
    Wire(Wire),
    Given(Arc<dyn Exchange>),
}

#[derive(Debug)]
struct Shared {
    way: Arc<Way>,
    filter: Arc<AddressFilter>,
    answer_bytes_max: usize,
    clock: Clock,
}

impl Client {
    /// Makes a client.
    ///
    /// # Errors
    /// [`ClientError`] when the extra certificates cannot be used.
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let filter = Arc::new(config.filter);
        let tcp = TcpConnector::new(Arc::clone(&filter), config.resolver);
        let connector = Connector::new(tcp, config.extra_ca_pem.as_deref(), config.connect_timeout)?;
        let limits = PoolLimits {
            per_origin_max: config.idle_per_host_max,
            total_max: config.idle_max,
            timeout: config.idle_timeout,
        };
        let way = Arc::new(Way::Wire(Wire::new(connector, limits, config.connections_max)));
        Ok(Self {
            shared: Arc::new(Shared { way, filter, answer_bytes_max: config.answer_bytes_max, clock: config.clock }),
        })
    }

    /// A client that opens no connection: whatever may be called is answered by `exchange`.
    #[must_use]
    pub fn over(exchange: Arc<dyn Exchange>, clock: Clock) -> Self {
        let ClientConfig { filter, answer_bytes_max, .. } = ClientConfig::default();
        let way = Arc::new(Way::Given(exchange));
        Self { shared: Arc::new(Shared { way, filter: Arc::new(filter), answer_bytes_max, clock }) }
    }

    /// The same client, with the same connections, that keeps another amount of an answer's body.
    #[must_use]
    pub fn keeping(&self, answer_bytes_max: usize) -> Self {
        let Shared { way, filter, clock, .. } = &*self.shared;
        let (way, filter, clock) = (Arc::clone(way), Arc::clone(filter), clock.clone());
        Self { shared: Arc::new(Shared { way, filter, answer_bytes_max, clock }) }
    }

    /// Sends `request` and reads its answer, all before `deadline`. Any status is an answer.
    ///
    /// The headers are sent as given: see [`check_headers`](crate::check_headers).
    ///
    /// # Errors
    /// [`CallError`] when there is no whole answer.
    pub async fn call(&self, request: Request<Bytes>, deadline: Instant) -> Result<Answer, CallError> {
        self.exchange(None, request, deadline).await
    }

    /// The same for a tenant: what all calls share is divided, so that none of them uses it up.
    ///
    /// # Errors
    /// [`CallError`] when there is no whole answer.
    pub async fn call_for(
        &self,
        tenant: &str,
        request: Request<Bytes>,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        self.exchange(Some(tenant), request, deadline).await
    }

    pub(crate) async fn exchange(
        &self,
        tenant: Option<&str>,
        request: Request<Bytes>,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        self.shared.filter.check_url(request.uri())?;
        check_method(request.method()).map_err(RequestProblem::from)?;

        let answer = match &*self.shared.way {
            Way::Wire(wire) => wire.exchange(tenant, request, self.shared.answer_bytes_max, deadline).await?,
            Way::Given(given) => before(deadline, given.exchange(request)).await?,
        };
        let asked = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = asked.and_then(|asked| parse_retry_after(asked, self.shared.clock.wall().as_millis()));
        Ok(Answer { retry_after, ..answer })
    }
}

/// The answer of `exchange` if it comes before `deadline`; one that comes too late itself is not begun.
async fn before(
    deadline: Instant,
    exchange: impl Future<Output = Result<Answer, CallError>>,
) -> Result<Answer, CallError> {
    let mut expiry = pin!(sleep_until(deadline));
    if poll_fn(|cx| Poll::Ready(expiry.as_mut().poll(cx).is_ready())).await {
        return Err(CallError::Timeout);
    }
    // The exchange is polled first: an answer that is there counts, however late we look.
    tokio::select! {
        biased;
        exchanged = exchange => exchanged,
        () = &mut expiry => Err(CallError::Timeout),
    }
}
