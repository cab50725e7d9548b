//! What the real binary says, and how it ends, when it cannot do what it was asked.

use std::path::Path;
use std::process::{Output, Stdio};

use entrega_testkit::encrypted_redis::Encrypted;
use entrega_testkit::redis::{self, RedisServer};
use serde_json::{Value, json};

use crate::server::{Server, command};

fn serve(data: &Path, more: &[&str]) -> Output {
    let args = [&["serve", "--data", data.to_str().unwrap()], more].concat();
    command(&args).current_dir(data).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_data_directory_in_use_is_named_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let second = serve(folder.path(), &["--listen", "127.0.0.1:0"]);
    assert_eq!(second.status.code(), Some(7), "{}", said(&second));
    assert!(
        said(&second).contains("in use") && said(&second).contains(folder.path().to_str().unwrap()),
        "{}",
        said(&second)
    );
    server.ok("GET", "/v1/lanes", &Value::Null).await;
    // A lock ends with its process, however that ends.
    server.kill();
    Server::start(folder.path()).ok("GET", "/v1/lanes", &Value::Null).await;
}

#[tokio::test]
async fn a_port_in_use_is_named_and_no_key_is_made() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--data", folder.path().to_str().unwrap(), "--listen", &address];
    let output = command(&args).current_dir(folder.path()).env_remove("ENTREGA_ADMIN_KEY").output().unwrap();
    assert_eq!(output.status.code(), Some(8), "{}", said(&output));
    assert!(said(&output).contains(&address) && said(&output).contains("--listen"), "{}", said(&output));
    assert!(!folder.path().join("admin-key").exists(), "a key that nobody saw");
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("entrega.toml"), "[lanes.http]\nconcurency = 4\n").unwrap();
    let output = serve(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(
        said(&output).contains("lanes.http.concurency") && said(&output).contains("concurrency"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_public_address_needs_a_second_word() {
    let folder = tempfile::tempdir().unwrap();
    let output = serve(folder.path(), &["--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(said(&output).contains("insecure"), "{}", said(&output));
}

#[tokio::test]
async fn a_disk_nearly_full_refuses_new_work_with_507() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("entrega.toml"), "[store]\nfree_space_min_mib = 1073741824\n").unwrap();
    let server = Server::start(folder.path());
    let job = json!({"request": {"url": "http://127.0.0.1:9/"}});
    let answer = server.call("POST", "/v1/jobs", &job).await.unwrap();
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer.status, 507, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("nearly full"), "{problem}");
}

#[test]
fn serve_ends_with_the_hint_when_a_server_is_refused() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&["--appendonly", "no"]);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--dev", "--data", data, "--store", &server.url()];
    let output = command(&args).current_dir(data).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("appendonly yes") && said.contains("--allow-unsafe-redis"), "{said}");
}

/// `docs/redis.md` says so; a Redis inside a company has the company's own authority.
#[test]
fn an_authority_that_the_system_trusts_is_trusted() {
    if redis::is_left_out() {
        return;
    }
    let encrypted = Encrypted::start();
    let (data, url) = (encrypted.server.folder().to_str().unwrap(), format!("rediss://localhost:{}", encrypted.port));
    let mut doctor = command(&["doctor", "--data", data, "--store", &url]);
    let output = doctor.env("SSL_CERT_FILE", &encrypted.authority).stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.contains("append-only file"), "{said}");
}
