//! Opening: from a server's name to a connection that is ready for mail.
//! Invariant: where TLS is wanted, everything after the first EHLO is encrypted and the certificate was checked; a
//! password goes out only then, or where plain logins were allowed by name.
//! Never: falls back to less than what was asked for.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use entrega_call::{NameResolver, Resolve};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::lost::Lost;
use super::reply::{CLOSING, Reply};
use super::url::{SmtpConfig, SmtpTls};
use super::wire::{Wire, WireError};

/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// For an address that is not the last: it outlasts one lost packet.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(1500);
/// For the last one, so that another transport still has its turn within the same attempt.
const LAST_ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// What a configuration can have wrong that only shows when a transport is made of it.
#[derive(Debug, thiserror::Error)]
pub enum SmtpSetupError {
    /// The host cannot be in a certificate.
    #[error("the host '{host}' is neither a name nor an address: {source}")]
    Host {
        /// What was given.
        host: String,
        /// Why not.
        source: InvalidDnsNameError,
    },
    /// The name that we give ourselves would not be one word.
    #[error("hello '{hello}' is not a host name; write one such as mail.example.com")]
    Hello {
        /// What was given.
        hello: String,
    },
    /// A password that could never be sent.
    #[error("there is a password but no TLS: use tls=required, or allow_plain_auth on a network that is yours alone")]
    PasswordInClear,
    /// The further certificates are not PEM.
    #[error("the extra certificates are not readable as PEM: {0}")]
    Pem(#[source] pem::Error),
    /// One of them is no certificate to trust.
    #[error("an extra certificate cannot be trusted: {0}")]
    Certificate(#[source] rustls::Error),
    /// There is none.
    #[error("the extra certificates hold none; give a file with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    /// The TLS library refused its own settings.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
}

/// A connection that is ready for mail.
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) offers: Offers,
    /// How many it carried.
    pub(super) mails: u32,
}

/// What a server says that it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offers {
    pub(super) starttls: bool,
    pub(super) pipelining: bool,
    pub(super) eight_bit: bool,
    pub(super) utf8: bool,
    pub(super) size: bool,
    pub(super) plain: bool,
    pub(super) login: bool,
}

impl Offers {
    /// The first line is the server's name.
    fn read(reply: &Reply) -> Offers {
        let mut offers = Offers::default();
        for line in reply.lines().skip(1) {
            // `AUTH=` is how some servers from before the standard write it.
            let line = line.to_ascii_uppercase().replacen("AUTH=", "AUTH ", 1);
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("STARTTLS") => offers.starttls = true,
                Some("PIPELINING") => offers.pipelining = true,
                Some("8BITMIME") => offers.eight_bit = true,
                Some("SMTPUTF8") => offers.utf8 = true,
                Some("SIZE") => offers.size = true,
                Some("AUTH") => words.for_each(|word| match word {
                    "PLAIN" => offers.plain = true,
                    "LOGIN" => offers.login = true,
                    _ => {}
                }),
                _ => {}
            }
        }
        offers
    }
}

/// Where connections lead, and how they begin.
pub(super) struct Server {
    config: SmtpConfig,
    tls: Arc<ClientConfig>,
    certified_name: ServerName<'static>,
    pub(super) resolver: Arc<dyn Resolve>,
}

impl Server {
    pub(super) fn new(config: SmtpConfig) -> Result<Server, SmtpSetupError> {
        let host = config.host.clone();
        let certified_name =
            ServerName::try_from(host.clone()).map_err(|source| SmtpSetupError::Host { host, source })?;
        let is_word = |hello: &str| {
            let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
            !hello.is_empty() && hello.len() <= 255 && hello.bytes().all(is_fit)
        };
        if let Some(hello) = config.hello.as_ref().filter(|hello| !is_word(hello)) {
            return Err(SmtpSetupError::Hello { hello: hello.escape_debug().to_string() });
        }
        if config.credentials.is_some() && config.tls == SmtpTls::Never && !config.allow_plain_auth {
            return Err(SmtpSetupError::PasswordInClear);
        }
        let tls = Arc::new(trust(config.extra_ca_pem.as_deref())?);
        Ok(Server { config, tls, certified_name, resolver: Arc::new(NameResolver::default()) })
    }

    /// Connects, and goes as far as a mail can begin.
    pub(super) async fn open(&self) -> Result<Connection, Lost> {
        let mut wire = Wire::new(self.connect().await?);
        if self.config.tls == SmtpTls::Implicit {
            wire = self.encrypt(wire).await?;
        }
        let greeting = wire.reply().await.map_err(|source| self.opening(source))?;
        if !greeting.is_success() {
            return Err(Lost::Turned(greeting));
        }
        let mut offers = self.introduce(&mut wire).await?;
        let wants_starttls = match self.config.tls {
            SmtpTls::Required => true,
            SmtpTls::IfOffered => offers.starttls,
            SmtpTls::Implicit | SmtpTls::Never => false,
        };
        if wants_starttls {
            wire = self.start_tls(wire, &offers).await?;
            // What was offered before could have come from anybody.
            offers = self.introduce(&mut wire).await?;
        }
        self.log_in(&mut wire, &offers).await?;
        Ok(Connection { wire, offers, mails: 0 })
    }

    async fn connect(&self) -> Result<TcpStream, Lost> {
        let (host, port) = (self.config.host.as_str(), self.config.port);
        let found = match host.parse::<IpAddr>() {
            Ok(address) => Ok(vec![address]),
            Err(_) => self.resolver.look_up(host).await,
        };
        let found = found.map_err(|source| Lost::Resolve { host: host.to_owned(), source })?;
        let addresses: Vec<SocketAddr> =
            found.into_iter().take(ADDRESSES_MAX).map(|address| SocketAddr::new(address, port)).collect();
        let Some((last, others)) = addresses.split_last() else {
            return Err(Lost::NoAddress { host: host.to_owned() });
        };
        for address in others {
            if let Ok(stream) = connect_to(*address, ADDRESS_TIMEOUT).await {
                return Ok(stream);
            }
        }
        connect_to(*last, LAST_ADDRESS_TIMEOUT).await
    }

    async fn introduce(&self, wire: &mut Wire) -> Result<Offers, Lost> {
        let own = wire.own_literal().map_err(|source| self.opening(source.into()))?;
        let hello = self.config.hello.as_ref().unwrap_or(&own);
        let reply = wire.say(format!("EHLO {hello}\r\n").as_bytes()).await.map_err(|source| self.opening(source))?;
        match reply.is_success() {
            true => Ok(Offers::read(&reply)),
            false => Err(Lost::Turned(reply)),
        }
    }

    async fn start_tls(&self, mut wire: Wire, offers: &Offers) -> Result<Wire, Lost> {
        if !offers.starttls {
            return Err(Lost::NoTls);
        }
        let reply = wire.say(b"STARTTLS\r\n").await.map_err(|source| self.opening(source))?;
        match () {
            _ if reply.code == CLOSING => Err(Lost::Turned(reply)),
            _ if !reply.is_success() => Err(Lost::TlsRefused(reply)),
            _ if !wire.is_quiet() => Err(Lost::TlsInjected),
            _ => self.encrypt(wire).await,
        }
    }

    async fn encrypt(&self, wire: Wire) -> Result<Wire, Lost> {
        let encrypted = wire.encrypt(Arc::clone(&self.tls), self.certified_name.clone()).await;
        encrypted.map_err(|source| Lost::Tls { host: self.config.host.clone(), source })
    }

    async fn log_in(&self, wire: &mut Wire, offers: &Offers) -> Result<(), Lost> {
        let Some((user, password)) = &self.config.credentials else { return Ok(()) };
        if !wire.is_encrypted() && !self.config.allow_plain_auth {
            return Err(Lost::PasswordInClear);
        }
        let password = password.reveal();
        let lines = match (offers.plain, offers.login) {
            (true, _) => vec![format!("AUTH PLAIN {}\r\n", BASE64.encode(format!("\0{user}\0{password}")))],
            (false, true) => {
                let encoded = |text: &str| format!("{}\r\n", BASE64.encode(text));
                vec!["AUTH LOGIN\r\n".to_owned(), encoded(user), encoded(password)]
            }
            (false, false) => return Err(Lost::NoLogin),
        };
        let (last, questions) = lines.split_last().expect("each way has a last line");
        for line in questions {
            let reply = wire.say(line.as_bytes()).await.map_err(|source| self.opening(source))?;
            if reply.code != 334 {
                return Err(refused_login(reply));
            }
        }
        let reply = wire.say(last.as_bytes()).await.map_err(|source| self.opening(source))?;
        match reply.is_success() {
            true => Ok(()),
            false => Err(refused_login(reply)),
        }
    }

    fn opening(&self, source: WireError) -> Lost {
        Lost::Opening { host: self.config.host.clone(), port: self.config.port, source }
    }
}

/// A server that has to leave in the middle of a login has nothing against the password.
fn refused_login(reply: Reply) -> Lost {
    match reply.code {
        CLOSING => Lost::Turned(reply),
        _ => Lost::Login(reply),
    }
}

async fn connect_to(address: SocketAddr, limit: Duration) -> Result<TcpStream, Lost> {
    let lost = |lost: Lost| {
        tracing::debug!(%address, errorReason = %lost, "No connection to a mail server");
        lost
    };
    let stream = timeout(limit, TcpStream::connect(address)).await.map_err(|_| lost(Lost::Unreachable))?;
    let connected = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    connected.map_err(|source| lost(Lost::Connect { source }))
}

/// Whom a handshake believes: the public roots, and who else is named.
fn trust(extra_ca_pem: Option<&[u8]>) -> Result<ClientConfig, SmtpSetupError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = extra_ca_pem {
        let public = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(SmtpSetupError::Pem)?).map_err(SmtpSetupError::Certificate)?;
        }
        if roots.len() == public {
            return Err(SmtpSetupError::NoCertificate);
        }
    }
    // Named here rather than installed for the process: that choice belongs to the binary.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(SmtpSetupError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
