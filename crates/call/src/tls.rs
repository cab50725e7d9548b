//! TLS: whom a call trusts, and the handshake on top of TCP.
//! Invariant: TLS 1.2 or later, with a certificate that leads to a trust root.
//! Never: lets a connection attempt outlive its limit, even one that no caller waits for any more.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use crate::connect::TcpConnector;
use crate::error::{CallError, ClientError};

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Opens connections for the pool, plain or TLS, within a limit.
///
/// The limit matters when a caller is gone: the pool finishes a connection in the background when
/// another one became free first, and there no deadline covers it.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    https: HttpsConnector<TcpConnector>,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(
        tcp: TcpConnector,
        allow_http: bool,
        extra_ca_pem: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls_config(extra_ca_pem)?);
        let builder = if allow_http { builder.https_or_http() } else { builder.https_only() };
        Ok(Self { https: builder.enable_http1().wrap_connector(tcp), timeout })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, CallError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let limit = self.timeout;
        let host = url.host().unwrap_or_default().to_owned();
        let connecting = self.https.call(url);
        Box::pin(async move {
            match timeout(limit, connecting).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(error)) => Err(classify(host, error)),
                Err(_elapsed) => Err(CallError::ConnectTimeout { host }),
            }
        })
    }
}

/// The TCP connector below speaks `CallError`; whatever else comes up is the handshake's.
fn classify(host: String, error: Box<dyn StdError + Send + Sync>) -> CallError {
    match error.downcast::<CallError>() {
        Ok(ours) => *ours,
        Err(other) => CallError::Tls { host, source: Arc::from(other) },
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
