//! Amazon SNS: reads the messages by which SES tells what became of mails.
//! Invariant: nothing in a message is believed, and nothing it names is called for its sake but the certificate that
//! its topic's region vouches for, until the signature over it has been checked.
//! Never: listens, stores or suppresses anything; whoever asked does that.
//!
//! # Layout
//! In the order in which a message meets them:
//! - `envelope`: size and shape
//! - `topic`: which topics are listened to, and which hosts their messages may name
//! - `certificate`: fetches and keeps the certificates that messages are signed with
//! - `signature`: the text that is signed, and the check
//! - `notification`: what SES says inside
//! - `error`: everything that a message can be refused for

mod certificate;
mod envelope;
mod error;
mod notification;
mod signature;
mod topic;

use std::time::Duration;

use bytes::Bytes;
use entrega_call::Client;
use http::header::{HeaderValue, USER_AGENT};
use http::{Request, Uri};
use tokio::time::Instant;

pub use certificate::CertificateProblem;
pub use error::{ConfirmProblem, LinkProblem, SnsConfigError, SnsError};
pub use notification::{SesEvent, SesNotification};

use certificate::Certificates;
use entrega_call::Clock;
use envelope::{Envelope, Handshake, Kind};
use error::excerpt;
use topic::{Topic, Topics};

/// The largest message that is looked at, in bytes.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// How far a message's timestamp may be from our clock, either way. Older ones are taken for replays.
pub const AGE_MAX: Duration = Duration::from_secs(60 * 60);

static OUR_NAME: HeaderValue = HeaderValue::from_static(concat!("Entrega/", env!("CARGO_PKG_VERSION")));

/// Whom to listen to.
#[derive(Clone, Debug, Default)]
pub struct SnsConfig {
    /// The ARNs of the topics that are listened to; all others are refused.
    pub topics: Vec<String>,
    /// Hosts (`host` for any port, or `host:port`) that may serve certificates and confirmations beside Amazon's, also
    /// over plain HTTP. For emulators: whoever controls such a host can sign anything.
    pub certificate_hosts: Vec<String>,
}

/// What a message turned out to be. Its signature has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The topic asked whether we want its messages, and was told yes.
    Confirmed {
        /// Its ARN.
        topic: String,
    },
    /// The topic will send no more.
    Unsubscribed {
        /// Its ARN.
        topic: String,
    },
    /// SES says what became of a mail.
    Notification(SesNotification),
    /// Somebody else wrote to the topic.
    Other {
        /// Its ARN.
        topic: String,
    },
}

/// Reads messages of SNS.
pub struct Sns {
    topics: Topics,
    certificates: Certificates,
    client: Client,
    clock: Clock,
}

impl Sns {
    /// Listens as configured, and fetches through `client`, whose address filter applies.
    ///
    /// # Errors
    /// [`SnsConfigError`] for a topic that is no ARN of SNS, or a host that is none.
    pub fn new(config: SnsConfig, client: Client, clock: Clock) -> Result<Sns, SnsConfigError> {
        let topics = Topics::new(config)?;
        Ok(Sns { topics, certificates: Certificates::new(client.clone(), clock.clone()), client, clock })
    }

    /// Reads a message, the body of a request that claims to come from SNS. A subscription to a configured topic is
    /// confirmed on the way. Whatever must be fetched for that is fetched before `deadline`.
    ///
    /// # Errors
    /// [`SnsError`] for the first check that the message does not pass. What costs nothing is checked before anything
    /// is fetched.
    pub async fn read(&self, body: &[u8], deadline: Instant) -> Result<Message, SnsError> {
        let envelope = Envelope::read(body)?;
        let Some(topic) = self.topics.named(&envelope.topic_arn) else {
            return Err(SnsError::UnknownTopic { topic: excerpt(&envelope.topic_arn) });
        };
        self.check_age(&envelope)?;
        self.check_signature(topic, &envelope, deadline).await?;
        let topic_arn = topic.arn().to_owned();
        match &envelope.kind {
            Kind::SubscriptionConfirmation(handshake) => {
                self.confirm(topic, handshake, deadline).await?;
                Ok(Message::Confirmed { topic: topic_arn })
            }
            Kind::UnsubscribeConfirmation(_) => Ok(Message::Unsubscribed { topic: topic_arn }),
            Kind::Notification { .. } => match SesNotification::read(&envelope.message_id, &envelope.message) {
                Ok(Some(notification)) => Ok(Message::Notification(notification)),
                Ok(None) => Ok(Message::Other { topic: topic_arn }),
                Err(source) => Err(SnsError::Notification { source }),
            },
        }
    }

    fn check_age(&self, envelope: &Envelope) -> Result<(), SnsError> {
        let (now, timestamp) = (self.clock.wall(), envelope.timestamp);
        let distance = now.since(timestamp).max(timestamp.since(now));
        if distance > AGE_MAX { Err(SnsError::Timestamp { timestamp, now }) } else { Ok(()) }
    }

    async fn check_signature(&self, topic: &Topic, envelope: &Envelope, deadline: Instant) -> Result<(), SnsError> {
        let url = excerpt(&envelope.certificate_url);
        let link = self.topics.certificate_link(topic, &envelope.certificate_url);
        let link = link.map_err(|source| SnsError::CertificateUrl { url: url.clone(), source })?;
        let key = self.certificates.key(&link, deadline).await;
        let key = key.map_err(|source| SnsError::Certificate { url, source })?;
        let text = signature::signed_text(envelope);
        match signature::verify(envelope.version, &key, text.as_bytes(), &envelope.signature) {
            true => Ok(()),
            false => Err(SnsError::Signature),
        }
    }

    async fn confirm(&self, topic: &Topic, handshake: &Handshake, deadline: Instant) -> Result<(), SnsError> {
        let refused = |source| SnsError::Confirm { topic: topic.arn().to_owned(), source };
        let link = self.topics.link(topic, &handshake.subscribe_url);
        let link = link.map_err(|problem| refused(ConfirmProblem::Url(problem)))?;
        let answer = self.client.call(get(&link), deadline).await;
        match answer.map_err(|error| refused(ConfirmProblem::Call(error)))?.status {
            status if status.is_success() => Ok(()),
            status => Err(refused(ConfirmProblem::Status { status })),
        }
    }
}

fn get(link: &Uri) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = link.clone();
    request.headers_mut().insert(USER_AGENT, OUR_NAME.clone());
    request
}
