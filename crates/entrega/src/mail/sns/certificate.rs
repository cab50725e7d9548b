//! Certificates: fetches those that messages are signed with, and keeps them for a while.
//! Invariant: a key is given out only while its certificate is valid; at most 16 are kept, each for a day at most.
//! Never: judges where a certificate may come from; the link has been checked. Whom it was issued by is not looked at
//! either: that Amazon's own host served it, over TLS, is what vouches for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_call::{CallError, Client};
use entrega_core::time::Time;
use http::{StatusCode, Uri};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use x509_parser::oid_registry::OID_PKCS1_RSAENCRYPTION;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

use super::get;
use entrega_call::Clock;

const KEPT_MAX: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Amazon's have about 2 KiB.
const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;

/// Why there is no certificate that could be used.
#[derive(Debug, Error)]
pub enum CertificateProblem {
    /// It could not be fetched.
    #[error("{}", .0.reason())]
    Call(#[source] CallError),
    /// There was none.
    #[error("the answer was {status}, not 200")]
    Status {
        /// What was answered; redirects are not followed.
        status: StatusCode,
    },
    /// No certificate is that large.
    #[error("it has more than {CERTIFICATE_BYTES_MAX} bytes")]
    TooLarge,
    /// Not an X.509 certificate in PEM.
    #[error("it is not an X.509 certificate in PEM")]
    Unreadable,
    /// SNS signs with RSA.
    #[error("its key is not an RSA key")]
    NotRsa,
    /// Not valid yet, or not any more.
    #[error("it is valid from {from} until {until}, and now is {now}")]
    Invalid {
        /// The beginning of its validity.
        from: Time,
        /// The end of its validity.
        until: Time,
        /// What time it is.
        now: Time,
    },
}

/// The key of a certificate, and when it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SigningKey {
    rsa_public_key: Vec<u8>,
    from: Time,
    until: Time,
}

impl SigningKey {
    fn parse(bytes: &[u8]) -> Result<SigningKey, CertificateProblem> {
        let unreadable = || CertificateProblem::Unreadable;
        let pem = Pem::iter_from_buffer(bytes).next().and_then(Result::ok).ok_or_else(unreadable)?;
        if pem.label != "CERTIFICATE" {
            return Err(unreadable());
        }
        let certificate = pem.parse_x509().map_err(|_| unreadable())?;
        let key = certificate.public_key();
        if key.algorithm.algorithm != OID_PKCS1_RSAENCRYPTION {
            return Err(CertificateProblem::NotRsa);
        }
        let validity = certificate.validity();
        Ok(SigningKey {
            rsa_public_key: key.subject_public_key.data.to_vec(),
            from: moment(validity.not_before),
            until: moment(validity.not_after),
        })
    }

    /// The modulus and the exponent, as PKCS #1 writes them.
    pub(super) fn rsa_public_key(&self) -> &[u8] {
        &self.rsa_public_key
    }

    fn check(&self, now: Time) -> Result<(), CertificateProblem> {
        let &SigningKey { from, until, .. } = self;
        if (from..=until).contains(&now) { Ok(()) } else { Err(CertificateProblem::Invalid { from, until, now }) }
    }
}

/// Nothing was signed before the epoch, so what lies before it may as well begin there.
fn moment(time: ASN1Time) -> Time {
    Time::from_millis(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000))
}

struct CachedKey {
    key: Arc<SigningKey>,
    since: Time,
}

/// The certificates that were needed lately.
pub(super) struct Certificates {
    client: Client,
    clock: Clock,
    kept: Mutex<HashMap<String, CachedKey>>,
    /// One fetch at a time: what others wait for is often the very certificate that is on its way, and a stranger who
    /// names certificates that do not exist cannot make us call Amazon more than that.
    fetching: tokio::sync::Mutex<()>,
}

impl Certificates {
    pub(super) fn new(client: Client, clock: Clock) -> Certificates {
        Certificates { client, clock, kept: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// The key of the certificate at `link`.
    pub(super) async fn key(&self, link: &Uri, deadline: Instant) -> Result<Arc<SigningKey>, CertificateProblem> {
        let key = match self.kept(link) {
            Some(key) => key,
            None => self.fetch_once(link, deadline).await?,
        };
        key.check(self.clock.wall())?;
        Ok(key)
    }

    fn kept(&self, link: &Uri) -> Option<Arc<SigningKey>> {
        let now = self.clock.now();
        let kept = self.kept.lock();
        let fresh = kept.get(&link.to_string()).filter(|kept| now.since(kept.since) < KEPT_FOR);
        fresh.map(|kept| Arc::clone(&kept.key))
    }

    async fn fetch_once(&self, link: &Uri, deadline: Instant) -> Result<Arc<SigningKey>, CertificateProblem> {
        let turn = timeout_at(deadline, self.fetching.lock()).await;
        let _turn = turn.map_err(|_| CertificateProblem::Call(CallError::Timeout))?;
        if let Some(key) = self.kept(link) {
            return Ok(key);
        }
        let key = Arc::new(self.fetch(link, deadline).await?);
        keep(&mut self.kept.lock(), link.to_string(), CachedKey { key: Arc::clone(&key), since: self.clock.now() });
        Ok(key)
    }

    async fn fetch(&self, link: &Uri, deadline: Instant) -> Result<SigningKey, CertificateProblem> {
        let answer = self.client.call(get(link), deadline).await.map_err(CertificateProblem::Call)?;
        if answer.status != StatusCode::OK {
            return Err(CertificateProblem::Status { status: answer.status });
        }
        if answer.truncated || answer.body.len() > CERTIFICATE_BYTES_MAX {
            return Err(CertificateProblem::TooLarge);
        }
        SigningKey::parse(&answer.body)
    }
}

/// Makes room by letting go of what has been there longest.
fn keep(all: &mut HashMap<String, CachedKey>, link: String, new: CachedKey) {
    if all.len() >= KEPT_MAX && !all.contains_key(&link) {
        let oldest = all.iter().min_by_key(|(_, kept)| kept.since).map(|(link, _)| link.clone());
        oldest.and_then(|link| all.remove(&link));
    }
    all.insert(link, new);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn elliptic() -> String {
        let key = KeyPair::generate().unwrap();
        CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap().self_signed(&key).unwrap().pem()
    }

    #[test]
    fn a_certificate_without_an_rsa_key_is_refused() {
        assert!(matches!(SigningKey::parse(elliptic().as_bytes()), Err(CertificateProblem::NotRsa)));
    }

    #[test]
    fn what_is_no_certificate_is_refused() {
        let private = KeyPair::generate().unwrap().serialize_pem();
        let relabelled = elliptic().replace("CERTIFICATE", "PUBLIC KEY");
        let cut = elliptic()[..200].to_owned();
        let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
        for text in [String::new(), "<Error/>".to_owned(), private, relabelled, cut, hollow] {
            assert!(matches!(SigningKey::parse(text.as_bytes()), Err(CertificateProblem::Unreadable)), "{text}");
        }
    }

    #[test]
    fn a_full_cache_lets_the_oldest_go() {
        let key = Arc::new(SigningKey { rsa_public_key: Vec::new(), from: Time::ZERO, until: Time::NEVER });
        let mut all = HashMap::new();
        for n in 0..20 {
            let since = Time::from_millis(n);
            keep(&mut all, format!("/{n}.pem"), CachedKey { key: Arc::clone(&key), since });
            keep(&mut all, format!("/{n}.pem"), CachedKey { key: Arc::clone(&key), since });
        }
        let mut left: Vec<u64> = all.values().map(|kept| kept.since.as_millis()).collect();
        left.sort_unstable();
        assert_eq!(left, (4..20).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>, flips in prop::collection::vec((0..600_usize, any::<u8>()), 1..8)) {
            let _ = SigningKey::parse(&bytes);
            let key = KeyPair::generate().unwrap();
            let mut der = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
            for (at, byte) in flips {
                let at = at % der.len();
                der[at] = byte;
            }
            let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
            let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
            let _ = SigningKey::parse(pem.as_bytes());
        }
    }
}
