//! A log that nobody reads: a pipe that is full must stop neither health, nor the API, nor the end of the process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use entrega_call::{AddressFilter, Client, ClientConfig, Clock};
use http::Request;
use serde_json::{Value, json};

use crate::server::{KEY, command};

const PATIENCE: Duration = Duration::from_secs(30);
/// With two lines a job and some hundred bytes a line this is more than waits for a reader.
const BATCHES: usize = 14;

/// A server whose log is read up to where it says that it listens, and no further.
struct Unread {
    child: Child,
    log: BufReader<ChildStderr>,
    url: String,
    client: Client,
    clock: Clock,
}

impl Unread {
    fn start(folder: &Path) -> Unread {
        let config = "[lanes.http]\nretry = { attempts = 1, base = \"1ms\", max = \"1ms\" }\n";
        std::fs::write(folder.join("entrega.toml"), config).unwrap();
        let args =
            ["serve", "--listen", "127.0.0.1:0", "--dev", "--store", "memory", "--data", folder.to_str().unwrap()];
        let mut child = command(&args).current_dir(folder).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let said = log.by_ref().lines().map_while(Result::ok);
        let url = said.filter_map(|line| Some(line.split_once("listens on ")?.1.split(';').next()?.to_owned())).next();
        let url = url.expect("it says where it listens");
        let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
        let client = Client::new(ClientConfig { filter, ..ClientConfig::default() }).unwrap();
        Unread { child, log, url, client, clock: Clock::system() }
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> String {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", format!("Bearer {KEY}"))
            .header("content-type", "application/json")
            .body(body.to_string().into())
            .unwrap();
        let deadline = self.clock.instant(self.clock.now() + PATIENCE);
        let answer = self.client.call(request, deadline).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(answer.status.is_success(), "{path}: {}", answer.status);
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// Jobs that fail at once, until lines are dropped. Gives how many were.
    async fn flood(&self) -> u64 {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let job = json!({"request": {"url": format!("http://{nobody}/")}});
        for _ in 0..BATCHES {
            self.call("POST", "/v1/jobs", Value::Array(vec![job.clone(); 1000])).await;
        }
        let dropped = async {
            loop {
                let metrics = self.call("GET", "/metrics", Value::Null).await;
                let count = metrics.lines().find_map(|line| line.strip_prefix("log_lines_dropped_total "));
                match count.unwrap().parse().unwrap() {
                    // reason: nothing tells when a line of another process is dropped
                    0 => tokio::time::sleep(Duration::from_millis(50)).await,
                    count => return count,
                }
            }
        };
        tokio::time::timeout(PATIENCE, dropped).await.expect("a log that nobody reads fills up")
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The first line after the pipe was full blocked whichever thread wrote it, with the lock on stderr, and soon all of them.
#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing_and_says_later_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Unread::start(folder.path());
    assert!(server.flood().await > 0);
    assert!(server.call("GET", "/health/live", Value::Null).await.contains("live"));
    let told = server.log.by_ref().lines().map_while(Result::ok).find(|line| line.contains("Log lines were dropped"));
    let told: Value = serde_json::from_str(&told.expect("it says so")).unwrap();
    assert!(told["lines"].as_u64().unwrap() > 0, "{told}");
}

#[tokio::test]
async fn a_log_that_nobody_reads_does_not_keep_the_process_from_ending() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Unread::start(folder.path());
    server.flood().await;
    let kill = std::process::Command::new("kill").arg(server.child.id().to_string()).status().unwrap();
    assert!(kill.success());
    let ended = async {
        loop {
            if let Some(status) = server.child.try_wait().unwrap() {
                return status;
            }
            // reason: nothing tells when another process ends
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let status = tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    assert!(status.success(), "{status}");
}
