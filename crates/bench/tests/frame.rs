//! The frame against a real sink, in small counts.
//!
//! Owns: that what is sent arrives, is counted, and ends when it must.
//! Invariant: every process started here is gone when its test ends.
//! Never: judges speed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use entrega_bench::load::Load;
use entrega_bench::post::Shape;
use entrega_bench::sink::Sink;
use entrega_bench::{bare, client};

const LIMIT: Duration = Duration::from_secs(60);

fn sink() -> Sink {
    Sink::start(Path::new(env!("CARGO_BIN_EXE_entrega-bench"))).unwrap()
}

fn load(sink: &Sink, connections: usize, requests: u64) -> Load {
    Load {
        url: format!("{}/jobs", sink.origin()).parse().unwrap(),
        headers: http::HeaderMap::new(),
        body: Bytes::from_static(b"{}"),
        connections,
        requests,
        limit: LIMIT,
    }
}

#[tokio::test]
async fn either_client_sends_each_request_once() {
    let sink = sink();
    let shape = Shape { requests: 301, at_once: 8, body_bytes: 1024 };
    for rate in [bare::post_all(&sink, shape, LIMIT).await, client::post_all(&sink, shape, LIMIT).await] {
        assert_eq!(rate.unwrap().count, 301);
        assert_eq!(sink.count().await.unwrap(), 301);
    }
}

#[tokio::test]
async fn the_load_is_shared_out_without_rest() {
    let sink = sink();
    let loaded = load(&sink, 7, 100).run().await.unwrap();
    assert_eq!((loaded.rate.count, loaded.refused), (100, 0));
    assert!(loaded.p50 > Duration::ZERO && loaded.p50 <= loaded.p99);
    sink.expect(100).await.unwrap();
    assert!(sink.expect(99).await.is_err());
    sink.reset().await.unwrap();
    assert_eq!(sink.count().await.unwrap(), 0);
}

#[tokio::test]
async fn a_load_without_connections_or_time_is_an_error() {
    let sink = sink();
    assert!(load(&sink, 0, 10).run().await.is_err());
    let hurried = Load { limit: Duration::ZERO, ..load(&sink, 2, 1_000_000) };
    assert!(hurried.run().await.is_err());
}

#[tokio::test]
async fn a_sink_ends_with_its_handle() {
    let sink = sink();
    let address = sink.address();
    drop(sink);
    assert!(std::net::TcpStream::connect(address).is_err());
}
