//! A process that has used up its file handles: it waits, recovers when some are free again, and loses nothing.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::server::{Server, command};

const HANDLES: usize = 64;
const JOBS: usize = 60;
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
                let length = stream.read(&mut head).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&head[..length]).into_owned();
                let id = text.lines().find_map(|line| line.strip_prefix("x-request-id: "));
                arrived.lock().extend(id.map(str::to_owned));
                // Who is gone by then will call again.
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                drop(stream.write_all(answer).await);
            });
        }
    });
    (url, arrived)
}

fn start_with_few_handles(folder: &std::path::Path) -> Server {
    Server::start_by(folder, |args| {
        let entrega = command(args);
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("ulimit -n {HANDLES}; exec \"$0\" \"$@\"")).arg(entrega.get_program());
        shell.args(entrega.get_args()).env_clear();
        let given = entrega.get_envs().filter_map(|(name, value)| Some((name, value?)));
        shell.envs(given);
        shell
    })
}

#[tokio::test]
async fn a_process_without_file_handles_recovers_and_delivers_all_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[lanes.http]\nconcurrency = 16\nretry = { attempts = 50, base = \"50ms\", max = \"200ms\" }\n";
    std::fs::write(folder.path().join("entrega.toml"), config).unwrap();
    let server = start_with_few_handles(folder.path());
    let (url, arrived) = destination().await;
    server.ok("POST", "/v1/lanes/http/pause", &Value::Null).await;
    let job = json!({"request": {"url": url}});
    let taken = server.ok("POST", "/v1/jobs", &Value::Array(vec![job.clone(); JOBS])).await;
    let ids: Vec<String> =
        taken.as_array().unwrap().iter().map(|item| item["jobId"].as_str().unwrap().to_owned()).collect();
    let mut accepted: BTreeSet<String> = ids.iter().cloned().collect();
    let mut crowd = Vec::new();
    for _ in 0..2 * HANDLES {
        crowd.push(TcpStream::connect(server.address).await.unwrap());
    }
    let full = async {
        while server.handles() < HANDLES {
            // reason: nothing tells when another process opens a file
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let was_full = tokio::time::timeout(PATIENCE, full).await.is_ok();
    assert!(was_full, "only {} handles are open\n{}", server.handles(), server.log());
    // Over the connection that is there from before: attempts fail for want of a handle, and new work is still safe.
    server.ok("POST", "/v1/lanes/http/resume", &Value::Null).await;
    accepted.insert(server.ok("POST", "/v1/jobs", &job).await["jobId"].as_str().unwrap().to_owned());
    let failed = async {
        loop {
            let view = server.ok("GET", &format!("/v1/jobs/{}", ids[0]), &Value::Null).await;
            if let Some(attempt) = view["attempts"].get(0) {
                return attempt.clone();
            }
        }
    };
    let attempt = tokio::time::timeout(PATIENCE, failed).await.expect("it is attempted");
    assert!(attempt["reason"].as_str().unwrap_or_default().contains("Too many open files"), "{attempt}");
    assert_eq!(server.ended(), None, "it lives\n{}", server.log());
    drop(crowd);
    let delivered = async {
        while !arrived.lock().is_superset(&accepted) {
            assert_eq!(server.ended(), None, "it lives\n{}", server.log());
            // reason: the destination notes, and nobody is told
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let all = tokio::time::timeout(PATIENCE, delivered).await;
    let count = arrived.lock().len();
    assert!(all.is_ok(), "{count} of {} arrived\n{}", accepted.len(), server.log());
    let more = server.ok("POST", "/v1/jobs", &job).await["jobId"].as_str().unwrap().to_owned();
    let view = server.ok("GET", &format!("/v1/jobs/{more}?wait=8s"), &Value::Null).await;
    assert_eq!(view["state"], "done", "{view}");
}
