//! Connections: slow and greedy callers are cut off, and a shutdown loses no answer.

use std::time::Duration;

use entrega_gateway::api::ServerLimits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::world::{ADMIN, World};

/// Longer than anything here takes, and shorter than the server's own limits: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(8);

async fn connect(world: &World) -> TcpStream {
    TcpStream::connect(world.address).await.unwrap()
}

/// Everything the server says until it closes the connection.
async fn read_to_close(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    // A connection that is cut may end in a reset instead of an end.
    drop(read.expect("the server closes the connection"));
    String::from_utf8_lossy(&text).into_owned()
}

/// What the server says next.
async fn read_some(stream: &mut TcpStream) -> String {
    let mut text = vec![0; 4096];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut text)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&text[..read]).into_owned()
}

#[tokio::test]
async fn half_a_header_is_not_waited_for() {
    let limits = ServerLimits { header_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let world = World::with(limits, false).await;
    for start in ["", "GET /health/live HTTP/1.1\r\nhost: a\r\nx-slow: "] {
        let mut stream = connect(&world).await;
        stream.write_all(start.as_bytes()).await.unwrap();
        assert!(!read_to_close(&mut stream).await.contains("200 OK"), "{start:?}");
    }
    let mut stream = connect(&world).await;
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let answer = read_to_close(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "and an idle connection is closed after its answer: {answer}");
}

#[tokio::test]
async fn half_a_body_is_not_waited_for() {
    let limits = ServerLimits { body_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let world = World::with(limits, false).await;
    let mut stream = connect(&world).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"request\""
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_some(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("application/problem+json"), "{answer}");
}

#[tokio::test]
async fn a_body_without_a_length_is_cut_at_the_limit() {
    let limits = ServerLimits { body_bytes_max: 1000, ..ServerLimits::default() };
    let world = World::with(limits, false).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    let chunk = format!("190\r\n{}\r\n", " ".repeat(400));
    for (chunks, status) in [(3, "HTTP/1.1 413"), (2, "HTTP/1.1 400")] {
        let mut stream = connect(&world).await;
        let body = format!("{head}{}0\r\n\r\n", chunk.repeat(chunks));
        stream.write_all(body.as_bytes()).await.unwrap();
        let answer = read_some(&mut stream).await;
        assert!(answer.starts_with(status), "{chunks} chunks: {answer}");
    }
}

#[tokio::test]
async fn a_stranger_is_refused_before_the_body_arrives() {
    let world = World::new().await;
    let mut stream = connect(&world).await;
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_some(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn headers_are_limited_in_size_and_number() {
    let world = World::new().await;
    let large = format!("x-large: {}\r\n", "a".repeat(70_000));
    let many = "x-many: a\r\n".repeat(101);
    for (headers, status) in [(large, "431"), (many, "431"), ("x-a: a\r\n".repeat(90), "200")] {
        let mut stream = connect(&world).await;
        let request = format!("GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
        // The server may close while it is still being written to.
        drop(stream.write_all(request.as_bytes()).await);
        let answer = read_some(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
}

#[tokio::test]
async fn one_connection_too_many_takes_the_place_of_the_one_that_is_idle() {
    let world = World::with(ServerLimits { connections_max: 1, ..ServerLimits::default() }, false).await;
    let request = b"GET /v1/jobs HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut unused = connect(&world).await;
    let mut idle = connect(&world).await;
    assert_eq!(read_to_close(&mut unused).await, "", "it never asked for anything");
    idle.write_all(request).await.unwrap();
    assert!(read_some(&mut idle).await.starts_with("HTTP/1.1 401"));
    let mut next = connect(&world).await;
    assert_eq!(read_to_close(&mut idle).await, "", "it had its answer");
    next.write_all(request).await.unwrap();
    assert!(read_some(&mut next).await.starts_with("HTTP/1.1 401"));
}

/// A call that is under way: its handler waits for a body.
async fn busy(world: &World, key: &str, length: usize) -> TcpStream {
    let mut stream = connect(world).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Health waited with everybody else until one of four thousand connections ended.
#[tokio::test]
async fn where_every_connection_is_busy_health_answers_and_others_are_told_to_come_again() {
    let world = World::with(ServerLimits { connections_max: 2, ..ServerLimits::default() }, false).await;
    let mut calls = [busy(&world, ADMIN, 10).await, busy(&world, ADMIN, 10).await];
    for call in &mut calls {
        assert!(read_some(call).await.starts_with("HTTP/1.1 100"));
    }
    for _ in 0..50 {
        let mut stream = connect(&world).await;
        stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert!(read_some(&mut stream).await.starts_with("HTTP/1.1 200"));
        let mut other = connect(&world).await;
        other.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let answer = read_to_close(&mut other).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");
        assert!(answer.contains("urn:entrega:problem:busy"), "{answer}");
    }
    for call in &mut calls {
        call.write_all(b"0123456789").await.unwrap();
        assert!(read_some(call).await.starts_with("HTTP/1.1 400"), "none of them was cut off");
    }
}

/// Small bodies that were sent slowly kept every connection busy, all with one key.
#[tokio::test]
async fn no_tenant_keeps_every_connection_busy() {
    let world = World::with(ServerLimits { connections_max: 4, ..ServerLimits::default() }, false).await;
    let (ours, theirs) = (world.key("ours", &["send"]).await, world.key("theirs", &["send"]).await);
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = busy(&world, &ours, 10).await;
        assert!(read_some(&mut stream).await.starts_with("HTTP/1.1 100"));
        held.push(stream);
    }
    let refused = read_some(&mut busy(&world, &ours, 10).await).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains(r#""quota":"connections""#), "{refused}");
    let served = read_some(&mut busy(&world, &theirs, 10).await).await;
    assert!(served.starts_with("HTTP/1.1 100"), "{served}");
}

/// Thousands of bodies that lacked their last byte were in memory at once, all of one tenant.
#[tokio::test]
async fn bodies_on_their_way_are_limited_for_each_tenant_and_in_all() {
    let limits = ServerLimits {
        in_flight_bytes_max: 500 << 10,
        in_flight_bytes_per_tenant: 200 << 10,
        ..ServerLimits::default()
    };
    let world = World::with(limits, true).await;
    let mut keys = Vec::new();
    for tenant in ["one", "two", "three", "four"] {
        keys.push(world.key(tenant, &["send"]).await);
    }
    let begun = async |key: &String| {
        let mut stream = busy(&world, key, 150 << 10).await;
        let answer = read_some(&mut stream).await;
        (stream, answer)
    };
    let mut held = Vec::new();
    for key in &keys[..3] {
        let (stream, answer) = begun(key).await;
        assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
        held.push(stream);
    }
    let (_, over_quota) = begun(&keys[0]).await;
    assert!(over_quota.starts_with("HTTP/1.1 429") && over_quota.contains("in_flight_bytes"), "{over_quota}");
    let (_, too_much) = begun(&keys[3]).await;
    assert!(too_much.starts_with("HTTP/1.1 503") && too_much.contains("problem:busy"), "{too_much}");
    let small = world.job("four", "http").await;
    assert!(!small.is_empty(), "what is small always fits");
    drop(held);
    while !world.get("/metrics", "").await.text.contains("\napi_in_flight_bytes 0\n") {}
    assert!(begun(&keys[3]).await.1.starts_with("HTTP/1.1 100"), "there is room again");
}

#[tokio::test]
async fn a_shutdown_finishes_what_is_in_flight_and_takes_nothing_new() {
    let world = World::new().await;
    let mut idle = connect(&world).await;
    idle.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(read_some(&mut idle).await.starts_with("HTTP/1.1 200"));

    let mut unused = connect(&world).await;
    let mut busy = connect(&world).await;
    let body = r#"{"request":{"url":"https://example.com"}}"#;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    busy.write_all(head.as_bytes()).await.unwrap();
    assert!(read_some(&mut busy).await.starts_with("HTTP/1.1 100"), "the handler waits for the body");
    world.shutdown.cancel();
    assert_eq!(read_to_close(&mut idle).await, "", "an idle connection is closed");
    assert_eq!(read_to_close(&mut unused).await, "", "one that was never used, too");
    assert!(TcpStream::connect(world.address).await.is_err(), "nobody listens any more");
    busy.write_all(body.as_bytes()).await.unwrap();
    let answer = read_to_close(&mut busy).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    tokio::time::timeout(PATIENCE, world.server).await.expect("the server ends").unwrap();
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let limits = ServerLimits { drain_timeout: Duration::from_millis(100), ..ServerLimits::default() };
    let world = World::with(limits, false).await;
    let mut stuck = connect(&world).await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ADMIN}\r\ncontent-type: application/json\r\n\
         content-length: 10\r\nexpect: 100-continue\r\n\r\n"
    );
    stuck.write_all(head.as_bytes()).await.unwrap();
    assert!(read_some(&mut stuck).await.starts_with("HTTP/1.1 100"));
    world.shutdown.cancel();
    tokio::time::timeout(PATIENCE, world.server).await.expect("the server ends").unwrap();
}
