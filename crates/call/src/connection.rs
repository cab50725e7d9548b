//! A connection: one exchange after another over one stream, driven by the task that waits for them.
//! Invariant: it moves only while its user polls it; no task of its own stands behind it, and no other task is woken for
//! it. Bytes are read before any are written, so a server that hung up is noticed while nothing has left.
//! Never: repeats a request; outlives a future that was dropped in the middle of an exchange.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::rt::Write;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop::{has_budget_remaining, unconstrained};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::origin::Origin;
use crate::tls::Stream;

/// The most bytes the status line and headers of an answer may have.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// An open connection to one origin.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Nothing once it was dropped because somebody still waited for what it can no longer give.
    http: Option<http1::Connection<Stream, Full<Bytes>>>,
    /// HTTP said that this connection is over; it must not be polled again.
    has_ended: bool,
    /// Somebody is woken when it can go on.
    is_watched: bool,
    host: HeaderValue,
    /// Kept from call to call: to put a timer off costs next to nothing, to start and stop one takes the runtime's lock
    /// both times.
    alarm: Pin<Box<Sleep>>,
    /// Its place among the connections that may be open.
    _place: OwnedSemaphorePermit,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The connection was over before the first byte left; the request may go out on another one.
    Unsent { request: Box<Request<Full<Bytes>>>, source: hyper::Error },
    /// The request cannot be written as it is.
    Refused(hyper::Error),
    /// A byte may have left.
    Lost(hyper::Error),
    /// The deadline passed; a byte may have left.
    Late,
}

/// The deadline passed while something was under way; the connection is of no more use.
#[derive(Debug)]
pub(crate) struct Late;

impl Connection {
    /// Speaks HTTP/1.1 to `origin` on a stream that leads there, until `deadline`.
    pub(crate) async fn start(
        origin: &Origin,
        stream: Stream,
        place: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> hyper::Result<Connection> {
        let (sender, http) = http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(stream).await?;
        let (host, alarm) = (origin.host_header(), Box::pin(sleep_until(deadline)));
        Ok(Connection { sender, http: Some(http), has_ended: false, is_watched: false, host, alarm, _place: place })
    }

    /// Gives it another deadline.
    pub(crate) fn expire_at(&mut self, deadline: Instant) {
        self.alarm.as_mut().reset(deadline);
    }

    /// Sends a request in origin form and waits for the head of its answer. A `Host` header is added where there is none.
    pub(crate) fn send(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> {
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        // Handed over right here, so that the future need not carry it along.
        let answered = self.sender.try_send_request(request);
        async move {
            let answered = self.drive(answered).await.map_err(|Late| SendError::Late)?;
            answered.map_err(|mut error| match error.take_message() {
                Some(request) => SendError::Unsent { request: Box::new(request), source: error.into_error() },
                None => self.judge(error.into_error()),
            })
        }
    }

    /// What is wrong with a request is said while the connection is there. What is said because it was dropped is, in
    /// hyper's eyes, the user's doing as well, but the server's in ours.
    fn judge(&self, error: hyper::Error) -> SendError {
        if error.is_user() && self.http.is_some() { SendError::Refused(error) } else { SendError::Lost(error) }
    }

    /// Runs `work` and the connection until `work` is done or the deadline has passed. It may wait for nothing but this
    /// connection, such as for the body of an answer. What is there counts, however late we look.
    ///
    /// What `work` waits for comes with a poll of the connection and at no other time, so `work` need not wake us. Nor need
    /// the connection where that poll brings all there is to come: the two wake each other whenever one takes what the
    /// other gave, and this task would be polled once more for each answer, for nothing.
    pub(crate) async fn drive<F: Future>(&mut self, work: F) -> Result<F::Output, Late> {
        let (mut work, mut was_woken) = (pin!(work), false);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(&mut unheard()) {
                return Poll::Ready(Ok(done));
            }
            // At first there is something to send, and nothing to come of it at once.
            let polls: &[bool] = if was_woken { &[false, true] } else { &[true] };
            for is_watched in polls {
                if *is_watched {
                    self.poll(cx);
                } else {
                    self.poll_unwatched();
                }
                if let Poll::Ready(done) = work.as_mut().poll(&mut unheard()) {
                    return Poll::Ready(Ok(done));
                }
                if self.has_ended {
                    // Who waits for something that can no longer come is told so by the drop.
                    self.http = None;
                    return work.as_mut().poll(cx).map(Ok);
                }
            }
            was_woken = true;
            if !has_budget_remaining() {
                // What is put off then is put off unheard: come back for it. The alarm must ring all the same, or a server
                // that sends without end would be read without end.
                cx.waker().wake_by_ref();
            }
            pin!(unconstrained(self.alarm.as_mut())).poll(cx).map(|()| Err(Late))
        })
        .await
    }

    /// Whether another request may be sent: the last answer was read to its end, both sides keep the connection, and
    /// nothing came that nobody asked for. Afterwards no task is woken by this connection.
    pub(crate) fn is_idle(&mut self) -> bool {
        if self.is_watched {
            self.poll_unwatched();
        }
        // An alarm that rings from now on is meant for nobody.
        let _ = self.alarm.as_mut().poll(&mut unheard());
        !self.has_ended && self.sender.is_ready()
    }

    /// Moves the connection on, and has it wake this task when it can go on.
    fn poll(&mut self, cx: &mut Context<'_>) {
        self.is_watched = true;
        if let Some(http) = self.http.as_mut().filter(|_| !self.has_ended) {
            // Its error is told to whoever waits for an answer or a body; to an idle connection it means the end.
            self.has_ended = Pin::new(http).poll(cx).is_ready();
        }
    }

    /// Moves the connection on, and has it wake nobody.
    fn poll_unwatched(&mut self) {
        self.poll(&mut unheard());
        self.is_watched = false;
    }
}

impl Drop for Connection {
    /// Takes leave of the peer where nothing is under way, as TLS wants it. Half an exchange is just cut off: what is
    /// still in the buffers of its request must not leave.
    fn drop(&mut self) {
        let is_idle = !self.has_ended && self.sender.is_ready();
        if let Some(http) = self.http.take().filter(|_| is_idle) {
            // A peer that takes no more bytes does without.
            let _ = Pin::new(&mut http.into_parts().io).poll_shutdown(&mut unheard());
        }
    }
}

/// For polls after which nobody wants to be woken.
fn unheard() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper_util::rt::TokioIo;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;
    use tokio::task::coop::consume_budget;
    use tokio::time::timeout;
    use tokio_util::either::Either;

    use super::*;
    use crate::clock::Clock;

    /// A future that has used up its budget says "not yet" and asks to be woken, but nobody hears what is driven here: were
    /// it the only one to ask, it would wait until its deadline for what is there.
    #[tokio::test(start_paused = true)]
    async fn what_is_driven_is_not_put_off_by_the_budget_of_the_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (origin, _) = Origin::split("http://a/".parse().unwrap()).unwrap();
        let clock = Clock::system();
        let deadline = clock.instant(clock.now() + std::time::Duration::from_secs(3600));
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let started = Connection::start(&origin, TokioIo::new(Either::Left(stream)), place, deadline).await;
        let mut connection = started.unwrap();
        let long = async {
            for _ in 0..1000 {
                consume_budget().await;
            }
        };
        timeout(std::time::Duration::from_secs(60), connection.drive(long)).await.expect("not put off").unwrap();
    }
}
