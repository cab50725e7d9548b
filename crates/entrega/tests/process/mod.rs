//! A real `entrega serve` in a process of its own, and a client for its API.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use entrega::clock::Clock;
use entrega_call::{AddressFilter, Answer, CallError, Client, ClientConfig};
use http::Request;
use parking_lot::Mutex;
use serde_json::Value;

pub const KEY: &str = "ek_key-of-the-process-tests";

/// The binary with its environment cleared of anything that could change what is tested.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_entrega"));
    command.args(args).env_clear().env("ENTREGA_ADMIN_KEY", KEY).env("PATH", "/usr/bin:/bin");
    command
}

/// A running server; killed with -9 when dropped.
pub struct Server {
    child: Mutex<Child>,
    pub address: SocketAddr,
    client: Client,
    clock: Clock,
}

impl Server {
    pub fn start(data: &Path) -> Server {
        Server::start_with(data, &[])
    }

    pub fn start_with(data: &Path, more: &[&str]) -> Server {
        let data = data.to_str().unwrap();
        let args = [&["serve", "--listen", "127.0.0.1:0", "--dev", "--data", data], more].concat();
        let mut child = command(&args).current_dir(data).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let rest = line.split_once("listens on http://")?.1;
            rest.split(';').next()?.parse().ok()
        });
        // Somebody must read the rest, or the server would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
        Server {
            child: Mutex::new(child),
            address: address.expect("the server says where it listens"),
            client: Client::new(ClientConfig { filter, ..ClientConfig::default() }).unwrap(),
            clock: Clock::system(),
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Result<Answer, CallError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {KEY}"))
            .header("content-type", "application/json")
            .body(if body.is_null() { Bytes::new() } else { body.to_string().into() })
            .unwrap();
        let deadline = self.clock.instant(self.clock.now() + Duration::from_secs(10));
        self.client.call(request, deadline).await
    }

    /// The answer's JSON; fails on anything but a 2xx.
    pub async fn ok(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.call(method, path, body).await.unwrap();
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status.is_success(), "{method} {path}: {} {text}", answer.status);
        serde_json::from_str(&text).unwrap_or(Value::Null)
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
