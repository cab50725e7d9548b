//! What becomes of a mail that SES does not take, or of which nobody knows.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use entrega::mail::ses::{RECIPIENTS_MAX, SesConfig, SesTransport};
use entrega_call::Client;
use entrega_call::Clock;
use entrega_core::classify::Verdict;
use entrega_core::dialect::Dialect;
use entrega_core::mail::{FailureCode, MailRefusal, Mailed, Recipient};
use entrega_core::outcome::Protocol;

use super::letter::{Letter, answered, config, transport, unreached};
use entrega_testkit::responder::{Responder, Script, answer, taken};

const TWO: [&str; 2] = ["ana@example.org", "bea@example.org"];

/// What the rules make of a refusal.
fn judged(refusal: MailRefusal) -> (Verdict, Option<FailureCode>) {
    let recipients = vec![Recipient::refused(TWO[0], refusal)];
    let (protocol, transport) = (Protocol::Ses, "main".to_owned());
    let mut mailed = Mailed { protocol, transport, message_id: None, ambiguous: false, recipients };
    mailed.judge(&Dialect::Mail.rules());
    (mailed.verdict(), mailed.failure_code())
}

/// Status line, `x-amzn-ErrorType`, body; then the status, the code, what the rules say, and the words to be kept.
type Row = (&'static str, Option<&'static str>, &'static str, u16, &'static str, Verdict, FailureCode, &'static str);

#[rustfmt::skip]
const ERRORS: &[Row] = &[
    ("429 Too Many Requests", Some("TooManyRequestsException:http://internal.amazon.com/coral/com.amazonaws.sesv2/"),
        r#"{"message":"Maximum sending rate exceeded."}"#,
        429, "TooManyRequestsException", Verdict::Retry, FailureCode::SesThrottle, "Maximum sending rate exceeded."),
    ("400 Bad Request", Some("ThrottlingException"), r#"{"message":"Rate exceeded"}"#,
        400, "ThrottlingException", Verdict::Retry, FailureCode::SesThrottle, "Rate exceeded"),
    ("400 Bad Request", Some("LimitExceededException"), r#"{"message":"Too many instances"}"#,
        400, "LimitExceededException", Verdict::Retry, FailureCode::SesThrottle, "Too many instances"),
    ("503 Service Unavailable", Some("ServiceUnavailable"), r#"{"message":null}"#,
        503, "ServiceUnavailable", Verdict::Retry, FailureCode::SesError, "Service Unavailable"),
    ("503 Service Unavailable", None, "<html><body><b>Http/1.1 Service Unavailable</b></body> </html>",
        503, "http_503", Verdict::Retry, FailureCode::SesError, "Service Unavailable"),
    ("500 Internal Server Error", Some("InternalFailure"), "{}",
        500, "InternalFailure", Verdict::Retry, FailureCode::SesError, "Internal Server Error"),
    ("400 Bad Request", Some("MailFromDomainNotVerifiedException"),
        r#"{"message":"Mail-From domain is not verified: bounce.example.com"}"#,
        400, "MailFromDomainNotVerifiedException", Verdict::Permanent, FailureCode::SesError,
        "Mail-From domain is not verified: bounce.example.com"),
    ("400 Bad Request", Some("MessageRejected"), r#"{"message":"Email address is not verified."}"#,
        400, "MessageRejected", Verdict::Permanent, FailureCode::InvalidContent, "Email address is not verified."),
    ("400 Bad Request", None, r#"{"__type":"com.amazonaws.sesv2#AccountSuspendedException","Message":"Suspended"}"#,
        400, "AccountSuspendedException", Verdict::Retry, FailureCode::SesError, "Suspended"),
    ("403 Forbidden", Some("SignatureDoesNotMatch"), r#"{"message":"Signature expired: 20261115T120000Z"}"#,
        403, "SignatureDoesNotMatch", Verdict::Retry, FailureCode::SesError, "Signature expired: 20261115T120000Z"),
    ("413 Payload Too Large", None, "",
        413, "http_413", Verdict::Permanent, FailureCode::SesError, "Payload Too Large"),
];

#[tokio::test]
async fn an_error_of_ses_keeps_its_name_and_holds_for_everybody() {
    let script = ERRORS.iter().map(|(line, error_type, body, ..)| answer(line, *error_type, body)).collect();
    let ses = Responder::start(script).await;
    let transport = transport(config(&ses.url()));
    for (line, error_type, _, status, code, verdict, failure_code, words) in ERRORS {
        let about = format!("{line} {error_type:?}");
        let (refusals, ambiguous) = answered(Letter::of("acme").send(&transport, &TWO).await);
        assert_eq!((refusals.len(), ambiguous), (2, false), "{about}");
        assert_eq!(refusals[0], refusals[1], "{about}");
        let refusal = refusals.into_iter().next().flatten().expect(&about);
        let found = (refusal.status, refusal.code.as_str(), refusal.message.as_str());
        assert_eq!(found, (Some(*status), *code, *words), "{about}");
        assert_eq!(judged(refusal), (*verdict, Some(*failure_code)), "{about}");
    }
}

/// A mail of which nobody knows: tried again, and marked.
async fn assert_ambiguous(script: Script, limit: Duration, code: &str) {
    let ses = Responder::start(vec![script]).await;
    let sent = Letter::of("acme").send_within(&transport(config(&ses.url())), &TWO, limit).await;
    let (refusals, ambiguous) = answered(sent);
    assert_eq!((refusals.len(), ambiguous, ses.asked().len()), (2, true, 1));
    for refusal in refusals.into_iter().map(Option::unwrap) {
        assert_eq!((refusal.status, refusal.code.as_str()), (None, code), "{refusal:?}");
        assert_eq!(judged(refusal).0, Verdict::Retry);
    }
}

#[tokio::test]
async fn a_connection_lost_after_the_request_leaves_it_open_whether_the_mail_was_taken() {
    let patience = Duration::from_secs(30);
    assert_ambiguous(Script::Bytes(String::new()), patience, "aborted").await;
    let Script::Bytes(whole) = taken("0102-1") else { unreachable!() };
    assert_ambiguous(Script::Bytes(whole[..whole.len() - 4].to_owned()), patience, "aborted").await;
    assert_ambiguous(Script::Bytes("SSH-2.0-OpenSSH_9.2\r\n".into()), patience, "aborted").await;
}

#[tokio::test]
async fn silence_until_the_deadline_leaves_it_open_whether_the_mail_was_taken() {
    assert_ambiguous(Script::Silence, Duration::from_millis(400), "timeout").await;
}

#[tokio::test]
async fn a_200_from_something_that_is_not_ses_is_no_mail_sent() {
    let page = answer("200 OK", None, "<html>Please log in to the hotel's network</html>");
    assert_ambiguous(page, Duration::from_secs(30), "aborted").await;
}

#[tokio::test]
async fn a_mail_that_cannot_have_left_may_go_another_way() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let refusal = unreached(Letter::of("acme").send(&transport(config(&format!("http://{closed}"))), &TWO).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "connect"), "{refusal:?}");

    let refusal = unreached(Letter::of("acme").send(&transport(config("http://ses.invalid")), &TWO).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "resolve"), "{refusal:?}");
}

#[tokio::test]
async fn a_server_that_goes_away_between_two_calls_leaves_the_second_half_to_the_next_attempt() {
    let ses = Responder::start(vec![taken("0102-1")]).await;
    let sent = Letter::of("acme").send(&transport(config(&ses.url())), &[TWO[0]; RECIPIENTS_MAX + 1]).await;
    let (refusals, ambiguous) = answered(sent);
    let codes: Vec<_> = refusals.iter().map(|refusal| refusal.as_ref().map(|refusal| refusal.code.as_str())).collect();
    assert_eq!(codes, [vec![None; RECIPIENTS_MAX], vec![Some("connect")]].concat());
    assert!(!ambiguous);
}

#[tokio::test]
async fn a_server_without_tls_gets_nothing_over_https() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let hang_up = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
    let refusal = unreached(Letter::of("acme").send(&transport(config(&endpoint)), &TWO).await);
    assert_eq!((refusal.status, refusal.code.as_str()), (None, "tls"), "{refusal:?}");
    hang_up.await.unwrap();
}

#[tokio::test]
async fn a_private_address_under_the_public_name_is_not_called_and_the_way_out_is_named() {
    let private = config("https://10.0.0.7");
    let public = SesConfig { endpoint: None, ..private.clone() };
    let strict = SesTransport::new("main", private, Client::new(public.client_config()).unwrap(), Clock::system());
    let refusal = unreached(Letter::of("acme").send(&strict, &TWO).await);
    assert_eq!(judged(refusal.clone()).0, Verdict::Retry, "{refusal:?}");
    assert!(refusal.code == "connect" && refusal.message.contains("name it as `endpoint`"), "{refusal:?}");
}
