//! A real HTTP server, for whatever answers.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// Answers every request that comes, each connection on its own, until the test ends.
pub fn serve<A, F, E>(listener: TcpListener, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<Full<Bytes>>, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer.clone()));
            tokio::spawn(connection);
        }
    });
}

/// What came, once it is so much.
pub async fn came<T: Clone + Debug>(list: &Mutex<Vec<T>>, count: usize) -> Vec<T> {
    let look = async {
        while list.lock().len() < count {
            // reason: another task calls when it calls; this one looks until it has.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), look).await;
    let came = list.lock().clone();
    assert!(waited.is_ok(), "{} of {count} came: {came:?}", came.len());
    came
}
