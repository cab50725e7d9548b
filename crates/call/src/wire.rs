//! The wire: a request out and its answer back over a connection, kept or new, before a deadline.
//! Invariant: a request goes to another connection only while none of its bytes may have left; a connection is kept only
//! after an answer that was read to its end. No more are open than allowed: none idles while a call waits for room.
//! Never: sends what comes too late.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use entrega_core::outcome::Answer;

use crate::answer;
use crate::clock::Clock;
use crate::connection::{Connection, Late, SendError};
use crate::error::{CallError, RequestProblem};
use crate::origin::Origin;
use crate::pool::{Pool, PoolLimits};
use crate::tls::Connector;
use crate::url::UrlProblem;

/// How many kept connections one request tries. A server that restarts leaves many dead ones behind; looking at them all
/// would take longer than a new one does.
const KEPT_TRIES_MAX: usize = 4;

/// How long an answer that is there may be held up for the sake of its connection. A destination that sends the rest
/// slowly, or without end, would hold it up until the deadline otherwise.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(50);
/// So long before the deadline it is given at the latest: whoever asked stops waiting at the same moment, and would take
/// an answer that is there for none.
const DRAIN_MARGIN: Duration = Duration::from_millis(20);

/// Connections, and how to open more.
#[derive(Debug)]
pub(crate) struct Wire {
    connector: Connector,
    pool: Arc<Pool<Box<Connection>>>,
    /// Room for connections; each takes one place with it.
    room: Arc<Semaphore>,
    /// Calls that wait for room.
    waiting: AtomicUsize,
    clock: Clock,
}

/// A call that waits for room, until this is dropped.
struct InLine<'a>(&'a AtomicUsize);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Wire {
    pub(crate) fn new(connector: Connector, limits: PoolLimits, connections_max: usize) -> Wire {
        let clock = Clock::system();
        let room = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Wire { connector, pool: Pool::new(limits, clock.clone()), room, waiting: AtomicUsize::new(0), clock }
    }

    /// Sends `request` and reads its answer up to `bytes_max`.
    pub(crate) async fn exchange(
        &self,
        tenant: Option<&str>,
        request: Request<Bytes>,
        bytes_max: usize,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        // A call that comes too late must not be sent at all: its answer would not be waited for.
        if self.clock.has_passed(deadline) {
            return Err(CallError::Timeout);
        }
        let (origin, request) = prepare(request)?;
        let (mut connection, response) = self.send(&origin, tenant, request, deadline).await?;
        let read = connection.drive(answer::read(response, bytes_max)).await.map_err(|Late| CallError::Timeout)?;
        let (answer, rest) = read.map_err(|error| CallError::Aborted { source: Arc::new(error) })?;
        if let Some(rest) = rest {
            connection.expire_at(self.drain_until(deadline));
            // What is left of it then costs its connection and nothing else.
            let _ = connection.drive(answer::drain(rest)).await;
        }
        if connection.is_idle() {
            self.pool.check_in(origin, connection);
            // Asked after it is there: whoever begins to wait later closes it by itself.
            if self.waiting.load(Ordering::SeqCst) > 0 {
                self.pool.close_oldest();
            }
        }
        Ok(answer)
    }

    async fn send(
        &self,
        origin: &Origin,
        tenant: Option<&str>,
        mut request: Request<Full<Bytes>>,
        deadline: Instant,
    ) -> Result<(Box<Connection>, Response<Incoming>), CallError> {
        for _ in 0..KEPT_TRIES_MAX {
            let Some(mut connection) = self.pool.check_out(origin) else { break };
            connection.expire_at(deadline);
            match connection.send(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(SendError::Unsent { request: unsent, .. }) => request = *unsent,
                Err(error) => return Err(error.into()),
            }
        }
        // Apart, because most calls find a kept connection: a future with all of name look-up, connect and TLS in it has
        // several kilobytes.
        let opened = Box::pin(timeout_at(deadline, async {
            let place = self.place().await;
            self.connector.open(origin, tenant).await.map(|stream| (place, stream))
        }));
        let (place, stream) = opened.await.map_err(|_elapsed| CallError::Timeout)??;
        let started = Connection::start(origin, stream, place, deadline).await;
        let mut connection = Box::new(started.map_err(SendError::Lost)?);
        let response = connection.send(request).await?;
        Ok((connection, response))
    }

    /// Room for one more connection, at the cost of the one that has been idle longest.
    async fn place(&self) -> OwnedSemaphorePermit {
        if let Ok(place) = Arc::clone(&self.room).try_acquire_owned() {
            return place;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _in_line = InLine(&self.waiting);
        self.pool.close_oldest();
        Arc::clone(&self.room).acquire_owned().await.expect("nobody closes the semaphore")
    }

    /// How long an answer that is there may be held up for the sake of its connection.
    fn drain_until(&self, deadline: Instant) -> Instant {
        let until = deadline.checked_sub(DRAIN_MARGIN).unwrap_or(deadline);
        self.clock.instant(self.clock.now() + DRAIN_TIME_MAX).min(until)
    }
}

/// What a server reads is HTTP/1.1 and names the path alone; its host is in a header.
fn prepare(mut request: Request<Bytes>) -> Result<(Origin, Request<Full<Bytes>>), UrlProblem> {
    let (origin, target) = Origin::split(mem::take(request.uri_mut()))?;
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    Ok((origin, request.map(Full::new)))
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> CallError {
        match error {
            SendError::Late => CallError::Timeout,
            SendError::Refused(source) => RequestProblem::Refused(Arc::new(source)).into(),
            SendError::Unsent { source, .. } | SendError::Lost(source) => {
                CallError::Aborted { source: Arc::new(source) }
            }
        }
    }
}
