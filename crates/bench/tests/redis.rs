//! The Redis that BullMQ and we are measured on, and a small drain on each store.
//!
//! Owns: that either finds the server empty and that what was stored arrives.
//! Invariant: every process started here is gone when its test ends.
//! Never: judges speed.

use std::path::Path;
use std::time::Duration;

use entrega_bench::post::Shape;
use entrega_bench::redis::Redis;
use entrega_bench::sink::Sink;
use entrega_bench::{drain, ours};
use entrega_testkit::redis;

const LIMIT: Duration = Duration::from_secs(60);
const SHAPE: Shape = Shape { requests: 301, at_once: 64, body_bytes: 1024 };

fn sink() -> Sink {
    Sink::start(Path::new(env!("CARGO_BIN_EXE_entrega-bench"))).unwrap()
}

#[tokio::test]
async fn every_job_on_redis_arrives_once_and_clearing_leaves_nothing() {
    if redis::is_left_out() {
        return;
    }
    let (folder, sink) = (tempfile::tempdir().unwrap(), sink());
    let redis = Redis::start(folder.path()).await.unwrap();
    for _ in 0..2 {
        let engine = ours::on_redis(&redis.url()).await.unwrap();
        let rate = drain::measure(engine, &sink, SHAPE, LIMIT).await.unwrap();
        assert_eq!((rate.count, sink.count().await.unwrap()), (301, 301));
        assert!(redis.keys().await.unwrap() > 0, "ended jobs are kept");
        redis.clear().await.unwrap();
        assert_eq!(redis.keys().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn every_job_in_a_folder_arrives_once() {
    let (folder, sink) = (tempfile::tempdir().unwrap(), sink());
    let engine = ours::embedded(folder.path()).await.unwrap();
    let rate = drain::measure(engine, &sink, SHAPE, LIMIT).await.unwrap();
    assert_eq!((rate.count, sink.count().await.unwrap()), (301, 301));
}
