//! TLS: `rediss://` is encrypted and checked, or it is not used at all.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::world::{World, bounded};
use crate::process;
use crate::redis::{self, RedisServer};

/// A server that speaks TLS on a second port, and whoever signed its certificate.
pub(super) struct Encrypted {
    server: RedisServer,
    pub(super) port: u16,
    authority: PathBuf,
    _folder: TempDir,
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

impl Encrypted {
    pub(super) fn start() -> Encrypted {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = write(folder.path(), "authority.pem", &params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let certificate = write(folder.path(), "server.pem", &certificate.pem());
        let key = write(folder.path(), "server.key", &key.serialize_pem());
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let words = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", certificate.to_str().unwrap().to_owned()),
            ("--tls-key-file", key.to_str().unwrap().to_owned()),
            ("--tls-ca-cert-file", authority.to_str().unwrap().to_owned()),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        let args: Vec<&str> = words.iter().flat_map(|(name, value)| [*name, value.as_str()]).collect();
        Encrypted { server: RedisServer::start(&args), port, authority, _folder: folder }
    }

    /// What `entrega doctor` says of it, where the system trusts the authority that signed its certificate.
    fn examined(&self, trusts: &Path) -> Output {
        let (data, url) = (self.server.folder().to_str().unwrap(), format!("rediss://localhost:{}", self.port));
        let mut doctor = process::command(&["doctor", "--data", data, "--store", &url]);
        doctor.env("SSL_CERT_FILE", trusts).stdin(Stdio::null()).output().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        world.server.url = format!("rediss://joe:s3cret@127.0.0.1:{}", encrypted.port);
        let refusal = world.refusal().await;
        println!("not trusted: {refusal}");
        assert!(refusal.contains(&format!("rediss://127.0.0.1:{}", encrypted.port)), "{refusal}");
        assert!(refusal.contains("certificate"), "it says what is wrong: {refusal}");
        assert!(!refusal.contains("s3cret"), "{refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_ask_for_tls_that_is_not_checked() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        world.server.url = format!("rediss://127.0.0.1:{}/#insecure", encrypted.port);
        let refusal = world.refusal().await;
        println!("#insecure: {refusal}");
        assert_eq!(encrypted.server.command(&["DBSIZE"]), "0");
        assert!(refusal.contains("insecure"), "it says what is wrong: {refusal}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_the_wrong_port_is_told_so_in_time() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let encrypted = Encrypted::start();
        let mut world = World::by_hand(&encrypted.server);
        for (scheme, port) in [("redis", encrypted.port), ("rediss", encrypted.server.port())] {
            world.server.url = format!("{scheme}://127.0.0.1:{port}");
            let refusal = world.refusal().await;
            println!("{scheme}: {refusal}");
            assert!(refusal.contains(&port.to_string()), "{refusal}");
        }
    })
    .await;
}

/// `docs/redis.md` says so; a Redis inside a company has the company's own authority.
#[test]
fn an_authority_that_the_system_trusts_is_trusted() {
    if redis::is_left_out() {
        return;
    }
    let encrypted = Encrypted::start();
    let output = encrypted.examined(&encrypted.authority);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && said.contains("append-only file"), "{said}");
}
