//! A disk that fails: one call on the journal of a real process comes back with an error.
//! What must hold: the call is not acknowledged, nothing is after it, the process exits with code 7, and the next start
//! has everything that was.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{is_left_out, number};
use crate::server::{Server, command};

/// Which call fails, and how.
type Fault<'a> = (&'a str, &'a str);

const JOURNAL: &str = "store/0.jnl";
/// The exit code of a store that cannot be written.
const STORE_FAILED: i32 = 7;
const PATIENCE: Duration = Duration::from_secs(15);
/// More than calls before a fault: each job takes one at least.
const JOBS: usize = 1000;

/// Starts a process one of whose calls of this name fails, the `nth` of a thread on the file that it is about.
fn start(folder: &Path, (call, error): Fault<'_>, nth: usize) -> Server {
    Server::start_by(folder, |args| {
        let entrega = command(args);
        let mut strace = Command::new("strace");
        // As a grandchild, so that the process itself is ours, with its exit code.
        strace.args(["-D", "-f", "-o", "/dev/null"]);
        // A start syncs too, and must not be what meets the fault: only the table of the jobs is written out.
        let file = match call {
            "write" | "fdatasync" => JOURNAL,
            "renameat" => "store/keyspaces/1/current",
            _ => "store/keyspaces/1/tables",
        };
        strace.arg("-P").arg(folder.join(file));
        strace.arg("-e").arg(format!("trace={call}"));
        strace.arg("-e").arg(format!("inject={call}:error={error}:when={nth}"));
        strace.arg(entrega.get_program()).args(entrega.get_args()).env_clear();
        strace.envs(entrega.get_envs().filter_map(|(name, value)| Some((name, value?))));
        strace
    })
}

/// Starts a process whose files may not grow beyond this many blocks of 512 bytes: the write that would is cut short, and
/// the next one fails.
fn start_cramped(folder: &Path, blocks: u64) -> Server {
    Server::start_by(folder, |args| {
        let entrega = command(args);
        let mut shell = Command::new("sh");
        // The signal that goes with it would end the process before it could say why.
        shell.args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\""]).arg(blocks.to_string());
        shell.arg(entrega.get_program()).args(entrega.get_args()).env_clear();
        shell.envs(entrega.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    })
}

async fn is_gone(server: &Server) -> i32 {
    let gone = async {
        loop {
            if let Some(code) = server.ended() {
                return code;
            }
            // reason: nothing tells when another process ends
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("it lives on\n{}", server.log()))
}

/// A store that was made before, so that a fault meets a gateway at work.
fn made() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    std::fs::write(root.join("entrega.toml"), "[lanes.http]\nretry = { attempts = 1 }\n").unwrap();
    drop(Server::start(&root));
    (folder, root)
}

/// Sends jobs until one is not acknowledged, at most so many; those that were.
async fn submit(server: &Server, jobs: usize, bytes: impl Fn(usize) -> usize) -> Vec<String> {
    let mut told = Vec::new();
    for count in 0..jobs {
        let delay = if count % 3 == 0 { 0 } else { 3_600_000 };
        let job =
            json!({"delayMs": delay, "request": {"url": "http://127.0.0.1:9/", "body": "b".repeat(bytes(count))}});
        match server.call("POST", "/v1/jobs", &job).await {
            Ok(answer) if answer.status.is_success() => {
                let id: Value = serde_json::from_slice(&answer.body).unwrap();
                told.push(id["jobId"].as_str().unwrap().to_owned());
            }
            _ => break,
        }
    }
    told
}

/// The next start has all of them, and takes more.
async fn assert_all_there(root: &Path, told: &[String]) {
    let server = Server::start(root);
    for id in told {
        server.ok("GET", &format!("/v1/jobs/{id}"), &Value::Null).await;
    }
    server.ok("POST", "/v1/jobs", &json!({"request": {"url": "http://127.0.0.1:9/"}})).await;
}

/// One run into one fault; how many jobs were acknowledged before it. A journal that is cut short ends at `full_at`.
async fn run(root: &Path, server: Server, fault: &str, full_at: Option<u64>) -> usize {
    let told = submit(&server, JOBS, |count| 100 * (count % 40)).await;
    assert!(told.len() < JOBS, "{fault}: the fault was never met in {JOBS} jobs\n{}", server.log());
    let next = submit(&server, 1, |_| 0).await;
    assert_eq!(next.len(), 0, "{fault}: acknowledged after the disk had failed");
    assert_eq!(is_gone(&server).await, STORE_FAILED, "{fault}\n{}", server.log());
    if let Some(bytes) = full_at {
        assert_eq!(std::fs::metadata(root.join(JOURNAL)).unwrap().len(), bytes, "{fault}: it was not cut short");
    }
    assert_all_there(root, &told).await;
    told.len()
}

/// A fault at the first call, at the second, and so on.
async fn run_all(call: &str, error: &str) {
    if is_left_out() {
        return;
    }
    for nth in 1..=number("ENTREGA_POWER_FAULTS", 4) {
        let (_folder, root) = made();
        let fault = format!("{call} {error} at call {nth}");
        let told = run(&root, start(&root, (call, error), nth), &fault, None).await;
        println!("{fault}: {told} acknowledged before, all there after");
    }
}

#[tokio::test]
async fn a_sync_that_fails_ends_the_process_and_loses_nothing_acknowledged() {
    run_all("fdatasync", "EIO").await;
}

#[tokio::test]
async fn a_write_that_fails_ends_the_process_and_loses_nothing_acknowledged() {
    run_all("write", "EIO").await;
}

#[tokio::test]
async fn a_disk_that_fills_up_at_a_write_ends_the_process_and_loses_nothing_acknowledged() {
    run_all("write", "ENOSPC").await;
}

/// Half of a record is on the disk then, and no sync came after it.
#[tokio::test]
async fn a_write_that_is_cut_short_ends_the_process_and_loses_nothing_acknowledged() {
    for nth in 1..=number("ENTREGA_POWER_FAULTS", 4) as u64 {
        let (_folder, root) = made();
        let blocks = 40 + 7 * nth;
        let fault = format!("a journal of {} bytes at most", blocks * 512);
        let told = run(&root, start_cramped(&root, blocks), &fault, Some(blocks * 512)).await;
        println!("{fault}: {told} acknowledged before, all there after");
    }
}

/// Tables are written out beside the work. Where that fails the journal still has everything.
#[tokio::test]
async fn a_table_that_cannot_be_written_out_loses_nothing_acknowledged() {
    if is_left_out() {
        return;
    }
    for fault in [("renameat", "EIO"), ("fsync", "EIO"), ("fsync", "ENOSPC")] {
        let (_folder, root) = made();
        let server = start(&root, fault, 1);
        // Several times what a table gathers in memory.
        let told = submit(&server, 50, |_| 400_000).await;
        println!("{fault:?}: {} acknowledged", told.len());
        assert!(told.len() < 50, "{fault:?} was never met");
        assert_eq!(is_gone(&server).await, STORE_FAILED, "{fault:?}\n{}", server.log());
        assert_all_there(&root, &told).await;
    }
}
