//! TLS against a server whose certificate comes from a CA made for the test.

use std::sync::Arc;

use crate::peer::OK;
use crate::server::{Server, in_seconds, loopback, post, serve};
use entrega_call::{CallError, Client, ClientConfig};
use http::{Response, StatusCode};
use http_body_util::Full;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::SupportedProtocolVersion;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A TLS server on loopback, with the PEM of the CA that vouches for it.
struct TlsServer {
    url: String,
    ca_pem: Vec<u8>,
}

/// A listener and what it takes to speak TLS on it.
struct TlsPeer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    ca_pem: Vec<u8>,
}

impl TlsPeer {
    async fn start() -> Self {
        let (config, ca_pem) = certified("127.0.0.1", &rustls::version::TLS13);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)), ca_pem }
    }
}

impl TlsServer {
    async fn start(name: &str, version: &'static SupportedProtocolVersion) -> Self {
        let (config, ca_pem) = certified(name, version);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}/", listener.local_addr().unwrap().port());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A handshake that fails is what some of these tests are about.
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::spawn(serve(stream, |_| Response::new(Full::from("secret"))));
                }
            }
        });
        Self { url, ca_pem }
    }
}

fn certified(name: &str, version: &'static SupportedProtocolVersion) -> (rustls::ServerConfig, Vec<u8>) {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem().into_bytes();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (config, ca_pem)
}

fn trusting(ca_pem: Option<Vec<u8>>) -> Client {
    Client::new(ClientConfig { extra_ca_pem: ca_pem, ..loopback() }).unwrap()
}

async fn refused(client: Client, url: &str) -> CallError {
    client.call(post(url), in_seconds(30)).await.unwrap_err()
}

#[tokio::test]
async fn a_private_ca_is_trusted_once_it_is_given() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let server = TlsServer::start("127.0.0.1", version).await;
        let client = trusting(Some(server.ca_pem));
        let answer = client.call(post(&server.url), in_seconds(30)).await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"secret"[..]));
    }
}

#[tokio::test]
async fn an_unknown_ca_is_a_tls_error() {
    let server = TlsServer::start("127.0.0.1", &rustls::version::TLS13).await;
    let error = refused(trusting(None), &server.url).await;
    assert_eq!(error.code(), "tls");
    assert!(error.reason().contains("UnknownIssuer"), "{}", error.reason());
}

#[tokio::test]
async fn a_certificate_for_another_name_is_a_tls_error() {
    let server = TlsServer::start("example.com", &rustls::version::TLS13).await;
    let error = refused(trusting(Some(server.ca_pem)), &server.url).await;
    assert_eq!(error.code(), "tls", "{}", error.reason());
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_tls_error() {
    let server = Server::start(|_| Response::new(Full::default())).await;
    let url = format!("https://{}/", server.address);
    let error = refused(trusting(None), &url).await;
    assert_eq!(error.code(), "tls", "{}", error.reason());
}

#[tokio::test]
async fn a_kept_tls_connection_is_used_again_and_ends_with_a_farewell() {
    let TlsPeer { listener, acceptor, ca_pem } = TlsPeer::start().await;
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let client = trusting(Some(ca_pem));
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut request = Vec::new();
        for _ in 0..3 {
            request.clear();
            while !request.ends_with(b"\r\n\r\n{}") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(OK).await.unwrap();
        }
        // An end without `close_notify` would be an error here.
        stream.read(&mut [0]).await
    });
    for _ in 0..3 {
        let answer = client.call(post(&url), in_seconds(30)).await.unwrap();
        assert_eq!(answer.body, "ok");
    }
    drop(client);
    assert_eq!(server.await.unwrap().unwrap(), 0);
}
