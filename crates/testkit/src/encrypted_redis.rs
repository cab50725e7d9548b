//! A Redis that speaks TLS.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::redis::RedisServer;

/// A server that speaks TLS on a second port, and whoever signed its certificate.
pub struct Encrypted {
    pub server: RedisServer,
    pub port: u16,
    pub authority: PathBuf,
    _folder: TempDir,
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

impl Encrypted {
    pub fn start() -> Encrypted {
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
}
