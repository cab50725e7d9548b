//! The envelope: what SNS wraps around a message.
//! Invariant: no member but `Message` holds a line break. The signed text has a line per name and value, so two
//! different envelopes could share one signature otherwise.
//! Never: believes any of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use entrega_core::time::Time;
use serde::Deserialize;

use super::BODY_BYTES_MAX;
use super::error::SnsError;

/// A message as it came, in shape but not yet checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) kind: Kind,
    pub(super) message_id: String,
    pub(super) topic_arn: String,
    pub(super) message: String,
    pub(super) timestamp: Time,
    /// As SNS wrote it: that is what is signed.
    pub(super) timestamp_text: String,
    pub(super) version: Version,
    pub(super) signature: Vec<u8>,
    pub(super) certificate_url: String,
}

/// What it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Notification { subject: Option<String> },
    SubscriptionConfirmation(Handshake),
    UnsubscribeConfirmation(Handshake),
}

/// What a message about the subscription itself holds beside the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    pub(super) token: String,
    pub(super) subscribe_url: String,
}

/// How the text is hashed before it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Sha1,
    Sha256,
}

/// Every member by its name. All may be missing, so that the error can name the one that is.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Members {
    r#type: Option<String>,
    message_id: Option<String>,
    topic_arn: Option<String>,
    subject: Option<String>,
    message: Option<String>,
    timestamp: Option<String>,
    signature_version: Option<String>,
    signature: Option<String>,
    #[serde(rename = "SigningCertURL")]
    certificate_url: Option<String>,
    token: Option<String>,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
}

impl Envelope {
    /// Reads the body of a request.
    pub(super) fn read(body: &[u8]) -> Result<Envelope, SnsError> {
        if body.len() > BODY_BYTES_MAX {
            return Err(SnsError::TooLarge { bytes: body.len() });
        }
        let members: Members = serde_json::from_slice(body).map_err(|source| SnsError::Malformed { source })?;
        let kind = line("Type", members.r#type)?;
        let handshake = || {
            let subscribe_url = line("SubscribeURL", members.subscribe_url)?;
            Ok::<_, SnsError>(Handshake { token: line("Token", members.token)?, subscribe_url })
        };
        let kind = match kind.as_str() {
            "Notification" => Kind::Notification {
                subject: members.subject.map(|subject| line("Subject", Some(subject))).transpose()?,
            },
            "SubscriptionConfirmation" => Kind::SubscriptionConfirmation(handshake()?),
            "UnsubscribeConfirmation" => Kind::UnsubscribeConfirmation(handshake()?),
            _ => {
                let wanted = "Notification, SubscriptionConfirmation or UnsubscribeConfirmation";
                return Err(SnsError::Field { field: "Type", wanted });
            }
        };
        let timestamp_text = line("Timestamp", members.timestamp)?;
        Ok(Envelope {
            kind,
            message_id: line("MessageId", members.message_id)?,
            topic_arn: line("TopicArn", members.topic_arn)?,
            message: members.message.ok_or(SnsError::Missing { field: "Message" })?,
            timestamp: read_timestamp(&timestamp_text)?,
            timestamp_text,
            version: read_version(&line("SignatureVersion", members.signature_version)?)?,
            signature: read_signature(&line("Signature", members.signature)?)?,
            certificate_url: line("SigningCertURL", members.certificate_url)?,
        })
    }
}

/// A member that must be there, on one line.
fn line(field: &'static str, value: Option<String>) -> Result<String, SnsError> {
    let value = value.ok_or(SnsError::Missing { field })?;
    let is_line = !value.is_empty() && !value.contains(['\n', '\r']);
    if is_line { Ok(value) } else { Err(SnsError::Field { field, wanted: "one line of text" }) }
}

fn read_timestamp(text: &str) -> Result<Time, SnsError> {
    text.parse().map_err(|_| SnsError::Field { field: "Timestamp", wanted: "a time like 2026-01-31T09:30:00.000Z" })
}

fn read_version(text: &str) -> Result<Version, SnsError> {
    match text {
        "1" => Ok(Version::Sha1),
        "2" => Ok(Version::Sha256),
        _ => Err(SnsError::Field { field: "SignatureVersion", wanted: "1 or 2" }),
    }
}

fn read_signature(text: &str) -> Result<Vec<u8>, SnsError> {
    STANDARD.decode(text).map_err(|_| SnsError::Field { field: "Signature", wanted: "base64" })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn members(kind: &str) -> Value {
        json!({
            "Type": kind, "MessageId": "m-1", "TopicArn": "arn", "Subject": "s", "Message": "two\nlines",
            "Timestamp": "2026-01-31T09:30:00.000Z", "SignatureVersion": "2", "Signature": "AAEC",
            "SigningCertURL": "https://example.com/x.pem", "Token": "t", "SubscribeURL": "https://example.com/",
            "UnsubscribeURL": "https://example.com/",
        })
    }

    fn read(members: &Value) -> Result<Envelope, SnsError> {
        Envelope::read(members.to_string().as_bytes())
    }

    #[test]
    fn every_type_is_read_with_what_belongs_to_it() {
        let handshake = Handshake { token: "t".into(), subscribe_url: "https://example.com/".into() };
        let subject = Some("s".to_owned());
        for (name, kind) in [
            ("Notification", Kind::Notification { subject }),
            ("SubscriptionConfirmation", Kind::SubscriptionConfirmation(handshake.clone())),
            ("UnsubscribeConfirmation", Kind::UnsubscribeConfirmation(handshake)),
        ] {
            let envelope = read(&members(name)).unwrap();
            assert_eq!((envelope.kind, envelope.message.as_str()), (kind, "two\nlines"));
            assert_eq!((envelope.version, envelope.signature), (Version::Sha256, vec![0, 1, 2]));
            assert_eq!(envelope.timestamp.to_string(), envelope.timestamp_text);
        }
    }

    #[test]
    fn a_member_that_is_missing_empty_or_has_a_line_break_is_named() {
        let always = ["Type", "MessageId", "TopicArn", "Timestamp", "SignatureVersion", "Signature", "SigningCertURL"];
        let handshake = ["Token", "SubscribeURL"];
        for (kind, fields) in [
            ("Notification", &always[..]),
            ("SubscriptionConfirmation", &[&always[..], &handshake[..]].concat()),
            ("UnsubscribeConfirmation", &handshake),
        ] {
            for field in fields {
                let mut without = members(kind);
                without.as_object_mut().unwrap().remove(*field);
                let refused = read(&without);
                assert!(matches!(&refused, Err(SnsError::Missing { field: named }) if named == field), "{refused:?}");
                for bad in ["", "a\nb", "a\rb"] {
                    let mut broken = members(kind);
                    broken[*field] = bad.into();
                    let refused = read(&broken);
                    assert!(
                        matches!(&refused, Err(SnsError::Field { field: named, .. }) if named == field),
                        "{refused:?}"
                    );
                }
            }
        }
        let mut broken = members("Notification");
        broken["Subject"] = "a\nb".into();
        assert!(matches!(read(&broken), Err(SnsError::Field { field: "Subject", .. })));
    }

    #[test]
    fn values_that_sns_does_not_send_are_named() {
        for (field, value) in [
            ("Type", "notification"),
            ("Timestamp", "yesterday"),
            ("SignatureVersion", "3"),
            ("SignatureVersion", "01"),
            ("Signature", "not base64!"),
        ] {
            let mut broken = members("Notification");
            broken[field] = value.into();
            let refused = read(&broken);
            assert!(matches!(&refused, Err(SnsError::Field { field: named, .. }) if *named == field), "{refused:?}");
        }
    }

    #[test]
    fn garbage_is_refused_as_such() {
        let twice = br#"{"Type":"Notification","Type":"UnsubscribeConfirmation"}"#;
        for body in [&b""[..], b"{", b"null", b"7", b"\"x\"", b"\xff\xfe", br#"{"Type":7}"#, b"[[[[", twice] {
            let refused = Envelope::read(body);
            assert!(matches!(refused, Err(SnsError::Malformed { .. })), "{body:?}: {refused:?}");
        }
        let refused = Envelope::read(&vec![b' '; BODY_BYTES_MAX + 1]);
        assert!(matches!(refused, Err(SnsError::TooLarge { bytes }) if bytes == BODY_BYTES_MAX + 1));
    }
}
