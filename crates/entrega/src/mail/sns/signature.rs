//! Signatures: the text that SNS signs, and whether a signature fits it.
//! Invariant: the text of two different envelopes differs.
//! Never: fetches or judges the certificate.

use ring::signature::{
    RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RsaParameters, UnparsedPublicKey,
};

use super::certificate::SigningKey;
use super::envelope::{Envelope, Handshake, Kind, Version};

/// What is signed: names and values on lines of their own, in the order of the names.
pub(super) fn signed_text(envelope: &Envelope) -> String {
    let Envelope { message, message_id, topic_arn, timestamp_text, .. } = envelope;
    match &envelope.kind {
        Kind::Notification { subject } => lines(&[
            ("Message", Some(message)),
            ("MessageId", Some(message_id)),
            ("Subject", subject.as_deref()),
            ("Timestamp", Some(timestamp_text)),
            ("TopicArn", Some(topic_arn)),
            ("Type", Some("Notification")),
        ]),
        Kind::SubscriptionConfirmation(handshake) => handshake_text(envelope, handshake, "SubscriptionConfirmation"),
        Kind::UnsubscribeConfirmation(handshake) => handshake_text(envelope, handshake, "UnsubscribeConfirmation"),
    }
}

fn handshake_text(envelope: &Envelope, handshake: &Handshake, kind: &str) -> String {
    lines(&[
        ("Message", Some(&envelope.message)),
        ("MessageId", Some(&envelope.message_id)),
        ("SubscribeURL", Some(&handshake.subscribe_url)),
        ("Timestamp", Some(&envelope.timestamp_text)),
        ("Token", Some(&handshake.token)),
        ("TopicArn", Some(&envelope.topic_arn)),
        ("Type", Some(kind)),
    ])
}

fn lines(members: &[(&str, Option<&str>)]) -> String {
    let present = members.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    present.fold(String::new(), |text, (name, value)| text + name + "\n" + value + "\n")
}

/// Whether `signature` was made over `text` with the private half of `key`.
pub(super) fn verify(version: Version, key: &SigningKey, text: &[u8], signature: &[u8]) -> bool {
    let parameters: &'static RsaParameters = match version {
        // SHA-1 collides. But of two texts that a forger makes collide both end in the topic that Amazon put there,
        // and that is the forger's own.
        Version::Sha1 => &RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
        Version::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
    };
    UnparsedPublicKey::new(parameters, key.rsa_public_key()).verify(text, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use entrega_core::time::Time;
    use proptest::prelude::*;

    use super::*;

    /// Lines made of the very words that could blur the border between two members.
    fn line() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["Message", "MessageId", "Subject", "Timestamp", "Token", "SubscribeURL", "x"])
            .prop_map(str::to_owned)
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let handshake = || (line(), line()).prop_map(|(token, subscribe_url)| Handshake { token, subscribe_url });
        prop_oneof![
            prop::option::of(line()).prop_map(|subject| Kind::Notification { subject }),
            handshake().prop_map(Kind::SubscriptionConfirmation),
            handshake().prop_map(Kind::UnsubscribeConfirmation),
        ]
    }

    fn envelope() -> impl Strategy<Value = Envelope> {
        let message = prop::collection::vec(line(), 1..6).prop_map(|lines| lines.join("\n"));
        (kind(), message, line(), line(), line()).prop_map(|(kind, message, message_id, timestamp_text, topic_arn)| {
            Envelope {
                kind,
                message_id,
                topic_arn,
                message,
                timestamp: Time::ZERO,
                timestamp_text,
                version: Version::Sha256,
                signature: Vec::new(),
                certificate_url: String::new(),
            }
        })
    }

    /// The members of an envelope that could have given this text, read from its end.
    fn read_back(text: &str) -> Option<(Kind, String, String, String, String)> {
        let mut rest = text.strip_suffix('\n')?;
        let mut take = |name: &str| {
            let (before, value) = rest.rsplit_once('\n')?;
            rest = before.strip_suffix(name)?.strip_suffix('\n')?;
            Some(value.to_owned())
        };
        let kind = take("Type")?;
        let topic_arn = take("TopicArn")?;
        let handshake = |token, subscribe_url| Handshake { token, subscribe_url };
        let (kind, timestamp) = match kind.as_str() {
            "Notification" => {
                let timestamp = take("Timestamp")?;
                (Kind::Notification { subject: take("Subject") }, timestamp)
            }
            kind => {
                let (token, timestamp) = (take("Token")?, take("Timestamp")?);
                let handshake = handshake(token, take("SubscribeURL")?);
                let is_new = kind == "SubscriptionConfirmation";
                let kind = if is_new {
                    Kind::SubscriptionConfirmation(handshake)
                } else {
                    Kind::UnsubscribeConfirmation(handshake)
                };
                (kind, timestamp)
            }
        };
        let message_id = take("MessageId")?;
        let message = rest.strip_prefix("Message\n")?.to_owned();
        Some((kind, message, message_id, timestamp, topic_arn))
    }

    proptest! {
        #[test]
        fn the_signed_text_says_where_each_member_begins(envelope in envelope()) {
            let Envelope { kind, message, message_id, timestamp_text, topic_arn, .. } = envelope.clone();
            prop_assert_eq!(
                read_back(&signed_text(&envelope)),
                Some((kind, message, message_id, timestamp_text, topic_arn))
            );
        }
    }

    #[test]
    fn the_signed_text_is_the_one_that_amazon_documents() {
        let envelope = Envelope {
            kind: Kind::Notification { subject: Some("My First Message".into()) },
            message_id: "m-1".into(),
            topic_arn: "arn".into(),
            message: "Hello world!".into(),
            timestamp: Time::ZERO,
            timestamp_text: "2012-05-02T00:54:06.655Z".into(),
            version: Version::Sha1,
            signature: Vec::new(),
            certificate_url: String::new(),
        };
        let text = "Message\nHello world!\nMessageId\nm-1\nSubject\nMy First Message\n\
                    Timestamp\n2012-05-02T00:54:06.655Z\nTopicArn\narn\nType\nNotification\n";
        assert_eq!(signed_text(&envelope), text);
    }
}
