//! Running receivers: what starts each, what it printed, and a client that speaks HTTP to it.
//! Invariant: a program dies with the value that started it.

use entrega_testkit::tool;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use entrega_core::webhook::WebhookSecret;
use serde_json::Value;
use tempfile::TempDir;

/// A program that has not done it by then never will.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough that no event comes out late by itself.
const LONG_MS: u64 = 600_000;
/// Of what a program prints, as much is kept until it is looked at.
const LINES_MAX: usize = 1_000;

/// The languages there are receivers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Node,
    Python,
    Php,
    Rust,
}

impl Language {
    /// Whether this run goes without it, because it could not be had; a test that needs it then returns.
    pub fn is_left_out(self) -> bool {
        let tool = match self {
            Language::Node => "node",
            Language::Python => "python",
            Language::Php => "php",
            Language::Rust => return false,
        };
        tool::is_left_out(tool)
    }
}

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/receivers").join(path)
}

/// A receiver that runs.
pub struct Program {
    children: Vec<Child>,
    port: u16,
    handled: Receiver<String>,
    _folder: TempDir,
}

impl Program {
    /// One that knows these secrets and waits for missing events as good as for ever.
    pub fn start(language: Language, secrets: &str) -> Program {
        Program::start_with(language, secrets, LONG_MS)
    }

    /// One that gives missing events up after this long.
    pub fn start_with(language: Language, secrets: &str, gap_wait_ms: u64) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let (printed, handled) = sync_channel(LINES_MAX);
        if language == Language::Rust {
            let port = start_rust(secrets, Duration::from_millis(gap_wait_ms), printed);
            return Program { children: Vec::new(), port, handled, _folder: folder };
        }
        let environment: Environment = vec![
            ("WEBHOOK_SECRET", secrets.to_owned()),
            ("GAP_WAIT_MS", gap_wait_ms.to_string()),
            ("INBOX", folder.path().to_str().unwrap().to_owned()),
        ];
        let (children, port) = match language {
            Language::Php => start_php(&environment, printed),
            _ => start_process(language, &environment, printed),
        };
        Program { children, port, handled, _folder: folder }
    }

    /// Whether one that knows no secret starts to listen, and what it says. For those that say it when they start.
    pub fn run_without_secret(language: Language) -> (bool, String) {
        let mut command = command(language, &vec![("WEBHOOK_SECRET", " ".to_owned())]);
        let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        // Fails for a child that is gone, as it should be.
        drop(child.kill());
        let output = child.wait_with_output().unwrap();
        (first.contains("listening"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Posts a body, and gives the status and the text of the answer.
    pub fn post(&self, body: &[u8], headers: &[(&str, &str)]) -> (u16, String) {
        let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "POST /hooks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             {fields}content-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {head}")), text.trim().to_owned())
    }

    /// What it handled next: the number and the id of the event. Waits for it.
    pub fn handled(&self) -> (u64, String) {
        let line = self.handled.recv_timeout(PATIENCE).expect("it handles something");
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        (event["sequenceNumber"].as_u64().unwrap(), event["eventId"].as_str().unwrap().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both fail only for a child that is gone.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Its threads end with the process of the test.
fn start_rust(secrets: &str, gap_wait: Duration, printed: SyncSender<String>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let secrets: Vec<WebhookSecret> = secrets.split(' ').map(|secret| secret.parse().unwrap()).collect();
    std::thread::spawn(move || {
        entrega_receiver::serve(listener, secrets, gap_wait, |event| {
            // Nobody listens any more once the test has ended.
            let _ = printed.send(entrega_receiver::shown(&event));
        })
    });
    port
}

/// Node and Python choose a port and print it.
fn start_process(language: Language, environment: &Environment, printed: SyncSender<String>) -> (Vec<Child>, u16) {
    let mut child = spawn(command(language, environment).stdout(Stdio::piped()));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    let port = first.trim().strip_prefix("listening on ").and_then(|port| port.parse().ok());
    pass_lines(stdout, printed);
    (vec![child], port.unwrap_or_else(|| panic!("{language:?} says no port: {first:?}")))
}

fn command(language: Language, environment: &Environment) -> Command {
    let (program, path) = match language {
        Language::Node => (PathBuf::from("node"), "node/receiver.mjs"),
        _ => (tool::python(), "python/receiver.py"),
    };
    let mut command = Command::new(program);
    command.arg(example(path)).envs(environment.clone()).env("PORT", "0");
    command
}

/// PHP is told a port, and handles events in a second process.
fn start_php(environment: &Environment, printed: SyncSender<String>) -> (Vec<Child>, u16) {
    let ports = std::iter::repeat_with(|| 10_000 + u16::from_le_bytes(entrega::chance::secret_bytes()) % 20_000);
    let serve = |port: u16| {
        let mut command = Command::new("php");
        command.args(["-S", &format!("127.0.0.1:{port}")]).arg(example("php/receiver.php"));
        let mut child = spawn(command.envs(environment.clone()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let is_there = lines.any(|line| line.contains("Development Server") && line.contains("started"));
        // It would stop at a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        // Without that line it has ended: the port was taken.
        is_there.then_some((child, port))
    };
    let (server, port) = ports.take(20).find_map(serve).expect("one port in twenty is free");
    let mut command = Command::new("php");
    command.arg(example("php/receiver.php")).arg("work").envs(environment.clone()).stdout(Stdio::piped());
    let mut worker = spawn(&mut command);
    pass_lines(BufReader::new(worker.stdout.take().unwrap()), printed);
    (vec![server, worker], port)
}

type Environment = Vec<(&'static str, String)>;

fn spawn(command: &mut Command) -> Child {
    let program = command.get_program().to_owned();
    command.spawn().unwrap_or_else(|error| panic!("{program:?} does not run: {error}; `cargo xtask test` installs it"))
}

fn pass_lines(lines: impl BufRead + Send + 'static, printed: SyncSender<String>) {
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            // Nobody listens any more once the test has ended.
            let _ = printed.send(line);
        }
    });
}
