//! A real `redis-server` in a process of its own, on a free port, with a folder of its own.
//! Invariant: it dies with the process that started it, however that ends, and its folder goes with it. Only
//! `kill` leaves the folder, for `restart`.
//! Never: touches a server that it did not start.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::tool;

const DEFAULTS: [&str; 10] = [
    "--bind",
    "127.0.0.1",
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--maxmemory-policy",
    "noeviction",
    "--save",
    "",
];

/// Kills the server when it is told to, or when whoever started it is gone and its end of the pipe with it.
const KEEPER: &str = r#"
redis-server "$@" &
server=$!
read -r word
kill -9 "$server"
wait "$server"
[ "$word" = keep ] || rm -rf "$FOLDER"
"#;

/// Loading what the server had written before may take a while.
const START_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const REPLY_MAX: Duration = Duration::from_secs(5);

/// Whether this run goes without Redis, because no `redis-server` could be had; a test that needs it then returns.
pub fn is_left_out() -> bool {
    tool::is_left_out("redis-server")
}

/// One server for all tests of a process. They share its data, so each needs keys of its own.
pub fn shared() -> &'static RedisServer {
    static SHARED: OnceLock<RedisServer> = OnceLock::new();
    SHARED.get_or_init(|| RedisServer::start(&[]))
}

/// What the keys of one test begin with.
pub fn prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A running server.
pub struct RedisServer {
    port: u16,
    args: Vec<String>,
    keeper: Mutex<Option<Child>>,
    folder: TempDir,
}

impl RedisServer {
    /// Whatever it holds is too much from now on.
    pub fn fill(&self) {
        assert_eq!(self.command(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    }

    /// There is no limit any more.
    pub fn give_room(&self) {
        assert_eq!(self.command(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    }

    /// Starts one that syncs every write. Arguments given here win over that.
    pub fn start(args: &[&str]) -> RedisServer {
        let server = RedisServer {
            port: free_port(),
            args: DEFAULTS.iter().chain(args).map(|arg| (*arg).to_owned()).collect(),
            keeper: Mutex::new(None),
            folder: tempfile::tempdir().unwrap(),
        };
        server.spawn();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its data and its log, `redis.log`, are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// kill -9. It is gone when this returns.
    pub fn kill(&self) {
        let mut keeper = self.keeper.lock().take().expect("the server runs");
        writeln!(keeper.stdin.as_ref().unwrap(), "keep").unwrap();
        // This closes the pipe as well.
        keeper.wait().unwrap();
    }

    /// Starts again on the same port, with the same data and arguments; kills it first if it runs.
    pub fn restart(&self) {
        if self.keeper.lock().is_some() {
            self.kill();
        }
        self.spawn();
    }

    /// The reply as text. The items of an array stand on lines of their own, nil is empty, and an error keeps its `-`.
    pub fn command(&self, words: &[&str]) -> String {
        let reply = ask(self.port, words);
        reply.unwrap_or_else(|error| panic!("{words:?} got no reply: {error}\n{}", self.log()))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder().join("redis.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn spawn(&self) {
        let log = OpenOptions::new().create(true).append(true).open(self.folder().join("redis.log")).unwrap();
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "redis-keeper"])
            .args(["--port", &self.port.to_string(), "--dir", self.folder().to_str().unwrap()])
            .args(&self.args)
            .env("FOLDER", self.folder())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("there is a shell");
        *self.keeper.lock() = Some(keeper);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        for _ in 0..START_MAX.as_millis() / LOOK_EVERY.as_millis() {
            // Another server may have taken the port in between; that one has another folder.
            let is_ours = ask(self.port, &["CONFIG", "GET", "dir"])
                .is_ok_and(|reply| reply.lines().last().is_some_and(|dir| Path::new(dir) == self.folder()));
            if is_ours && ask(self.port, &["PING"]).is_ok_and(|reply| reply == "PONG") {
                return;
            }
            // reason: another process decides when it is ready; it is asked, not told
            std::thread::sleep(LOOK_EVERY);
        }
        panic!(
            "redis-server does not answer on port {} after {} s; its log:\n{}",
            self.port,
            START_MAX.as_secs(),
            self.log()
        );
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.lock().take() {
            // Fails only for a child that is gone. The keeper reads the end of its pipe, kills and clears up.
            drop(keeper.wait());
        }
    }
}

/// Below the ports that the kernel gives to connections: a client that tries again and again to reach a server that is
/// down could otherwise be given the very port it wants to reach, and be connected to itself.
fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| 10_000 + u16::from_le_bytes(entrega::chance::secret_bytes()) % 20_000);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.take(100).find(is_free).expect("one port in a hundred is free")
}

/// What the server on a port of this machine answers.
pub fn ask(port: u16, words: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(REPLY_MAX))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(request.as_bytes())?;
    read_reply(&mut BufReader::new(stream))
}

fn read_reply(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
    let length = || rest.parse::<i64>().map_err(io::Error::other);
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Ok(line.to_owned()),
        "$" => match usize::try_from(length()?) {
            Ok(length) => read_bulk(stream, length),
            Err(_) => Ok(String::new()),
        },
        "*" => {
            let items = (0..length()?).map(|_| read_reply(stream)).collect::<io::Result<Vec<_>>>()?;
            Ok(items.join("\n"))
        }
        _ => Err(io::Error::other(format!("not a reply: {line}"))),
    }
}

fn read_bulk(stream: &mut impl BufRead, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
