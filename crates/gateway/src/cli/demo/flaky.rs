//! A destination that misbehaves, by rules one can predict: what it does to a job follows from the job's id.
//! Invariant: it counts what arrives; a job counts as delivered when it was answered with 200.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use entrega_core::id::JobId;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// What has arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Calls of all kinds.
    pub(super) calls: u64,
    /// Jobs answered with 200.
    pub(super) delivered: u64,
    /// Of those, at their first call.
    pub(super) first_time: u64,
}

#[derive(Default)]
struct Seen {
    is_mended: bool,
    tally: Tally,
    /// Calls per job, and whether it was delivered.
    jobs: HashMap<JobId, (u32, bool)>,
}

/// The destination.
#[derive(Clone)]
pub(super) struct Flaky {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Flaky {
    pub(super) async fn start() -> std::io::Result<Flaky> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let flaky = Flaky { address: listener.local_addr()?, seen: Arc::default() };
        tokio::spawn(flaky.clone().accept(listener));
        Ok(flaky)
    }

    async fn accept(self, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            let flaky = self.clone();
            let service = service_fn(move |request| flaky.clone().answer(request));
            // One connection's error is its own.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
        // A body that breaks off is a call that does not count.
        let status = match (id, request.into_body().collect().await) {
            (Some(id), Ok(_)) => self.seen.lock().call(id),
            _ => 400,
        };
        let mut response = Response::new(Full::new(Bytes::from_static(b"{\"noted\":true}")));
        *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
        Ok(response)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on it takes everything.
    pub(super) fn mend(&self) {
        self.seen.lock().is_mended = true;
    }

    pub(super) fn tally(&self) -> Tally {
        self.seen.lock().tally
    }

    /// Whether this job was delivered.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.seen.lock().jobs.get(&id).is_some_and(|(_, is_delivered)| *is_delivered)
    }
}

impl Seen {
    fn call(&mut self, id: JobId) -> u16 {
        self.tally.calls += 1;
        let (calls, is_delivered) = self.jobs.entry(id).or_default();
        *calls += 1;
        let luck = id.as_bytes()[15] % 100;
        let status = match luck {
            _ if self.is_mended => 200,
            0..3 => 404,
            3..6 => 503,
            6..16 if *calls <= 2 => 503,
            16..30 if *calls <= 1 => 500,
            _ => 200,
        };
        if status == 200 && !*is_delivered {
            *is_delivered = true;
            self.tally.delivered += 1;
            self.tally.first_time += u64::from(*calls == 1);
        }
        status
    }
}
