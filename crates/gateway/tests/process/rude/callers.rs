//! Callers that are slow, greedy or gone.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bomb::BOMB;
use crate::server::{KEY, Server};

/// Longer than anything takes here; who waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a crowd of rude callers may cost in memory. Bodies are read up to 1 MiB each.
const MEMORY_BYTES_MAX: u64 = 64 << 20;
const CROWD: usize = 16;

fn start(connections_max: usize) -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[server]\nheader_timeout = \"500ms\"\nbody_timeout = \"700ms\"\nconnections_max = {connections_max}\n\
         [lanes.http]\nthrottle = {{ max_requests = 1, per = \"24h\" }}\n"
    );
    std::fs::write(folder.path().join("entrega.toml"), config).unwrap();
    let server = Server::start(folder.path());
    (folder, server)
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

/// Everything that it says until it closes the connection, which it must.
async fn read_to_close(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    // A connection that is cut may end in a reset instead of an end.
    drop(timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("the server closes the connection"));
    String::from_utf8_lossy(&said).into_owned()
}

/// The server does what it is there for, and has let go of everybody else.
async fn assert_well(server: &Server, handles_before: usize) {
    let job = json!({"request": {"url": "http://127.0.0.1:9/"}});
    server.ok("POST", "/v1/jobs", &job).await;
    server.ok("GET", "/health/ready", &Value::Null).await;
    let freed = async {
        // Two for the connections of this test's own client.
        while server.handles() > handles_before + 2 {
            // reason: nothing tells when another process closes a file
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, freed).await.unwrap_or_else(|_| panic!("{} handles are open", server.handles()));
}

fn head(more: &str) -> String {
    format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n{more}\r\n"
    )
}

/// Sends `first`, then `rest` one byte at a time for ever. Gives what the server said to that.
async fn drip(mut stream: TcpStream, first: String, rest: &'static str) -> String {
    stream.write_all(first.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let dripping = async {
        for byte in rest.bytes().cycle() {
            if writing.write_all(&[byte]).await.is_err() {
                break;
            }
            // reason: slowness is what is tested
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut said = Vec::new();
    let read = async { reading.read_to_end(&mut said).await };
    tokio::select! {
        () = dripping => {}
        // A connection that is cut may end in a reset instead of an end.
        ended = timeout(PATIENCE, read) => drop(ended.expect("a slow sender is cut off")),
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn slow_senders_are_cut_off_in_every_phase() {
    let (_folder, server) = start(200);
    let before = server.handles();
    let phases: [(String, &str, &str); 5] = [
        (String::new(), "GET /health/live", ""),
        ("GET /health/live HTTP/1.1\r\nhost: a\r\n".into(), "x-a: b\r\n", ""),
        (head("content-length: 100000\r\n"), " ", "HTTP/1.1 408"),
        (head("transfer-encoding: chunked\r\n"), "1\r\n \r\n", "HTTP/1.1 408"),
        (head("transfer-encoding: chunked\r\n"), "1;extension=", "HTTP/1.1 40"),
    ];
    let mut all = JoinSet::new();
    for (first, rest, said) in phases {
        for _ in 0..CROWD {
            let (stream, first) = (connect(&server).await, first.clone());
            all.spawn(async move { (drip(stream, first, rest).await, said, rest) });
        }
    }
    while let Some(ended) = all.join_next().await {
        let (answer, said, rest) = ended.unwrap();
        assert!(answer.starts_with(said) && !answer.contains("201 Created"), "{rest:?}: {answer}");
    }
    assert_well(&server, before).await;
}

/// Sends a beginning and then a piece again and again, as fast as it goes, until the server has had enough.
async fn pour(mut stream: TcpStream, first: String, piece: String, pieces: usize) -> String {
    let (mut reading, mut writing) = stream.split();
    let pouring = async {
        let mut is_taken = writing.write_all(first.as_bytes()).await.is_ok();
        for _ in 0..pieces {
            is_taken = is_taken && writing.write_all(piece.as_bytes()).await.is_ok();
        }
        std::future::pending::<()>().await;
    };
    let mut said = vec![0; 4096];
    let read = async { reading.read(&mut said).await };
    let length = tokio::select! {
        () = pouring => 0,
        // What was said may be lost in the reset of a connection with unread bytes.
        read = timeout(PATIENCE, read) => read.expect("a greedy sender is answered or cut off").unwrap_or(0),
    };
    String::from_utf8_lossy(&said[..length]).into_owned()
}

#[tokio::test]
async fn what_has_no_end_is_refused_and_costs_little_memory() {
    let (_folder, server) = start(200);
    let (before, peak) = (server.handles(), server.memory_peak());
    let get = || "GET /health/live HTTP/1.1\r\nhost: a\r\n".to_owned();
    let kilobytes = 16 << 10;
    let cases: [(&str, String, String, usize, &[&str]); 7] = [
        ("100 000 headers", get(), "x-a: b\r\n".repeat(100), 1000, &["431", ""]),
        ("a header line of 16 MB", get() + "x-a: ", "a".repeat(kilobytes), 1000, &["431", ""]),
        ("a request line of 16 MB", "GET /".into(), "a".repeat(kilobytes), 1000, &["414", "431", "400", ""]),
        (
            "a body that says it is endless",
            head("content-length: 99999999999\r\n"),
            " ".repeat(kilobytes),
            1000,
            &["413"],
        ),
        (
            "a body that never ends",
            head("transfer-encoding: chunked\r\n"),
            format!("4000\r\n{}\r\n", " ".repeat(kilobytes)),
            1000,
            &["413", ""],
        ),
        (
            "a size of a chunk that is none",
            head("transfer-encoding: chunked\r\n"),
            "f".repeat(kilobytes),
            1000,
            &["400", ""],
        ),
        (
            "a mail that never ends",
            head("transfer-encoding: chunked\r\n").replace("/v1/jobs", "/v1/email/send"),
            format!("4000\r\n{}\r\n", " ".repeat(kilobytes)),
            2000,
            &["413", "408", "503", ""],
        ),
    ];
    for (what, first, piece, pieces, statuses) in cases {
        let mut all = JoinSet::new();
        let crowd = if what.contains("mail") { 2 } else { CROWD };
        for _ in 0..crowd {
            all.spawn(pour(connect(&server).await, first.clone(), piece.clone(), pieces));
        }
        while let Some(answer) = all.join_next().await {
            let answer = answer.unwrap();
            let status = answer.split(' ').nth(1).unwrap_or_default();
            assert!(statuses.contains(&status), "{what}: {answer}");
        }
        let grown = server.memory_peak() - peak;
        println!("{what}: {} KiB more at most", grown >> 10);
        // Mails may have 14 MiB each, and room for twice as much while they grow.
        let bytes_max = if what.contains("mail") { 2 * MEMORY_BYTES_MAX } else { MEMORY_BYTES_MAX };
        assert!(grown <= bytes_max, "{what}: {grown} bytes");
    }
    assert_well(&server, before).await;
}

#[tokio::test]
async fn garbage_and_resets_in_every_phase_harm_nobody() {
    let (_folder, server) = start(200);
    let before = server.handles();
    let body = r#"{"request":{"url":"http://127.0.0.1:9/"}}"#;
    let whole = head(&format!("content-length: {}\r\n", body.len())) + body;
    let garbage = "\0\u{1}\u{2} HTTP/9.9\r\n\r\n".repeat(50);
    let phases: [(&str, String); 8] = [
        ("nothing", String::new()),
        ("half a line", "GET /hea".into()),
        ("half a head", "GET /health/live HTTP/1.1\r\nhost".into()),
        ("half a body", head("content-length: 100\r\n") + "{"),
        ("a whole request", whole.clone()),
        ("a request and garbage", format!("{whole}{garbage}")),
        ("garbage", garbage),
        (
            "a long poll",
            format!("GET /v1/jobs/{{id}}?wait=60s HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n\r\n"),
        ),
    ];
    let job = json!({"request": {"url": "http://127.0.0.1:9/"}, "delayMs": 3_600_000});
    let id = server.ok("POST", "/v1/jobs", &job).await["jobId"].as_str().unwrap().to_owned();
    for (what, sent) in phases {
        let sent = sent.replace("{id}", &id);
        for _ in 0..CROWD {
            let mut stream = connect(&server).await;
            stream.set_zero_linger().unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        // And once with patience: who sends garbage is told so, or cut off.
        let mut stream = connect(&server).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        if !what.contains("poll") {
            let answer = read_to_close(&mut stream).await;
            let expected = if what.starts_with("a ") { "201 Created" } else { "" };
            assert!(answer.contains(expected), "{what}: {answer}");
        }
    }
    assert_well(&server, before).await;
}

#[tokio::test]
async fn more_callers_than_allowed_are_served_when_idle_ones_are_cut_off() {
    let (_folder, server) = start(8);
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(connect(&server).await);
    }
    let mut all = JoinSet::new();
    for _ in 0..40 {
        let mut stream = connect(&server).await;
        all.spawn(async move {
            stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
            read_to_close(&mut stream).await
        });
    }
    while let Some(answer) = all.join_next().await {
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
    }
}

/// Nothing ended a connection whose answers were not taken: with as many as are allowed at once, a stranger without a
/// key could keep everybody else out for as long as they liked.
#[tokio::test]
async fn callers_that_never_read_their_answers_are_cut_off() {
    let (_folder, server) = start(4);
    let before = server.handles();
    let mut greedy = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&server).await;
        let many = "GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2000);
        // It stops being read when the answers are not.
        drop(timeout(Duration::from_millis(300), stream.write_all(many.as_bytes())).await);
        greedy.push(stream);
    }
    let mut stream = connect(&server).await;
    stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    assert!(read_to_close(&mut stream).await.starts_with("HTTP/1.1 200"));
    let grown = server.memory_peak();
    assert!(grown < 256 << 20, "{grown} bytes");
    assert_well(&server, before).await;
    drop(greedy);
}

/// Sixty megabytes that are less than 64 KiB when they are packed.
#[tokio::test]
async fn a_compressed_bomb_is_refused_and_not_unpacked() {
    let (_folder, server) = start(200);
    let peak = server.memory_peak();
    for path in ["/v1/jobs", "/v1/email/send", "/v1/dlq/replay", "/v1/connectors/erp/requests"] {
        let more = format!("content-encoding: gzip\r\ncontent-length: {}\r\nconnection: close\r\n", BOMB.len());
        let mut stream = connect(&server).await;
        let first = head(&more).replace("/v1/jobs", path);
        stream.write_all(&[first.as_bytes(), &BOMB].concat()).await.unwrap();
        let answer = read_to_close(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 415") && answer.contains("send the body as it is"), "{path}: {answer}");
    }
    let grown = server.memory_peak() - peak;
    println!("{} KiB more at most", grown >> 10);
    assert!(grown <= 8 << 20, "{grown} bytes");
}
