//! Messages of SNS, signed with a real key, against a server on loopback that stands for Amazon's.

use std::pin::pin;
use std::time::Duration;

use entrega::mail::sns::{
    BODY_BYTES_MAX, CertificateProblem, ConfirmProblem, LinkProblem, Message, SesEvent, SnsError,
};
use entrega_core::id::JobId;
use entrega_core::time::Time;
use entrega_testkit::amazon::{Amazon, NOW, OTHER_TOPIC, TOPIC, moment, signed};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

const VERSIONS: [&str; 2] = ["1", "2"];

fn bounce() -> (JobId, String) {
    let id = JobId::from_parts(Time::from_millis(1_770_000_000_000), 7).of_mail();
    let recipients = json!([{"emailAddress": "a@example.com", "diagnosticCode": "smtp; 550 5.1.1 who?"}]);
    let text = json!({
        "eventType": "Bounce", "bounce": {"bounceType": "Permanent", "bouncedRecipients": recipients},
        "mail": {"messageId": "ses-1", "tags": {"outboxId": [id.to_string()], "tenant": ["m2"]}},
    });
    (id, text.to_string())
}

fn with(mut message: Value, field: &str, value: impl Into<Value>) -> Value {
    message[field] = value.into();
    message
}

fn without(mut message: Value, field: &str) -> Value {
    message.as_object_mut().unwrap().remove(field);
    message
}

#[tokio::test]
async fn a_signed_bounce_says_whose_mail_came_back_and_why() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let (id, text) = bounce();
    for version in VERSIONS {
        for message in [amazon.notification(&text), without(amazon.notification(&text), "Subject")] {
            let read = amazon.read(&sns, &signed(message, version)).await.unwrap();
            let Message::Notification(notification) = read else { panic!("{read:?}") };
            assert_eq!(notification.message_id, "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324");
            let (job, tenant) = notification.mail.unwrap();
            assert_eq!((job, tenant.as_str()), (id, "m2"));
            assert_eq!(notification.ses_message_id.as_deref(), Some("ses-1"));
            let recipients = vec![("a@example.com".to_owned(), "Permanent: smtp; 550 5.1.1 who?".to_owned())];
            assert_eq!(notification.kind, SesEvent::Bounce { permanent: true, recipients });
        }
    }
}

#[tokio::test]
async fn what_is_signed_but_not_from_ses_is_other() {
    let amazon = Amazon::start().await;
    let message = signed(amazon.notification("Hello,\nworld"), "2");
    assert_eq!(amazon.read(&amazon.sns(), &message).await.unwrap(), Message::Other { topic: TOPIC.into() });
    let broken = signed(amazon.notification(r#"{"eventType":"Bounce"}"#), "2");
    let refused = amazon.read(&amazon.sns(), &broken).await;
    assert!(matches!(refused, Err(SnsError::Notification { .. })), "{refused:?}");
}

#[tokio::test]
async fn one_changed_byte_in_any_signed_field_is_refused() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let url = |path| amazon.url(path);
    let notification: [(&str, String); 5] = [
        ("Message", bounce().1.replace("a@example.com", "b@example.com")),
        ("MessageId", "32b80b92-fdea-4c2c-8f9d-bdfb0c7bf324".into()),
        ("Subject", "Bmazon SES Email Event Notification".into()),
        ("Timestamp", NOW.replace("00.000", "00.001")),
        ("TopicArn", OTHER_TOPIC.into()),
    ];
    let handshake: [(&str, String); 6] = [
        ("Message", "You have chosen to subscribe.\nTo confirm, visit the URL!".into()),
        ("MessageId", "265545c9-2a5c-472c-8df2-7ff2be2b3b1b".into()),
        ("SubscribeURL", url("/confirm?Action=ConfirmSubscription&Token=3336412f37")),
        ("Timestamp", NOW.replace("00.000", "00.001")),
        ("Token", "3336412f37".into()),
        ("TopicArn", OTHER_TOPIC.into()),
    ];
    for version in VERSIONS {
        for (message, changes) in [
            (signed(amazon.notification(&bounce().1), version), &notification[..]),
            (signed(amazon.handshake("SubscriptionConfirmation"), version), &handshake),
            (signed(amazon.handshake("UnsubscribeConfirmation"), version), &handshake),
        ] {
            assert!(amazon.read(&sns, &message).await.is_ok());
            let hits = amazon.hits().len();
            for (field, value) in changes {
                let refused = amazon.read(&sns, &with(message.clone(), field, value.as_str())).await;
                assert!(matches!(refused, Err(SnsError::Signature)), "{field}: {refused:?}");
            }
            assert_eq!(amazon.hits().len(), hits, "a forged message must not make us call anybody");
        }
    }
}

#[tokio::test]
async fn a_message_passed_off_as_another_kind_is_refused() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let unsubscribed = signed(amazon.handshake("UnsubscribeConfirmation"), "2");
    let notification = signed(amazon.notification("x"), "2");
    for forged in [
        with(unsubscribed.clone(), "Type", "SubscriptionConfirmation"),
        with(unsubscribed.clone(), "Type", "Notification"),
        with(notification.clone(), "SignatureVersion", "1"),
        without(notification.clone(), "Subject"),
        with(notification.clone(), "Message", "x\nMessageId\nm-2"),
        with(notification.clone(), "Signature", unsubscribed["Signature"].clone()),
        with(notification.clone(), "Signature", "AAAA"),
        with(without(notification, "Subject"), "Message", "x\nSubject\ny"),
    ] {
        let refused = amazon.read(&sns, &forged).await;
        assert!(matches!(refused, Err(SnsError::Signature)), "{refused:?}");
    }
    assert_eq!(amazon.hits(), ["/good.pem"]);
}

#[tokio::test]
async fn what_can_be_refused_without_a_certificate_fetches_none() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let good = signed(amazon.notification("x"), "2");
    let refused = amazon.read(&sns, &with(good.clone(), "TopicArn", format!("{TOPIC}-3"))).await;
    assert!(matches!(&refused, Err(SnsError::UnknownTopic { topic }) if *topic == format!("{TOPIC}-3")), "{refused:?}");
    let confirmation = with(amazon.handshake("SubscriptionConfirmation"), "TopicArn", format!("{TOPIC}-3"));
    let refused = amazon.read(&sns, &signed(confirmation, "2")).await;
    assert!(matches!(refused, Err(SnsError::UnknownTopic { .. })), "{refused:?}");
    let refused = amazon.read(&sns, &with(good.clone(), "SignatureVersion", "3")).await;
    assert!(matches!(refused, Err(SnsError::Field { field: "SignatureVersion", .. })), "{refused:?}");
    let large = with(good, "Message", "x".repeat(BODY_BYTES_MAX));
    let refused = amazon.read(&sns, &large).await;
    assert!(matches!(refused, Err(SnsError::TooLarge { .. })), "{refused:?}");
    let refused = amazon.read_bytes(&sns, b"<html>").await;
    assert!(matches!(refused, Err(SnsError::Malformed { .. })), "{refused:?}");
    assert_eq!(amazon.hits(), [""; 0]);
}

#[tokio::test]
async fn a_message_more_than_an_hour_from_now_is_refused() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    for (seconds, is_fresh) in [(-3_601, false), (-3_600, true), (0, true), (3_600, true), (3_601, false)] {
        let message = signed(with(amazon.notification("x"), "Timestamp", moment(seconds)), "2");
        let read = amazon.read(&sns, &message).await;
        match is_fresh {
            true => assert!(read.is_ok(), "{seconds}: {read:?}"),
            false => assert!(matches!(read, Err(SnsError::Timestamp { .. })), "{seconds}: {read:?}"),
        }
    }
}

#[tokio::test]
async fn a_certificate_from_elsewhere_is_not_even_fetched() {
    let amazon = Amazon::start().await;
    let message = signed(amazon.notification("x"), "2");
    let refused = amazon.read(&amazon.sns_of(Vec::new()), &message).await;
    let Err(SnsError::CertificateUrl { source: LinkProblem::Host { expected, .. }, .. }) = &refused else {
        panic!("{refused:?}");
    };
    assert_eq!(expected, "sns.us-east-1.amazonaws.com");
    let elsewhere = amazon.sns_of(vec!["localhost".into(), "127.0.0.1:1".into()]);
    assert!(matches!(amazon.read(&elsewhere, &message).await, Err(SnsError::CertificateUrl { .. })));
    assert_eq!(amazon.hits(), [""; 0]);
    let any_port = amazon.sns_of(vec!["127.0.0.1".into()]);
    assert!(amazon.read(&any_port, &message).await.is_ok());
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_refused_by_name() {
    let amazon = Amazon::start().await;
    amazon.answer("/moved.pem", 302, "");
    amazon.answer("/large.pem", 200, vec![b'x'; 17 * 1024]);
    amazon.answer("/huge.pem", 200, vec![b'x'; 1024 * 1024]);
    amazon.answer("/error.pem", 200, "<Error/>");
    let problem = async |path| {
        let message = signed(with(amazon.notification("x"), "SigningCertURL", amazon.url(path)), "2");
        match amazon.read(&amazon.sns(), &message).await {
            Err(SnsError::Certificate { url, source }) if url == amazon.url(path) => source,
            other => panic!("{path}: {other:?}"),
        }
    };
    assert!(matches!(problem("/old.pem").await, CertificateProblem::Invalid { .. }));
    assert!(matches!(problem("/new.pem").await, CertificateProblem::Invalid { .. }));
    assert!(matches!(problem("/moved.pem").await, CertificateProblem::Status { status } if status == 302));
    assert!(matches!(problem("/none.pem").await, CertificateProblem::Status { status } if status == 403));
    assert!(matches!(problem("/large.pem").await, CertificateProblem::TooLarge));
    assert!(matches!(problem("/huge.pem").await, CertificateProblem::TooLarge));
    assert!(matches!(problem("/error.pem").await, CertificateProblem::Unreadable));
    assert!(!amazon.hits().contains(&"/good.pem".to_owned()), "a redirect must not be followed");
}

#[tokio::test]
async fn a_certificate_is_fetched_once_a_day() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let message = signed(amazon.notification("x"), "2");
    let all = (0..8).map(|_| amazon.read(&sns, &message));
    assert!(futures_util::future::join_all(all).await.iter().all(Result::is_ok));
    assert_eq!(amazon.hits(), ["/good.pem"]);
    let other = signed(with(amazon.notification("x"), "SigningCertURL", amazon.url("/good2.pem")), "2");
    assert!(amazon.read(&sns, &other).await.is_ok());
    assert_eq!(amazon.hits(), ["/good.pem", "/good2.pem"]);

    amazon.clock.advance(Duration::from_secs(24 * 60 * 60 - 1));
    let later = |seconds| signed(with(amazon.notification("x"), "Timestamp", moment(seconds)), "2");
    assert!(amazon.read(&sns, &later(86_399)).await.is_ok());
    assert_eq!(amazon.hits().len(), 2);
    amazon.clock.advance(Duration::from_secs(1));
    assert!(amazon.read(&sns, &later(86_400)).await.is_ok());
    assert_eq!(amazon.hits(), ["/good.pem", "/good2.pem", "/good.pem"]);
}

#[tokio::test]
async fn a_failed_fetch_is_tried_again_with_the_next_message() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let message = signed(with(amazon.notification("x"), "SigningCertURL", amazon.url("/good2.pem")), "2");
    amazon.answer("/good2.pem", 503, "");
    let refused = amazon.read(&sns, &message).await;
    assert!(matches!(refused, Err(SnsError::Certificate { .. })), "{refused:?}");
    amazon.forget_answer();
    assert!(amazon.read(&sns, &message).await.is_ok());
}

#[tokio::test]
async fn a_fetch_that_hangs_ends_in_time_and_holds_up_nobody_whose_certificate_is_there() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let known = signed(amazon.notification("x"), "2");
    assert!(amazon.read(&sns, &known).await.is_ok());

    let hanging = signed(with(amazon.notification("x"), "SigningCertURL", amazon.url("/hang.pem")), "2").to_string();
    let hanging = async |millis| {
        let deadline = amazon.clock.instant(amazon.clock.now() + Duration::from_millis(millis));
        let refused = sns.read(hanging.as_bytes(), deadline).await;
        let Err(SnsError::Certificate { source: CertificateProblem::Call(error), .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.code(), "timeout");
    };
    let mut first = pin!(hanging(1_000));
    tokio::select! {
        biased;
        () = &mut first => panic!("the one that waits for its turn waited longer than it may"),
        () = hanging(50) => {}
    }
    tokio::select! {
        biased;
        () = &mut first => panic!("the one that is known waited for the one that hangs"),
        read = amazon.read(&sns, &known) => assert!(read.is_ok(), "{read:?}"),
    }
    first.await;
    assert_eq!(amazon.hits(), ["/good.pem", "/hang.pem"], "the second waits for its turn, in vain");
}

#[tokio::test]
async fn a_subscription_to_a_configured_topic_is_confirmed_once() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    for version in VERSIONS {
        let hits = amazon.hits().len();
        let read = amazon.read(&sns, &signed(amazon.handshake("SubscriptionConfirmation"), version)).await.unwrap();
        assert_eq!(read, Message::Confirmed { topic: TOPIC.into() });
        let confirmed = amazon.hits()[hits..].iter().filter(|path| path.starts_with("/confirm")).count();
        assert_eq!(confirmed, 1);
    }
    assert_eq!(amazon.hits()[1], "/confirm?Action=ConfirmSubscription&Token=2336412f37");
    let hits = amazon.hits().len();
    let read = amazon.read(&sns, &signed(amazon.handshake("UnsubscribeConfirmation"), "2")).await.unwrap();
    assert_eq!(read, Message::Unsubscribed { topic: TOPIC.into() });
    assert_eq!(amazon.hits().len(), hits, "who leaves is not brought back");
}

#[tokio::test]
async fn a_confirmation_that_fails_says_so() {
    let amazon = Amazon::start().await;
    let sns = amazon.sns();
    let subscribe = |url: &str| signed(with(amazon.handshake("SubscriptionConfirmation"), "SubscribeURL", url), "2");
    for status in [302, 403, 500] {
        amazon.answer("/confirm", status, "");
        let refused = amazon.read(&sns, &subscribe(&amazon.url("/confirm"))).await;
        let Err(SnsError::Confirm { source: ConfirmProblem::Status { status: answered }, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(answered, status);
    }
    let hits = amazon.hits().len();
    let refused = amazon.read(&sns, &subscribe("https://sns.us-east-1.amazonaws.com.evil.com/confirm")).await;
    assert!(matches!(refused, Err(SnsError::Confirm { source: ConfirmProblem::Url(_), .. })), "{refused:?}");
    assert_eq!(amazon.hits().len(), hits);
}

/// JSON of any shape, with the names that SNS uses among its members.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from(TOPIC)),
        Just(Value::from("Notification")),
        Just(Value::from(NOW)),
        Just(Value::from("2")),
    ];
    let name = prop_oneof![
        Just("Type".to_owned()),
        Just("TopicArn".to_owned()),
        Just("Message".to_owned()),
        Just("Timestamp".to_owned()),
        Just("SignatureVersion".to_owned()),
        any::<String>(),
    ];
    leaf.prop_recursive(4, 32, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::hash_map(name.clone(), inner, 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

#[test]
fn no_bytes_and_no_json_make_the_reader_panic_or_pass() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let amazon = runtime.block_on(Amazon::start());
    let sns = amazon.sns();
    let is_refused = |body: &[u8]| runtime.block_on(amazon.read_bytes(&sns, body)).is_err();
    let refused = |body: &[u8]| {
        prop_assert!(is_refused(body));
        Ok(())
    };
    let mut runner = TestRunner::default();
    runner.run(&prop::collection::vec(any::<u8>(), 0..512), |bytes| refused(&bytes)).unwrap();
    runner.run(&arbitrary_json(), |value| refused(value.to_string().as_bytes())).unwrap();

    // Nearer to what passes: a good message with one member replaced by anything.
    let good = signed(amazon.notification("x"), "2");
    let names = good.as_object().unwrap().keys().filter(|name| *name != "UnsubscribeURL");
    let change = (prop::sample::select(names.cloned().collect::<Vec<_>>()), arbitrary_json());
    let replaced = |(name, value): (String, Value)| {
        prop_assume!(good[&name] != value);
        refused(with(good.clone(), &name, value).to_string().as_bytes())
    };
    runner.run(&change, replaced).unwrap();
    assert!(!is_refused(good.to_string().as_bytes()), "the message must be good, or the property says nothing");
}
