//! Traffic: calls under way, the bodies and answers that they have in memory, and how much of that there may be.
//! Invariant: what is counted of a call is counted until the last byte of its answer is written or its connection is gone. A
//! tenant has at most its share, and all of them together what there is; no tenant keeps every connection busy.
//! Never: counts what is small; connections are limited, and so is that.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use entrega_call::Share;
use entrega_core::name::TenantName;
use http::Method;
use hyper::body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;

use super::problem::{ApiError, Quota};
use super::seats::Occupied;

/// Less than this is not counted.
pub(super) const SMALL: usize = 16 << 10;

/// What all calls have in memory.
#[derive(Debug)]
pub(super) struct Traffic {
    total_max: usize,
    tenant_max: usize,
    calls_max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    total: usize,
    /// Calls under way.
    calls: HashMap<Option<TenantName>, usize>,
    /// Those without a key are one tenant. None is listed with nothing.
    tenants: HashMap<Option<TenantName>, usize>,
}

impl Traffic {
    /// So many bytes in all, and so many bytes and calls for one tenant.
    pub(super) fn new(total_max: usize, tenant_max: usize, calls_max: usize) -> Arc<Traffic> {
        Arc::new(Traffic { total_max, tenant_max, calls_max, used: Mutex::default() })
    }

    fn begin(&self, tenant: &Option<TenantName>) -> Result<(), ApiError> {
        let calls = &mut self.used.lock().calls;
        let under_way = calls.get(tenant).copied().unwrap_or_default();
        if under_way >= self.calls_max {
            return Err(ApiError::OverQuota { quota: Quota::Connections, max: self.calls_max });
        }
        calls.insert(tenant.clone(), under_way + 1);
        Ok(())
    }

    fn end(&self, tenant: &Option<TenantName>) {
        let calls = &mut self.used.lock().calls;
        match calls.get_mut(tenant) {
            Some(under_way) if *under_way > 1 => *under_way -= 1,
            _ => drop(calls.remove(tenant)),
        }
    }

    fn take(&self, tenant: &Option<TenantName>, bytes: usize) -> Result<(), ApiError> {
        let mut used = self.used.lock();
        let of_tenant = used.tenants.get(tenant).copied().unwrap_or_default();
        if of_tenant + bytes > self.tenant_max {
            return Err(ApiError::OverQuota { quota: Quota::InFlight, max: self.tenant_max });
        }
        if used.total + bytes > self.total_max {
            return Err(ApiError::Busy);
        }
        used.add(tenant, bytes);
        Ok(())
    }

    fn give_back(&self, tenant: &Option<TenantName>, bytes: usize) {
        let mut used = self.used.lock();
        used.total -= bytes;
        match used.tenants.get_mut(tenant) {
            Some(of_tenant) if *of_tenant > bytes => *of_tenant -= bytes,
            _ => drop(used.tenants.remove(tenant)),
        }
    }

    /// How much there is now.
    pub(super) fn bytes(&self) -> usize {
        self.used.lock().total
    }
}

impl Used {
    fn add(&mut self, tenant: &Option<TenantName>, bytes: usize) {
        self.total += bytes;
        *self.tenants.entry(tenant.clone()).or_default() += bytes;
    }
}

/// A call from its first byte to the last of its answer: an extension of its request. Its connection is taken, and what it has
/// in memory is counted, until all that belongs to it is gone.
pub(super) struct CallContext {
    traffic: Arc<Traffic>,
    /// Whose it is; nothing until that is known, and nobody's without a key.
    tenant: OnceLock<Option<TenantName>>,
    counted: Mutex<usize>,
    /// Held while a large answer is put together.
    composing: Mutex<Option<Share>>,
    _seat: Occupied,
}

impl CallContext {
    pub(super) fn new(traffic: Arc<Traffic>, seat: Occupied) -> Arc<CallContext> {
        Arc::new(CallContext {
            traffic,
            tenant: OnceLock::new(),
            counted: Mutex::default(),
            composing: Mutex::default(),
            _seat: seat,
        })
    }

    /// Whose call it is, as far as that is known.
    pub(super) fn tenant(&self) -> &str {
        self.tenant.get().and_then(Option::as_ref).map_or("", TenantName::as_str)
    }

    /// Says whose call it is, once, before anything of it is read or answered.
    pub(super) fn begin(&self, tenant: Option<&TenantName>) -> Result<(), ApiError> {
        if self.tenant.get().is_some() {
            return Ok(());
        }
        let tenant = tenant.cloned();
        self.traffic.begin(&tenant)?;
        // One task has the call, so nobody else said it meanwhile.
        self.tenant.get_or_init(|| tenant);
        Ok(())
    }

    /// Counts bytes of a body or an answer.
    pub(super) fn count(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes < SMALL {
            return Ok(());
        }
        self.begin(None)?;
        self.traffic.take(self.tenant.get().unwrap_or(&None), bytes)?;
        *self.counted.lock() += bytes;
        Ok(())
    }

    /// Takes back what was counted of a piece that is written.
    fn uncount(&self, bytes: usize) {
        *self.counted.lock() -= bytes;
        self.traffic.give_back(self.tenant.get().unwrap_or(&None), bytes);
    }

    /// Keeps a share until the answer is put together.
    pub(super) fn compose(&self, share: Share) {
        *self.composing.lock() = Some(share);
    }
}

impl Drop for CallContext {
    fn drop(&mut self) {
        let Some(tenant) = self.tenant.get() else { return };
        let counted = *self.counted.get_mut();
        if counted > 0 {
            self.traffic.give_back(tenant, counted);
        }
        self.traffic.end(tenant);
    }
}

/// An answer that belongs to its call until it is written.
pub(super) struct CallBody {
    body: Body,
    /// Nobody knew its length, so each piece is counted by itself.
    is_stream: bool,
    call: Arc<CallContext>,
}

/// A piece of an answer; its call is not over while it waits to be written.
struct Piece {
    bytes: Bytes,
    counted: usize,
    call: Arc<CallContext>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.call.uncount(self.counted);
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The answer as it goes out. One that only tells is refused where there is no room for it; what was done is always told.
pub(super) fn metered(call: &Arc<CallContext>, method: &Method, response: Response) -> Response<CallBody> {
    drop(call.composing.lock().take());
    let exact = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let response = match call.count(exact.unwrap_or(0)) {
        Err(refusal) if *method == Method::GET => refusal.into_response(),
        Ok(()) | Err(_) => response,
    };
    response.map(|body| CallBody { body, is_stream: exact.is_none(), call: call.clone() })
}

impl CallBody {
    /// What is large waits to be written after the body itself is gone.
    fn piece(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, axum::Error> {
        let Some(bytes) = frame.data_ref().filter(|bytes| bytes.len() >= SMALL).cloned() else { return Ok(frame) };
        let counted = if self.is_stream { bytes.len() } else { 0 };
        self.call.count(counted).map_err(axum::Error::new)?;
        Ok(Frame::data(Bytes::from_owner(Piece { bytes, counted, call: self.call.clone() })))
    }
}

impl hyper::body::Body for CallBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| self.piece(frame?)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use entrega_call::Clock;
    use http_body_util::BodyExt as _;

    use super::super::seats::Seats;
    use super::*;

    fn call(traffic: &Arc<Traffic>, tenant: &str) -> Arc<CallContext> {
        let call = CallContext::new(traffic.clone(), Seats::new(1, Clock::system()).take().occupy());
        call.begin(Some(&TenantName::new(tenant).unwrap())).unwrap();
        call
    }

    fn answer(length: usize) -> Response {
        Body::from(vec![b'x'; length]).into_response()
    }

    #[test]
    fn a_tenant_over_its_share_is_told_so_and_one_too_many_in_all_is_told_to_come_again() {
        let traffic = Traffic::new(5 * SMALL, 2 * SMALL, 9);
        let (one, two, three) = (call(&traffic, "one"), call(&traffic, "two"), call(&traffic, "three"));
        one.count(SMALL - 1).unwrap();
        assert_eq!(traffic.bytes(), 0, "what is small is not counted");
        one.count(2 * SMALL).unwrap();
        assert!(matches!(one.count(SMALL), Err(ApiError::OverQuota { quota: Quota::InFlight, .. })));
        two.count(2 * SMALL).unwrap();
        assert!(matches!(three.count(2 * SMALL), Err(ApiError::Busy)));
        drop(one);
        three.count(2 * SMALL).unwrap();
        drop((two, three));
        assert!(traffic.bytes() == 0 && traffic.used.lock().tenants.is_empty());
    }

    #[test]
    fn a_tenant_has_a_limited_number_of_calls_under_way() {
        let traffic = Traffic::new(0, 0, 2);
        let (first, second) = (call(&traffic, "one"), call(&traffic, "one"));
        let third = CallContext::new(traffic.clone(), Seats::new(1, Clock::system()).take().occupy());
        let refused = third.begin(Some(&TenantName::new("one").unwrap()));
        assert!(matches!(refused, Err(ApiError::OverQuota { quota: Quota::Connections, max: 2 })));
        third.begin(None).unwrap();
        drop(first);
        let again = call(&traffic, "one");
        drop((second, third, again));
        assert!(traffic.used.lock().calls.is_empty());
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_its_last_piece_is_written() {
        let traffic = Traffic::new(8 * SMALL, 2 * SMALL, 9);
        let first = metered(&call(&traffic, "one"), &Method::GET, answer(2 * SMALL));
        let refused = metered(&call(&traffic, "one"), &Method::GET, answer(2 * SMALL));
        assert_eq!(refused.status().as_u16(), 429);
        let done = metered(&call(&traffic, "one"), &Method::POST, answer(2 * SMALL));
        assert_eq!(done.status().as_u16(), 200, "what was done is told");
        let piece = first.into_body().frame().await.unwrap().unwrap();
        assert_eq!(traffic.bytes(), 2 * SMALL, "the body is gone, its piece is not");
        drop(piece);
        assert_eq!(traffic.bytes(), 0);
    }

    #[tokio::test]
    async fn the_pieces_of_a_stream_are_counted_one_by_one() {
        let traffic = Traffic::new(8 * SMALL, 2 * SMALL, 9);
        let pieces = (0..4).map(|_| Ok::<_, axum::Error>(Bytes::from(vec![b'x'; 2 * SMALL])));
        let stream = Body::from_stream(futures_util::stream::iter(pieces)).into_response();
        let mut body = metered(&call(&traffic, "one"), &Method::GET, stream).into_body();
        let first = body.frame().await.unwrap().unwrap();
        assert!(body.frame().await.unwrap().is_err(), "two at once are too many");
        drop(first);
        assert_eq!(traffic.bytes(), 0);
        assert!(body.frame().await.unwrap().is_ok());
    }
}
