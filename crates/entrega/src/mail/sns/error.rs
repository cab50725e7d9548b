//! Errors: what a message of SNS, or the configuration for it, can be refused for.
//! Invariant: what a stranger wrote is quoted shortened.
//! Never: carries the content of a message.

use entrega_call::CallError;
use entrega_core::time::Time;
use http::StatusCode;
use thiserror::Error;

use super::certificate::CertificateProblem;
use super::{AGE_MAX, BODY_BYTES_MAX};

/// How much of a stranger's text is quoted.
const EXCERPT_CHARS_MAX: usize = 200;

/// Why a link in a message is not followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkProblem {
    /// Not a URL.
    #[error("it is not a URL")]
    Unreadable,
    /// A user name or password before the host.
    #[error("it carries user info")]
    UserInfo,
    /// Neither the host of the topic's region nor a configured one.
    #[error("its host is {host}; for this topic it must be {expected}, or one of `certificate_hosts`")]
    Host {
        /// Host and port as given, or the beginning of them.
        host: String,
        /// What would be right.
        expected: String,
    },
    /// Amazon is spoken to by https only.
    #[error("it must begin with https://")]
    NotHttps,
    /// Not the path of a certificate.
    #[error("its path must end in .pem, without a query")]
    NotPem,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SnsConfigError {
    /// Not the ARN of a topic.
    #[error(
        "topics: '{arn}' is not the ARN of an SNS topic; one looks like arn:aws:sns:us-east-1:123456789012:mail-feedback"
    )]
    Topic {
        /// As given.
        arn: String,
    },
    /// Not a host.
    #[error("certificate_hosts: '{host}' is not a host; write `host` or `host:port`, without a scheme or path")]
    CertificateHost {
        /// As given.
        host: String,
    },
}

/// Why a message was not taken.
#[derive(Debug, Error)]
pub enum SnsError {
    /// Larger than any message of SNS that is about a mail.
    #[error("the body has {bytes} bytes; at most {BODY_BYTES_MAX} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Not JSON, or a member has another type than SNS gives it.
    #[error("the body is not the JSON that SNS sends: look at line {}, column {}", source.line(), source.column())]
    Malformed {
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// A member that this type of message must have is not there.
    #[error("`{field}` is missing; SNS sends it unless raw message delivery is on: switch that off")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A member is not what SNS would send.
    #[error("`{field}` must be {wanted}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What would be right.
        wanted: &'static str,
    },
    /// Nobody listens to this topic.
    #[error("`TopicArn` is {topic}, which is not among the configured topics")]
    UnknownTopic {
        /// Its ARN, or the beginning of it.
        topic: String,
    },
    /// Too old, or from the future: perhaps a replay.
    #[error("`Timestamp` is {timestamp}, more than {} minutes from now ({now})", AGE_MAX.as_secs() / 60)]
    Timestamp {
        /// When it was sent, by its own account.
        timestamp: Time,
        /// What time it is.
        now: Time,
    },
    /// The certificate lies elsewhere than at Amazon.
    #[error("`SigningCertURL` ({url}) is refused: {source}")]
    CertificateUrl {
        /// As given, or the beginning of it.
        url: String,
        /// What is wrong with it.
        #[source]
        source: LinkProblem,
    },
    /// There is no certificate that could be used.
    #[error("the certificate at {url} cannot be used: {source}")]
    Certificate {
        /// Where it is.
        url: String,
        /// What is wrong with it.
        #[source]
        source: CertificateProblem,
    },
    /// The message is not what was signed.
    #[error("the signature does not fit the message")]
    Signature,
    /// The subscription could not be confirmed; SNS offers it again, or can be made to.
    #[error("the subscription to {topic} could not be confirmed: {source}")]
    Confirm {
        /// The topic's ARN.
        topic: String,
        /// Why.
        #[source]
        source: ConfirmProblem,
    },
    /// It calls itself a notification of SES, and is not what SES sends.
    #[error(
        "`Message` is not a notification that SES would send: look at line {}, column {} of it", source.line(),
        source.column()
    )]
    Notification {
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
}

/// Why a subscription could not be confirmed.
#[derive(Debug, Error)]
pub enum ConfirmProblem {
    /// `SubscribeURL` leads elsewhere than to Amazon.
    #[error("`SubscribeURL` is refused: {0}")]
    Url(#[source] LinkProblem),
    /// There was no answer.
    #[error("{}", .0.reason())]
    Call(#[source] CallError),
    /// The answer was no success.
    #[error("SNS answered {status}")]
    Status {
        /// What it was.
        status: StatusCode,
    },
}

/// The beginning of a stranger's text, fit for a line of a log.
pub(super) fn excerpt(text: &str) -> String {
    clip(text, EXCERPT_CHARS_MAX)
}

/// At most so many characters of a text, on one line.
pub(super) fn clip(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
