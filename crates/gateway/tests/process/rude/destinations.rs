//! Destinations that are slow, greedy, or gone, as a job of the lane `http` meets them.
//!
//! The lane has one slot: what holds it up is seen by the next job, which is delivered after every scene.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::bomb::BOMB;
use crate::server::Server;

/// What all of it may cost in memory; of an answer 64 KiB are kept.
const MEMORY_BYTES_MAX: u64 = 48 << 20;
/// Of an answer.
const KEPT_BYTES_MAX: usize = 64 << 10;
const CONFIG: &str = r#"
[lanes.http]
concurrency = 1
timeout = "600ms"
retry = { attempts = 1 }
"#;

/// How a destination behaves once it has read a request's head.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Says this, and closes.
    Says(&'static str),
    /// Says this, and breaks the connection off.
    SaysAndResets(&'static str),
    /// Says the first, then the second for ever, as fast as it goes.
    Pours(&'static str, &'static str),
    /// The same, a byte at a time.
    Drips(&'static str, &'static str),
    /// Answers before it has read anything, and never reads.
    SaysFirst(&'static str),
    /// Sends what claims to be compressed.
    Packed,
    /// Sends more than is kept at once, and the rest a byte at a time.
    Lags,
    /// Says nothing and keeps the connection.
    Hangs,
}

/// The path of a scene, how the destination behaves, and how the job ends: its state and code, and a word of its reason.
const SCENES: [(&str, Manner, (&str, &str, &str)); 22] = {
    use Manner::*;
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    [
        ("good", Says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), ("done", "ok", "")),
        ("hangs", Hangs, ("dlq", "timeout", "no whole answer in time")),
        ("head-dripping", Drips("", OK), ("dlq", "timeout", "no whole answer in time")),
        ("headers-dripping", Drips(OK, "x-a: b\r\n"), ("dlq", "timeout", "no whole answer in time")),
        (
            "body-dripping",
            Drips("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", "a"),
            ("dlq", "timeout", "no whole"),
        ),
        ("endless-body", Pours("HTTP/1.1 200 OK\r\n\r\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), ("done", "ok", "")),
        (
            "endless-chunks",
            Pours(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                "20\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
            ),
            ("done", "ok", ""),
        ),
        ("endless-failure", Pours("HTTP/1.1 404 Gone\r\n\r\n", "aaaaaaaaaaaaaa"), ("dlq", "http_404", "404")),
        ("packed", Packed, ("done", "ok", "")),
        (
            "endless-headers",
            Pours(OK, "x-a: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n"),
            ("dlq", "aborted", "head is too large"),
        ),
        ("endless-header", Pours("HTTP/1.1 200 OK\r\nx-a: ", "bbbbbbbbbbbbbbbbbb"), ("dlq", "aborted", "too large")),
        ("continues", Pours("", "HTTP/1.1 100 Continue\r\n\r\n"), ("dlq", "timeout", "no whole answer in time")),
        ("hints", Pours("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"), ("dlq", "timeout", "no whole")),
        ("closed", Says(""), ("dlq", "aborted", "closed before message completed")),
        ("reset", SaysAndResets(""), ("dlq", "aborted", "before the whole answer")),
        ("reset-in-head", SaysAndResets("HTTP/1.1 200 OK\r\ncont"), ("dlq", "aborted", "before the whole answer")),
        (
            "reset-in-body",
            SaysAndResets("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nab"),
            ("dlq", "aborted", "before"),
        ),
        ("short-body", Says("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nab"), ("dlq", "aborted", "before the whole")),
        ("garbage", Says("SSH-2.0-OpenSSH_9.2\r\n"), ("dlq", "aborted", "before the whole answer")),
        (
            "two-lengths",
            Says("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
            ("dlq", "aborted", ""),
        ),
        (
            "switching",
            Says("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
            ("dlq", "", ""),
        ),
        (
            "early",
            SaysFirst("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
            ("dlq", "", ""),
        ),
    ]
};

/// A listener per scene: one that answers before it reads cannot know the path.
async fn play(manner: Manner) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // Whatever fails is the gateway going away, which is what it should do.
            tokio::spawn(async move { drop(behave(stream, manner).await) });
        }
    });
    address
}

async fn behave(mut stream: TcpStream, manner: Manner) -> std::io::Result<()> {
    let mut head = vec![0; 64 << 10];
    if !matches!(manner, Manner::SaysFirst(_)) && stream.read(&mut head).await? == 0 {
        return Ok(());
    }
    match manner {
        Manner::Says(text) => stream.write_all(text.as_bytes()).await,
        Manner::Packed => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", BOMB.len());
            stream.write_all(&[head.as_bytes(), &BOMB].concat()).await
        }
        Manner::SaysAndResets(text) => {
            stream.write_all(text.as_bytes()).await?;
            stream.set_zero_linger()
        }
        Manner::Pours(first, again) => {
            stream.write_all(first.as_bytes()).await?;
            let piece = again.repeat(2000);
            loop {
                stream.write_all(piece.as_bytes()).await?;
            }
        }
        Manner::Drips(first, again) => {
            stream.write_all(first.as_bytes()).await?;
            drip(&mut stream, again).await
        }
        Manner::SaysFirst(text) => {
            stream.write_all(text.as_bytes()).await?;
            // Until the gateway has had enough.
            std::future::pending().await
        }
        Manner::Lags => {
            let begin = format!("HTTP/1.1 200 OK\r\ncontent-length: 250000\r\n\r\n{}", "a".repeat(2 * KEPT_BYTES_MAX));
            stream.write_all(begin.as_bytes()).await?;
            drip(&mut stream, "a").await
        }
        Manner::Hangs => std::future::pending().await,
    }
}

/// A byte at a time, for ever.
async fn drip(stream: &mut TcpStream, again: &str) -> std::io::Result<()> {
    for byte in again.bytes().cycle() {
        stream.write_all(&[byte]).await?;
        // reason: slowness is what is tested
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn start() -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("entrega.toml"), CONFIG).unwrap();
    let server = Server::start(folder.path());
    (folder, server)
}

/// The job once it has ended.
async fn deliver(server: &Server, address: SocketAddr, path: &str, body: &str) -> Value {
    let job = json!({"request": {"url": format!("http://{address}/{path}"), "body": body}});
    let id = server.ok("POST", "/v1/jobs", &job).await["jobId"].as_str().unwrap().to_owned();
    server.ok("GET", &format!("/v1/jobs/{id}?wait=8s"), &Value::Null).await
}

#[tokio::test]
async fn whatever_a_destination_does_the_attempt_ends_says_why_and_frees_its_slot() {
    // Making it takes longer than a destination may take to answer.
    LazyLock::force(&BOMB);
    let (_folder, server) = start();
    let good = play(SCENES[0].1).await;
    deliver(&server, good, "good", "").await;
    let (peak, handles) = (server.memory_peak(), server.handles());
    for (path, manner, (state, code, reason)) in SCENES {
        let address = play(manner).await;
        // More than a connection takes by itself, for those who answer before they have read it.
        let body = if path == "early" { "b".repeat(900_000) } else { "b".repeat(1000) };
        let view = deliver(&server, address, path, &body).await;
        let last = &view["attempts"][0];
        assert_eq!(view["state"], state, "{path}: {view}");
        assert!(last["code"].as_str().unwrap().contains(code), "{path}: {last}");
        assert!(last["reason"].as_str().unwrap_or_default().contains(reason), "{path}: {last}");
        assert!(last["durationMs"].as_u64().unwrap() < 3000, "{path}: {last}");
        if state == "done" {
            assert_kept(path, &view["result"]);
        }
        let next = deliver(&server, good, "next", "").await;
        assert_eq!(next["state"], "done", "after {path}: {next}");
    }
    let grown = server.memory_peak() - peak;
    println!("{} KiB more at most, {} handles before, {} after", grown >> 10, handles, server.handles());
    assert!(grown <= MEMORY_BYTES_MAX, "{grown} bytes");
    assert!(server.handles() <= handles + 6, "{} handles, {handles} before", server.handles());
}

/// The rest of an answer was read away until the deadline, so that its connection could be used again. It held the slot
/// for as long, and a rest without pauses let whoever waited give up on an answer that was there: the job was sent again.
#[tokio::test]
async fn an_answer_is_not_held_up_by_what_is_not_kept_of_it() {
    let (_folder, server) = start();
    let view = deliver(&server, play(Manner::Lags).await, "lags", "").await;
    assert_eq!((&view["state"], &view["result"]["truncated"]), (&json!("done"), &json!(true)), "{view}");
    assert!(view["attempts"][0]["durationMs"].as_u64().unwrap() < 400, "{}", view["attempts"]);
}

fn assert_kept(path: &str, result: &Value) {
    let text = result["body"].as_str().unwrap_or_default();
    let is_endless = path.starts_with("endless");
    assert_eq!(result["truncated"], is_endless, "{path}: {}", result["truncated"]);
    assert!(text.len() <= KEPT_BYTES_MAX && (!is_endless || text.len() == KEPT_BYTES_MAX), "{path}: {}", text.len());
    if path == "packed" {
        use base64::Engine as _;
        let kept = base64::engine::general_purpose::STANDARD.decode(result["body"]["base64"].as_str().unwrap());
        assert_eq!(kept.unwrap(), *BOMB, "byte for byte as it came, and nobody tried to unpack it");
    }
}
