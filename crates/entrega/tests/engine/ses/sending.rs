//! What SES gets: the message, its recipients, and a signature that holds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use entrega::mail::ses::{MESSAGE_BYTES_MAX, SesConfig};
use entrega::mail::transport::{Sent, Transport as _};
use entrega::secret::Secret;
use entrega_call::Clock;
use entrega_core::outcome::Protocol;
use entrega_core::time::Time;
use serde_json::json;

use super::letter::{
    FROM, Letter, all_taken, answered, config, transport, transport_at, unreached, with_another_secret,
};
use entrega_testkit::moto::{self, Moto};
use entrega_testkit::responder::{Responder, answer, taken};

#[tokio::test]
async fn a_mail_arrives_as_it_was_written_with_a_line_that_names_it() {
    if moto::is_left_out() {
        return;
    }
    let moto = Moto::start();
    moto.verify(FROM);
    let (letter, transport) = (Letter::of("acme"), transport(config(&moto.url())));
    assert_eq!((transport.name(), transport.protocol()), ("main", Protocol::Ses));
    let recipients = ["ana@example.org", "hidden@example.net"];
    let sent = letter.send(&transport, &recipients).await;
    let taken = moto.taken();
    assert_eq!(taken.len(), 1);
    assert_eq!(sent, all_taken(2, &taken[0].id));
    let written = std::str::from_utf8(&letter.message).unwrap();
    assert_eq!(taken[0].raw_data, format!("X-Entrega-Mail: {} acme\r\n{written}", letter.id));
    // The emulation adds those of the message's header to those of the call, where SES keeps to the call.
    assert_eq!(taken[0].destinations[..2], recipients);
    assert_eq!(taken[0].source, FROM);
}

#[tokio::test]
async fn a_sender_whom_ses_does_not_know_is_refused_for_everybody() {
    if moto::is_left_out() {
        return;
    }
    let moto = Moto::start();
    let sent = Letter::of("acme").send(&transport(config(&moto.url())), &["ana@example.org", "bea@example.org"]).await;
    let (refusals, ambiguous) = answered(sent);
    assert_eq!((refusals.len(), ambiguous), (2, false));
    for refusal in refusals.into_iter().map(Option::unwrap) {
        assert_eq!((refusal.status, refusal.code.as_str()), (Some(400), "MessageRejected"));
        assert_eq!(refusal.message, format!("Did not have authority to send from email {FROM}"));
    }
    assert!(moto.taken().is_empty());
}

#[tokio::test]
async fn a_signature_holds_with_the_right_secret_alone_also_for_a_lent_key() {
    if moto::is_left_out() {
        return;
    }
    let moto = Moto::start();
    moto.verify(FROM);
    let (own, lent) = (moto.make_sender(), moto.lend_key());
    moto.check_signatures();
    for credentials in [own, lent] {
        let config = SesConfig { credentials, ..config(&moto.url()) };
        let forged = with_another_secret(config.clone());
        let before = moto.taken().len();
        let (refusals, _) = answered(Letter::of("acme").send(&transport(forged), &["ana@example.org"]).await);
        let refusal = refusals[0].as_ref().expect("a forged signature is refused");
        assert_eq!((refusal.status, moto.taken().len()), (Some(403), before), "{refusal:?}");
        let (refusals, _) = answered(Letter::of("acme").send(&transport(config), &["ana@example.org"]).await);
        assert_eq!((refusals, moto.taken().len()), (vec![None], before + 1));
    }
}

#[tokio::test]
async fn a_call_names_those_who_are_left_and_nothing_that_would_change_the_message() {
    let ses = Responder::start(vec![taken("0102-1")]).await;
    let mut config = config(&ses.url());
    config.configuration_set = Some("main".into());
    config.credentials.session_token = Some(Secret::new("FwoGZXIvYXdzEXAMPLE"));
    let noon = Clock::manual(Time::from_millis(1_794_744_000_000));
    let letter = Letter::of("acme");
    let sent = letter.send(&transport_at(config, noon), &["hidden@example.net"]).await;
    assert_eq!(sent, all_taken(1, "0102-1"));

    let asked = &ses.asked()[0];
    assert!(asked.head.starts_with("POST /v2/email/outbound-emails HTTP/1.1\r\n"), "{}", asked.head);
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("x-amz-date"), Some("20261115T120000Z"));
    assert_eq!(asked.header("x-amz-security-token"), Some("FwoGZXIvYXdzEXAMPLE"));
    let scope = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261115/eu-west-1/ses/aws4_request, \
                 SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, Signature=";
    assert!(asked.header("authorization").unwrap().starts_with(scope), "{}", asked.head);

    let raw = STANDARD.decode(asked.body["Content"]["Raw"]["Data"].as_str().unwrap()).unwrap();
    let mut rest = asked.body.clone();
    rest["Content"]["Raw"]["Data"] = json!(raw.len());
    let line = format!("X-Entrega-Mail: {} acme\r\n", letter.id);
    let wanted = json!({
        "Destination": { "ToAddresses": ["hidden@example.net"] },
        "Content": { "Raw": { "Data": line.len() + letter.message.len() } },
        "ConfigurationSetName": "main",
        "EmailTags": [{ "Name": "outboxId", "Value": letter.id.to_string() }, { "Name": "tenant", "Value": "acme" }],
    });
    assert_eq!(rest, wanted);
    assert_eq!(raw, [line.as_bytes(), &letter.message].concat());
}

/// SES refuses the whole mail for a dot in a tag, and tenants may have one in their name.
#[tokio::test]
async fn a_tenant_whose_name_no_tag_can_hold_sends_without_it() {
    let ses = Responder::start(vec![taken("0102-1")]).await;
    let letter = Letter::of("acme.eu");
    assert_eq!(letter.send(&transport(config(&ses.url())), &["ana@example.org"]).await, all_taken(1, "0102-1"));
    let body = &ses.asked()[0].body;
    assert_eq!(body["EmailTags"], json!([{ "Name": "outboxId", "Value": letter.id.to_string() }]));
    assert_eq!(body.get("ConfigurationSetName"), None);
    let raw = STANDARD.decode(body["Content"]["Raw"]["Data"].as_str().unwrap()).unwrap();
    assert!(raw.starts_with(format!("X-Entrega-Mail: {} acme.eu\r\n", letter.id).as_bytes()));
}

#[tokio::test]
async fn more_recipients_than_one_call_takes_go_in_several_and_each_has_the_answer_of_its_own() {
    let rejected = answer("400 Bad Request", Some("BadRequestException"), r#"{"message":"Local address is empty"}"#);
    let ses = Responder::start(vec![taken("0102-1"), rejected, taken("0102-3")]).await;
    let addresses: Vec<String> = (0..101).map(|number| format!("r{number}@example.org")).collect();
    let recipients: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let sent = Letter::of("acme").send(&transport(config(&ses.url())), &recipients).await;

    let asked: Vec<Vec<String>> = ses.asked().iter().map(|asked| asked.recipients()).collect();
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [50, 50, 1]);
    assert_eq!(asked.concat(), addresses);
    let Sent::Answered { refusals, message_id, ambiguous } = sent else { panic!("{sent:?}") };
    assert_eq!((refusals.len(), message_id.as_deref(), ambiguous), (101, Some("0102-1"), false));
    let refused = |refusal: &Option<_>| refusal.is_some();
    assert!(!refusals[..50].iter().any(refused) && refusals[50..100].iter().all(refused) && refusals[100].is_none());
}

#[tokio::test]
async fn a_message_that_is_too_large_for_ses_is_left_to_another_transport() {
    let ses = Responder::start(Vec::new()).await;
    let letter = Letter { message: vec![b'x'; MESSAGE_BYTES_MAX + 1].into(), ..Letter::of("acme") };
    let refusal = unreached(letter.send(&transport(config(&ses.url())), &["ana@example.org"]).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "too_large"));
    assert!(refusal.message.contains("40000001 bytes"), "{}", refusal.message);
}
