//! A little Amazon: signs messages as SNS does, and serves the certificate and the confirmation over HTTP.
//! Invariant: what it signs is written out here by hand, so that the reader cannot be wrong in the same way.
//! Never: uses its key, which anybody can read beside this file, for anything but these tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use entrega::mail::sns::{Message, Sns, SnsConfig, SnsError};
use entrega_call::Clock;
use entrega_call::{AddressFilter, Client, ClientConfig};
use entrega_core::time::Time;
use http_body_util::Full;
use hyper::Response;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, date_time_ymd};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use x509_parser::der_parser::parse_der;
use x509_parser::num_bigint::BigUint;

use crate::http_server::serve;

pub const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:mail-feedback";
pub const OTHER_TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:mail-feedback-2";
pub const NOW: &str = "2026-01-31T09:30:00.000Z";

const KEY: &str = include_str!("signing-key.pem");
/// What PKCS #1 writes before a digest to say what made it.
const SHA1_PREFIX: &[u8] = b"\x30\x21\x30\x09\x06\x05\x2b\x0e\x03\x02\x1a\x05\x00\x04\x14";
const SHA256_PREFIX: &[u8] = b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20";

/// An answer to a path: status and body.
type Answers = Arc<Mutex<Vec<(&'static str, u16, Bytes)>>>;

pub struct Amazon {
    pub address: SocketAddr,
    pub clock: Clock,
    hits: Arc<Mutex<Vec<String>>>,
    answers: Answers,
}

impl Amazon {
    /// Serves a certificate at `/good.pem`, one that has expired at `/old.pem`, one of tomorrow at `/new.pem`, and a
    /// confirmation at `/confirm`. At `/hang.pem` it never answers.
    pub async fn start() -> Amazon {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let certificates =
            [("/good.pem", 2020, 2040), ("/old.pem", 2020, 2026), ("/new.pem", 2027, 2040), ("/good2.pem", 2020, 2040)];
        let mut answers: Vec<_> =
            certificates.map(|(path, from, until)| (path, 200, certificate(from, until))).to_vec();
        answers.push(("/confirm", 200, Bytes::from_static(b"<ConfirmSubscriptionResponse/>")));
        let amazon = Amazon {
            address: listener.local_addr().unwrap(),
            clock: Clock::manual(NOW.parse().unwrap()),
            hits: Arc::default(),
            answers: Arc::new(Mutex::new(answers)),
        };
        answer_all(listener, Arc::clone(&amazon.hits), Arc::clone(&amazon.answers));
        amazon
    }

    /// From now on the answer to this path.
    pub fn answer(&self, path: &'static str, status: u16, body: impl Into<Bytes>) {
        self.answers.lock().insert(0, (path, status, body.into()));
    }

    /// Takes the last such answer back.
    pub fn forget_answer(&self) {
        self.answers.lock().remove(0);
    }

    /// The paths that were asked for.
    pub fn hits(&self) -> Vec<String> {
        self.hits.lock().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A reader that trusts this Amazon.
    pub fn sns(&self) -> Sns {
        self.sns_of(vec![self.address.to_string()])
    }

    pub fn sns_of(&self, certificate_hosts: Vec<String>) -> Sns {
        let networks = vec!["127.0.0.0/8".parse().unwrap()];
        let filter = AddressFilter { allow_http: true, allow_networks: networks };
        let client = Client::new(ClientConfig { filter, ..ClientConfig::default() }).unwrap();
        let config = SnsConfig { topics: vec![TOPIC.into(), OTHER_TOPIC.into()], certificate_hosts };
        Sns::new(config, client, self.clock.clone()).unwrap()
    }

    pub async fn read(&self, sns: &Sns, message: &Value) -> Result<Message, SnsError> {
        self.read_bytes(sns, message.to_string().as_bytes()).await
    }

    pub async fn read_bytes(&self, sns: &Sns, body: &[u8]) -> Result<Message, SnsError> {
        let deadline = self.clock.instant(self.clock.now() + Duration::from_secs(10));
        sns.read(body, deadline).await
    }

    /// An unsigned notification with this text inside.
    pub fn notification(&self, text: &str) -> Value {
        json!({
            "Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "TopicArn": TOPIC,
            "Subject": "Amazon SES Email Event Notification", "Message": text, "Timestamp": NOW,
            "SigningCertURL": self.url("/good.pem"), "UnsubscribeURL": self.url("/unsubscribe"),
        })
    }

    /// An unsigned message about the subscription itself.
    pub fn handshake(&self, kind: &str) -> Value {
        json!({
            "Type": kind, "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b", "TopicArn": TOPIC, "Token": "2336412f37",
            "Message": "You have chosen to subscribe.\nTo confirm, visit the URL.", "Timestamp": NOW,
            "SubscribeURL": self.url("/confirm?Action=ConfirmSubscription&Token=2336412f37"),
            "SigningCertURL": self.url("/good.pem"),
        })
    }
}

fn answer_all(listener: TcpListener, hits: Arc<Mutex<Vec<String>>>, answers: Answers) {
    serve(listener, move |request| {
        let path = request.uri().path();
        hits.lock().push(request.uri().path_and_query().unwrap().to_string());
        let known = answers.lock().iter().find(|(known, ..)| *known == path).cloned();
        let (_, status, body) = known.unwrap_or(("", 403, Bytes::new()));
        let is_hanging = path == "/hang.pem";
        async move {
            if is_hanging {
                std::future::pending::<()>().await;
            }
            Response::builder().status(status).header("location", "/good.pem").body(Full::new(body))
        }
    });
}

fn certificate(from: i32, until: i32) -> Bytes {
    let key = KeyPair::from_pkcs8_pem_and_sign_algo(KEY, &PKCS_RSA_SHA256).unwrap();
    let mut params = CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params.self_signed(&key).unwrap().pem().into()
}

/// Signs a message as this version of SNS does.
pub fn signed(mut message: Value, version: &str) -> Value {
    let names: &[&str] = match message["Type"].as_str().unwrap() {
        "Notification" => &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
        _ => &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
    };
    let present = names.iter().filter_map(|name| Some((name, message.get(name)?.as_str()?)));
    let text: String = present.map(|(name, value)| format!("{name}\n{value}\n")).collect();
    message["Signature"] = STANDARD.encode(sign(version, text.as_bytes())).into();
    message["SignatureVersion"] = version.into();
    message
}

/// RSASSA-PKCS1-v1_5 (RFC 8017, 8.2.1) in the open: `ring` makes no signatures with SHA-1.
fn sign(version: &str, text: &[u8]) -> Vec<u8> {
    let (prefix, algorithm) = match version {
        "1" => (SHA1_PREFIX, &SHA1_FOR_LEGACY_USE_ONLY),
        _ => (SHA256_PREFIX, &SHA256),
    };
    let (modulus, exponent) = private_key();
    let digest_info = [prefix, digest(algorithm, text).as_ref()].concat();
    let padding = vec![0xff; 256 - 3 - digest_info.len()];
    let encoded = [&[0, 1][..], &padding, &[0], &digest_info].concat();
    let signature = BigUint::from_bytes_be(&encoded).modpow(&exponent, &modulus).to_bytes_be();
    [vec![0; 256 - signature.len()], signature].concat()
}

/// The modulus and the private exponent.
fn private_key() -> (BigUint, BigUint) {
    let base64: String = KEY.lines().filter(|line| !line.starts_with('-')).collect();
    let pkcs8 = STANDARD.decode(base64).unwrap();
    let (_, outer) = parse_der(&pkcs8).unwrap();
    let (_, inner) = parse_der(outer.as_sequence().unwrap()[2].as_slice().unwrap()).unwrap();
    let number = |at: usize| inner.as_sequence().unwrap()[at].as_biguint().unwrap();
    (number(1), number(3))
}

/// So many seconds from [`NOW`], as SNS writes it.
pub fn moment(seconds: i64) -> String {
    let now: Time = NOW.parse().unwrap();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { (now - distance).to_string() } else { (now + distance).to_string() }
}
