//! A process with few file handles: however many connect, the store has those that it needs, and nothing is lost.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::server::{Server, command};

const HANDLES: usize = 256;
/// Each keeps its connection.
const DESTINATIONS: usize = 300;
const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(15);

/// A destination that notes who called, by `x-request-id`.
async fn destination() -> (String, Arc<Mutex<BTreeSet<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let arrived: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let noting = arrived.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let arrived = noting.clone();
            tokio::spawn(async move {
                let mut head = vec![0; 8192];
                while let Ok(length @ 1..) = stream.read(&mut head).await {
                    let text = String::from_utf8_lossy(&head[..length]).into_owned();
                    let id = text.lines().find_map(|line| line.strip_prefix("x-request-id: "));
                    arrived.lock().extend(id.map(str::to_owned));
                    // Who is gone by then will call again.
                    drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await);
                }
            });
        }
    });
    (url, arrived)
}

/// A command of the binary with at most so many handles.
fn limited(handles: usize, args: &[&str]) -> Command {
    let entrega = command(args);
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("ulimit -n {handles}; exec \"$0\" \"$@\"")).arg(entrega.get_program());
    shell.args(entrega.get_args()).env_clear();
    shell.envs(entrega.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

fn start_with_few_handles(folder: &std::path::Path) -> Server {
    Server::start_by(folder, |args| limited(HANDLES, args))
}

/// Idle connections of callers, and those kept to destinations, took every handle there was. The store could not open its next
/// file, which is final for it, and the process ended.
#[tokio::test]
async fn however_many_connect_the_store_has_its_handles_and_all_that_was_accepted_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[lanes.http]\nconcurrency = 64\nretry = { attempts = 50, base = \"50ms\", max = \"200ms\" }\n";
    std::fs::write(folder.path().join("entrega.toml"), config).unwrap();
    let server = start_with_few_handles(folder.path());
    let mut destinations = Vec::new();
    for _ in 0..DESTINATIONS {
        destinations.push(destination().await);
    }
    let jobs: Vec<Value> = destinations.iter().map(|(url, _)| json!({"request": {"url": url}})).collect();
    let mut crowd = Vec::new();
    let mut accepted = BTreeSet::new();
    for _ in 0..ROUNDS {
        for _ in 0..HANDLES {
            crowd.push(TcpStream::connect(server.address).await.unwrap());
        }
        let taken = server.ok("POST", "/v1/jobs", &Value::Array(jobs.clone())).await;
        accepted.extend(taken.as_array().unwrap().iter().map(|item| item["jobId"].as_str().unwrap().to_owned()));
        assert!(server.handles() < HANDLES, "{} handles are open\n{}", server.handles(), server.log());
        assert!(server.ok("GET", "/health/live", &Value::Null).await["status"] == "live");
    }
    let arrived = || destinations.iter().flat_map(|(_, arrived)| arrived.lock().clone()).collect::<BTreeSet<String>>();
    let delivered = async {
        while !arrived().is_superset(&accepted) {
            assert_eq!(server.ended(), None, "it lives\n{}", server.log());
            assert!(server.handles() < HANDLES, "{} handles are open\n{}", server.handles(), server.log());
            // reason: the destinations note, and nobody is told
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let all = tokio::time::timeout(PATIENCE, delivered).await;
    assert!(all.is_ok(), "{} of {} arrived\n{}", arrived().len(), accepted.len(), server.log());
    assert!(!server.log().contains("Too many open files"), "{}", server.log());
}

#[test]
fn a_process_with_too_few_handles_says_so_and_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let ended = limited(64, &["serve", "--listen", "127.0.0.1:0", "--data", data]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("64 file handles are too few"), "{said}");
}
