//! A real `entrega serve` in a process of its own, and a client for its API.

#![allow(dead_code, reason = "every test binary that names this module uses another part of it")]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use entrega_call::Clock;
use entrega_call::{AddressFilter, Answer, CallError, Client, ClientConfig};
use http::{Request, request};
use parking_lot::Mutex;
use serde_json::Value;

pub const KEY: &str = "ek_key-of-the-process-tests";

/// A server that has not said where it listens by then never will.
const START_MAX: Duration = Duration::from_secs(20);
/// No call may take longer, whatever it meets.
pub const CALL_MAX: Duration = Duration::from_secs(10);
/// Of what a server says, as much is kept for the message of a test that fails.
const LOG_LINES_MAX: usize = 60;

/// The binary with its environment cleared of anything that could change what is tested.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_entrega"));
    command.args(args).env_clear().env("ENTREGA_ADMIN_KEY", KEY).env("PATH", "/usr/bin:/bin");
    command
}

/// The last lines that a server wrote.
type Log = Arc<Mutex<VecDeque<String>>>;

/// A running server; killed with -9 when dropped.
pub struct Server {
    child: Mutex<Child>,
    pub address: SocketAddr,
    log: Log,
    client: Client,
    clock: Clock,
}

impl Server {
    pub fn start(data: &Path) -> Server {
        Server::start_with(data, &[])
    }

    /// An `entrega.toml` in `data` is its configuration.
    pub fn start_with(data: &Path, more: &[&str]) -> Server {
        Server::start_by(data, |args| command(&[args, more].concat()))
    }

    /// By a command of one's own, made of the arguments it must have.
    pub fn start_by(data: &Path, command: impl FnOnce(&[&str]) -> Command) -> Server {
        let data = data.to_str().unwrap();
        let args = ["serve", "--listen", "127.0.0.1:0", "--dev", "--data", data];
        let mut child = command(&args).current_dir(data).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::default();
        let address = listen(child.stderr.take().unwrap(), log.clone()).recv_timeout(START_MAX);
        let address = address.unwrap_or_else(|_| {
            // Both fail only for a child that is gone.
            drop(child.kill());
            drop(child.wait());
            panic!("entrega {} never said where it listens; it said:\n{}", args.join(" "), text(&log));
        });
        let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
        Server {
            child: Mutex::new(child),
            address,
            log,
            client: Client::new(ClientConfig { filter, answer_bytes_max: 4 << 20, ..ClientConfig::default() }).unwrap(),
            clock: Clock::system(),
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.call_as(KEY, method, path, body).await
    }

    pub async fn call_as(&self, key: &str, method: &str, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.make(self.request(key, method, path), body).await
    }

    /// A POST with an `Idempotency-Key`.
    pub async fn post_once(&self, once: &str, path: &str, body: &Value) -> Result<Answer, CallError> {
        self.make(self.request(KEY, "POST", path).header("idempotency-key", once), body).await
    }

    fn request(&self, key: &str, method: &str, path: &str) -> request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
    }

    async fn make(&self, request: request::Builder, body: &Value) -> Result<Answer, CallError> {
        let request = request.body(if body.is_null() { Bytes::new() } else { body.to_string().into() }).unwrap();
        let deadline = self.clock.instant(self.clock.now() + CALL_MAX);
        self.client.call(request, deadline).await
    }

    /// The answer's JSON; fails on anything but a 2xx.
    pub async fn ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.call(method, path, body).await;
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {}\n{}", error.reason(), self.log()));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status.is_success(), "{method} {path}: {} {text}\n{}", answer.status, self.log());
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    /// The most memory it has had, in bytes.
    pub fn memory_peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    /// How many file handles it has open.
    pub fn handles(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<i32> {
        self.child.lock().try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }

    /// What it wrote last.
    pub fn log(&self) -> String {
        text(&self.log)
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.lock().id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success(), "{kill}: {status}\n{}", self.log());
    }

    /// kill -9.
    pub fn kill(&self) {
        self.child.lock().kill().unwrap();
        self.child.lock().wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        drop(self.child.lock().kill());
        drop(self.child.lock().wait());
    }
}

/// Reads what a server writes, for as long as it does: it would stop at a full pipe. Gives the address it names.
fn listen(stderr: ChildStderr, log: Log) -> mpsc::Receiver<SocketAddr> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let rest = line.split_once("listens on http://").and_then(|(_, rest)| rest.split(';').next());
            if let Some(address) = rest.and_then(|address| address.parse().ok())
                && let Some(sender) = sender.take()
            {
                // Nobody waits any more when it came too late.
                let _ = sender.send(address);
            }
            let mut log = log.lock();
            log.push_back(line);
            if log.len() > LOG_LINES_MAX {
                log.pop_front();
            }
        }
    });
    receiver
}

fn text(log: &Log) -> String {
    log.lock().iter().map(|line| format!("  | {line}\n")).collect()
}
