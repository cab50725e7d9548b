//! The `redis-server` that other tests rely on keeps its own promises.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use entrega_testkit::redis::{self, RedisServer};

/// Set in the process that is to end without a word.
const VICTIM: &str = "ENTREGA_TEST_VICTIM";

#[test]
fn a_server_killed_and_restarted_has_what_was_written() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (url, folder) = (server.url(), server.folder().to_owned());
    assert_eq!(server.command(&["SET", "a", "1"]), "OK");
    server.kill();
    assert!(!answers(server.port()), "it is gone when kill returns");
    server.restart();
    assert_eq!((server.command(&["GET", "a"]).as_str(), server.url()), ("1", url));
    server.restart();
    assert_eq!(server.command(&["GET", "a"]), "1", "a restart kills a server that runs");
    drop(server);
    assert!(!folder.exists(), "nothing is left of it");
}

#[test]
fn every_kind_of_reply_is_read() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&[]);
    assert_eq!(server.command(&["RPUSH", "list", "x", "", "y z"]), "3");
    assert_eq!(server.command(&["LRANGE", "list", "0", "-1"]), "x\n\ny z");
    assert_eq!(server.command(&["LINDEX", "list", "7"]), "");
    let error = server.command(&["GET", "list"]);
    assert!(error.starts_with("-WRONGTYPE"), "{error}");
    assert!(server.command(&["INFO", "server"]).contains("redis_version"));
}

#[test]
fn a_server_syncs_every_write_unless_it_is_told_otherwise() {
    if redis::is_left_out() {
        return;
    }
    let setting = |server: &RedisServer, name| server.command(&["CONFIG", "GET", name]);
    let server = RedisServer::start(&[]);
    let settings = ["appendonly", "appendfsync", "maxmemory-policy", "save"].map(|name| setting(&server, name));
    assert_eq!(settings, ["appendonly\nyes", "appendfsync\nalways", "maxmemory-policy\nnoeviction", "save\n"]);
    let other = RedisServer::start(&["--appendfsync", "everysec", "--maxmemory-policy", "allkeys-lru"]);
    let settings = ["appendfsync", "maxmemory-policy"].map(|name| setting(&other, name));
    assert_eq!(settings, ["appendfsync\neverysec", "maxmemory-policy\nallkeys-lru"]);
    assert_ne!(server.port(), other.port());
}

#[test]
fn the_shared_server_dies_with_the_process_that_started_it() {
    if redis::is_left_out() {
        return;
    }
    if std::env::var_os(VICTIM).is_some() {
        let server = redis::shared();
        assert_eq!(server.port(), redis::shared().port());
        println!("\nserver {} {}", server.port(), server.folder().display());
        std::io::stdout().flush().unwrap();
        std::process::abort();
    }
    let name = "the_shared_server_dies_with_the_process_that_started_it";
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
    assert!(!victim.wait().unwrap().success(), "it aborted");
    let said = lines.iter().find_map(|line| line.strip_prefix("server ")).unwrap_or_else(|| panic!("{lines:?}"));
    let (port, folder) = said.split_once(' ').unwrap();
    let port: u16 = port.parse().unwrap();
    for _ in 0..250 {
        if !answers(port) && !Path::new(folder).exists() {
            return;
        }
        // reason: a shell that nobody waits for clears up
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("after 5 s: port {port} answers: {}, {folder} exists: {}", answers(port), Path::new(folder).exists());
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}
