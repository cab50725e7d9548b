//! TLS: whom a call trusts, and the handshake on top of TCP.
//! Invariant: TLS 1.2 or later, with a certificate that leads to a trust root.
//! Never: lets look-up, connect and handshake together take longer than their limit.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::connect::TcpConnector;
use crate::error::{CallError, ClientError};
use crate::origin::Origin;

/// What HTTP is spoken on, plain or TLS.
pub(crate) type Stream = TokioIo<Either<TcpStream, TlsStream<TcpStream>>>;

/// Opens streams, plain or TLS, within a limit.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: TcpConnector,
    tls: Arc<rustls::ClientConfig>,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(tcp: TcpConnector, extra_ca_pem: Option<&[u8]>, timeout: Duration) -> Result<Self, ClientError> {
        Ok(Self { tcp, tls: Arc::new(tls_config(extra_ca_pem)?), timeout })
    }

    pub(crate) async fn open(&self, origin: &Origin, tenant: Option<&str>) -> Result<Stream, CallError> {
        let opened = async {
            if origin.is_tls() {
                self.open_tls(origin, tenant).await.map(Either::Right)
            } else {
                self.tcp.open(origin, tenant).await.map(Either::Left)
            }
        };
        match timeout(self.timeout, opened).await {
            Ok(opened) => opened.map(TokioIo::new),
            Err(_elapsed) => Err(CallError::ConnectTimeout { host: origin.host().to_owned() }),
        }
    }

    async fn open_tls(&self, origin: &Origin, tenant: Option<&str>) -> Result<TlsStream<TcpStream>, CallError> {
        let host = origin.host();
        let failed = |source| CallError::Tls { host: host.to_owned(), source };
        let name = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|error| failed(Arc::new(error)))?;
        let stream = self.tcp.open(origin, tenant).await?;
        let agreed = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await;
        agreed.map_err(|error| failed(Arc::new(error)))
    }
}

fn tls_config(extra_ca_pem: Option<&[u8]>) -> Result<rustls::ClientConfig, ClientError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = extra_ca_pem {
        add_roots(&mut roots, pem)?;
    }
    // Named here rather than installed for the process: that choice belongs to the binary.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(ClientError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn add_roots(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), ClientError> {
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(ClientError::Pem)?;
        roots.add(certificate).map_err(ClientError::Certificate)?;
    }
    if roots.len() == before {
        return Err(ClientError::NoCertificate);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_extra_roots_are_named() {
        let broken = b"-----BEGIN CERTIFICATE-----\nno end";
        let not_der = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(tls_config(Some(b"")), Err(ClientError::NoCertificate)));
        assert!(matches!(tls_config(Some(broken)), Err(ClientError::Pem(_))));
        assert!(matches!(tls_config(Some(not_der)), Err(ClientError::Certificate(_))));
        assert!(tls_config(None).is_ok());
    }
}
