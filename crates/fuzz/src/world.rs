//! A whole gateway in this process, without anybody who delivers, and a client that says what it is told to.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use entrega::{Engine, EngineParts};
use entrega_gateway::api::{ApiState, ServerLimits, hash_key, serve};
use entrega_gateway::config::{Config, ConfigFile, ConfigSources, Options};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::INPUT_BYTES_MAX;

const KEY: &str = "ek_the-key-of-the-fuzz-tests";
/// Lanes are small, so that what was taken does not pile up.
const CONFIG: &str = r#"
[store]
kind = "memory"
[lanes.http]
capacity = 50
retry = { attempts = 2 }
[lanes."email:send"]
capacity = 50
[transports.main]
url = "smtp://127.0.0.1:9"
[connectors.erp]
base_url = "https://api.example.com"
[lanes."connector:erp"]
channel = "connector"
capacity = 50
[proxy.score]
upstream_url = "https://api.example.com"
[lanes."proxy:score"]
capacity = 50
"#;
/// The most that is read of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(8);

/// A server on a port of its own.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) engine: Arc<Engine>,
    address: SocketAddr,
    /// Goes with the world.
    _folder: TempDir,
}

/// The configuration of the gateway here, over an empty folder.
pub(crate) fn config(folder: &Path) -> Config {
    let path = folder.join("entrega.toml");
    std::fs::write(&path, CONFIG).expect("the configuration can be written");
    let options = Options { data: Some(folder.to_owned()), ..Options::default() };
    let sources = ConfigSources { file: ConfigFile::At(path), options, ..ConfigSources::default() };
    Config::load(sources).expect("the configuration is right")
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    /// One whose engine is changed first.
    pub(crate) fn with(change: impl FnOnce(&mut EngineParts)) -> World {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let (engine, listener) = runtime.block_on(async {
            let config = config(folder.path()).engine().expect("the files are there");
            let mut parts = EngineParts::open(config).await.expect("the engine opens");
            change(&mut parts);
            (Arc::new(parts.build()), TcpListener::bind("127.0.0.1:0").await.expect("a port"))
        });
        let address = listener.local_addr().expect("it listens");
        let state = ApiState::new(engine.clone(), hash_key(KEY));
        runtime.spawn(serve(listener, state, ServerLimits::default(), CancellationToken::new()));
        World { runtime, engine, address, _folder: folder }
    }

    /// Everything that the server answers to these bytes. It reads the end of them too, if `is_all`: then it does not
    /// finish what it has not answered yet.
    pub(crate) fn say(&self, bytes: &[u8], is_all: bool) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket takes a limit");
        let mut answer = Vec::new();
        // The server may close in the middle of any of these; what it said before counts.
        drop(stream.write_all(bytes));
        if is_all {
            drop(stream.shutdown(Shutdown::Write));
        }
        drop(stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer));
        answer
    }

    /// Status and body of the answer to a call.
    pub(crate) fn call(&self, method: &str, path: &str, more: &[u8], body: &[u8]) -> (u16, Vec<u8>) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        assert!(body.len() <= INPUT_BYTES_MAX);
        let answer = self.say(&[head.as_bytes(), more, b"\r\n", body].concat(), false);
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n").unwrap_or(answer.len());
        let status = String::from_utf8_lossy(&answer[..end]).split(' ').nth(1).and_then(|text| text.parse().ok());
        (status.unwrap_or(0), answer.get(end + 4..).unwrap_or_default().to_vec())
    }
}
